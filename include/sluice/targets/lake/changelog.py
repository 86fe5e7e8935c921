"""``changes: all``: the tables of changes, their columns besides the user's, and the changes of a batch as their rows,
in log order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, MappingError
from sluice.model.batches import Op
from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, member
from sluice.model.whole_rows import LOG_WHOLE_ROWS
from sluice.targets.lake.types import LakeColumn, TableInfo, arrow_of, made_type
from sluice.targets.lake.values import Refusals, aligned, convert, plain, row_text, sent_columns, user_fields
from sluice.targets.port import ChangePiece, RowReader, Share

ENVELOPE: tuple[tuple[str, str], ...] = (
    ("_op", "string"), ("_batch", "long"), ("_seq", "long"), ("_row", "long"), ("_part", "long"), ("_txn", "long"),
    ("_txn_row", "long"),
    ("_commit_time", "timestamp"), ("_file", "string"), ("_offset", "decimal(20,0)"), ("_gtid", "string"),
    ("_origin", "long"),
)  # fmt: skip
"""The metadata columns (name, type).

``_batch``, ``_seq``, ``_row`` and ``_part`` together identify a change, and are the order of the log.
"""
BEFORE = "_before"
"""A struct of the user's columns before the change, null for a new row."""
_OURS = frozenset({BEFORE, *(name for name, _ in ENVELOPE)})
_FROM = {"_commit_time": "_commit_ts"}

SCOPE = "changes"
"""The scope under which a batch of changes is noted."""


def column_name(name: str) -> str:
    """Return the name of a user column in a table of changes."""
    return f"${name}" if name.casefold() in _OURS or name.startswith("$") else name


def columns_of(users: Sequence[LakeColumn]) -> tuple[LakeColumn, ...]:
    """Return the columns of a table of changes. ``users``: the user's columns, under their names in it."""
    envelope = [LakeColumn(name, kind) for name, kind in ENVELOPE]
    return (*envelope, *users, LakeColumn(BEFORE, tuple(users)))


def planned(plan: PlannedTable, wide_decimals: str) -> tuple[LakeColumn, ...]:
    """Return the columns of the table of changes of a planned table."""
    users = [
        LakeColumn(column_name(column.name), made_type(column, wide_decimals))
        for column in plan.columns
        if not column.generated
    ]
    return columns_of(users)


def rows_of(piece: ChangePiece, info: TableInfo, schema: pa.Schema, batch: int, zero_dates: str) -> pa.Table:
    """Convert changes to rows of their table, in its Arrow ``schema``. Raises LoadError, MappingError."""
    rows, count = piece.rows, piece.rows.num_rows
    _require_whole(piece)
    fields = user_fields(rows.schema)
    names = [column_name(true_name(field)) for field in fields]
    _require_envelope(piece, info)
    users, refused = convert(
        rows, sent_columns(fields, info, piece.table, names), zero_dates=zero_dates, table=piece.table
    )
    _refuse(piece, refused)
    columns = {name: _envelope(piece, name, batch).cast(arrow_of(kind)) for name, kind in ENVELOPE} | users
    before, inner = plain(rows[BEFORE]), info.find(BEFORE)
    assert inner is not None
    parts = TableInfo(() if isinstance(inner.kind, str) else inner.kind)
    deleted = pc.equal(plain(rows["_op"]), Op.DELETE.value)  # the columns of a deleted row are its last values
    olds = [pc.if_else(deleted, plain(rows[field.name]), member(before, field.name)) for field in fields]
    then = pa.table(olds, schema=pa.schema(fields))
    old, refused = convert(
        then, sent_columns(fields, parts, piece.table, names), zero_dates=zero_dates, table=piece.table
    )
    _refuse(piece, refused)
    children = list(schema.field(BEFORE).type)
    columns[BEFORE] = pa.StructArray.from_arrays(
        [old.get(child.name, pa.nulls(count, child.type)) for child in children],
        names=[child.name for child in children],
        mask=pc.and_not(pc.is_null(before), deleted),
    )
    return aligned(columns, schema, count)


