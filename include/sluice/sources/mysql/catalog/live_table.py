"""A table's definition as the server has it now, in exactly the terms in which the log describes it.

The columns of information_schema are turned into what a table map says of them, so that one module
(:mod:`sluice.sources.mysql.decoder.row_layout`) decides how
each type looks in Arrow, whether a row comes from the log or from a select.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sluice.errors import ConfigError, UnsupportedType
from sluice.model.labels import declared, labels_of
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.charsets import UTF8, tables_of
from sluice.mysql.column_types import Brackets, Collated, Fill, Meta, label_bytes, type_named
from sluice.mysql.exact_labels import exact_labels, may_hide
from sluice.sources.mysql.decoder.row_layout import BINARY_COLLATION, RowLayout, plan_table
from sluice.sources.mysql.events import table_map as t
from sluice.sources.mysql.server.connection import rows_of, type_text
from sluice.sources.table_filter import Selection

_COLUMNS = (
    "SELECT COLUMN_NAME, IS_NULLABLE, DATA_TYPE, CAST(COLUMN_TYPE AS BINARY), CHARACTER_OCTET_LENGTH, "
    "NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, COLLATION_NAME, COALESCE(GENERATION_EXPRESSION, '') <> '' "
    "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
_INDEX = (  # all columns: which there are depends on the server
    "SELECT * FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY INDEX_NAME, "
    "SEQ_IN_INDEX"
)


@dataclass(frozen=True, slots=True)
class Index:
    """An index.

    Attributes:
        columns: in its order; an expression is ``""``. unique: no two rows share their values, and none of them is
            null.
        prefix: it holds only the beginning of a column, or an expression.
        unfit: why rows cannot be read in its order; ``""``: they can. remedy: SQL that changes that, as the beginning
            of a hint.
        hashed: it keeps hashes of its columns.
    """

    name: str
    columns: tuple[str, ...]
    unique: bool
    prefix: bool = False
    unfit: str = ""
    remedy: str = ""
    hashed: bool = False


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A table as the server has it now: its plan, and its indexes by name.

    ``key``: name of the index that tells its rows apart, for the server and so for its log: the primary key, else the
    first unique one of whole columns that are never null; ``""``: there is none.
    """

    plan: RowLayout
    indexes: dict[str, Index]
    key: str = ""

    def kept(self, selection: Selection) -> LiveTable:
        """Return the table without the columns that are kept out of storage. Raises ConfigError."""
        return replace(self, plan=replace(self.plan, schema=selection.kept(self.plan.schema)))


def read_definition(connection: Any, table: TableId, collations: Callable[[], dict[int, tuple[str, str]]]) -> LiveTable:
    """Ask the server.

    ``collations``: id -> (collation, charset), see :func:`sluice.sources.mysql.server.connection.collations`.

    Raises:
        ConfigError: there is no such table. UnsupportedType: a column's type is not understood, or the server does not
            say its labels.
    """
    names = (table.schema, table.table)
    rows = rows_of(connection, _COLUMNS, names)
    if not rows:
        raise ConfigError(
            f"the source has no table {table}",
            hint="was it dropped or renamed? `sluice dump list PIPELINE` shows the dumps, `sluice dump cancel "
            "PIPELINE ID` ends one",
        )
    known_collations = collations()
    numbers = {name: number for number, (name, _) in known_collations.items()}
    rows = [(*row[:3], type_text(row[3], str(row[0]), table), *row[4:]) for row in rows]
    rows = [_with_exact_labels(connection, table, row, dict(known_collations.values())) for row in rows]
    columns = [_mapped(row, numbers, known_collations, f"{table}.{row[0]}") for row in rows]
    indexes = _read_indexes(connection, table)
    order = [str(row[0]) for row in rows]
    key = "PRIMARY" if "PRIMARY" in indexes else _row_key(connection, table, indexes)
    key_columns = indexes[key].columns if key else ()
    table_map = t.TableMap(0, table, columns, tuple(order.index(name) for name in key_columns))
    generated = frozenset(str(row[0]) for row in rows if row[9])

    def lookup(number: int) -> tuple[str, str]:
        if number not in known_collations:
            raise UnsupportedType(f"collation {number} is not one the server lists")
        return known_collations[number]

    return LiveTable(plan_table(table_map, lookup, generated), indexes, key)


def _with_exact_labels(
    connection: Any, table: TableId, row: tuple[Any, ...], charsets: dict[str, str]
) -> tuple[Any, ...]:
    """Return a row of ``_COLUMNS`` with the characters that information_schema does not print.

    ``charsets``: by collation.
    """
    name, kind, column_type = str(row[0]), str(row[2]).lower(), str(row[3])
    labels = labels_of(column_type)
    charset = charsets.get(str(row[8]))
    if not labels or not may_hide(labels, charset):
        return row
    exact = exact_labels(lambda sql: rows_of(connection, sql), table, name, kind, labels, charset)
    return (*row[:3], declared(kind, exact), *row[4:])


