"""Rows that no log names in their order, merged ones and removed ones, as pieces of changes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.batches import Op
from sluice.model.column_types import ColumnType
from sluice.model.decimals import nan_columns, rows_without_nan
from sluice.model.fields import declared_type, is_generated, neutral_type, true_name
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import META_COLUMNS, TableId
from sluice.targets.port import ChangePiece, Rejection, RowFile, RowReader, WriteResult

REMOVED, EMPTIED = 1, 2
"""Parts of the id of a message (the header ``sluice.change``) that no change of the log made.

The first is for a key that a verification or a dump found, the second for one of a topic that was emptied. Rows of the
log have part 0.
"""


def removed_piece(plan: PlannedTable, keys: pa.Table, first: int = 0) -> ChangePiece:
    """Return deleted rows of which only the key's columns are known.

    ``first``: number of the first one among those of the batch.
    """
    count = keys.num_rows
    nothing = pa.nulls(count, pa.struct(list(keys.schema)))
    now = pa.array([time.time_ns() // 1000] * count, pa.timestamp("us", tz="UTC"))
    meta = {
        "_op": pa.array([Op.DELETE.value] * count, pa.string()),
        "_seq": pa.array(range(first, first + count), pa.uint64()),
        "_commit_ts": now,
        "_before": nothing,
    }
    schema = pa.schema([*keys.schema, *(pa.field(name, values.type) for name, values in meta.items())])
    columns = [column.combine_chunks() for column in keys.columns]
    piece = merged_piece(plan.target, plan.key, pa.Table.from_arrays([*columns, *meta.values()], schema=schema))
    return replace(piece, part=pa.array([REMOVED] * count, pa.uint32()))


def merged_piece(table: TableId, key: tuple[str, ...], rows: pa.Table) -> ChangePiece:
    """Return CHANGESET_ROWS as a piece."""
    nothing = pa.array([0] * rows.num_rows, pa.uint64())
    return ChangePiece(table, key, rows.combine_chunks(), nothing, nothing.cast(pa.uint32()))


def holding(piece: ChangePiece) -> ChangePiece:
    """Return a piece as messages hold it: NaN of a decimal is null in deleted rows and in rows as they were.

    Raises LoadError for a row that has it now.
    """
    for why in nan_rows(piece).values():
        raise LoadError(
            f"a row of {piece.table} is refused: {why}",
            where=str(piece.table),
            hint="leave the column out (mapping.columns.exclude), or let a rule of kind row change the value; with "
            "changes: latest, on_error: dead_letter leaves such rows out",
        )
    return replace(piece, rows=rows_without_nan(piece.rows))


def nan_rows(piece: ChangePiece) -> dict[int, str]:
    """Return why rows are refused, by number: NaN in a decimal of a row that stays, or of its key."""
    return {
        number: f"column {column}: NaN, which a decimal of a message cannot hold"
        for number, column in nan_columns(piece.rows, piece.key).items()
    }


def without_refused(piece: ChangePiece) -> tuple[ChangePiece, list[Rejection]]:
    """Return merged rows without those of :func:`nan_rows`, and these as letters."""
    refused = nan_rows(piece)
    if not refused:
        return piece, []
    accepted = np.setdiff1d(np.arange(piece.rows.num_rows), list(refused))
    letters = [Rejection(piece.rows.slice(number, 1), why, "NaN") for number, why in sorted(refused.items())]
    return merged_piece(piece.table, piece.key, piece.rows.take(pa.array(accepted))), letters


def merged_parts(reader: RowReader, files: Sequence[RowFile], rows: int) -> Iterator[pa.Table]:
    """Yield the merged rows of files, at most ``rows`` at a time."""
    for piece in reader.pieces(files):
        for start in range(0, piece.num_rows, rows):
            yield piece.slice(start, rows)


def sent_rows(rows: pa.Table, refused: Collection[int]) -> WriteResult:
    """Count what was sent of merged rows. ``refused``: numbers of those that were left out."""
    was_sent = np.ones(rows.num_rows, bool)
    was_sent[list(refused)] = False
    is_delete = pc.equal(rows["_op"], Op.DELETE.value).to_numpy(zero_copy_only=False)
    deletes = int((is_delete & was_sent).sum())
    return WriteResult(int(was_sent.sum()) - deletes, deletes, rejected=len(refused))


def plan_of(piece: ChangePiece) -> PlannedTable:
    """Return the plan of a table of changes, as its changes have it."""
    columns = []
    for field in piece.rows.schema:
        if field.name not in META_COLUMNS:
            given_true_name = true_name(field)
            number = piece.key.index(given_true_name) + 1 if given_true_name in piece.key else 0
            column_type = neutral_type(field) or ColumnType.of_arrow(str(field.type))
            columns.append(
                PlannedColumn(
                    given_true_name,
                    declared_type(field),
                    number,
                    is_generated(field),
                    arrow_type=str(field.type),
                    type=column_type,
                )
            )
    return PlannedTable(piece.table, piece.table, tuple(columns))
