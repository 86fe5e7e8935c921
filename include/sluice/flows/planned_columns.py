"""The plans of stored columns: what a target is told about the columns that a file or a manifest lists.

Files of an earlier version have types only in the source's words. They are parsed here, so that a target always gets
neutral types.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition
from sluice.model.dialects import MYSQL, UNKNOWN, Dialect
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.segments.changeset import ChangesetColumn, ChangesetTable
from sluice.sources.words import words_of

_EARLIER = words_of(MYSQL)
"""The dialect of versions that stored no other type: MariaDB's types are among its words."""


def planned_columns(columns: Iterable[ChangesetColumn]) -> tuple[PlannedColumn, ...]:
    """Return the columns as a target's check wants to know them."""
    return tuple(map(_planned, columns))


def planned_table(table: ChangesetTable) -> PlannedTable:
    """Return the table of a changeset as a target's check wants to know it."""
    return PlannedTable(table.target, TableId(table.source_schema, table.source_table), planned_columns(table.columns))


def with_definition(
    column: PlannedColumn, definition: ColumnDefinition | None, dialect: Dialect = UNKNOWN
) -> PlannedColumn:
    """Return the column with the source's definition, and the value of its default. ``dialect``: the source's."""
    words = words_of(dialect) if dialect else _EARLIER
    known_default_value = words.default_value(definition) if definition is not None else None
    return replace(column, definition=definition, default=known_default_value)


def wanted_type(declared: str) -> ColumnType | None:
    """Return what values of a type in the mapping's words are; None for words that no source has."""
    return _EARLIER.column_type(ColumnDefinition("", declared)) if declared else None


def _planned(column: ChangesetColumn) -> PlannedColumn:
    if column.kind:
        column_type: ColumnType | None = ColumnType.from_text(column.kind)
    else:
        declared = ColumnDefinition(
            column.name, column.type, charset=column.charset or None, collation=column.collation or None
        )
        column_type = _EARLIER.column_type(declared)
    return PlannedColumn(
        column.name,
        column.type,
        column.key,
        column.generated,
        column.charset,
        column.collation,
        column.arrow_type,
        type=column_type,
    )


__all__ = ["planned_columns", "planned_table", "wanted_type", "with_definition"]
