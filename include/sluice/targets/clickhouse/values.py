"""Values of the source as columns of a table at the target, and back."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model import decimals
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.model.temporal import is_special
from sluice.targets.clickhouse.column_types import DATES, HeldType
from sluice.targets.clickhouse.sql import literal
from sluice.targets.messages.row_texts import texts

K = ColumnKind
_Mask = np.ndarray[Any, Any]
Years = tuple[dt.date, dt.date]
ALL_YEARS: Years = (dt.date(1, 1, 1), dt.date(9999, 12, 31))
FEW_YEARS: Years = (dt.date(1900, 1, 1), dt.date(2299, 12, 31))
"""The dates of Date32 and DateTime64 at servers of this time, and at older ones."""
_OF_WORD = {"Date": (dt.date(1970, 1, 1), dt.date(2149, 6, 6)), "DateTime": (dt.date(1970, 1, 1), dt.date(2106, 2, 6))}
_EPOCH = dt.date(1970, 1, 1)
_DAY_US = 86_400_000_000
_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def sent(values: pa.Array, sent_type: ColumnType, held_type: HeldType, years: Years) -> tuple[pa.Array, _Mask | None]:
    """Convert values to what is sent; also return a mask of dates and NaN that the column cannot hold, which become
    null.

    None: there are none.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if sent_type.kind in DATES and pa.types.is_temporal(kind):
        if held_type.word == "String":
            return texts(values, sent_type).cast(pa.string()), None
        return _dates(values, _OF_WORD.get(held_type.word, years))
    if pa.types.is_duration(kind):
        return (
            texts(values, sent_type).cast(pa.string()) if held_type.word == "String" else values.view(pa.int64())
        ), None
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()), None
    if pa.types.is_decimal(kind):
        if held_type.word == "String":
            return decimals.to_text(values), None
        if held_type.word.startswith("Float"):
            return decimals.cast(values, pa.float64()), None
        return decimals.without_nan(values)
    if sent_type.kind is K.ENUM and pa.types.is_string(kind):
        values = pc.if_else(pc.equal(values, ENUM_ERROR_VALUE), pa.scalar("", kind), values)
    return values, None


def _dates(values: pa.Array, years: Years) -> tuple[pa.Array, _Mask | None]:
    days = pa.types.is_date32(values.type)
    unit = 1 if days else _DAY_US
    least, most = ((year - _EPOCH).days for year in years)
    numbers = values.view(pa.int32() if days else pa.int64())
    beyond = pc.or_(pc.less(numbers, least * unit), pc.greater_equal(numbers, (most + 1) * unit))
    odd = np.asarray(pc.fill_null(beyond, False).to_numpy(zero_copy_only=False)) | is_special(values)
    if not odd.any():
        return values, None
    return pc.if_else(pa.array(odd), pa.scalar(None, values.type), values), odd


def read_expression(quoted_name: str, held_type: HeldType) -> str:
    """Return the SQL that reads a column: types that Arrow does not have, or has in another way, as text."""
    plain = held_type.word in {"String", "Enum8", "Enum16", "UUID", "IPv4", "IPv6", "JSON"}
    return f"CAST({quoted_name}, 'Nullable(String)')" if plain else quoted_name


def read_back(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Convert values that were read to the type in which they are sent; texts stay bytes, as any may be in a String."""
    if (
        pa.types.is_string(arrow_type)
        or pa.types.is_large_string(arrow_type)
        or pa.types.is_binary(arrow_type)
        or pa.types.is_large_binary(arrow_type)
    ):
        return values.cast(pa.binary())
    if pa.types.is_timestamp(arrow_type) and pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", tz="UTC")).cast(arrow_type)
    return values if values.type == arrow_type else values.cast(arrow_type)


def comparable(values: pa.Array) -> pa.Array:
    """Return values that are equal only if every bit is: texts as bytes, numbers with a fraction as their bits."""
    if (
        pa.types.is_string(values.type)
        or pa.types.is_large_string(values.type)
        or pa.types.is_large_binary(values.type)
    ):
        return values.cast(pa.binary())
    return values.view(_BITS[values.type]) if values.type in _BITS else values


def stored_key(values: pa.Array, column_type: ColumnType) -> pa.Array:
    """Convert a column of a key, as it was read back, to the type in which the source's values are stored."""
    kind = column_type.arrow_type
    return values.view(kind) if pa.types.is_duration(kind) and pa.types.is_int64(values.type) else values.cast(kind)


def default_sql(values: pa.Array, sent_type: ColumnType, held_type: HeldType) -> str:
    """Return the SQL of the one value in an array of what is sent; NULL for null."""
    value = values[0].as_py() if values[0].is_valid else None
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"unhex('{value.hex()}')"
    text = texts(values, sent_type)[0].as_py().decode() if not isinstance(value, str) else value
    return f"CAST({literal(text)}, {literal(held_type.declared)})"


__all__ = [
    "ALL_YEARS", "FEW_YEARS", "Years", "comparable", "default_sql", "read_back", "read_expression", "sent",
    "stored_key",
]  # fmt: skip
