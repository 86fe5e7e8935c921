"""The server's own data dictionary, as definitions: what a schema history begins with, and what tests hold it
against.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pymysql

from sluice.errors import DecodeError, UnsupportedType
from sluice.model.definitions import (
    ColumnDefinition,
    DatabaseDefinition,
    IndexDefinition,
    TableDefinition,
    Unknown,
    may_be_cut,
    whole_float,
)
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.client import create_table_of
from sluice.mysql.column_types import NUMERIC, Literal, find_type
from sluice.mysql.ddl.ast import VERSIONED, CreateTable
from sluice.mysql.ddl.catalog import SchemaState
from sluice.mysql.ddl.collations import Collations
from sluice.mysql.ddl.column_clauses import read_type
from sluice.mysql.ddl.lexer import Dialect, Kind, tokens
from sluice.mysql.ddl.parser import parse_statement
from sluice.mysql.ddl.token_cursor import Reader
from sluice.mysql.ddl.types import Flavour, labelled, stored_label
from sluice.mysql.exact_labels import exact_labels, may_hide, printed
from sluice.mysql.literals import text_literal
from sluice.sources.mysql.server.connection import ServerInfo, rows_of
from sluice.sources.mysql.server.table_list import in_schemas
from sluice.sources.table_filter import SYSTEM_SCHEMAS

# ruff: noqa: S608 - schema and table names go in as parameters

_SYSTEM = ", ".join(f"'{name}'" for name in sorted(SYSTEM_SCHEMAS))
_COMPRESSED = re.compile(r"\s*/\*!?M?!?\d* ?COMPRESSED.*?\*/", re.I)
_NOW = re.compile(r"^(CURRENT_TIMESTAMP|NOW|LOCALTIME)", re.I)


def flavour_of(connection: Any, info: ServerInfo) -> Flavour:
    """Return what the folding of statements has to know of a server."""
    numbers = (*info.numbers, 0, 0, 0)[:3]
    version = numbers[0] * 10_000 + numbers[1] * 100 + numbers[2]
    lower = info.variables.get("lower_case_table_names", "0") in {"1", "2"}  # with 2 the log has lower-case names, too
    return Flavour(info.is_mariadb, version, read_collations(connection), lower)


def read_collations(connection: Any) -> Collations:
    """Return names, defaults and widths of all charsets and collations of the server."""
    charset_of: dict[str, str] = {}
    default_of: dict[str, str] = {}
    table = "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
    try:  # MariaDB 10.10+: collations that several charsets share have their whole name here
        pairs = rows_of(connection, f"SELECT FULL_COLLATION_NAME, CHARACTER_SET_NAME FROM {table}")
    except pymysql.err.MySQLError:
        pairs = rows_of(connection, f"SELECT COLLATION_NAME, CHARACTER_SET_NAME FROM {table}")
    charset_of.update({str(name): str(charset) for name, charset in pairs if charset is not None})
    bytes_of: dict[str, int] = {}
    for charset, collation, size in rows_of(
        connection, "SELECT CHARACTER_SET_NAME, DEFAULT_COLLATE_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"
    ):
        default_of[str(charset)], bytes_of[str(charset)] = str(collation), int(size)
    return Collations(charset_of, default_of, bytes_of)


def read_names(connection: Any, schemas: Sequence[str]) -> list[TableId]:
    """Return the name of every table of these schemas that the user may see."""
    sql = (
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' AND "
        + in_schemas(schemas)
    )
    return [TableId(str(schema), str(name)) for schema, name in rows_of(connection, sql, schemas)]


def read_state(connection: Any, info: ServerInfo, schemas: Sequence[str] | None = None) -> SchemaState:
    """Return every database the user may see, and every table of these schemas (None: of all), as of now."""
    flavour = flavour_of(connection, info)
    collation = rows_of(connection, "SELECT @@GLOBAL.collation_server")[0][0]
    state = SchemaState(flavour, _timestamps_explicit(connection), str(collation))
    for database in read_databases(connection):
        state.put_database(database)
    broken: dict[TableId, str] = {}
    for table in read_tables(connection, flavour, schemas=schemas, broken=broken):
        state.put(table)
    for table_id, why in broken.items():
        state.lose(table_id, Unknown(why))
    for table_id in _of_type(connection, schemas, "VIEW", "SEQUENCE"):
        state.note_other(table_id)
    for table_id in _of_type(connection, schemas, "SYSTEM VERSIONED"):
        state.lose(table_id, Unknown(VERSIONED))
    state.touched.clear()
    return state


def _timestamps_explicit(connection: Any) -> bool:
    try:
        return bool(int(rows_of(connection, "SELECT @@GLOBAL.explicit_defaults_for_timestamp")[0][0]))
    except pymysql.err.MySQLError:
        return False


def read_databases(connection: Any) -> list[DatabaseDefinition]:
    """Return all databases but the system's."""
    sql = (
        "SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA "
        f"WHERE SCHEMA_NAME NOT IN ({_SYSTEM})"
    )
    return [
        DatabaseDefinition(str(n), str(charset), str(collation)) for n, charset, collation in rows_of(connection, sql)
    ]


