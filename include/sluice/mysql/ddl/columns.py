"""Column by column, what an ALTER TABLE did: which was renamed, the definitions alone do not tell."""

from __future__ import annotations

from sluice.model.definitions import TableDefinition
from sluice.model.schema_changes import ColumnChange, column_changes
from sluice.mysql.ddl import ast
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement


def altered_columns(
    text: str, schema: str, dialect: Dialect, before: TableDefinition, after: TableDefinition
) -> tuple[ColumnChange, ...] | None:
    """None for a statement that is no ALTER TABLE. Raises DecodeError for one that is not understood."""
    parsed = parse_statement(text, schema, dialect)
    if not isinstance(parsed, ast.AlterTable):
        return None
    renames: dict[str, str] = {}
    dropped: list[str] = []
    for action in parsed.actions:
        if isinstance(action, ast.RenameColumn):
            renames[action.old.lower()] = action.new
        elif isinstance(action, ast.ChangeColumn) and action.old != action.column.name:
            renames[action.old.lower()] = action.column.name
        elif isinstance(action, ast.DropColumn):
            dropped.append(action.name.lower())
    return column_changes(before, after, renames, dropped)


__all__ = ["altered_columns"]
