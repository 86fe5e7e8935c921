"""The tables a source has now, for a look before the first batch.

Rows of the log are never read with these definitions.
"""

# ruff: noqa: S608 - a fixed condition

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pymysql

from sluice.errors import UnsupportedType
from sluice.model.labels import declared, labels_of
from sluice.model.tables import Column, TableId, TableSchema, quoted, quoted_table
from sluice.mysql.client import MySQLConnection, create_table_of, without_counter
from sluice.mysql.exact_labels import exact_labels, may_hide, printed
from sluice.mysql.type_loss import SqlType
from sluice.sources.mysql.server.connection import NOT_OF_THE_SYSTEM, rows_of, type_text
from sluice.sources.port import SourceTable
from sluice.sources.table_filter import Selection


def captured_schemas(connection: MySQLConnection, selection: Selection) -> list[str]:
    """Return the schemas that may have captured tables, by name.

    They also hold the tables on their way to a captured name, such as those of gh-ost.
    """
    rows = rows_of(connection, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
    return sorted(str(name) for (name,) in rows if selection.wants_schema(str(name)))


def in_schemas(schemas: Sequence[str]) -> str:
    """Return the condition that a table is of one of ``schemas``, which follow as parameters."""
    return f"TABLE_SCHEMA IN ({', '.join(['%s'] * len(schemas))})" if schemas else "FALSE"


_COLUMNS = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, CAST(COLUMN_TYPE AS BINARY), IS_NULLABLE, CHARACTER_SET_NAME, "
    "COLLATION_NAME, COALESCE(GENERATION_EXPRESSION, '') <> '' "
    f"FROM information_schema.COLUMNS WHERE {NOT_OF_THE_SYSTEM} "
    "ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION"
)
_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COALESCE(TABLE_ROWS, 0), COALESCE(DATA_LENGTH, 0) FROM information_schema.TABLES "
    f"WHERE TABLE_TYPE = 'BASE TABLE' AND {NOT_OF_THE_SYSTEM} "
    "ORDER BY TABLE_SCHEMA, TABLE_NAME"
)
_UNIQUE = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, NULLABLE, SUB_PART FROM information_schema.STATISTICS "
    f"WHERE NON_UNIQUE = 0 AND {NOT_OF_THE_SYSTEM} "
    "ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX"
)
_CREATE_HEAD = re.compile(r"^CREATE TABLE (`(?:[^`]|``)+`\.)?`(?:[^`]|``)+`")
_CONSTRAINT = re.compile(r",\s*\n\s*CONSTRAINT `(?:[^`]|``)+` FOREIGN KEY [^\n]*?(?=,?\n)")


