"""The places where a statement names tables and schemas, and the same statement with other names there."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.errors import DecodeError
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.ddl.ast import ColumnSpec
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement
from sluice.mysql.ddl.token_cursor import Reader

Replacement = tuple[int, int, str]
"""(start, end, text) of a part of a statement."""


class NamesReader(Reader):
    """Remembers where the statement names what.

    Attributes:
        places: start to (end, table). schemas: start to (end, name). charsets: (start, end, name) of the table's
            charsets.
        types: (end of its type, column). columns_end: where the columns of CREATE TABLE end.
    """

    def __init__(self, sql: str, schema: str, dialect: Dialect) -> None:
        super().__init__(sql, schema, dialect)
        self.places: dict[int, tuple[int, TableId]] = {}
        self.schemas: dict[int, tuple[int, str]] = {}
        self.charsets: list[tuple[int, int, str]] = []
        self.types: list[tuple[int, ColumnSpec]] = []
        self.columns_end: int | None = None

    def table(self, schema: str | None = None) -> TableId:
        """Parse the name of a table and note where it stands."""
        start = self.peek().start
        table = super().table(schema)
        self.places[start] = (self.peek(-1).end, table)
        return table

    def database(self) -> str:
        """Parse the name of a database and note where it stands."""
        start = self.peek().start
        database = super().database()
        self.schemas[start] = (self.peek(-1).end, database)
        return database

    def note_charset(self, start: int, end: int, name: str) -> None:
        """Note where a character set is named."""
        self.charsets.append((start, end, name))

    def note_type(self, end: int, column: ColumnSpec) -> None:
        """Note where the type of a column ends."""
        self.types.append((end, column))

    def note_columns(self, end: int) -> None:
        """Note where the list of columns ends."""
        self.columns_end = end


def replaced(sql: str, parts: Sequence[Replacement]) -> str:
    """Return ``sql`` with other text in some places, which do not overlap."""
    text, at = [], 0
    for start, end, written in sorted(parts):
        text += [sql[at:start], written]
        at = end
    return "".join([*text, sql[at:]])


def lower_names(sql: str, schema: str, dialect: Dialect) -> str:
    """Write tables and schemas of the statement in lower case, as a server with ``lower_case_table_names`` has them.

    A statement that is not understood stays as it is.
    """
    names = NamesReader(sql, schema, dialect)
    try:
        parse_statement(sql, schema, dialect, names)
    except DecodeError:
        return sql
    parts: list[Replacement] = []
    for start, (end, table) in names.places.items():
        if (lower := lowered(table)) != table or lower.schema != table.schema:
            written = quoted_table(lower) if _has_schema(sql[start:end], table) else quoted(lower.table)
            parts.append((start, end, written))
    parts += [
        (start, end, quoted(name.lower())) for start, (end, name) in names.schemas.items() if name.lower() != name
    ]
    return replaced(sql, parts) if parts else sql


def lowered(table: TableId) -> TableId:
    """Return the name as such a server has it."""
    return TableId(table.schema.lower(), table.table.lower())


def _has_schema(written: str, table: TableId) -> bool:
    """Return True unless only the table's own name is written."""
    plain = written.strip('`"')
    return plain.replace("``", "`").replace('""', '"') != table.table
