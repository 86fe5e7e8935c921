"""Between Arrow columns and the Python values a rule sees."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from sluice.model import decimals, temporal

_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?")


def to_python(values: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return int, Decimal, float, str, bytes, date, datetime, timedelta or None.

    A date that no calendar has is MySQL's text of it.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = values.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return temporal.to_python(values)
    if pa.types.is_decimal(kind):
        return decimals.to_python(values)
    return values.to_pylist()  # type: ignore[no-any-return]


def to_rows(columns: Sequence[str], arrays: Sequence[pa.ChunkedArray | pa.Array]) -> list[dict[str, Any]]:
    """Return one dict per row."""
    lists = [to_python(array) for array in arrays]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)] if lists else []


def from_python(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return an array of the field's type. Raises ValueError that says which value does not fit."""
    kind = field.type
    try:
        return decimals.from_python(values, kind) if pa.types.is_decimal(kind) else pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        date = pa.types.is_date32(kind)
        numbers = [_fitted(value, kind, lambda v: _moment(v, date=date)) for value in values]
        return pa.array(numbers, pa.int32() if date else pa.int64()).cast(kind)
    return pa.array([_fitted(value, kind, lambda v: _plain(v, kind)) for value in values], kind)


def inferred(values: Sequence[Any]) -> pa.Array:
    """Return an array for a column that the source does not have. Raises ValueError for mixed or unknown types."""
    try:
        array = pa.array([json.dumps(v) if isinstance(v, dict | list) else v for v in values])
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(f"its values have no common type ({error})") from error
    if pa.types.is_null(array.type):
        return array.cast(pa.string())
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8())
    return array


def _fitted(value: Any, kind: pa.DataType, convert: Callable[[Any], Any]) -> Any:
    if value is None:
        return None
    try:
        return convert(value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{value!r} ({type(value).__name__}) does not fit {kind}: {error}") from error


def _plain(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool) and not pa.types.is_boolean(kind):
        value = int(value)
    elif isinstance(value, dict | list) and pa.types.is_string(kind):
        value = json.dumps(value, ensure_ascii=False)
    pa.scalar(value, kind)
    return value


def _moment(value: Any, *, date: bool) -> int:
    """Return the stored number of a date, of a datetime, or of MySQL's text of one."""
    if isinstance(value, str):
        match = _MOMENT.fullmatch(value)
        if match is None:
            raise ValueError("write YYYY-MM-DD or YYYY-MM-DD HH:MM:SS.ffffff")
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((match[7] or "").ljust(6, "0"))
        if date:
            return temporal.stored_date(year, month, day)
        return temporal.stored_timestamp(year, month, day, micros)
    kind = pa.date32() if date else pa.timestamp("us")
    return int(pa.scalar(value, kind).cast(pa.int32() if date else pa.int64()).as_py())


def fitted(column: pa.ChunkedArray, kind: pa.DataType | None) -> pa.ChunkedArray:
    """Cast a rule's column to ``kind``, or, if the source lacks the column (None), to a type that a target can take.

    Raises ValueError or ArrowException if a value does not fit: nothing is rounded or cut.
    """
    have = column.type
    if kind is not None and have == kind:
        return column
    if have == pa.month_day_nano_interval():
        column = _durations(column)
    elif kind is None and (pa.types.is_nested(have)):
        texts = [None if v is None else json.dumps(v, ensure_ascii=False, default=str) for v in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    target = kind if kind is not None else _plain_type(column.type)
    if column.type == target:
        return column
    if pa.types.is_boolean(column.type) and not pa.types.is_integer(target):
        column = column.cast(pa.int8())
    if kind is not None and pa.types.is_string(have) and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return pa.chunked_array([from_python(column.to_pylist(), pa.field("", kind))])
    return decimals.cast(column, target)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if (
        pa.types.is_null(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_dictionary(kind)
    ):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_boolean(kind):
        return pa.int8()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.duration("us")
    if pa.types.is_date(kind):
        return pa.date32()
    return kind


def _durations(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert intervals to microseconds. An interval of months has no length."""
    micros = []
    for value in column.to_pylist():
        if value is not None and value.months:
            raise ValueError("an interval of months has no fixed length")
        micros.append(None if value is None else value.days * 86_400_000_000 + value.nanoseconds // 1000)
    return pa.chunked_array([pa.array(micros, pa.int64()).cast(pa.duration("us"))])
