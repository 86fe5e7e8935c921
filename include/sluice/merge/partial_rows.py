"""Merging rows of which the log brought a part of the columns (``binlog_row_image`` MINIMAL, NOBLOB): values are
combined column by column.

Changes are followed by row, not by key: a row keeps its identity when its key changes, so that what is known of it goes
along. The result has, for each row that there is at the end,

* ``i`` with all columns: it was inserted in the batch (at any key), whatever was there before is replaced;
* ``u`` with the columns that are known: the target has the others;
* ``i`` with ``_before`` under another key and missing columns: the row has moved here from there, where the target has
  its other columns;
* ``i`` with ``_before`` under its own key: the target holds a row there already, whose unique values have to be free
  first. ``_before`` is what a dump read of it, if that is the first thing that the batch says of the key; else nothing
  but the key is told;

and ``d`` for every key that was touched and holds no row at the end. ``_present`` tells the columns that are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.merge import op_arrays
from sluice.merge.column_presence import bitmaps, masks
from sluice.merge.group_codes import Identity, dense, group_codes
from sluice.model.layouts import told
from sluice.model.tables import member

INSERT, UPDATE, DELETE, MOVED, READ = range(5)
_Rows = npt.NDArray[np.int64]


def combine(
    changes: pa.Table,
    ops: _Rows,
    users: Sequence[str],
    key: Sequence[str],
    identity: Identity | None,
    arrives: npt.NDArray[np.bool_],
) -> pa.Table:
    """Merge CHANGE_ROWS with ``_present``, sorted by ``_seq``, like :func:`sluice.merge.compact.compact`.

    ``ops``: codes as there; ``arrives``: the row is an update that comes to another key. The result has the column
    ``_present``, too.
    """
    codes, count = dense(group_codes(changes, key, identity))
    follow = _Follower(count)
    for row, (op, code, moved, seq) in enumerate(
        zip(ops.tolist(), codes.tolist(), arrives.tolist(), changes["_seq"].to_pylist(), strict=True)
    ):
        follow.see(row, op, code, moved, seq)
    after, before = masks(changes["_present"], len(users))
    return _Result(changes, ops, users, key, arrives=arrives, after=after, before=before, follow=follow).table()


class _Follower:
    """The row that each change belongs to, and where each row ends. Identities are numbers in order of appearance."""

    def __init__(self, keys: int) -> None:
        self.of_row: list[int] = []
        self.origin: list[int] = []  # key the row had before the batch, -1 if it was inserted in it
        self.first: list[int] = []
        self.here: list[int] = [-1] * keys
        self.first_of_key: list[int] = [-1] * keys
        self.last_of_key: list[int] = [-1] * keys
        self._moving: dict[int, int] = {}

    def _new(self, row: int, origin: int) -> int:
        self.origin.append(origin)
        self.first.append(row)
        return len(self.origin) - 1

    def see(self, row: int, op: int, code: int, arrives: bool, seq: int) -> None:
        if self.first_of_key[code] < 0:
            self.first_of_key[code] = row
        self.last_of_key[code] = row
        current = self.here[code]
        if op in {INSERT, READ}:
            current = self._new(row, -1)
            self.here[code] = current
        elif op == UPDATE and arrives:
            moving = self._moving.pop(seq, -1)
            current = moving if moving >= 0 else self._new(row, -1)
            self.here[code] = current
        else:
            if current < 0:
                current = self._new(row, code)
            self.here[code] = current if op == UPDATE else -1
            if op == MOVED:
                self._moving[seq] = current
        self.of_row.append(current)


class _Result:
    def __init__(
        self,
        changes: pa.Table,
        ops: _Rows,
        users: Sequence[str],
        key: Sequence[str],
        *,
        arrives: npt.NDArray[np.bool_],
        after: Any,
        before: Any,
        follow: _Follower,
    ) -> None:
        self.changes, self.ops, self.users, self.after, self.before = changes, ops, users, after, before
        self.key, self.arrives = set(key), arrives
        self.follow = follow
        self.identity = np.array(follow.of_row, np.int64)
        self.count = len(follow.origin)

    def table(self) -> pa.Table:
        follow, changes = self.follow, self.changes
        live = [code for code, identity in enumerate(follow.here) if identity >= 0]
        vacant = [code for code, identity in enumerate(follow.here) if identity < 0]
        owners = np.array([follow.here[code] for code in live], np.int64)
        rows = np.arange(len(self.identity))
        last = np.full(self.count, -1, np.int64)
        last[self.identity] = rows
        last_changes = last[owners] if len(owners) else np.zeros(0, np.int64)
        removed = np.array([follow.last_of_key[code] for code in vacant], np.int64)
        columns, presence = [], []
        for i, name in enumerate(self.users):
            valued = (self.ops != DELETE) & (self.ops != MOVED) & self.after[:, i]
            newest = np.full(self.count, -1, np.int64)
            newest[self.identity[valued]] = rows[valued]
            source = np.concatenate([newest[owners], removed]) if len(owners) else removed
            columns.append(changes[name].combine_chunks().take(pa.array(source, mask=source < 0)))
            have = (
                np.concatenate([newest[owners] >= 0, self.after[removed, i]]) if len(owners) else self.after[removed, i]
            )
            presence.append(have)
        origin = np.array(follow.origin, np.int64)
        first = np.array(follow.first, np.int64)
        inserted = origin[owners] < 0 if len(owners) else np.zeros(0, bool)
        moved = ~inserted & (origin[owners] != np.array(live, np.int64)) if len(owners) else np.zeros(0, bool)
        final = np.concatenate([np.where(inserted | moved, 0, 1), np.full(len(removed), 2)])
        picked = np.concatenate([last_changes, removed]).astype(np.int64)
        begun = np.concatenate([first[owners] if len(owners) else last_changes, removed]).astype(np.int64)
        existed = np.concatenate([~inserted, self._existed(vacant)])
        return pa.table({
            **dict(zip(self.users, columns, strict=True)),
            "_op": op_arrays.merged().take(pa.array(final)),
            "_seq": changes["_seq"].take(pa.array(picked)),
            "_commit_ts": changes["_commit_ts"].take(pa.array(picked)),
            **{name: changes[name].take(pa.array(picked)) for name in told(changes.schema)},
            "_before": self._before(begun, existed, picked, self._replaces(live, inserted, len(removed))),
            "_present": bitmaps(np.column_stack(presence) if presence else np.ones((len(picked), 0), bool)),
        }).cast(_schema(changes.schema, self.users))

    def _existed(self, keys: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Tell for each key of ``gone`` whether there was a row of it before the batch."""
        origins = set(self.follow.origin)
        return np.array([code in origins for code in keys], bool)

    def _replaces(self, live: Sequence[int], inserted: npt.NDArray[np.bool_], removed_count: int) -> _Rows:
        """Return for each result row the first change of its key if it replaces a row that a target may hold, else
        -1.
        """
        first_changes = np.full(len(live) + removed_count, -1, np.int64)
        for place, (code, new) in enumerate(zip(live, inserted.tolist(), strict=True)):
            first, last = self.follow.first_of_key[code], self.follow.last_of_key[code]
            op = self.ops[first]
            existed = op in {DELETE, MOVED} or (op == UPDATE and not self.arrives[first])
            if new and (existed or (op == READ and first != last)):
                first_changes[place] = first
        return first_changes

    def _before(self, begun: _Rows, existed: npt.NDArray[np.bool_], picked: _Rows, replaces: _Rows) -> pa.StructArray:
        """Return what the first change of each row says of the row before the batch.

        A row that another one replaces has its key there, and what a dump read of it.
        """
        stored = self.changes["_before"].combine_chunks()
        is_update = self.ops[begun] == UPDATE
        replaced = replaces >= 0
        read = replaced & (self.ops[replaces] == READ)
        children = []
        for child in stored.type:
            every = self.changes[child.name].combine_chunks()
            old = member(stored, child.name).take(pa.array(begun, mask=~(is_update & existed)))
            own = every.take(pa.array(begun, mask=~(~is_update & existed)))
            from_row = picked if child.name in self.key else replaces
            is_known = replaced if child.name in self.key else read
            children.append(pc.coalesce(old, own, every.take(pa.array(from_row, mask=~is_known))))
        known_mask = existed | replaced
        return pa.StructArray.from_arrays(children, fields=list(stored.type), mask=pa.array(~known_mask))


def _schema(schema: pa.Schema, users: Sequence[str]) -> pa.Schema:
    names = (*users, "_op", "_seq", "_commit_ts", *told(schema), "_before", "_present")
    return pa.schema([schema.field(name) for name in names])
