"""Columns of a lake table: their types under Delta's names, the values that each can hold, and what is lost.

Every format has the types under some name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.planned import PlannedColumn

K = ColumnKind

Shape = str | tuple["LakeColumn", ...]


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column.

    ``kind``: Delta's name of its type, or its parts if it is a struct; ``length``: characters of CHAR and VARCHAR, 0:
    any; ``partition``: the table is partitioned by it; ``as_null``: texts that would be read back as NULL.
    """

    name: str
    kind: Shape
    nullable: bool = True
    length: int = 0
    partition: bool = False
    as_null: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table as it is."""

    columns: tuple[LakeColumn, ...]
    partitions: tuple[str, ...] = ()

    def find(self, name: str) -> LakeColumn | None:
        """Return the column with this name, whose case does not matter in Delta; None if there is none."""
        return next((column for column in self.columns if column.name.casefold() == name.casefold()), None)


def wanting(columns: Sequence[LakeColumn], info: TableInfo) -> list[LakeColumn]:
    """Return the columns that a table lacks; for a struct, its missing parts."""
    missing: list[LakeColumn] = []
    for column in columns:
        stored = info.find(column.name)
        if stored is None:
            missing.append(column)
        elif not isinstance(column.kind, str) and not isinstance(stored.kind, str):
            parts: Shape = tuple(wanting(column.kind, TableInfo(stored.kind)))
            if parts:
                missing.append(LakeColumn(column.name, parts))
    return missing


_PARTITIONS = re.compile(r"byte|short|integer|long|string|date|timestamp(_ntz)?|decimal\(\d+, ?0\)")


def partitionable(kind: Shape) -> bool:
    """Return True for types of which the library writes every partition value so that it is read unchanged, as tested
    with edge values.
    """
    return isinstance(kind, str) and _PARTITIONS.fullmatch(kind) is not None


def clusterable(kind: Shape) -> bool:
    """Return True for types whose values have an order, and whose bounds in a file's entry readers use."""
    return isinstance(kind, str) and kind not in {"binary", "boolean"}


_RANGES: Mapping[str, tuple[int, int]] = {
    "byte": (-(2**7), 2**7 - 1), "short": (-(2**15), 2**15 - 1), "integer": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
}  # fmt: skip
_ARROW: Mapping[str, pa.DataType] = {
    "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(), "binary": pa.binary(), "date": pa.date32(), "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
"""The name of a decimal type: precision, scale."""
_MOST_DIGITS = 38
_WIDTHS = {K.TINYINT: 8, K.SMALLINT: 16, K.MEDIUMINT: 24, K.INT: 32, K.BIGINT: 64}
WHOLE = frozenset({*_WIDTHS, K.YEAR, K.BIT})
_TEXTS = frozenset({K.CHAR, K.VARCHAR, K.TEXT, K.ENUM, K.SET, K.JSON, K.UUID, K.INET4, K.INET6})
_BYTES = frozenset({K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR})


def arrow_of(kind: str) -> pa.DataType:
    """Return the Arrow type of a type. Raises KeyError for one that no source column fits into."""
    match = DECIMAL.fullmatch(kind)
    return pa.decimal128(int(match[1]), int(match[2])) if match else _ARROW[kind]


def _range(column_type: ColumnType) -> tuple[int, int]:
    """Return the range of the values of an integer type."""
    if column_type.kind is K.YEAR:
        return 0, 2155
    if column_type.kind is K.BIT:
        return 0, 2 ** (column_type.length or 1) - 1
    width = _WIDTHS[column_type.kind]
    return (0, 2**width - 1) if column_type.unsigned else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)


def _whole(column_type: ColumnType) -> str:
    """Return the narrowest type that holds all values.

    BIGINT UNSIGNED and BIT(64) do not become long, which would wrap them.
    """
    low, high = _range(column_type)
    return next((kind for kind, (least, most) in _RANGES.items() if least <= low and high <= most), "decimal(20,0)")


def _decimal(column_type: ColumnType) -> str:
    return f"decimal({column_type.precision},{column_type.scale})" if column_type.precision <= _MOST_DIGITS else ""


