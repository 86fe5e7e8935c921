"""The columns that an ALTER TABLE names: which was renamed, the definitions alone do not tell."""

from __future__ import annotations

from sluice.model.source_words import AlteredNames
from sluice.mysql.ddl import ast
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement


def altered_names(text: str, schema: str, dialect: Dialect) -> AlteredNames | None:
    """Return None for a statement that is no ALTER TABLE. Raises DecodeError for one that is not understood."""
    parsed = parse_statement(text, schema, dialect)
    return names_of(parsed) if isinstance(parsed, ast.AlterTable) else None


def names_of(parsed: ast.AlterTable) -> AlteredNames:
    """Return the columns that it names."""
    renamed: dict[str, str] = {}
    dropped: list[str] = []
    for action in parsed.actions:
        if isinstance(action, ast.RenameColumn):
            renamed[action.old.lower()] = action.new
        elif isinstance(action, ast.ChangeColumn) and action.old != action.column.name:
            renamed[action.old.lower()] = action.column.name
        elif isinstance(action, ast.DropColumn):
            dropped.append(action.name.lower())
    return AlteredNames(renamed, dropped)
