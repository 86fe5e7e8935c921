"""A table's definition as the server has it now, in exactly the terms in which the log describes it.

The columns of information_schema are turned into what a table map says of them, so that one module (:mod:`sluice.binlog.plan`) decides how
each type looks in Arrow, whether a row comes from the log or from a select.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sluice.binlog import tablemap as t
from sluice.binlog.charsets import UTF8, tables_of
from sluice.binlog.connection import rows_of
from sluice.binlog.plan import BINARY_COLLATION, TablePlan, plan_table
from sluice.errors import ConfigError, UnsupportedType
from sluice.model.tables import TableId

_COLUMNS = (
    "SELECT COLUMN_NAME, IS_NULLABLE, DATA_TYPE, COLUMN_TYPE, CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, "
    "COLLATION_NAME, GENERATION_EXPRESSION FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
_INDEX = (
    "SELECT INDEX_NAME, COLUMN_NAME, NON_UNIQUE, NULLABLE, SUB_PART FROM information_schema.STATISTICS "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY INDEX_NAME, SEQ_IN_INDEX"
)
_PLAIN = {
    "tinyint": t.TINY, "smallint": t.SHORT, "mediumint": t.INT24, "int": t.LONG, "integer": t.LONG, "bigint": t.LONGLONG,
    "float": t.FLOAT, "double": t.DOUBLE, "year": t.YEAR, "date": t.DATE,
}  # fmt: skip
_TEMPORAL = {"datetime": t.DATETIME2, "timestamp": t.TIMESTAMP2, "time": t.TIME2}
_BLOBS = {
    "tinyblob": 1, "blob": 2, "mediumblob": 3, "longblob": 4, "tinytext": 1, "text": 2, "mediumtext": 3, "longtext": 4,
}  # fmt: skip
_GEOMETRIES = {
    "geometry": 0, "point": 1, "linestring": 2, "polygon": 3, "multipoint": 4, "multilinestring": 5, "multipolygon": 6,
    "geometrycollection": 7, "geomcollection": 7,
}  # fmt: skip
_FIXED_BYTES = {"uuid": 16, "inet6": 16, "inet4": 4}


@dataclass(frozen=True, slots=True)
class Index:
    """An index: ``columns`` in its order; ``unique``: no two rows share their values, and none of them is null."""

    name: str
    columns: tuple[str, ...]
    unique: bool
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """A table as the server has it now: its plan, and its indexes by name."""

    plan: TablePlan
    indexes: dict[str, Index]


def read_definition(
    connection: Any, table: TableId, collations: Callable[[], dict[int, tuple[str, str]]]
) -> Definition:
    """Ask the server. ``collations``: id -> (collation, charset), see :func:`sluice.binlog.connection.collations`.

    Raises:
        ConfigError: there is no such table. UnsupportedType: a column's type is not understood.
    """
    names = (table.schema, table.table)
    rows = rows_of(connection, _COLUMNS, names)
    if not rows:
        raise ConfigError(
            f"the source has no table {table}",
            hint="was it dropped or renamed? `sluice dump list` shows what waits for it",
        )
    known = collations()
    numbers = {name: number for number, (name, _) in known.items()}
    columns = [_mapped(row, numbers, known, f"{table}.{row[0]}") for row in rows]
    indexes: dict[str, Index] = {}
    for name, column, non_unique, nullable, part in rows_of(connection, _INDEX, names):
        seen = indexes.get(str(name), Index(str(name), (), not int(non_unique)))
        expression = column is None
        indexes[str(name)] = Index(
            seen.name,
            (*seen.columns, "" if expression else str(column)),
            seen.unique and not expression and str(nullable).upper() != "YES",
            seen.prefix or part is not None or expression,
        )
    order = [str(row[0]) for row in rows]
    key = indexes["PRIMARY"].columns if "PRIMARY" in indexes else ()
    table_map = t.TableMap(0, table, columns, tuple(order.index(name) for name in key))
    generated = frozenset(str(row[0]) for row in rows if row[9])

    def lookup(number: int) -> tuple[str, str]:
        if number not in known:
            raise UnsupportedType(f"collation {number} is not one the server lists")
        return known[number]

    return Definition(plan_table(table_map, lookup, generated), indexes)


def _mapped(
    row: tuple[Any, ...], numbers: dict[str, int], known: dict[int, tuple[str, str]], where: str
) -> t.MappedColumn:
    name, nullable, data_type, column_type, octets, precision, scale, digits, collation, _ = row
    kind, full = str(data_type).lower(), str(column_type)
    made = t.MappedColumn(0, 0, str(nullable).upper() == "YES", name=str(name))
    made.unsigned = "unsigned" in full.lower().partition("(")[2].partition(")")[2] or full.lower().endswith("unsigned")
    made.unsigned = made.unsigned or "zerofill" in full.lower().rpartition(")")[2]
    if kind in _PLAIN:
        made.type = _PLAIN[kind]
    elif kind in _TEMPORAL:
        made.type, made.meta = _TEMPORAL[kind], int(digits or 0)
    elif kind in {"decimal", "numeric"}:
        made.type, made.meta = t.NEWDECIMAL, int(precision) << 8 | int(scale or 0)
    elif kind == "bit":
        made.type, made.meta = t.BIT, int(precision)
    elif kind in {"char", "varchar", "binary", "varbinary"}:
        made.type, made.meta = (t.VARCHAR if kind.startswith("var") else t.STRING), int(octets or 0)
        if "compressed" in full.lower():  # MariaDB's log counts the byte in which a value says how it is packed
            made.type, made.meta = t.VARCHAR_COMPRESSED, made.meta + 1
        made.collation = _collation(collation, numbers, where)
    elif kind in _BLOBS:
        made.type, made.meta = t.BLOB, _BLOBS[kind]
        made.collation = _collation(collation, numbers, where)
    elif kind in {"enum", "set"}:
        number = _collation(collation, numbers, where)
        labels = _labels(full)
        made.type, made.collation = (t.ENUM if kind == "enum" else t.SET), number
        made.meta = _pack_bytes(kind, len(labels))
        made.labels = tuple(_encoded(label, known[number][1]) for label in labels)
    elif kind == "json":
        made.type, made.meta = t.JSON, 4
    elif kind in _GEOMETRIES:
        made.type, made.meta, made.geometry = t.GEOMETRY, 4, _GEOMETRIES[kind]
    elif kind == "vector":
        made.type, made.meta = t.VECTOR, 4
        made.dimension = int(full.partition("(")[2].partition(")")[0] or 0)
    elif kind in _FIXED_BYTES:
        made.type, made.meta, made.collation, made.family = t.STRING, _FIXED_BYTES[kind], BINARY_COLLATION, kind
    else:
        raise UnsupportedType(f"column type {kind!r} is not understood by this version", where=where)
    return made


def _collation(name: Any, numbers: dict[str, int], where: str) -> int:
    if name is None:
        return BINARY_COLLATION
    if str(name) not in numbers:
        raise UnsupportedType(f"collation {name!r} is not one the server lists", where=where)
    return numbers[str(name)]


def _pack_bytes(kind: str, labels: int) -> int:
    if kind == "enum":
        return 1 if labels < 256 else 2
    size = (labels + 7) // 8
    return 8 if size > 4 else size


def _labels(column_type: str) -> list[str]:
    """The labels of ``enum('a','it''s')``."""
    text = column_type[column_type.index("(") + 1 :]
    labels: list[str] = []
    at = 0
    while at < len(text) and text[at] == "'":
        label = ""
        at += 1
        while True:
            if text[at] == "'" and text[at + 1 : at + 2] == "'":
                label += "'"
                at += 2
            elif text[at] == "'":
                break
            else:
                label += text[at]
                at += 1
        labels.append(label)
        at += 2
    return labels


def _encoded(label: str, charset: str) -> bytes:
    """The label's bytes as a table map holds them: in the column's charset."""
    if charset in UTF8 or charset == "binary":
        return label.encode()
    if charset in _WIDE:
        return label.encode(_WIDE[charset])
    return b"".join(_bytes_of(charset)[char] for char in label)


@cache
def _bytes_of(charset: str) -> dict[str, bytes]:
    """The bytes of every character of a charset that has tables."""
    tables = tables_of(charset)
    assert tables is not None
    found: dict[str, bytes] = {}
    for prefix, width, table in ((b"\x8f", 2, tables.third), (b"", 2, tables.second), (b"", 1, tables.first)):
        for place in np.flatnonzero(table >= 0).tolist():
            found[chr(int(table[place]))] = prefix + place.to_bytes(width, "big")
    return found


_WIDE = {"gb18030": "gb18030", "ucs2": "utf_16_be", "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be"}