def _read_indexes(connection: Any, table: TableId) -> dict[str, Index]:
    with connection.cursor() as cursor:
        cursor.execute(_INDEX, (table.schema, table.table))
        names = [str(column[0]).upper() for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        parts.setdefault(str(row["INDEX_NAME"]), []).append(row)
    return {name: _index(table, name, part) for name, part in parts.items()}


def _row_key(connection: Any, table: TableId, indexes: dict[str, Index]) -> str:
    """Return the index that identifies rows: the first unique one in the server's order, which SHOW INDEX tells."""
    fit = [name for name, index in indexes.items() if index.unique and not index.prefix]
    hashed = [name for name, index in indexes.items() if index.hashed]
    if not fit or (len(fit) < 2 and not hashed):
        return "".join(fit)
    rows = rows_of(connection, f"SHOW INDEX FROM {quoted_table(table)}")
    if str(rows[0][2]) in hashed:  # MariaDB looks at its first key only, and takes none that is a hash
        return ""
    return next(str(row[2]) for row in rows if str(row[2]) in fit)


def _index(table: TableId, name: str, parts: list[dict[str, Any]]) -> Index:
    columns = tuple("" if part["COLUMN_NAME"] is None else str(part["COLUMN_NAME"]) for part in parts)
    never_null = not any(str(part["NULLABLE"]).upper() == "YES" for part in parts)
    kind = str(parts[0]["INDEX_TYPE"]).upper()
    unfit, remedy = "", ""
    if kind != "BTREE":
        unfit = f"it is a {kind} index, which has no order"
    elif "" in columns:
        unfit = "it holds an expression, not columns alone"
    elif any(part["SUB_PART"] is not None for part in parts):
        unfit = "it holds only the beginning of a column"
    elif len({str(part["COLLATION"]) for part in parts}) > 1:
        unfit = "some of its columns ascend and some descend"
    elif str(parts[0].get("IS_VISIBLE", "YES")).upper() == "NO":
        unfit, remedy = "it is invisible, and the server does not use it", "VISIBLE"
    elif str(parts[0].get("IGNORED", "NO")).upper() == "YES":
        unfit, remedy = "it is ignored, and the server does not use it", "NOT IGNORED"
    if remedy:
        remedy = f"ALTER TABLE {quoted_table(table)} ALTER INDEX {quoted(name)} {remedy}; "
    covers_columns = "" not in columns and all(part["SUB_PART"] is None for part in parts)
    unique = kind == "BTREE" and not int(parts[0]["NON_UNIQUE"]) and never_null and "" not in columns
    return Index(name, columns, unique, not covers_columns, unfit, remedy, kind == "HASH")


def _mapped(
    row: tuple[Any, ...], numbers: dict[str, int], collations: dict[int, tuple[str, str]], where: str
) -> t.MappedColumn:
    name, nullable, data_type, column_type, octets, precision, scale, digits, collation, _ = row
    kind, full = str(data_type).lower(), str(column_type)
    column = t.MappedColumn(0, 0, str(nullable).upper() == "YES", name=str(name))
    column.unsigned = "unsigned" in full.lower().partition("(")[2].partition(")")[2] or full.lower().endswith(
        "unsigned"
    )
    column.unsigned = column.unsigned or "zerofill" in full.lower().rpartition(")")[2]
    own = type_named(kind, where)
    form = own.log[0]
    if form.meta is Meta.BYTES and "compressed" in full.lower():
        form = next(f for f in own.log if f.fill is Fill.COMPRESSED)
    column.type = form.code
    match form.meta:
        case Meta.DIGITS:
            column.meta = int(digits or 0)
        case Meta.PRECISION:
            column.meta = int(precision) << 8 | int(scale or 0)
        case Meta.BITS:
            column.meta = int(precision)
        case Meta.BYTES | Meta.STRING:
            column.meta = own.binary_bytes or int(octets or 0)
            if form.fill is Fill.COMPRESSED:  # MariaDB's log counts the byte in which a value says how it is packed
                column.meta += 1
        case Meta.LENGTH_BYTES:
            column.meta = own.length_bytes
        case Meta.LABELS:
            labels = labels_of(full)
            number = _collation(collation, numbers, where)
            column.meta = label_bytes(len(labels), several=form.fill is Fill.LABELS)
            column.labels = tuple(_encoded(label, collations[number][1]) for label in labels)
    if form.collated in {Collated.CHARACTER, Collated.LABELS}:
        column.collation = BINARY_COLLATION if own.binary_bytes else _collation(collation, numbers, where)
    column.geometry = own.shape
    if own.binary_bytes:
        column.family = own.word
    if own.brackets is Brackets.DIMENSION:
        column.dimension = int(full.partition("(")[2].partition(")")[0] or 0)
    return column


def _collation(name: Any, numbers: dict[str, int], where: str) -> int:
    if name is None:
        return BINARY_COLLATION
    if str(name) not in numbers:
        raise UnsupportedType(f"collation {name!r} is not one the server lists", where=where)
    return numbers[str(name)]


def _encoded(label: str, charset: str) -> bytes:
    """Encode a label as a table map holds it: in the column's charset."""
    if charset in UTF8 or charset == "binary":
        return label.encode()
    if charset in _WIDE:
        return label.encode(_WIDE[charset])
    return b"".join(_bytes_of(charset)[char] for char in label)


@cache
def _bytes_of(charset: str) -> dict[str, bytes]:
    """Return the bytes of every character of a charset that has tables."""
    tables = tables_of(charset)
    assert tables is not None
    encodings: dict[str, bytes] = {}
    for prefix, width, table in ((b"\x8f", 2, tables.third), (b"", 2, tables.second), (b"", 1, tables.first)):
        for place in np.flatnonzero(table >= 0).tolist():
            encodings[chr(int(table[place]))] = prefix + place.to_bytes(width, "big")
    return encodings


_WIDE = {"gb18030": "gb18030", "ucs2": "utf_16_be", "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be"}