def source_tables(connection: Any, wants: Callable[[TableId], bool]) -> list[SourceTable]:
    """Return every base table that ``wants`` accepts, by name; three queries however many there are."""
    columns: dict[TableId, list[Column]] = defaultdict(list)
    unknown: dict[TableId, list[tuple[str, str]]] = defaultdict(list)
    for row in rows_of(connection, _COLUMNS):
        table = TableId(str(row[0]), str(row[1]))
        printed_type = bytes(row[3]).decode(errors="replace")
        try:
            column = _column((*row[:3], type_text(row[3], str(row[2]), table), *row[4:]))
            if may_hide(column.labels, column.charset) and wants(table):
                column = _with_exact_labels(connection, table, column)
            columns[table].append(column)
        except UnsupportedType:
            unknown[table].append((str(row[2]), printed_type))
    keys: dict[TableId, dict[str, list[tuple[str, bool]]]] = defaultdict(lambda: defaultdict(list))
    uniques: dict[TableId, dict[str, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
    for schema, name, index, column, nullable, prefix in rows_of(connection, _UNIQUE):
        uniques[TableId(str(schema), str(name))][str(index)].append((str(column or ""), int(prefix or 0)))
        keys[TableId(str(schema), str(name))][str(index)].append((str(column or ""), str(nullable).upper() == "YES"))
    tables = []
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
        tables.append(
            SourceTable(
                TableSchema(table, tuple(columns[table]), primary),
                int(count),
                int(size),
                others[0] if others and not primary else (),
                tuple(unknown[table]),
                unique=tuple(tuple(parts) for parts in uniques[table].values()),
            )
        )
    now = estimates(connection, [table.id for table in tables])
    return [replace(table, rows=now.get(table.id, table.rows)) for table in tables]


def _with_exact_labels(connection: Any, table: TableId, column: Column) -> Column:
    """Return the column with the characters that are not printed, if the server says them."""
    with suppress(UnsupportedType):
        labels = exact_labels(
            lambda sql: rows_of(connection, sql), table, column.name, column.kind.value, column.labels, column.charset
        )
        return replace(column, labels=labels, sql_type=declared(column.kind.value, labels))
    return column


_LABELLED = (
    "SELECT COLUMN_NAME, DATA_TYPE, CAST(COLUMN_TYPE AS BINARY), CHARACTER_SET_NAME FROM information_schema.COLUMNS "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND DATA_TYPE IN ('enum', 'set')"
)
_LITERAL = r"'(?:[^'\\]|''|\\.)*'"


def _with_labels(connection: Any, table: TableId, sql: str) -> str:
    """SHOW CREATE TABLE with the characters in labels that it does not print."""
    for name, family, column_type, charset in rows_of(connection, _LABELLED, (table.schema, table.table)):
        kind, printed_type = str(family).lower(), type_text(column_type, str(name), table)
        labels = labels_of(printed_type)
        if not may_hide(labels, charset):
            continue
        with suppress(UnsupportedType):
            exact = exact_labels(lambda query: rows_of(connection, query), table, str(name), kind, labels, charset)
            head = f"  {quoted(str(name))} "
            lines = [
                head + declared(kind, exact) + _with_default(line[len(head + printed_type) :], exact)
                if line.startswith(head + printed_type)
                else line
                for line in sql.split("\n")
            ]
            sql = "\n".join(lines)
    return sql


def _with_default(rest: str, labels: Sequence[str]) -> str:
    """Return what follows a column's type, with the label that its default is, if only one is printed so."""

    def spelled(match: re.Match[str]) -> str:
        (printed_label,) = labels_of(f"enum({match[1]})")
        meant_labels = [label for label in labels if printed(label) == printed_label]
        return f" DEFAULT {declared('', meant_labels)[1:-1]}" if len(meant_labels) == 1 else match[0]

    return re.sub(rf" DEFAULT ({_LITERAL})", spelled, rest, count=1)


def create_statement(connection: Any, table: TableId, named: TableId) -> str:
    """SHOW CREATE TABLE of ``table`` for a table of another name: without its counter, and without foreign keys if the
    name is another.

    Raises:
        UnsupportedType: it is no text, or a label in it.
    """
    try:
        sql = without_counter(create_table_of(connection, table).decode())
    except UnicodeDecodeError as error:
        raise UnsupportedType(
            f"the server's CREATE TABLE of {table} is no text: a default, a check or an expression in it has bytes "
            "that are no UTF-8",
            where=str(table),
            hint="write these bytes as an expression at the source, for a default: ALTER TABLE … ALTER COLUMN … SET "
            "DEFAULT (UNHEX('…'))",
        ) from error
    sql = _with_labels(connection, table, sql)
    if named != table:
        sql = _CONSTRAINT.sub("", sql)
    return _CREATE_HEAD.sub(lambda _: f"CREATE TABLE {quoted_table(named)}", sql, count=1)


def _column(row: tuple[Any, ...]) -> Column:
    _, _, name, column_type, nullable, charset, collation, generated = row
    text = str(column_type)
    neutral = SqlType.parse(text, str(charset or "")).neutral(str(collation or ""))
    if neutral is None:
        raise UnsupportedType(f"the type {text} is not understood")
    return Column(
        str(name),
        neutral.kind,
        text if neutral.labels else text.lower(),
        str(nullable).upper() == "YES",
        unsigned=neutral.unsigned,
        precision=neutral.precision,
        scale=neutral.scale,
        fsp=neutral.digits,
        length=neutral.length,
        charset=str(charset) if charset else None,
        collation=str(collation) if collation else None,
        labels=neutral.labels,
        generated=bool(generated),
        shape=neutral.shape,
    )


# -- sizes and keys, for dumps -----------------------------------------------------------------------------------------

TABLES_A_SELECT = 500
_KEYLESS = (  # a user who may only select sees no TABLE_CONSTRAINTS at a MariaDB
    "SELECT t.TABLE_SCHEMA, t.TABLE_NAME FROM information_schema.TABLES t LEFT JOIN ("
    "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME FROM information_schema.STATISTICS GROUP BY TABLE_SCHEMA, "
    "TABLE_NAME, INDEX_NAME HAVING INDEX_NAME = 'PRIMARY' OR (MAX(NON_UNIQUE) = 0 AND MAX(INDEX_TYPE) = 'BTREE' "
    "AND SUM(NULLABLE = 'YES' OR SUB_PART IS NOT NULL OR COLUMN_NAME IS NULL) = 0)"
    ") s ON s.TABLE_SCHEMA = t.TABLE_SCHEMA AND s.TABLE_NAME = t.TABLE_NAME "
    "WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND s.INDEX_NAME IS NULL"
)


def table_rows(connection: Any, schemas: Sequence[str]) -> dict[TableId, int]:
    """Return every table of ``schemas``, with the server's estimate of its rows."""
    sql = (
        "SELECT TABLE_SCHEMA, TABLE_NAME, COALESCE(TABLE_ROWS, 0) FROM information_schema.TABLES WHERE TABLE_TYPE IN "
        f"('BASE TABLE', 'SYSTEM VERSIONED') AND {in_schemas(schemas)} ORDER BY TABLE_SCHEMA, TABLE_NAME"
    )
    return {TableId(str(s), str(t)): int(n) for s, t, n in rows_of(connection, sql, schemas)}


@contextmanager
def _refusable(connection: Any) -> Iterator[None]:
    """Go on behind the block if the server refuses what it asks; raise if the connection is lost."""
    try:
        yield
    except pymysql.err.MySQLError:
        if not connection.open:
            raise


def estimates(connection: Any, tables: Sequence[TableId]) -> dict[TableId, int]:
    """Return the server's guess of their rows now.

    In :func:`table_rows` it may be a day old: MySQL remembers what information_schema said.
    """
    with _refusable(connection):  # MariaDB has no such setting, and remembers nothing
        rows_of(connection, "SET SESSION information_schema_stats_expiry = 0")
    estimates: dict[TableId, int] = {}
    for at in range(0, len(tables), TABLES_A_SELECT):
        names = [name for table in tables[at : at + TABLES_A_SELECT] for name in (table.schema, table.table)]
        pairs = ", ".join(["(%s, %s)"] * (len(names) // 2))
        sql = (
            "SELECT TABLE_SCHEMA, TABLE_NAME, COALESCE(TABLE_ROWS, 0) FROM information_schema.TABLES WHERE "
            f"(TABLE_SCHEMA, TABLE_NAME) IN ({pairs})"
        )
        estimates |= {TableId(str(s), str(t)): int(n) for s, t, n in rows_of(connection, sql, names)}
    return estimates


def empty_tables(connection: Any, tables: Sequence[TableId]) -> list[TableId]:
    """Return those of ``tables`` that have no row.

    Each is asked, as the server's estimate is 0 for some that have rows.
    """
    empty_tables = []
    for table in tables:
        with _refusable(connection):  # the table is gone since, or not to be read
            if not rows_of(connection, f"SELECT 1 FROM {quoted_table(table)} LIMIT 1"):
                empty_tables.append(table)
    return empty_tables


def keyless_tables(connection: Any) -> set[TableId]:
    """Return the tables without a primary key and without a unique key of whole columns that are never null."""
    return {TableId(str(s), str(t)) for s, t in rows_of(connection, _KEYLESS)}