OWN: Mapping[ColumnKind, Callable[[ColumnType], str] | str] = {
    **dict.fromkeys((*_WIDTHS, K.YEAR), _whole),
    K.BIT: lambda column_type: "long" if (column_type.length or 1) < 64 else "decimal(20,0)",
    K.DECIMAL: _decimal,
    K.FLOAT: "float",
    K.DOUBLE: "double",
    K.DATE: "date",
    K.DATETIME: "timestamp_ntz",
    K.TIMESTAMP: "timestamp",
    K.TIME: "long",
    **dict.fromkeys(_TEXTS, "string"),
    **dict.fromkeys(_BYTES, "binary"),
}
"""The type of this target for each kind of values."""

LOSES: Mapping[ColumnKind, str] = {
    **dict.fromkeys((K.DATE, K.DATETIME, K.TIMESTAMP), "dates that no calendar has (0000-00-00) are refused, or "
    "become NULL: options.zero_dates"),
    K.TIME: "it is a number of microseconds",
    K.BIT: "it is a number",
    K.ENUM: "the order of the labels is lost",
    K.SET: "it is the text of the labels",
    K.JSON: "it is the text",
    K.GEOMETRY: "it is bytes: four of the SRID, then WKB",
    K.VECTOR: "it is bytes: four a number",
}  # fmt: skip
"""The part of the values that the own type does not keep; it changes none silently."""

TOO_WIDE = f"no lake format has numbers of more than {_MOST_DIGITS} digits"


def own_type(column_type: ColumnType, wide_decimals: str = "refuse") -> str:
    """Return the type of a column that holds every value of ``column_type``; "" if there is none."""
    entry = OWN[column_type.kind]
    kind = entry if isinstance(entry, str) else entry(column_type)
    return "string" if not kind and wide_decimals == "string" else kind


def made_type(column: PlannedColumn, wide_decimals: str = "refuse") -> str:
    """Return the type for a new table: the mapping's own (``convert: {type: …}``) if all values fit, else
    :func:`own_type`.
    """
    sent_type, mapped_type = column.sent_type, column.wanted_type
    if mapped_type is not None:
        kind = own_type(mapped_type, wide_decimals)
        if kind and takes(sent_type, kind):
            return kind
    return own_type(sent_type, wide_decimals)


def takes(column_type: ColumnType, kind: str) -> bool:
    """Return True if a column of the type ``kind`` holds every value of ``column_type`` exactly, except for what
    :func:`lost` says.
    """
    decimal = DECIMAL.fullmatch(kind)
    precision, scale = (int(decimal[1]), int(decimal[2])) if decimal else (0, 0)
    if column_type.kind in WHOLE:
        low, high = _range(column_type)
        least, most = (
            (-(10 ** (precision - scale)) + 1, 10 ** (precision - scale) - 1) if decimal else _RANGES.get(kind, (0, -1))
        )
        return least <= low and high <= most
    match column_type.kind:
        case K.DECIMAL:
            return kind == "string" or (
                scale >= column_type.scale and precision - scale >= column_type.precision - column_type.scale
            )
        case K.FLOAT:
            return kind in {"float", "double"}
        case K.DATETIME | K.TIMESTAMP:
            return kind in {"timestamp", "timestamp_ntz"}
    return kind == own_type(column_type)


def lost(column_type: ColumnType, kind: str) -> str:
    """Return what a column of type ``kind`` that takes ``column_type`` does not keep, or refuses; "" for nothing."""
    if column_type.kind in {K.DATETIME, K.TIMESTAMP} and (column_type.kind is K.TIMESTAMP) != (kind == "timestamp"):
        return "values are taken for UTC"
    if column_type.kind is K.DECIMAL and kind == "string":
        return "it is the text of the digits"
    return LOSES.get(column_type.kind, "")


_DIGITS: Mapping[str, int] = {"byte": 3, "short": 5, "integer": 10, "long": 19}


def widens(old_type: str, new_type: str) -> bool:
    """Return True if every value of the Delta type ``old_type`` is the same value of the type ``new_type``, and the
    cast keeps it.
    """
    if old_type in _DIGITS and new_type in _DIGITS:
        return _DIGITS[old_type] <= _DIGITS[new_type]
    new = DECIMAL.fullmatch(new_type)
    if new is not None:
        precision, scale = int(new[1]), int(new[2])
        if old_type in _DIGITS:
            return precision - scale >= _DIGITS[old_type]
        old = DECIMAL.fullmatch(old_type)
        return old is not None and scale >= int(old[2]) and precision - scale >= int(old[1]) - int(old[2])
    return new_type == "double" and old_type in {"byte", "short", "integer", "float"}
