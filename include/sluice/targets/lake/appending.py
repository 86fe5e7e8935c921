"""``changes: all``: the changes of a batch as rows of the tables of changes, in log order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.batches import Op
from sluice.model.tables import TableId
from sluice.targets.lake.changelog import rows_of
from sluice.targets.lake.columns import TableInfo
from sluice.targets.port import ChangePiece, RowReader, Share

SCOPE = "changes"
"""The scope under which a batch of changes is noted."""


def changes_by_table(reader: RowReader, share: Share | None = None) -> dict[TableId, list[ChangePiece]]:
    """Return all changes of a batch, or of a share, by table."""
    tables: dict[TableId, list[ChangePiece]] = {}
    for piece in reader.change_pieces(share):
        if piece.rows.num_rows:
            tables.setdefault(piece.table, []).append(piece)
    return tables


def change_rows(
    pieces: Sequence[ChangePiece], info: TableInfo, schema: pa.Schema, batch: int, zero_dates: str, known: int = 0
) -> pa.Table:
    """Convert changes to rows of their table.

    ``schema``: the table's; ``known``: the last batch that it has. Raises LoadError, MappingError.
    """
    batches: dict[int, list[ChangePiece]] = {}
    for piece in pieces:
        if not piece.batch or piece.batch > known:
            batches.setdefault(piece.batch or batch, []).append(piece)
    found = [
        _in_log_order(some, pa.concat_tables([rows_of(piece, info, schema, number, zero_dates) for piece in some]))
        for number, some in sorted(batches.items())
    ]
    return pa.concat_tables(found) if found else schema.empty_table()


def _in_log_order(pieces: Sequence[ChangePiece], rows: pa.Table) -> pa.Table:
    """Sort the changes of one batch. Rows that a dump read precede the change of the same number, see :mod:`sluice.targets.changes_in_order`."""
    if len(pieces) == 1:
        return rows
    seq, row, part = (np.concatenate([_numbers(piece, name) for piece in pieces]) for name in ("_seq", "_row", "_part"))
    logged = pc.not_equal(rows["_op"], Op.READ.value).to_numpy()
    return rows.take(pa.array(np.lexsort((part, row, logged, seq))))


def _numbers(piece: ChangePiece, name: str) -> np.ndarray:
    values = piece.part if name == "_part" else piece.rows[name]
    return np.asarray(values.to_numpy(zero_copy_only=False))
