"""Keys as texts that PostgreSQL reads and writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.exact_values import AS_TYPED, exact_values
from sluice.model.tables import one_chunk
from sluice.model.temporal import date_number, timestamp_number, to_text
from sluice.postgresql.type_names import pg_type

_WORDS = frozenset({"text", "character varying", "character", "uuid"})


def texts(keys: pa.Table) -> list[tuple[str, ...]]:
    """Return keys (no nulls) as texts that a cast to the column's type reads exactly."""
    return list(zip(*map(_texts, map(one_chunk, keys.columns)), strict=True))


def _texts(values: pa.Array) -> list[str]:
    if pa.types.is_temporal(values.type):
        texts: list[str] = to_text(values, fsp=0 if pa.types.is_date32(values.type) else 6).to_pylist()
        return texts
    return list(map(_text, values.to_pylist()))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return rf"\x{value.hex()}"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def shown(column: str, declared: str) -> str:
    """Return SQL for a key column's value as text that :func:`read_keys` reads."""
    word = pg_type(declared).word
    if word == "date":
        return f"{column}::text"
    if word.startswith("timestamp"):
        far = f"NOT isfinite({column}) OR {column} < '0001-01-01'"
        usual = f"to_char({column}, 'YYYY-MM-DD HH24:MI:SS.US')"
        return f"CASE WHEN {far} THEN replace({column}::text, '+00', '') ELSE {usual} END"
    if word == "bytea":
        return f"encode({column}, 'hex')"
    if word in _WORDS:
        return f"encode(convert_to({column}::text, 'UTF8'), 'hex')"
    return f"{column}::text"


def read_keys(types: Mapping[str, ColumnType], rows: Sequence[Sequence[str]]) -> pa.Table:
    """Return keys as :func:`shown` writes them, columns named as ``types`` says and in its order.

    A column keeps its texts if one of them is no value that the source's type can have, as an infinite date.
    """
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    read = zip(types.items(), columns, strict=True)
    return pa.table({name: _array(column_type, list(map(str, texts))) for (name, column_type), texts in read})


def _array(column_type: ColumnType, texts: Sequence[str]) -> pa.Array:
    type_ = column_type.arrow_type
    if pa.types.is_binary(type_):
        return exact_values(list(map(bytes.fromhex, texts)), type_)
    if pa.types.is_string(type_):
        return exact_values([bytes.fromhex(text).decode() for text in texts], type_)
    read = _READ.get(column_type.kind, _number)
    if column_type.kind in _DATES and not column_type.native and not all(map(_CALENDAR.match, texts)):
        return pa.array(texts, AS_TYPED)
    try:
        return exact_values(list(map(read, texts)), type_)
    except (ValueError, ArithmeticError, pa.ArrowException):
        return pa.array(texts, AS_TYPED)


def _number(text: str) -> int | Decimal:
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else number


_DATES = frozenset({ColumnKind.DATE, ColumnKind.DATETIME, ColumnKind.TIMESTAMP})
_CALENDAR = re.compile(r"\d{4}-[^B]*\Z")
"""The texts of dates that other kinds of servers have, too."""

_READ: Mapping[ColumnKind, Callable[[str], Any]] = {
    ColumnKind.DATE: date_number,
    ColumnKind.DATETIME: timestamp_number,
    ColumnKind.TIMESTAMP: timestamp_number,
    ColumnKind.DECIMAL: Decimal,
    ColumnKind.FLOAT: float,
    ColumnKind.DOUBLE: float,
}
"""The readers of texts, but for whole numbers."""