def _require_envelope(piece: ChangePiece, info: TableInfo) -> None:
    types = {column.name: column.kind for column in info.columns}
    wrong = [name for name, kind in ENVELOPE if types.get(name) != kind]
    if wrong or isinstance(types.get(BEFORE, ""), str):
        raise MappingError(
            f"the table of {piece.table} is no table of changes: it lacks {(wrong or [BEFORE])[0]!r}, or has it as "
            "another type",
            where=f"{piece.table}.{(wrong or [BEFORE])[0]}",
            hint="changes: all needs tables of its own: another location, or options: {table: …}; `sluice check "
            "PIPELINE --apply` makes them",
        )


def _envelope(piece: ChangePiece, name: str, batch: int) -> pa.Array:
    if name == "_batch":
        return pa.array(np.full(piece.rows.num_rows, batch, np.int64))
    if name == "_part":
        return piece.part
    if name == "_txn_row":
        return piece.txn_row
    return plain(piece.rows[_FROM.get(name, name)])


def _require_whole(piece: ChangePiece) -> None:
    if "_present" in piece.rows.schema.names and piece.rows["_present"].null_count < piece.rows.num_rows:
        raise LoadError(
            f"the log has only the changed columns of rows of {piece.table}, and a table of changes would show NULL "
            "for the others",
            where=str(piece.table),
            hint=LOG_WHOLE_ROWS,
        )


def _refuse(piece: ChangePiece, refused: Refusals) -> None:
    for number, why in sorted(refused.why.items()):
        file, offset = piece.rows["_file"][number].as_py(), piece.rows["_offset"][number].as_py()
        raise LoadError(
            f"{why}: {row_text(piece.rows, number, piece.key)} of {piece.table}",
            where=f"{file}:{offset}",
            hint="options: {zero_dates: 'null'} writes NULL for such dates; or change the value by a rule",
        )


def changes_by_table(reader: RowReader, share: Share | None = None) -> dict[TableId, list[ChangePiece]]:
    """Return all changes of a batch, or of a share, by table."""
    tables: dict[TableId, list[ChangePiece]] = {}
    for piece in reader.change_pieces(share):
        if piece.rows.num_rows:
            tables.setdefault(piece.table, []).append(piece)
    return tables


def change_rows(
    pieces: Sequence[ChangePiece], info: TableInfo, schema: pa.Schema, batch: int, zero_dates: str, last_batch: int = 0
) -> pa.Table:
    """Convert changes to rows of their table.

    ``schema``: the table's Arrow schema; ``last_batch``: the last that the table has. Raises LoadError, MappingError.
    """
    batches: dict[int, list[ChangePiece]] = {}
    for piece in pieces:
        if not piece.batch or piece.batch > last_batch:
            batches.setdefault(piece.batch or batch, []).append(piece)
    tables = [
        _in_log_order(some, pa.concat_tables([rows_of(piece, info, schema, number, zero_dates) for piece in some]))
        for number, some in sorted(batches.items())
    ]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _in_log_order(pieces: Sequence[ChangePiece], rows: pa.Table) -> pa.Table:
    """Sort the changes of one batch.

    Rows that a dump read precede the change of the same number, see :mod:`sluice.targets.changes_in_order`.
    """
    if len(pieces) == 1:
        return rows
    seq, row, part = (np.concatenate([_numbers(piece, name) for piece in pieces]) for name in ("_seq", "_row", "_part"))
    logged = pc.not_equal(rows["_op"], Op.READ.value).to_numpy()
    return rows.take(pa.array(np.lexsort((part, row, logged, seq))))


def _numbers(piece: ChangePiece, name: str) -> np.ndarray:
    values = piece.part if name == "_part" else piece.rows[name]
    return np.asarray(values.to_numpy(zero_copy_only=False))
