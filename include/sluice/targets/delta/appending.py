"""``changes: all``: every change of a batch is appended to the table of its table, one commit a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.batches import Op
from sluice.model.tables import TableId
from sluice.targets.base import ChangePiece, Fence, RowReader, WriteResult
from sluice.targets.delta.changelog import rows_of
from sluice.targets.delta.client import errors, library
from sluice.targets.delta.committing import committed
from sluice.targets.delta.site import Site
from sluice.targets.delta.tables import info_of

_SCOPE = "changes"


def append(site: Site, fence: Fence, reader: RowReader) -> WriteResult:
    """All changes of a batch. Every table is looked for before the first one is written. Raises what the port says."""
    tables: dict[TableId, list[ChangePiece]] = {}
    for piece in reader.change_pieces():
        if piece.rows.num_rows:
            tables.setdefault(piece.table, []).append(piece)
    for table in tables:
        site.required(table)
    total = WriteResult()
    for table, pieces in tables.items():

        def write(
            found: Any, noted: Any, table: TableId = table, pieces: Sequence[ChangePiece] = pieces
        ) -> WriteResult:
            schema, info = pa.schema(found.schema().to_arrow()), info_of(found)
            parts = [rows_of(piece, info, schema, fence.batch, site.options.zero_dates) for piece in pieces]
            rows = _in_log_order(pieces, pa.concat_tables(parts))
            with errors(site.place, f"appending batch {fence.batch} to {table}", site.path(table)):
                library().write_deltalake(found, rows, mode="append", commit_properties=noted)
            return WriteResult(appended=rows.num_rows, statements=1)

        total += committed(site, fence, table, _SCOPE, "", write)
    return total


def _in_log_order(pieces: Sequence[ChangePiece], rows: pa.Table) -> pa.Table:
    """Rows that a dump read stand before the change of the same number, as in :mod:`sluice.targets.changes_in_order`."""
    if len(pieces) == 1:
        return rows
    seq, row, part = (np.concatenate([_numbers(piece, name) for piece in pieces]) for name in ("_seq", "_row", "_part"))
    logged = pc.not_equal(rows["_op"], Op.READ.value).to_numpy()
    return rows.take(pa.array(np.lexsort((part, row, logged, seq))))


def _numbers(piece: ChangePiece, name: str) -> np.ndarray:
    values = piece.part if name == "_part" else piece.rows[name]
    return np.asarray(values.to_numpy(zero_copy_only=False))
