"""Comments and secondary indexes of the source's tables, as statements for tables that are created here.

An index is created if PostgreSQL can have the same one: whole columns, no expression, and never a value that is too
long for it. Its name has the table's name before it, as names of indexes are unique in a schema.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.definitions import IndexDefinition, TableDefinition
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.postgresql.names import LONGEST_BYTES, quoted, quoted_table

LARGEST_ENTRY_BYTES = 2_600
"""Bytes of a B-tree entry, at most; the server's limit is a third of a page."""
_BYTES_A_CHARACTER = 4
_LONG = (ColumnKind.CHAR, ColumnKind.VARCHAR, ColumnKind.BINARY, ColumnKind.VARBINARY)
_ENDLESS = (ColumnKind.TEXT, ColumnKind.BLOB, ColumnKind.JSON, ColumnKind.GEOMETRY, ColumnKind.VECTOR)


@dataclass(frozen=True, slots=True)
class Index:
    """A secondary index. ``columns``: names at the target."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False

    def create(self, table: TableId) -> str:
        """Return the statement that creates it."""
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        named = quoted(index_name(table, self.name))
        return f"CREATE {kind} IF NOT EXISTS {named} ON {quoted_table(table)} ({', '.join(map(quoted, self.columns))})"

    def drop(self, table: TableId) -> str:
        """Return the statement that removes it."""
        return f"DROP INDEX IF EXISTS {quoted(table.schema)}.{quoted(index_name(table, self.name))}"


def index_name(table: TableId, index: str) -> str:
    """Return the index's name at the target. A name that is too long ends with a checksum instead of its end."""
    name = f"{table.table}_{index}"
    if len(name.encode()) <= LONGEST_BYTES:
        return name
    return name.encode()[: LONGEST_BYTES - 9].decode(errors="ignore") + f"_{zlib.crc32(name.encode()):08x}"


def comment_on_table(table: TableId, comment: str) -> str:
    """Return the statement that sets the comment; "" removes it."""
    return f"COMMENT ON TABLE {quoted_table(table)} IS {_text(comment)}"


def comment_on_column(table: TableId, column: str, comment: str) -> str:
    """Return the statement that sets the comment; "" removes it."""
    return f"COMMENT ON COLUMN {quoted_table(table)}.{quoted(column)} IS {_text(comment)}"


def _text(value: str) -> str:
    if not value:
        return "NULL"
    plain = value.replace("\0", "")
    escaped = plain.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in plain else f"'{escaped}'"


def entry_fits(types: Sequence[ColumnType]) -> bool:
    """Return True if no values of these types are too long for an index."""
    if any(column_type.kind in _ENDLESS for column_type in types):
        return False
    sizes = [_BYTES_A_CHARACTER * column_type.length if column_type.kind in _LONG else 16 for column_type in types]
    return sum(sizes) <= LARGEST_ENTRY_BYTES


def of_plan(plan: PlannedTable, *, indexes: bool) -> Iterator[tuple[str, str]]:
    """Yield (what it is for, statement), for a planned table whose CREATE TABLE at the source is known."""
    table = plan.created
    if table is None:
        return
    sent = {column.name.casefold(): column for column in plan.columns if not column.generated}
    if table.comment:
        yield "the source's comment", comment_on_table(plan.target, table.comment)
    for name, comment in table.comments:
        if name.casefold() in sent:
            yield "the source's comment", comment_on_column(plan.target, sent[name.casefold()].name, comment)
    for definition in table.indexes if indexes else ():
        plain = all(name.casefold() in sent and not cut for name, cut in definition.columns)
        columns = [sent[name.casefold()] for name, _ in definition.columns] if plain else []
        if plain and entry_fits([column.value_type for column in columns]):
            index = Index(definition.name, tuple(column.name for column in columns), definition.unique)
            yield f"the source's index {definition.name}", index.create(plan.target)


def plain_indexes(table: TableDefinition) -> list[IndexDefinition]:
    """Return the secondary indexes of whole columns."""
    return [
        index
        for index in table.indexes
        if not index.primary and index.kind == "index" and all(name and not cut for name, cut in index.columns)
    ]
