"""The tables a source has now, for a look before the first batch. Rows of the log are never read with these definitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.errors import UnsupportedType
from sluice.model.labels import labels_of
from sluice.model.tables import Column, ColumnKind, TableId, TableSchema, quoted_table
from sluice.sources.mysql.server.connection import rows_of

_COLUMNS = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, COLLATION_NAME, "
    "COALESCE(GENERATION_EXPRESSION, '') <> '', NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, CHARACTER_OCTET_LENGTH "
    "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema') "
    "ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION"
)
_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COALESCE(TABLE_ROWS, 0), COALESCE(DATA_LENGTH, 0) FROM information_schema.TABLES "
    "WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema') "
    "ORDER BY TABLE_SCHEMA, TABLE_NAME"
)
_UNIQUE = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, NULLABLE, SUB_PART FROM information_schema.STATISTICS WHERE NON_UNIQUE = 0 "
    "AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema') "
    "ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX"
)
_OTHER_KINDS = {
    "integer": ColumnKind.INT,
    **dict.fromkeys(("tinytext", "mediumtext", "longtext"), ColumnKind.TEXT),
    **dict.fromkeys(("tinyblob", "mediumblob", "longblob"), ColumnKind.BLOB),
    **dict.fromkeys(
        ("point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geomcollection", "geometrycollection"),
        ColumnKind.GEOMETRY,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the source has it now.

    Attributes:
        schema: its definition; columns of a type that is not understood are not in it but in ``unknown`` (name, type).
        rows: the server's estimate; size_bytes: of its data.
        unique_not_null: column names of its first unique key without a nullable column, if it has no primary key.
        create_sql: what SHOW CREATE TABLE says, "" unless asked for.
        unique: every unique key, primary first: (column, prefix in characters or 0), column "" for an expression.
    """

    schema: TableSchema
    rows: int
    size_bytes: int
    unique_not_null: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    create_sql: str = ""
    unique: tuple[tuple[tuple[str, int], ...], ...] = ()

    @property
    def id(self) -> TableId:
        return self.schema.table


def source_tables(connection: Any, wants: Callable[[TableId], bool]) -> list[SourceTable]:
    """Every base table that ``wants`` takes, by name; three queries however many there are."""
    columns: dict[TableId, list[Column]] = defaultdict(list)
    unknown: dict[TableId, list[tuple[str, str]]] = defaultdict(list)
    for row in rows_of(connection, _COLUMNS):
        table = TableId(str(row[0]), str(row[1]))
        try:
            columns[table].append(_column(row))
        except UnsupportedType:
            unknown[table].append((str(row[2]), str(row[4])))
    keys: dict[TableId, dict[str, list[tuple[str, bool]]]] = defaultdict(lambda: defaultdict(list))
    uniques: dict[TableId, dict[str, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
    for schema, name, index, column, nullable, prefix in rows_of(connection, _UNIQUE):
        uniques[TableId(str(schema), str(name))][str(index)].append((str(column or ""), int(prefix or 0)))
        keys[TableId(str(schema), str(name))][str(index)].append((str(column or ""), str(nullable).upper() == "YES"))
    found = []
    for schema, name, count, size in rows_of(connection, _TABLES):
        table = TableId(str(schema), str(name))
        if not wants(table):
            continue
        indexes = keys.get(table, {})
        primary = tuple(column for column, _ in indexes.get("PRIMARY", ()))
        others = [
            tuple(column for column, _ in parts)
            for index, parts in indexes.items()
            if index != "PRIMARY" and all(column and not nullable for column, nullable in parts)
        ]
        found.append(
            SourceTable(
                TableSchema(table, tuple(columns[table]), primary),
                int(count),
                int(size),
                others[0] if others and not primary else (),
                tuple(unknown[table]),
                unique=tuple(tuple(parts) for parts in uniques[table].values()),
            )
        )
    return found


def create_statement(connection: Any, table: TableId) -> str:
    """SHOW CREATE TABLE of ``table``."""
    return str(rows_of(connection, f"SHOW CREATE TABLE {quoted_table(table)}")[0][1])


def _column(row: tuple[Any, ...]) -> Column:
    _, _, name, data_type, column_type, nullable, charset, collation, generated, precision, scale, fsp, octets = row
    word, text = str(data_type).lower(), str(column_type)
    try:
        kind = _OTHER_KINDS.get(word) or ColumnKind(word)
    except ValueError:
        raise UnsupportedType(f"the type {text} is not understood") from None
    labels: tuple[str, ...] = ()
    if kind in {ColumnKind.ENUM, ColumnKind.SET}:
        labels = labels_of(text)
    return Column(
        str(name),
        kind,
        text if labels else text.lower(),
        str(nullable).upper() == "YES",
        unsigned="unsigned" in text.lower(),
        precision=int(precision or 0),
        scale=int(scale or 0),
        fsp=int(fsp or 0),
        length=int(octets or 0),
        charset=str(charset) if charset else None,
        collation=str(collation) if collation else None,
        labels=labels,
        generated=bool(generated),
    )
