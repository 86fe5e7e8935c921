"""What :func:`sluice.merge.compact.compact` must give, said a row at a time: slow and obviously right. The kernel is tested against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

_MERGED = {
    ("i", "i"): "i", ("i", "u"): "i", ("i", "d"): "d",
    ("u", "i"): "i", ("u", "u"): "u", ("u", "d"): "d",
    ("d", "i"): "i", ("d", "u"): "u", ("d", "d"): "d",
}  # fmt: skip


def compact_rows(changes: Sequence[Row], users: Sequence[str], key: Sequence[str]) -> list[Row]:
    """One dict a key (user columns, ``_op``, ``_seq``, ``_before``), unordered. ``changes`` are segment rows as dicts."""
    if not key:
        return _count_rows(changes, users)
    merged: dict[tuple[Any, ...], Row] = {}
    for change in sorted(changes, key=lambda c: (c["_seq"], "rk".find(c["_op"]) % 3)):
        image = {name: change[name] for name in users}
        op, before = change["_op"], change["_before"]
        if op in {"d", "k"}:
            op, before = "d", image
        elif op == "r" or (op == "u" and any(before[name] != change[name] for name in key)):
            op, before = "i", None
        elif op == "i":
            before = None
        identity = tuple(change[name] for name in key)
        earlier = merged.get(identity)
        if earlier is not None:
            op, before = _MERGED[earlier["_op"], op], earlier["_before"]
        merged[identity] = {**image, "_op": op, "_seq": change["_seq"], "_before": before}
    return list(merged.values())


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
