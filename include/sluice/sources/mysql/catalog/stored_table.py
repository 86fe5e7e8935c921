"""A table's stored definition as its rows in segments are described: what the log says of a row, told by the schema
history alone.
"""

from __future__ import annotations

from sluice.errors import UnsupportedType
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.tables import Column, TableId, TableSchema
from sluice.mysql.type_loss import SqlType


def schema_of(definition: TableDefinition) -> TableSchema:
    """Return how the rows of a stored definition look in segments. Raises UnsupportedType."""
    columns = tuple(_column(definition.table, column) for column in definition.columns)
    return TableSchema(definition.table, columns, definition.row_key)


def _column(table: TableId, column: ColumnDefinition) -> Column:
    neutral = SqlType.parse(column.type, column.charset or "").neutral(column.collation or "")
    if neutral is None:
        raise UnsupportedType(
            f"the type {column.type} of column {column.name} is not understood", where=f"{table}.{column.name}"
        )
    return Column(
        column.name,
        neutral.kind,
        column.type,
        nullable=column.nullable,
        unsigned=neutral.unsigned,
        precision=neutral.precision,
        scale=neutral.scale,
        fsp=neutral.digits,
        length=neutral.length,
        charset=column.charset,
        collation=column.collation,
        labels=column.labels or neutral.labels,
        generated=column.generated is not None,
        shape=neutral.shape,
    )
