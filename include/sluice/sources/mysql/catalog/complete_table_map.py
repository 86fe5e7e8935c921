"""A table map that the log leaves bare (``binlog_row_metadata`` MINIMAL, NO_LOG, MySQL 5.7), completed from the schema history.

What both say has to agree: the number of columns, each type with its length, signs and charsets. A history that was folded wrong, or a log that
was written by another server, is found here and stops the drain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluice.errors import DecodeError
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.mysql.charsets import MAX_BYTES
from sluice.sources.mysql.events import table_map as t

_INTEGERS = {"tinyint": t.TINY, "smallint": t.SHORT, "mediumint": t.INT24, "int": t.LONG, "bigint": t.LONGLONG}
_TEMPORAL = {
    "date": {t.DATE, t.NEWDATE}, "year": {t.YEAR}, "datetime": {t.DATETIME, t.DATETIME2}, "timestamp": {t.TIMESTAMP, t.TIMESTAMP2},
    "time": {t.TIME, t.TIME2}, "float": {t.FLOAT}, "double": {t.DOUBLE}, "json": {t.JSON}, "vector": {t.VECTOR, t.BLOB, t.VARCHAR},
}  # fmt: skip
_LENGTH_BYTES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection",
)  # fmt: skip
_FIXED = {"uuid": 16, "inet6": 16, "inet4": 4}
_NUMERIC = {*_INTEGERS, "decimal", "float", "double"}
BINARY_COLLATION = 63


def complete(
    table_map: t.TableMap, definition: TableDefinition, collation_ids: Mapping[str, int], *, trust_key: bool = True
) -> t.TableMap:
    """The table map with names, signs, collations, labels and key filled in.

    Args:
        collation_ids: collation -> number at the server.
        trust_key: take the key from the definition where the map has none.

    Raises:
        DecodeError: the two contradict each other; the message says in what.
    """
    have, want = len(table_map.columns), len(definition.columns)
    if have != want:
        raise DecodeError(f"the log's rows have {have} columns, and the schema history has {want}")
    columns = []
    for mapped, column in zip(table_map.columns, definition.columns, strict=True):
        _compare(mapped, column, collation_ids)
        columns.append(_completed(mapped, column, collation_ids))
    key = table_map.primary_key
    if key is None and trust_key:
        key = tuple(definition.index_of(name) for name in definition.row_key)
    return replace(table_map, columns=columns, primary_key=key)


def _completed(mapped: t.MappedColumn, column: ColumnDefinition, collation_ids: Mapping[str, int]) -> t.MappedColumn:
    collation = mapped.collation
    if collation is None and mapped.type in t.CHARACTER | {t.ENUM, t.SET}:
        collation = collation_ids[column.collation] if column.collation else BINARY_COLLATION
    family = column.family
    return replace(
        mapped,
        name=mapped.name if mapped.name is not None else column.name,
        unsigned=column.unsigned if mapped.unsigned is None else mapped.unsigned,
        collation=collation,
        labels=column.labels if mapped.labels is None and column.labels else mapped.labels,
        geometry=min(_GEOMETRIES.index(family), 7) if family in _GEOMETRIES else mapped.geometry,
        dimension=column.arguments[0] if family == "vector" and mapped.dimension is None else mapped.dimension,
    )


def _compare(mapped: t.MappedColumn, column: ColumnDefinition, collation_ids: Mapping[str, int]) -> None:
    def contradiction(what: str) -> DecodeError:
        return DecodeError(f"column {column.name} is {column.type} in the schema history, and the log says {what}")

    if not _fits(mapped, column):
        raise contradiction(f"type {mapped.type} with metadata {mapped.meta}")
    if mapped.name is not None and mapped.name.lower() != column.name.lower():
        raise contradiction(f"that it is called {mapped.name}")
    if mapped.nullable != column.nullable:
        raise contradiction("that it may be null" if mapped.nullable else "that it is not null")
    if mapped.unsigned is not None and column.family in _NUMERIC and mapped.unsigned != column.unsigned:
        raise contradiction("unsigned" if mapped.unsigned else "signed")
    if mapped.collation is not None and column.collation is not None:
        expected = collation_ids.get(column.collation)
        if expected is not None and expected != mapped.collation:
            raise contradiction(f"collation {mapped.collation}, where {column.collation} is {expected}")


def _fits(mapped: t.MappedColumn, column: ColumnDefinition) -> bool:
    family, arguments, kind, meta = column.family, column.arguments, mapped.type, mapped.meta
    if family in _INTEGERS:
        return kind == _INTEGERS[family]
    if family == "decimal":
        return kind == t.NEWDECIMAL and meta == arguments[0] << 8 | arguments[1]
    if family == "bit":
        return kind == t.BIT and meta == arguments[0]
    if family in _TEMPORAL:
        digits = arguments[0] if arguments and family in {"datetime", "timestamp", "time"} else 0
        fractional = kind in {t.DATETIME2, t.TIMESTAMP2, t.TIME2}
        return kind in _TEMPORAL[family] and (not fractional or meta == digits)
    if family == "enum":
        return kind == t.ENUM and meta == (1 if len(column.labels) < 256 else 2)
    if family == "set":
        return kind == t.SET and meta == _set_bytes(len(column.labels))
    if family in _GEOMETRIES:
        return kind == t.GEOMETRY
    if family in _FIXED:
        return kind == t.STRING and meta == _FIXED[family]
    if family in {"char", "binary"}:
        return kind == t.STRING and meta == _bytes(column)
    if family in {"varchar", "varbinary"}:
        return (kind == t.VARCHAR and meta == _bytes(column)) or kind == t.VARCHAR_COMPRESSED
    for suffix in ("text", "blob"):
        if family.endswith(suffix):
            return kind in {t.BLOB, t.BLOB_COMPRESSED} and meta == _LENGTH_BYTES[family.removesuffix(suffix)]
    return False


def _bytes(column: ColumnDefinition) -> int:
    return column.arguments[0] * (MAX_BYTES.get(column.charset, 1) if column.charset else 1)


def _set_bytes(labels: int) -> int:
    size = (labels + 7) // 8
    return 8 if size > 4 else size
