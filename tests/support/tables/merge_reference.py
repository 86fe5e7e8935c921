"""What :func:`sluice.merge.compact.compact` must give, said a row at a time: slow and obviously right.

The kernels are tested against it, those for whole rows and those for rows of which the log brought a part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]

_MERGED = {
    ("i", "i"): "i", ("i", "u"): "i", ("i", "d"): "d",
    ("u", "i"): "i", ("u", "u"): "u", ("u", "d"): "d",
    ("d", "i"): "i", ("d", "u"): "u", ("d", "d"): "d",
}  # fmt: skip


def compact_rows(
    changes: Sequence[Row], users: Sequence[str], key: Sequence[str], *, deferrable: bool = False
) -> list[Row]:
    """One dict a key (user columns, ``_op``, ``_seq``, ``_before``), unordered. ``changes`` are segment rows as dicts.

    Where some change holds a part of its columns, each row also says which are known (``_known``, a set of names); the
    others are None.
    """
    if not key:
        return _count_rows(changes, users)
    changes = sorted(changes, key=lambda c: (c["_seq"], "rk".find(c["_op"]) % 3))
    if any(change["_present"] is not None for change in changes):
        return _follow_rows(changes, users, key)
    if deferrable:
        return _hold_rows(changes, users, key)
    merged: dict[tuple[Any, ...], Row] = {}
    for change in changes:
        image = {name: change[name] for name in users}
        op, before = change["_op"], change["_before"]
        read = image if op == "r" else None
        if op in {"d", "k"}:
            op, before = "d", image
        elif op == "r" or (op == "u" and any(before[name] != change[name] for name in key)):
            op, before = "i", None
        elif op == "i":
            before = None
        identity = tuple(change[name] for name in key)
        earlier = merged.get(identity)
        if earlier is not None:
            op, before = _MERGED[earlier["_op"], op], earlier["_before"] or earlier["_read"]
            read = None
        merged[identity] = {**image, "_op": op, "_seq": change["_seq"], "_before": before, "_read": read}
    return [{name: value for name, value in row.items() if name != "_read"} for row in merged.values()]


@dataclass
class _Held:
    """The images at a key, in the order in which they came, and the one that was there before the batch.

    ``read``: a dump read it, and nothing has happened to it since.
    """

    images: list[Row] = field(default_factory=list)
    before: Row | None = None
    read: bool = False
    updated_only: bool = True


def _hold_rows(changes: Sequence[Row], users: Sequence[str], key: Sequence[str]) -> list[Row]:
    """Follow the images of a deferrable key: one leaves whether or not another has come before it."""
    held: dict[tuple[Any, ...], _Held] = {}
    for change in changes:
        image = {name: change[name] for name in users}
        place = held.setdefault(tuple(change[name] for name in key), _Held())
        if change["_op"] == "r":
            held[tuple(change[name] for name in key)] = _Held([image], image, read=True, updated_only=False)
            continue
        moved = change["_op"] == "u" and any(change["_before"][name] != change[name] for name in key)
        place.read, place.updated_only = False, place.updated_only and change["_op"] == "u" and not moved
        gone = (
            image if change["_op"] in {"d", "k"} else change["_before"] if change["_op"] == "u" and not moved else None
        )
        if gone is not None:
            if gone in place.images:
                place.images.remove(gone)
            else:
                place.before = gone
        if change["_op"] in {"i", "u"}:
            place.images.append(image)
    found = []
    for place in held.values():
        before = None if place.read else place.before
        if place.images:
            op = "u" if place.updated_only else "i"
            found.append({**place.images[-1], "_op": op, "_before": before})
        elif before is not None:
            found.append({**before, "_op": "d", "_before": before})
    return found


@dataclass
class _Followed:
    """A row on its way through the batch.

    ``origin``: its key before the batch, and ``before`` what was told of it then; None: inserted in it.
    """

    origin: tuple[Any, ...] | None
    before: Row | None
    seq: int = 0
    values: Row = field(default_factory=dict)


def _follow_rows(changes: Sequence[Row], users: Sequence[str], key: Sequence[str]) -> list[Row]:
    """A row keeps what is known of it while its key changes, so rows are followed, not keys."""
    here: dict[tuple[Any, ...], _Followed] = {}
    last: dict[tuple[Any, ...], Row] = {}
    existed: set[tuple[Any, ...]] = set()
    first: dict[tuple[Any, ...], Row] = {}
    leaving: dict[int, _Followed] = {}
    for change in changes:
        place = tuple(change[name] for name in key)
        op, last[place] = change["_op"], change
        first.setdefault(place, change)
        known = {name: change[name] for name in _known(change, users)}
        if op in {"i", "r"}:
            row = _Followed(None, None)
        elif op == "u" and any(change["_before"][name] != change[name] for name in key):
            row = leaving.pop(change["_seq"], _Followed(None, None))
        elif place in here:
            row = here[place]
        else:
            row = _Followed(place, change["_before"] if op == "u" else {name: change[name] for name in users})
            existed.add(place)
        row.seq = change["_seq"]
        if op in {"d", "k"}:
            here.pop(place, None)
            if op == "k":
                leaving[row.seq] = row
        else:
            row.values |= known
            here[place] = row
    found = []
    for place, change in last.items():
        if place in here:
            row = here[place]
            op, seq, values, before = "u" if row.origin == place else "i", row.seq, row.values, row.before
            if row.origin is None:
                before = _replaced(first[place], change, users, key)
        else:
            op, seq, values = "d", change["_seq"], {name: change[name] for name in _known(change, users)}
            before = {name: change[name] for name in users} if place in existed else None
        image = {name: values.get(name) for name in users}
        found.append({**image, "_op": op, "_seq": seq, "_before": before, "_known": set(values)})
    return found


def _replaced(first: Row, last: Row, users: Sequence[str], key: Sequence[str]) -> Row | None:
    """Of the row whose place a new one takes, by the first change of the key: what a dump read, or the key alone; None:
    there was none.
    """
    if first["_op"] == "r":
        return {name: first[name] for name in users} if first is not last else None
    stayed = first["_op"] == "u" and all(first["_before"][name] == first[name] for name in key)
    return (
        {name: first[name] if name in key else None for name in users} if stayed or first["_op"] in {"d", "k"} else None
    )


def _known(change: Row, users: Sequence[str]) -> list[str]:
    """Names of the columns that a change's image holds: bits of the first half of ``_present``, least significant
    first.
    """
    present = change["_present"]
    return [name for i, name in enumerate(users) if present is None or present[i >> 3] >> (i & 7) & 1]


def _count_rows(changes: Sequence[Row], users: Sequence[str]) -> list[Row]:
    counts: Counter[tuple[Any, ...]] = Counter()
    for change in changes:
        image = tuple(change[name] for name in users)
        if change["_op"] in {"d", "k"}:
            counts[image] -= 1
            continue
        counts[image] += 1
        if change["_op"] == "u":
            counts[tuple(change["_before"][name] for name in users)] -= 1
    rows: list[Row] = []
    for image, net in counts.items():
        row = dict(zip(users, image, strict=True))
        merged = {**row, "_op": "i", "_before": None} if net > 0 else {**row, "_op": "d", "_before": row}
        rows += [merged] * abs(net)
    return rows