def read_tables(
    connection: Any,
    flavour: Flavour,
    tables: Sequence[TableId] | None = None,
    *,
    schemas: Sequence[str] | None = None,
    broken: dict[TableId, str] | None = None,
) -> list[TableDefinition]:
    """Return the definitions of the named tables (those that exist), of the tables of these schemas, or of all.

    ``broken`` takes the tables that are not understood, with the reason; without it they raise DecodeError or
    UnsupportedType.
    """
    where, names = _where_named(tables) if tables is not None else _where_in(schemas)
    heads = {
        TableId(str(schema), str(name)): (str(collation or ""), str(engine or ""), str(comment or ""))
        for schema, name, kind, collation, engine, comment in rows_of(
            connection,
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, TABLE_COLLATION, ENGINE, TABLE_COMMENT FROM "
            "information_schema.TABLES WHERE " + where,
            names,
        )
        if kind == "BASE TABLE"
    }
    columns: dict[TableId, list[tuple[int, ColumnDefinition]]] = defaultdict(list)
    for row in rows_of(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION, COLUMN_NAME, CAST(COLUMN_TYPE AS BINARY), IS_NULLABLE, "
        "CHARACTER_SET_NAME, "
        "COLLATION_NAME, CAST(COLUMN_DEFAULT AS BINARY), EXTRA, CAST(COLUMN_COMMENT AS BINARY), "
        "CAST(GENERATION_EXPRESSION AS BINARY) FROM information_schema.COLUMNS WHERE " + where,
        names,
    ):
        table = TableId(str(row[0]), str(row[1]))
        if table not in heads:
            continue
        try:
            column = _with_exact_labels(connection, table, _column(row[3:], flavour))
            if row[8] is None and "DEFAULT_GENERATED" in str(row[9]):
                column = replace(column, default=_shown_default(connection, table, column.name, flavour))
            elif not flavour.mariadb and _ends_at_a_zero(column):
                column = replace(column, default=_whole_bytes(connection, table, column, flavour))
            columns[table].append((int(row[2]), column))
        except (DecodeError, UnsupportedType) as error:
            if broken is None:
                raise type(error)(f"the definition of {table} is not understood: {error.message}") from error
            broken[table] = error.message
            del heads[table]
    indexes = _indexes(connection, where, names)
    definitions = []
    for table, (collation, engine, comment) in heads.items():
        ordered = tuple(column for _, column in sorted(columns[table], key=lambda item: item[0]))
        if not ordered:
            continue
        charset = flavour.collations.charset_of.get(collation, "")
        keys = tuple(indexes.get(table, ()))
        if not flavour.mariadb or engine.lower() == "memory":  # the index itself is a hash there
            keys = tuple(replace(key, kind="index") if key.kind == "hash" else key for key in keys)
        definition = TableDefinition(
            table, _with_whole_floats(connection, table, ordered), keys, charset, collation, engine, comment
        )
        definitions.append(_in_key_order(connection, definition))
    return definitions


def _where_named(tables: Sequence[TableId]) -> tuple[str, Sequence[str]]:
    if not tables:
        return "FALSE", []
    names = [part for table in tables for part in (table.schema, table.table)]
    return " OR ".join(["(TABLE_SCHEMA = %s AND TABLE_NAME = %s)"] * len(tables)), names


def _where_in(schemas: Sequence[str] | None) -> tuple[str, Sequence[str]]:
    return (f"TABLE_SCHEMA NOT IN ({_SYSTEM})", []) if schemas is None else (in_schemas(schemas), schemas)


