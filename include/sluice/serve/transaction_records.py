"""The changes of a batch in the order of their commits over all tables, with a record where a transaction begins and
one where it ends.

A stream has the rows of a batch table by table. A reader that asks for transactions gets them in one order: rows of all
tables go through :class:`sluice.serve.in_order.Runs`, which keeps what is beyond its bounds in temporary files. Only
what is sent counts: a transaction of which no row is sent has no records, and a row that a copy read belongs to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.formats.debezium import transaction_event, transaction_id
from sluice.model.batches import Op
from sluice.model.tables import TableId, one_chunk
from sluice.serve.in_order import Runs

BEGIN, END = "b", "e"
"""``_op`` of the two records."""

RECORD = "_transaction"
"""The column of a stream of rows that has the text of a record."""

LOG_COLUMNS = ("_table", "_op", "_seq", "_commit_ts", "_file", "_offset", "_gtid", "_txn")
"""What :func:`with_records` looks at."""

_KEPT = frozenset(LOG_COLUMNS) | {"_batch", "_row", "_origin"}
"""What a record has as the first or last row of its transaction has it."""

_Numbers = np.ndarray[Any, Any]


def with_records(pieces: Iterable[pa.RecordBatch], text: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a whole batch in log order, with the records between them.

    Args:
        pieces: all of one schema, which has LOG_COLUMNS. text: the column that gets a record's text.
    """
    with closing(Runs()) as runs:
        for piece in pieces:
            runs.add(pa.Table.from_batches([piece]))
        between = _Records(text)
        for window in runs.before(None):
            yield from between.put(window).combine_chunks().to_batches()
        last = between.finish()
        if last is not None:
            yield from last.combine_chunks().to_batches()


class _Records:
    """Puts records between the rows of a batch, window by window.

    ``_last``: the last row of the transaction that is open; None: none is.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._last: pa.Table | None = None
        self._ordinal = -1
        self._id = ""
        self._commit_time_us = 0
        self._counts: dict[TableId, int] = {}

    def put(self, rows: pa.Table) -> pa.Table:
        """Return the rows of a window with the records that come before or between them."""
        logged = np.flatnonzero(pc.not_equal(rows["_op"], Op.READ.value).to_numpy())
        if not len(logged):
            return rows
        ordinals: _Numbers = rows["_txn"].to_numpy()[logged]
        firsts = np.flatnonzero(np.concatenate([[True], ordinals[1:] != ordinals[:-1]]))
        counts = _counted(one_chunk(rows["_table"]), logged, firsts)
        heads = rows.select(["_gtid", "_file", "_offset", "_commit_ts"]).take(pa.array(logged[firsts]))
        gtids, files, offsets = (heads[name].to_pylist() for name in ("_gtid", "_file", "_offset"))
        times_us = heads["_commit_ts"].cast(pa.int64()).to_pylist()
        templates = rows if self._last is None else pa.concat_tables([self._last, rows])
        shift = templates.num_rows - rows.num_rows
        events: list[tuple[int, int, str, str]] = []  # order, row that it is made of, _op, text
        for number, first in enumerate(firsts.tolist()):
            begin = int(logged[first])
            if self._ordinal != ordinals[first]:
                if self._ordinal >= 0:
                    before = int(logged[first - 1]) if number else -1  # -1: the last row of the window before
                    events.append((2 * before + 2, before + shift, END, self._event(self._counts)))
                self._ordinal = int(ordinals[first])
                self._id = transaction_id(gtids[number], files[number], offsets[number])
                self._commit_time_us, self._counts = times_us[number], {}
                events.append((2 * begin, begin + shift, BEGIN, self._event(None)))
            for table, count in counts[number]:
                self._counts[table] = self._counts.get(table, 0) + count
        self._last = rows.slice(int(logged[-1]), 1)
        if not events:
            return rows
        orders, places, ops, texts = zip(*events, strict=True)
        records = self._records(templates.take(pa.array(places)), list(ops), list(texts))
        order = np.argsort(np.concatenate([np.array(orders), np.arange(rows.num_rows) * 2 + 1]), kind="stable")
        return pa.concat_tables([records, rows]).take(pa.array(order))

    def finish(self) -> pa.Table | None:
        """Return the record that ends the open transaction; None if none is open."""
        return None if self._last is None else self._records(self._last, [END], [self._event(self._counts)])

    def _event(self, counts: dict[TableId, int] | None) -> str:
        return transaction_event(self._id, self._commit_time_us, counts)

    def _records(self, rows: pa.Table, ops: list[str], texts: list[str]) -> pa.Table:
        """Return the records that are made of these rows."""
        own_columns = {"_op": ops, "_table": [""] * len(ops), self._text: texts}
        columns = [
            pa.array(own_columns[field.name], field.type) if field.name in own_columns
            else rows[field.name] if field.name in _KEPT
            else pa.nulls(len(ops), field.type)
            for field in rows.schema
        ]  # fmt: skip
        return pa.table(columns, schema=rows.schema)


def _counted(tables: pa.Array, logged: _Numbers, firsts: _Numbers) -> list[list[tuple[TableId, int]]]:
    """Return the rows of each table in each run of ``logged`` rows; ``firsts``: where the runs begin."""
    coded = tables.dictionary_encode()
    names = [TableId(*name.split(".", 1)) for name in coded.dictionary.to_pylist()]
    codes = coded.indices.to_numpy()[logged]
    run = np.zeros(len(logged), np.int64)
    run[firsts] = 1
    pairs, counts = np.unique((np.cumsum(run) - 1) * len(names) + codes, return_counts=True)
    counts_by_run: list[list[tuple[TableId, int]]] = [[] for _ in firsts]
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        counts_by_run[pair // len(names)].append((names[pair % len(names)], count))
    return counts_by_run
