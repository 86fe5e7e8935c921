"""The columns of a changed table, for every kind of target: which came, went or got another name, and what the values of one are."""

from __future__ import annotations

from dataclasses import replace

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange, column_changes
from sluice.mysql.ddl.columns import altered_columns
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.type_loss import SqlType
from sluice.targets.base import SchemaChange

NAMES = frozenset({ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN})
"""Kinds after which a table has other names of columns, or the same ones for other columns."""


def changed_columns(change: SchemaChange, one: TableChange) -> tuple[ColumnChange, ...] | None:
    """Return what became of a table's columns, one by one; which was renamed, only the statement tells. None: it does not."""
    assert one.before is not None
    assert one.after is not None
    if not set(one.kinds) & NAMES:
        return column_changes(one.before, one.after)
    statement = change.statement
    dialect = Dialect(statement.dialect == "mariadb", 0, statement.mode)
    try:
        found = altered_columns(statement.text, statement.schema, dialect, one.before, one.after)
    except DecodeError:
        return None
    return found if found is not None or change.cut_over is None else one.columns


def type_of_values(column: ColumnDefinition) -> ColumnType | None:
    """Return what a column's values are, whatever the source; None for a type that is not known."""
    made = SqlType.parse(column.type, column.charset or "").neutral(column.collation or "")
    return replace(made, labels=column.labels) if made is not None and column.labels else made


__all__ = ["NAMES", "changed_columns", "type_of_values"]
