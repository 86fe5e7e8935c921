"""Transactions of the source as Debezium reports them: two events each in a separate topic, and in each document its
place in the transaction.

Only what arrives is counted: a change that a rule left out does not count, and an update of the primary key is two
documents in Debezium's formats. Rows that a dump read belong to no transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.formats import columns
from sluice.formats.common import changed
from sluice.formats.debezium import transaction_id
from sluice.formats.rows import changes_of
from sluice.model.batches import Op
from sluice.model.changes import PlaceInTransaction
from sluice.model.tables import TableId
from sluice.targets.port import ChangePiece

_Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class NumberedPiece(ChangePiece):
    """Changes that know their place in their transaction.

    Attributes:
        transaction: id of each change's transaction (string; null: a dump read the row).
        total_order, table_order: of its first document, from 1 (uint64).
    """

    transaction: pa.Array
    total_order: pa.Array
    table_order: pa.Array

    def slice(self, start: int, rows: int) -> NumberedPiece:
        """Return some of the rows."""
        parts = (self.rows, self.txn_row, self.part, self.transaction, self.total_order, self.table_order)
        return NumberedPiece(self.table, self.key, *(part.slice(start, rows) for part in parts))


@dataclass(frozen=True, slots=True)
class Transaction:
    """One of the source's. ``counts``: documents of each table."""

    id: str
    commit_time_us: int
    counts: dict[TableId, int]


def numbered(pieces: Sequence[ChangePiece]) -> tuple[list[NumberedPiece], list[Transaction]]:
    """Return the same pieces with each change's place, and the transactions in log order.

    Pass all pieces of a batch, as their places depend on each other.
    """
    if not pieces:
        return [], []
    of_piece = np.concatenate([np.full(piece.rows.num_rows, number) for number, piece in enumerate(pieces)])
    tables = sorted({piece.table for piece in pieces})
    table = np.array([tables.index(piece.table) for piece in pieces])[of_piece]
    seq, row, txn, offset, us = (
        np.concatenate([_numbers(piece.rows[name]) for piece in pieces])
        for name in ("_seq", "_row", "_txn", "_offset", "_commit_ts")
    )
    logged = np.concatenate([_is_logged(piece) for piece in pieces])
    weight = np.concatenate([1 + _moves_key(piece) for piece in pieces])
    file, gtid = (pa.concat_arrays([_whole(piece.rows[name]) for piece in pieces]) for name in ("_file", "_gtid"))

    order = np.lexsort((np.arange(len(seq)), row, seq))
    order = order[logged[order]]
    total, own, which = (np.full(len(seq), -1) for _ in range(3))
    which[order] = np.cumsum(_begins(txn[order])) - 1
    total[order] = _places(_begins(txn[order]), weight[order])
    by_table = order[np.lexsort((np.arange(len(order)), table[order], which[order]))]
    begins = _begins(which[by_table] * len(tables) + table[by_table])
    own[by_table] = _places(begins, weight[by_table])

    ids, transactions = [], []
    for first in order[_begins(txn[order])].tolist():
        ids.append(transaction_id(gtid[first].as_py(), file[first].as_py(), int(offset[first])))
        transactions.append(Transaction(ids[-1], int(us[first]), {}))
    starts = np.flatnonzero(begins)
    sums = np.add.reduceat(weight[by_table], starts) if len(starts) else starts
    for first, count in zip(by_table[starts].tolist(), sums.tolist(), strict=True):
        transactions[which[first]].counts[tables[table[first]]] = count

    id_array = pa.array(ids, pa.string())
    placed = []
    for number, piece in enumerate(pieces):
        in_piece = of_piece == number
        at = pa.array(which[in_piece], pa.int64(), mask=which[in_piece] < 0)
        orders = (pa.array(numbers[in_piece].astype(np.uint64)) for numbers in (total, own))
        placed.append(
            NumberedPiece(piece.table, piece.key, piece.rows, piece.txn_row, piece.part, id_array.take(at), *orders)
        )
    return placed, transactions


def places_of(piece: ChangePiece) -> Iterator[PlaceInTransaction | None]:
    """Yield the place of each change in its transaction."""
    if not isinstance(piece, NumberedPiece):
        yield from [None] * piece.rows.num_rows
        return
    parts = (piece.transaction, piece.total_order, piece.table_order)
    for name, total, own in zip(*(part.to_pylist() for part in parts), strict=True):
        yield None if name is None else PlaceInTransaction(name, total, own)


def _begins(groups: _Numbers) -> _Numbers:
    """Return a mask of the first of each run of equal numbers."""
    begins = np.ones(len(groups), bool)
    begins[1:] = groups[1:] != groups[:-1]
    return begins


def _places(begins: _Numbers, weights: _Numbers) -> _Numbers:
    """Return how many documents of its run precede each, plus one."""
    before = np.cumsum(weights) - weights
    places: _Numbers = before - np.maximum.accumulate(np.where(begins, before, 0)) + 1
    return places


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combine_chunks = column.combine_chunks()
    chunk = combine_chunks if isinstance(combine_chunks, pa.Array) else combine_chunks.chunk(0)
    return chunk.cast(pa.string())


def _numbers(column: pa.ChunkedArray) -> _Numbers:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    numbers: _Numbers = column.to_numpy().astype(np.int64)
    return numbers


def _is_logged(piece: ChangePiece) -> _Numbers:
    mask: _Numbers = pc.not_equal(piece.rows["_op"], Op.READ.value).to_numpy(zero_copy_only=False)
    return mask


def _moves_key(piece: ChangePiece) -> _Numbers:
    """Return 1 for each update that changes the primary key, which is two documents; else 0."""
    if columns.can(piece.rows):
        return columns.moved(piece.rows, piece.key).astype(np.int64)
    rows = changes_of(piece.rows, piece.table, piece.key)
    return np.array(
        [row.op == Op.UPDATE and not set(changed(row)).isdisjoint(piece.key) for row in rows], dtype=np.int64
    )
