"""Decoding of row changes in an arena to Arrow tables with the layout of segment files, in (bucket, sequence) order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import DecodeError, UnsupportedType
from sluice.model.row_ops import OP_UPDATE
from sluice.model.tables import META_FIELDS, TableSchema
from sluice.sources import arrow_buffers
from sluice.sources.postgresql.decoder import scan_kernel as sc
from sluice.sources.postgresql.decoder import tuple_kernel
from sluice.sources.postgresql.decoder.table_plan import TablePlan
from sluice.sources.postgresql.position import lsn_text
from sluice.sources.postgresql.values.decode import decode

Bucketer = Callable[[TableSchema, Sequence[pa.Array], int], "np.ndarray[Any, Any]"]
"""(definition, key columns, rows) -> uint8 bucket of each row."""

_OP_NAMES = arrow_buffers.strings(["i", "u", "d", "k"])
_OP_KEY_MOVED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMessages:
    """Row changes of one arena, ready to decode: values only, nothing shared with the scanner.

    Attributes:
        arena: uint8. rows: int64[ROW_FIELDS, changes].
        txn_first: ordinal of the first transaction described; txns: int64[TXN_FIELDS, transactions].
        file: the ``_file`` of all rows. plans: by slot.
    """

    arena: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]
    txn_first: int
    txns: np.ndarray[Any, Any]
    file: str
    plans: list[TablePlan | None]


def decode_arena(messages: RowMessages, bucketer: Bucketer) -> Iterator[tuple[TableSchema, pa.Table]]:
    """Yield a table (of ``schema.arrow_schema``, sorted by ``_bucket``, ``_seq``) for every definition met.

    Raises DecodeError, UnsupportedType.
    """
    slots = messages.rows[sc.R_SLOT]
    order = np.argsort(slots, kind="stable")
    borders = np.flatnonzero(np.diff(slots[order])) + 1
    for group in np.split(order, borders):
        if len(group):
            plan = messages.plans[int(slots[group[0]])]
            assert plan is not None
            yield plan.schema, _TableDecoder(messages, plan, group, bucketer).table()


class _TableDecoder:
    def __init__(
        self, messages: RowMessages, plan: TablePlan, changes: np.ndarray[Any, Any], bucketer: Bucketer
    ) -> None:
        self.messages = messages
        self.plan = plan
        self.arena = messages.arena
        self.bucketer = bucketer
        self.rows = messages.rows if len(changes) == messages.rows.shape[1] else messages.rows[:, changes]
        self.op = self.rows[sc.R_OP].astype(np.int8)
        shape = (len(plan.identity), len(self.op))
        self.starts, self.lengths = np.zeros(shape, np.int64), np.empty(shape, np.int32)
        self.old_starts, self.old_lengths = np.zeros(shape, np.int64), np.empty(shape, np.int32)
        bad = tuple_kernel.walk_rows(
            self.arena,
            np.ascontiguousarray(self.rows[sc.R_AT]),
            np.ascontiguousarray(self.rows[sc.R_END]),
            self.op,
            plan.identity,
            self.starts,
            self.lengths,
            self.old_starts,
            self.old_lengths,
        )
        if bad >= 0:
            raise DecodeError(
                f"a row of {plan.schema.table} does not fit the definition that the log sent for it",
                where=self._where(int(bad)),
                hint="report it; `sluice seek` to the position behind it leaves it out, and "
                "`sluice verify PIPELINE --repair` makes both sides equal",
            )

    def table(self) -> pa.Table:
        plan, schema = self.plan, self.plan.schema
        event, has_before = self._key_moves()
        count = len(event)
        keys = [self._column(int(c), self.starts, self.lengths, event) for c in plan.key]
        buckets = self.bucketer(schema, keys, count)
        seq = self.rows[sc.R_SEQ][event]
        order = np.arange(count)
        if len(plan.key):
            order = np.lexsort((seq, buckets)) if self.moved else np.argsort(buckets, kind="stable")
        event, has_before, self.op, buckets = event[order], has_before[order], self.op[order], buckets[order]
        main = [self._column(c, self.starts, self.lengths, event) for c in plan.captured]
        fields = list(plan.arrow_schema)[: len(main)]
        if has_before.any():
            lengths = np.where(has_before, self.old_lengths[:, event], tuple_kernel.IS_ABSENT).astype(np.int32)
            starts = self.old_starts[:, event]
            children = [self._values(c, starts[c], lengths[c]) for c in plan.captured]
            mask = None if has_before.all() else arrow_buffers.booleans(~has_before)
            before = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
        else:
            before = pa.nulls(count, pa.struct(fields))
        meta = self._meta(event, has_before, buckets)
        return pa.Table.from_arrays([*main, *meta, before], schema=plan.arrow_schema)

    def _key_moves(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the change that each row belongs to, and whether it has a row before it.

        An update of a key has a second row, under the old key: its values are those before, and it follows the others.
        """
        count = len(self.op)
        event, has_before = np.arange(count), self.op == OP_UPDATE
        self.moved = 0
        if not len(self.plan.key) or not has_before.any():
            return event, has_before
        marks = np.zeros(count, np.uint8)
        self.moved = tuple_kernel.keys_moved(
            self.arena, self.plan.key, self.starts, self.lengths, self.old_starts, self.old_lengths, self.op, marks
        )
        if not self.moved:
            return event, has_before
        moved = np.flatnonzero(marks)
        self.starts = np.concatenate([self.starts, self.old_starts[:, moved]], axis=1)
        self.lengths = np.concatenate([self.lengths, self.old_lengths[:, moved]], axis=1)
        self.old_starts = np.concatenate([self.old_starts, self.old_starts[:, moved]], axis=1)
        self.old_lengths = np.concatenate([self.old_lengths, self.old_lengths[:, moved]], axis=1)
        self.rows = np.concatenate([self.rows, self.rows[:, moved]], axis=1)
        self.op = np.concatenate([self.op, np.full(len(moved), _OP_KEY_MOVED, np.int8)])
        return np.arange(count + len(moved)), np.concatenate([has_before, np.zeros(len(moved), bool)])

    # -- values --------------------------------------------------------------------------------------------------------
    def _column(
        self, column: int, starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], event: np.ndarray[Any, Any]
    ) -> pa.Array:
        return self._values(column, starts[column][event], lengths[column][event])

    def _values(self, column: int, starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> pa.Array:
        described = self.plan.schema.columns[self.plan.captured.index(column)]
        try:
            return decode(described, self.arena, starts, lengths)
        except (DecodeError, UnsupportedType) as error:
            error.where = f"{self.plan.schema.table}.{described.name}, {self._where(0)}"
            raise

    def _where(self, row: int) -> str:
        txn = int(self.rows[sc.R_TXN, row]) - self.messages.txn_first
        return f"the transaction committed at {lsn_text(int(self.messages.txns[sc.T_LSN, txn]))}"

    # -- the metadata columns ------------------------------------------------------------------------------------------
    def _meta(
        self, event: np.ndarray[Any, Any], has_before: np.ndarray[Any, Any], buckets: np.ndarray[Any, Any]
    ) -> list[pa.Array]:
        rows, messages = self.rows[:, event], self.messages
        count = len(event)
        txn = rows[sc.R_TXN]
        local = txn - messages.txn_first
        first, last = int(local.min()), int(local.max())
        names = arrow_buffers.strings([str(xid) for xid in messages.txns[sc.T_XID, first : last + 1].tolist()])
        values = {
            "_op": _OP_NAMES.take(arrow_buffers.numbers(self.op)),
            "_seq": arrow_buffers.numbers(rows[sc.R_SEQ].astype(np.uint64)),
            "_file": pa.repeat(arrow_buffers.strings([messages.file])[0], count),
            "_offset": arrow_buffers.numbers(messages.txns[sc.T_LSN][local].astype(np.uint64)),
            "_row": arrow_buffers.numbers(rows[sc.R_NUMBER].astype(np.uint32)),
            "_commit_ts": arrow_buffers.numbers(messages.txns[sc.T_TIME][local], pa.timestamp("us", tz="UTC")),
            "_gtid": names.take(arrow_buffers.numbers(local - first)),
            "_txn": arrow_buffers.numbers(txn.astype(np.uint64)),
            "_origin": arrow_buffers.numbers(rows[sc.R_ORIGIN].astype(np.uint32)),
            "_bucket": arrow_buffers.numbers(np.asarray(buckets, np.uint8)),
            "_present": self._present(event, has_before),
        }
        return [values[f.name] for f in META_FIELDS]

    def _present(self, event: np.ndarray[Any, Any], has_before: np.ndarray[Any, Any]) -> pa.Array:
        """Return bitmaps of the known columns of each row, and after them of its before image.

        A bitmap is null where nothing is missing.
        """
        captured = np.array(self.plan.captured)[:, None]
        after = self.lengths[captured, event] != tuple_kernel.IS_ABSENT
        before = (self.old_lengths[captured, event] != tuple_kernel.IS_ABSENT) | ~has_before[None, :]
        partial = ~(after & before).all(axis=0)
        if not partial.any():
            return pa.nulls(len(event), pa.binary())
        maps = [np.packbits(part[:, partial], axis=0, bitorder="little") for part in (after, before)]
        data = np.ascontiguousarray(np.concatenate(maps).T)
        ends = np.zeros(len(event) + 1, np.int32)
        np.cumsum(partial * np.int32(data.shape[1]), out=ends[1:])
        validity = pa.py_buffer(np.packbits(partial, bitorder="little"))
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(event), buffers, null_count=int((~partial).sum()))
