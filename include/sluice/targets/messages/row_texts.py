"""The text of each kind of values in a store without types of its own: as a field, as JSON and in a key; and what is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.formats.columns import base64, joined, quoted
from sluice.formats.common import number_text
from sluice.model import decimals
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.planned import PlannedTable
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.model.temporal import date_number, time_of, timestamp_number, to_text

K = ColumnKind
BYTES = pa.large_binary()


@dataclass(frozen=True, slots=True)
class OwnType:
    """How values of a kind are written.

    Attributes:
        number: a JSON number in form: json; else a JSON string.
        read: a value from its text in a key, as Arrow stores it; None: keys of this kind are not read back.
        trailing: equal values may have texts with another number of zeros at their end, as the column has another scale
            by now.
        loses: what of them is not stored, "" for nothing.
    """

    number: bool = False
    read: Callable[[str], Any] | None = None
    trailing: bool = False
    loses: str = ""


OWN: Mapping[ColumnKind, OwnType] = {
    **dict.fromkeys(
        (K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.BIT, K.YEAR), OwnType(number=True, read=int)
    ),
    K.DECIMAL: OwnType(read=Decimal, trailing=True),
    **dict.fromkeys((K.FLOAT, K.DOUBLE), OwnType(number=True)),
    K.DATE: OwnType(read=date_number),
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP), OwnType(read=timestamp_number, trailing=True)),
    K.TIME: OwnType(read=time_of, trailing=True),
    **dict.fromkeys((K.CHAR, K.VARCHAR, K.TEXT, K.UUID, K.INET4, K.INET6), OwnType(read=str)),
    **dict.fromkeys((K.ENUM, K.SET), OwnType(read=str, loses="the numbers of its labels")),
    K.JSON: OwnType(),
    **dict.fromkeys((K.BINARY, K.VARBINARY), OwnType(read=bytes.fromhex)),
    **dict.fromkeys((K.BLOB, K.GEOMETRY, K.VECTOR), OwnType()),
}
"""The text of values of each kind is MySQL's; bytes are as they are, in a key as hexadecimal digits."""


def escaped(text: str) -> str:
    """Return a part of a key without the colon that separates parts."""
    return text.replace("%", "%25").replace(":", "%3A")


def own_type(column_type: ColumnType) -> OwnType:
    """Return how values of a column are written."""
    return OWN[column_type.kind]


def not_read_back(plan: PlannedTable, place: str) -> str:
    """Return why keys of the table cannot be read back from a place, "" if they can."""
    for column in plan.key_columns:
        if own_type(column.value_type).read is None:
            return f"the key column {column.name} ({column.sql_type}) is not read back from {place}"
    return ""


def texts(values: pa.Array, column_type: ColumnType) -> pa.Array:
    """Return values as their texts (large_binary); null stays null."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_timestamp(kind):
        values = to_text(values.cast(pa.timestamp("us", kind.tz)), fsp=column_type.digits)
    elif pa.types.is_temporal(kind):
        values = to_text(values, fsp=column_type.digits)
    elif pa.types.is_decimal(kind):
        values = decimals.to_text(values)
    elif pa.types.is_floating(kind):
        values = _floats(values)
    elif column_type.kind is K.ENUM:
        values = pc.if_else(pc.equal(values, ENUM_ERROR_VALUE), pa.scalar("", kind), values)
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return values.cast(BYTES)
    return values.cast(pa.large_string()).cast(BYTES)


def _floats(values: pa.Array) -> pa.Array:
    """Return numbers as Arrow prints them; NaN and infinite ones as PostgreSQL does."""
    floats, odd = values.cast(pa.string()), _not_finite(values)
    if not odd.any():
        return floats
    others = [number_text(value) for value in values.filter(pa.array(odd)).to_pylist()]
    return pc.replace_with_mask(floats, pa.array(odd), pa.array(others, pa.string()))


def _not_finite(values: pa.Array) -> np.ndarray:
    """Return a mask of NaN and infinite numbers."""
    return np.asarray(pc.invert(pc.is_finite(pc.fill_null(values, 0))).to_numpy(zero_copy_only=False))


def key_texts(values: pa.Array, column_type: ColumnType) -> pa.Array:
    """Return values as they stand in a key (large_string): the same for equal ones, whatever scale their column has."""
    own = own_type(column_type)
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return pa.array([None if raw is None else raw.hex() for raw in values.to_pylist()], pa.large_string())
    key_texts = texts(values, column_type).cast(pa.large_string())
    if own.trailing:
        key_texts = pc.replace_substring_regex(key_texts, r"(\.\d*?)0+$", r"\1")
        key_texts = pc.replace_substring_regex(key_texts, r"\.$", "")
    for plain in ("%", ":"):
        key_texts = pc.replace_substring(key_texts, plain, escaped(plain))
    return key_texts


def json_texts(values: pa.Array, column_type: ColumnType) -> pa.Array:
    """Return values as JSON (large_string); null stays null."""
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return base64(values)
    json_texts = texts(values, column_type).cast(pa.large_string())
    if not own_type(column_type).number:
        return quoted(json_texts)
    if pa.types.is_floating(values.type) and (odd := _not_finite(values)).any():  # JSON has no number for them
        return pc.if_else(pa.array(odd), quoted(json_texts), json_texts)
    return json_texts


def iso_texts(values: pa.Array, column_type: ColumnType) -> pa.Array:
    """Return times as ISO 8601 writes them (large_string): T before the clock, Z after a point in time; null stays
    null.
    """
    with_clock = pc.replace_substring(texts(values, column_type).cast(pa.large_string()), " ", "T", max_replacements=1)
    return joined(with_clock, "Z") if column_type.kind is K.TIMESTAMP else with_clock


def read_text(kind: ColumnType, text: str) -> Any:
    """Return a value as Arrow stores it, from its text in a key or from that of :func:`iso_texts`.

    Raises ValueError, ArithmeticError.
    """
    read = own_type(kind).read
    assert read is not None  # asked before
    if kind.kind in {K.DATETIME, K.TIMESTAMP}:
        text = text.removesuffix("Z").replace("T", " ", 1)
    return read(text)


def alike(column_type: ColumnType, own: bytes | None, stored: bytes | None) -> bool:
    """Return True if two texts are of the same value."""
    if own == stored or own is None or stored is None or not own_type(column_type).trailing:
        return own == stored
    return _short(own) == _short(stored)


def _short(text: bytes) -> bytes:
    return text.rstrip(b"0").rstrip(b".") if b"." in text else text
