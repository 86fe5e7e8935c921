"""From a table map to a definition (:class:`TableSchema`) and to the plan by which its row images are decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.errors import UnsupportedType
from sluice.model.definitions import TableDefinition
from sluice.model.labels import declared
from sluice.model.tables import Column, ColumnKind, TableSchema
from sluice.mysql.charsets import MAX_BYTES, decode_bytes, is_known
from sluice.sources.mysql.events import table_map as t
from sluice.sources.mysql.events.unreadable import AROUND

K = ColumnKind
CollationLookup = Callable[[int], tuple[str, str]]
"""Collation id -> (collation, charset). Raises UnsupportedType."""

_FIXED = {
    t.TINY: 1, t.SHORT: 2, t.INT24: 3, t.LONG: 4, t.LONGLONG: 8, t.FLOAT: 4, t.DOUBLE: 8, t.YEAR: 1, t.DATE: 3, t.NEWDATE: 3, t.TIME: 3,
    t.DATETIME: 8, t.TIMESTAMP: 4, t.NULL: 0,
}  # fmt: skip
_INTEGERS = {t.TINY: K.TINYINT, t.SHORT: K.SMALLINT, t.INT24: K.MEDIUMINT, t.LONG: K.INT, t.LONGLONG: K.BIGINT}
_BLOB_NAMES = {
    1: ("tinyblob", "tinytext"),
    2: ("blob", "text"),
    3: ("mediumblob", "mediumtext"),
    4: ("longblob", "longtext"),
}
_GEOMETRIES = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)
_OLD_WITH_DIGITS = {
    t.TIME: (3, 4, 4, 5, 5, 5, 6),
    t.DATETIME: (8, 6, 6, 7, 7, 7, 8),
    t.TIMESTAMP: (4, 5, 5, 6, 6, 7, 7),
}
"""Bytes by digits of MariaDB's temporal types before 10.1 (``mysql56_temporal_format=OFF``)."""
_AS_BINARY = {"uuid": (K.UUID, 16), "inet6": (K.INET6, 16), "inet4": (K.INET4, 4)}
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
BINARY_COLLATION = 63


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """How one column's values are decoded.

    ``width``: see :func:`sluice.sources.mysql.decoder.scan_kernel.walk_image`; ``type``, ``meta``: from the table map.
    """

    column: Column
    type: int
    meta: int
    width: int
    arrow_type: pa.DataType


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A table's definition and plan; ``key``: indexes of the primary key's columns.

    ``definition``: what the schema history says of the table, for defaults; None if nothing.
    """

    schema: TableSchema
    columns: tuple[ColumnLayout, ...]
    widths: np.ndarray[tuple[int], np.dtype[np.int32]]
    key: np.ndarray[tuple[int], np.dtype[np.int64]]
    definition: TableDefinition | None = None


def decimal_bytes(precision: int, scale: int) -> int:
    """Bytes of DECIMAL(precision, scale) in the log."""
    whole = precision - scale
    return whole // 9 * 4 + _DECIMAL_BYTES[whole % 9] + scale // 9 * 4 + _DECIMAL_BYTES[scale % 9]


def width_of(column: t.MappedColumn) -> int:
    """Bytes of a fixed value, or minus the number of length bytes. Raises UnsupportedType."""
    kind, meta = column.type, column.meta
    if kind in _OLD_WITH_DIGITS and meta <= 6:
        return _OLD_WITH_DIGITS[kind][meta]
    if kind in _FIXED:
        return _FIXED[kind]
    if kind in {t.VARCHAR, t.VAR_STRING, t.VARCHAR_COMPRESSED, t.STRING}:
        return -1 if meta < 256 else -2
    if (
        kind in {t.BLOB, t.TINY_BLOB, t.MEDIUM_BLOB, t.LONG_BLOB, t.JSON, t.GEOMETRY, t.VECTOR, t.BLOB_COMPRESSED}
        and 1 <= meta <= 4
    ):
        return -meta
    if kind == t.NEWDECIMAL:
        precision, scale = meta >> 8, meta & 255
        if 0 < precision <= 65 and scale <= min(precision, 38):
            return decimal_bytes(precision, scale)
    if kind == t.TIMESTAMP2 and meta <= 6:
        return 4 + (meta + 1) // 2
    if kind == t.DATETIME2 and meta <= 6:
        return 5 + (meta + 1) // 2
    if kind == t.TIME2 and meta <= 6:
        return 3 + (meta + 1) // 2
    if kind == t.BIT and 1 <= meta <= 64:
        return (meta + 7) // 8
    if (kind == t.ENUM and meta in {1, 2}) or (kind == t.SET and 1 <= meta <= 8):
        return meta
    raise UnsupportedType(f"column type {kind} (metadata {meta}) is not understood by this version")


def column_of(mapped: t.MappedColumn, collations: CollationLookup, where: str) -> Column:
    """The definition of a column as far as the log tells it. Raises UnsupportedType."""
    kind, meta, name = mapped.type, mapped.meta, mapped.name or ""
    unsigned = bool(mapped.unsigned)
    sign = " unsigned" if unsigned else ""
    if kind in _INTEGERS:
        family = _INTEGERS[kind]
        return Column(name, family, family.value + sign, mapped.nullable, unsigned)
    if kind == t.NEWDECIMAL:
        precision, scale = meta >> 8, meta & 255
        return Column(
            name,
            K.DECIMAL,
            f"decimal({precision},{scale}){sign}",
            mapped.nullable,
            unsigned,
            precision=precision,
            scale=scale,
        )
    if kind in {t.FLOAT, t.DOUBLE}:
        family = K.FLOAT if kind == t.FLOAT else K.DOUBLE
        return Column(name, family, family.value + sign, mapped.nullable, unsigned)
    if kind == t.BIT:
        return Column(name, K.BIT, f"bit({meta})", mapped.nullable, unsigned=True, length=meta)
    if kind == t.YEAR:
        return Column(name, K.YEAR, "year", mapped.nullable)
    if kind in {t.DATE, t.NEWDATE}:
        return Column(name, K.DATE, "date", mapped.nullable)
    if kind in {t.DATETIME, t.DATETIME2, t.TIMESTAMP, t.TIMESTAMP2, t.TIME, t.TIME2}:
        family = {
            t.DATETIME: K.DATETIME,
            t.DATETIME2: K.DATETIME,
            t.TIMESTAMP: K.TIMESTAMP,
            t.TIMESTAMP2: K.TIMESTAMP,
        }.get(kind, K.TIME)
        return Column(name, family, f"{family.value}({meta})" if meta else family.value, mapped.nullable, fsp=meta)
    if mapped.family is not None:
        special, length = _AS_BINARY[mapped.family]
        if kind != t.STRING or meta != length:
            raise UnsupportedType(f"the log has type {kind} ({meta}) for a column of type {mapped.family}", where=where)
        return Column(name, special, mapped.family, mapped.nullable, length=length)
    if kind == t.JSON:
        return Column(name, K.JSON, "json", mapped.nullable)
    if kind == t.GEOMETRY:
        known = mapped.geometry is not None and mapped.geometry < len(_GEOMETRIES)
        return Column(name, K.GEOMETRY, _GEOMETRIES[mapped.geometry or 0] if known else "geometry", mapped.nullable)
    if kind == t.VECTOR:
        size = f"({mapped.dimension})" if mapped.dimension else ""
        return Column(name, K.VECTOR, f"vector{size}", mapped.nullable, length=4 * (mapped.dimension or 0))
    if kind in t.CHARACTER or kind in {t.ENUM, t.SET}:
        return _text_column(mapped, collations, where)
    raise UnsupportedType(f"column type {kind} is not understood by this version", where=where)


_METADATA = f"SET GLOBAL binlog_row_metadata = 'FULL' for what comes; for what is in the log: {AROUND}"


def _text_column(mapped: t.MappedColumn, collations: CollationLookup, where: str) -> Column:
    kind, meta, name = mapped.type, mapped.meta, mapped.name or ""
    if mapped.collation is None:
        raise UnsupportedType("the log does not carry the column's charset", where=where, hint=_METADATA)
    collation, charset = collations(mapped.collation)
    binary = charset == "binary"
    if not binary and not is_known(charset):
        raise UnsupportedType(f"charset {charset!r} is not understood by this version", where=where)
    if kind in {t.ENUM, t.SET}:
        if mapped.labels is None:
            raise UnsupportedType("the log does not carry the labels", where=where, hint=_METADATA)
        labels = tuple(x if isinstance(x, str) else decode_bytes(x, charset) for x in mapped.labels)
        family = K.ENUM if kind == t.ENUM else K.SET
        return Column(
            name,
            family,
            declared(family.value, labels),
            mapped.nullable,
            charset=charset,
            collation=collation,
            labels=labels,
        )
    if kind in {t.VARCHAR, t.VAR_STRING, t.STRING, t.VARCHAR_COMPRESSED}:
        fixed = kind == t.STRING
        if binary:
            family = K.BINARY if fixed else K.VARBINARY
            return Column(name, family, f"{family.value}({meta})", mapped.nullable, length=meta)
        family = K.CHAR if fixed else K.VARCHAR
        chars = meta // MAX_BYTES.get(charset, 1)
        return Column(
            name, family, f"{family.value}({chars})", mapped.nullable, length=meta, charset=charset, collation=collation
        )
    names = _BLOB_NAMES[meta]
    if binary:
        return Column(name, K.BLOB, names[0], mapped.nullable)
    return Column(name, K.TEXT, names[1], mapped.nullable, charset=charset, collation=collation)


def is_left_open(mapped: t.MappedColumn) -> bool:
    """True if MariaDB's log may mean one of several types: BINARY, or UUID, INET4, INET6; an old temporal type with or without digits."""
    if mapped.type == t.STRING:
        return mapped.meta in {4, 16} and mapped.collation in {None, BINARY_COLLATION}
    return mapped.type in t.OLD_TEMPORAL