def _of_type(connection: Any, schemas: Sequence[str] | None, *types: str) -> list[TableId]:
    """Return what these schemas (None: all) have of some types, as ``TABLES.TABLE_TYPE`` names them."""
    where, names = _where_in(schemas)
    kinds = ", ".join(["%s"] * len(types))
    sql = f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE IN ({kinds}) AND {where}"
    return [TableId(str(schema), str(name)) for schema, name in rows_of(connection, sql, [*types, *names])]


def _column(row: Sequence[Any], flavour: Flavour) -> ColumnDefinition:
    try:
        name, printed, nullable, charset, collation, default, extra, comment, expression = (
            None if value is None else value.decode() if isinstance(value, bytes) else str(value) for value in row
        )
    except UnicodeDecodeError as error:
        raise DecodeError(f"column {row[0]} has a label, a default or a comment that is no text") from error
    extra_ = (extra or "").upper()
    kind = str(printed)
    compressed = bool(_COMPRESSED.search(kind))
    kind = _COMPRESSED.sub("", kind)
    labels: tuple[str, ...] = ()
    family = kind.partition("(")[0].split(" ")[0]
    if family in {"enum", "set"}:
        written = read_type(Reader(kind, "", Dialect(flavour.mariadb, flavour.version))).labels
        if not all(isinstance(label, str) for label in written):  # printed without the zeros of its bytes
            raise DecodeError(f"column {name} has a label that the server cannot print")
        labels = tuple(stored_label(label, charset or "binary") for label in written)
        kind = labelled(family, labels)
    on_update = re.search(r"ON UPDATE (\S+)", extra or "", re.I)
    return ColumnDefinition(
        name=str(name),
        type=kind,
        nullable=nullable == "YES",
        charset=charset or ("binary" if labels else None),  # MySQL leaves it out for labels that are bytes
        collation=collation or ("binary" if labels else None),
        labels=labels,
        default=_default(default, family, extra_, expression, flavour),
        generated=f"({expression})" if expression else None,
        stored="STORED" in extra_ or "PERSISTENT" in extra_,
        invisible="INVISIBLE" in extra_,
        auto_increment="AUTO_INCREMENT" in extra_,
        on_update=on_update[1] if on_update else None,
        comment=comment or "",
        compressed=compressed,
    )


def _with_exact_labels(connection: Any, table: TableId, column: ColumnDefinition) -> ColumnDefinition:
    """Return the column with the characters that information_schema does not print.

    Raises UnsupportedType if the server does not say them.
    """
    if not may_hide(column.labels, column.charset):
        return column
    labels = exact_labels(
        lambda sql: rows_of(connection, sql), table, column.name, column.family, column.labels, column.charset
    )
    default = column.default
    candidates = [f"'{label}'" for label in labels if default == f"'{printed(label)}'"]
    return replace(
        column,
        type=labelled(column.family, labels),
        labels=labels,
        default=candidates[0] if len(candidates) == 1 else default,
    )


def _with_whole_floats(
    connection: Any, table: TableId, columns: tuple[ColumnDefinition, ...]
) -> tuple[ColumnDefinition, ...]:
    """Complete defaults of FLOAT columns that may have more than the six printed digits, as the server knows them.

    Without the right to select from the table they stay as they are, and so do those of NOT NULL columns while the
    table is empty (a missing row has no default). What needs them says so.
    """
    cut = [c for c in columns if c.family == "float" and c.default is not None and _is_cut(c.default)]
    if not cut:
        return columns
    expressions = ", ".join(f"CAST(DEFAULT(t.{quoted(c.name)}) AS DOUBLE)" for c in cut)
    name = quoted_table(table)
    try:
        answers = rows_of(
            connection,
            f"(SELECT {expressions} FROM {name} t LIMIT 1) UNION ALL (SELECT {expressions} FROM (SELECT 1 AS one) o "
            f"LEFT JOIN {name} t ON FALSE)",
        )
    except pymysql.err.MySQLError:
        return columns
    defaults = {
        c.name: whole_float(float(n)) for row in answers for c, n in zip(cut, row, strict=True) if n is not None
    }
    return tuple(replace(c, default=defaults.get(c.name, c.default)) for c in columns)


def _is_cut(default: str) -> bool:
    try:
        return may_be_cut(default.strip("'"))
    except ArithmeticError:  # an expression
        return False


