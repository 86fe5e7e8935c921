"""Effects of a statement in the log that a reader of rows has to know: on definitions, on rows, or none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import DecodeError
from sluice.model.tables import TableId
from sluice.mysql.ddl import ast as s
from sluice.mysql.ddl.catalog import tables_of
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import concerned, parse_statement


class Effect(StrEnum):
    """Kinds of effect."""

    NONE = "none"
    DEFINITION = "definition"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class StatementEffect:
    """An effect and the tables it has."""

    kind: Effect
    tables: tuple[TableId, ...] = ()


# a plain name's characters are given by the ASCII ones it lacks: the range \\u0080-\\uffff takes 60 ms to compile where
# case is ignored
_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\x00-#%-/:-@\[-^`{-\x7f]+)"
_TABLE = re.compile(rf"(?:{_NAME}\s*\.\s*)?{_NAME}")
_PART = re.compile(_NAME)

_ROWS = {"insert", "replace", "update", "delete", "load", "with"}
"""Verbs that binlog_format=ROW never logs as statements."""


def effects_of(sql: str, schema: str, dialect: Dialect | None = None) -> list[StatementEffect]:
    """Return the effects of a statement run in ``schema``.

    A statement that is not understood may concern any table its text names.
    """
    dialect = dialect or Dialect()
    try:
        statement = parse_statement(sql, schema, dialect)
    except DecodeError:
        tables = concerned(sql, schema, dialect)
        return [StatementEffect(Effect.DEFINITION, named_tables(sql, schema) if tables is None else tables)]
    if isinstance(statement, s.NoDefinition):
        rows = statement.what in _ROWS
        return [StatementEffect(Effect.ROWS, named_tables(sql, schema)) if rows else StatementEffect(Effect.NONE)]
    if isinstance(statement, s.OtherObjects):
        return [StatementEffect(Effect.NONE)]
    if isinstance(statement, s.CreateTable | s.DropTables) and statement.temporary:
        return [StatementEffect(Effect.NONE)]
    return [StatementEffect(Effect.DEFINITION, tables_of(statement))]


def named_tables(text: str, schema: str) -> tuple[TableId, ...]:
    """Return every name in a text that could be a table's, once in ``schema`` and once as it is written.

    It is used for text that the parser does not understand, so it relies neither on quotes nor on comments.
    """
    pieces = [text, *(text.split("'") if "'" in text else ())]
    return tuple(dict.fromkeys(table_id(n, schema) for piece in pieces for n in _TABLE.findall(piece)))


def table_id(name: str, schema: str) -> TableId:
    """Parse a name as written (quoted or not, with or without schema)."""
    parts = [_unquoted(p) for p in _PART.findall(name)]
    return TableId(parts[0], parts[1]) if len(parts) > 1 else TableId(schema, parts[0])


def _unquoted(name: str) -> str:
    if name[:1] in {"`", '"'}:
        return name[1:-1].replace(name[0] * 2, name[0])
    return name