def close_open(mapped: t.MappedColumn, family: str, digits: int) -> None:
    """Settle :func:`is_left_open` by what a definition says of the column."""
    if mapped.type in t.OLD_TEMPORAL:
        mapped.meta = digits
    elif family in _AS_BINARY:
        mapped.family = family


def plan_table(
    table_map: t.TableMap, collations: CollationLookup, generated: frozenset[str] = frozenset(), where: str = ""
) -> RowLayout:
    """The plan of a table whose map carries names (``binlog_row_metadata=FULL``).

    ``generated``: names of generated columns. Raises UnsupportedType that names table.column and ``where`` (file:offset).
    """
    plans = []
    for mapped in table_map.columns:
        place = f"{table_map.table}.{mapped.name}" + (f", {where}" if where else "")
        try:
            width = width_of(mapped)
        except UnsupportedType as error:
            raise UnsupportedType(error.message, where=place, hint="exclude the table from capture") from None
        column = column_of(mapped, collations, place)
        if column.name in generated:
            column = _generated(column)
        plans.append(ColumnLayout(column, mapped.type, mapped.meta, width, column.arrow_type))
    columns = tuple(plan.column for plan in plans)
    key = table_map.primary_key or ()
    schema = TableSchema(table_map.table, columns, tuple(columns[i].name for i in key))
    return RowLayout(schema, tuple(plans), np.array([p.width for p in plans], np.int32), np.array(key, np.int64))


def _generated(column: Column) -> Column:
    from dataclasses import replace

    return replace(column, generated=True)