def _shown_default(connection: Any, table: TableId, name: str, flavour: Flavour) -> str | None:
    """Return a default that information_schema leaves out, from SHOW CREATE TABLE.

    MySQL leaves out that of a TEXT after SET DEFAULT of an expression.
    """
    try:
        sql = create_table_of(connection, table).decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the server's own CREATE TABLE, with the default of {name}, is no text") from error
    statement = parse_statement(sql, table.schema, Dialect(flavour.mariadb, flavour.version))
    if isinstance(statement, CreateTable):
        for column in statement.columns:
            if column.name == name:
                return column.default
    raise DecodeError(f"the default of {name} is not in the server's own CREATE TABLE")


def _ends_at_a_zero(column: ColumnDefinition) -> bool:
    """Return True for bytes that MySQL's information_schema prints only up to the first zero: there may be more."""
    row = find_type(column.family)
    printed_ = column.default or ""
    if row is None or row.literal is not Literal.BYTES or not printed_.startswith("0x"):
        return False
    return not column.arguments or len(printed_) - 2 < 2 * column.arguments[0]


def _whole_bytes(connection: Any, table: TableId, column: ColumnDefinition, flavour: Flavour) -> str | None:
    """Return the default of a column of bytes from SHOW CREATE TABLE.

    It has its zeros, but for those that BINARY is filled with.
    """
    shown_default = _shown_default(connection, table, column.name, flavour) or ""
    default_tokens = tokens(shown_default, Dialect(flavour.mariadb, flavour.version))[:-1]
    data = "".join(
        token.text if token.kind is Kind.HEX else token.text.encode("utf-8", "surrogateescape").hex()
        for token in default_tokens
    )
    if any(token.kind not in {Kind.HEX, Kind.STRING} for token in default_tokens):
        return column.default
    if column.family == "binary":
        data = bytes.fromhex(data).rstrip(b"\0").hex()
    literal = f"0x{data.upper()}"
    return literal if literal.lower() != (column.default or "").lower() else column.default


def _default(value: str | None, family: str, extra: str, expression: str | None, flavour: Flavour) -> str | None:
    """Return the SQL text of a default. MariaDB prints SQL, MySQL the bare value."""
    if value is None or expression:
        return None
    if flavour.mariadb:
        return None if value.upper() == "NULL" else value
    if "DEFAULT_GENERATED" in extra or (family in {"timestamp", "datetime"} and _NOW.match(value)):
        return value if _NOW.match(value) else f"({value})"
    row = find_type(family)
    if row is not None and (row.literal in NUMERIC or (row.literal is Literal.BYTES and value.startswith("0x"))):
        return value
    return text_literal(value)


def _indexes(connection: Any, where: str, names: Sequence[str]) -> dict[TableId, list[IndexDefinition]]:
    parts: dict[TableId, dict[str, dict[int, tuple[str, int]]]] = defaultdict(lambda: defaultdict(dict))
    kinds: dict[tuple[TableId, str], tuple[bool, str]] = {}
    for schema, table, name, not_unique, seq, column, prefix, kind in rows_of(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, NON_UNIQUE, SEQ_IN_INDEX, COLUMN_NAME, SUB_PART, INDEX_TYPE "
        "FROM information_schema.STATISTICS WHERE " + where,
        names,
    ):
        place = TableId(str(schema), str(table))
        spatial = str(kind).lower() in {"fulltext", "spatial", "vector"}
        parts[place][str(name)][int(seq)] = (str(column or ""), 0 if spatial else int(prefix or 0))
        hashed = str(kind).lower() == "hash" and not int(not_unique)
        kinds[place, str(name)] = (not int(not_unique), str(kind).lower() if spatial or hashed else "index")
    return {
        table: [
            IndexDefinition(name, tuple(columns[i] for i in sorted(columns)), *kinds[table, name])
            for name, columns in sorted(indexes.items(), key=lambda item: (item[0] != "PRIMARY", item[0]))
        ]
        for table, indexes in parts.items()
    }


def _in_key_order(connection: Any, table: TableDefinition) -> TableDefinition:
    """Sort unique keys in the server's own order, in which the first of several identifies a row."""
    if table.primary_key or sum(index.unique for index in table.indexes) < 2:
        return table
    try:
        order = list(
            dict.fromkeys(str(row[2]) for row in rows_of(connection, f"SHOW INDEX FROM {quoted_table(table.table)}"))
        )
    except pymysql.err.MySQLError:  # dropped meanwhile
        return table
    ranks = {name: rank for rank, name in enumerate(order)}
    return replace(table, indexes=tuple(sorted(table.indexes, key=lambda index: ranks.get(index.name, len(ranks)))))
