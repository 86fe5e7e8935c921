"""Keys as texts: how chunks, lists of keys and ranges store them.

A source that has no SQL writes JSON texts (:func:`literal`): numbers and texts are JSON values, values that JSON does
not have are an object with their type as its only name (``{"date": "2024-01-31"}``). A source that has SQL writes
literals, which say no type: :func:`key_values` reads them for a column whose type is known.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.errors import ConfigError, UnsupportedType
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.model.temporal import time_of

K = ColumnKind

_WRITTEN: Mapping[type, tuple[str, Callable[[Any], str]]] = {
    Decimal: ("decimal", str),
    dt.datetime: ("datetime", dt.datetime.isoformat),
    dt.date: ("date", dt.date.isoformat),
    dt.timedelta: ("time", lambda value: str(value // dt.timedelta(microseconds=1))),
    bytes: ("bytes", bytes.hex),
}
_READ: Mapping[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": lambda text: dt.timedelta(microseconds=int(text)),
    "bytes": bytes.fromhex,
}


def literal(value: Any) -> str:
    """Return one value of a key as text."""
    written = _WRITTEN.get(type(value))
    return json.dumps({written[0]: written[1](value)} if written else value, ensure_ascii=False)


def read_key(key: Sequence[str]) -> tuple[Any, ...]:
    """Parse the values of a key, which :func:`literal` wrote. Raises ConfigError for another text."""
    return tuple(map(_read, key))


def _read(text: str) -> Any:
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            [(name, written)] = value.items()
            value = _READ[name](written)
    except (ValueError, KeyError):
        raise ConfigError(f"{text!r} is no value of a key as a source without SQL writes it") from None
    return value


UTF8 = re.compile(r"_utf8mb4 x'([0-9a-f]*)'")
"""The literal of a text: the bytes of its UTF-8."""


def key_values(made: ColumnType, literals_: Sequence[str]) -> pa.Array:
    """Return the values (stored form) of SQL literals of a column of this type. Raises UnsupportedType.

    Numbers are in digits, texts as :data:`UTF8`, bytes as ``x'6162'``, dates and times in quotes, ENUM and SET as their
    numbers.
    """
    try:
        return pa.array([_value(made, one) for one in literals_], made.arrow_type)
    except (ValueError, ArithmeticError, IndexError, pa.ArrowException) as error:
        raise UnsupportedType(f"literals of a key of type {made.kind} are not understood: {error}") from error


def _value(made: ColumnType, literal: str) -> Any:
    text = UTF8.fullmatch(literal)
    if text is not None:
        return bytes.fromhex(text[1]).decode()
    if literal.startswith("x'"):
        return bytes.fromhex(literal[2:-1])
    if made.kind is K.ENUM:
        return made.labels[int(literal) - 1] if int(literal) else ENUM_ERROR_VALUE
    if made.kind is K.SET:
        return ",".join(label for at, label in enumerate(made.labels) if int(literal) >> at & 1)
    if made.kind is K.TIME:
        return time_of(literal.strip("'"))
    if made.kind is K.DATE:
        return dt.date.fromisoformat(literal.strip("'"))
    if made.kind in {K.DATETIME, K.TIMESTAMP}:
        return dt.datetime.fromisoformat(literal.strip("'"))
    if made.kind in {K.FLOAT, K.DOUBLE}:
        return float(literal)
    return Decimal(literal) if made.kind is K.DECIMAL else int(literal)


__all__ = ["UTF8", "key_values", "literal", "read_key"]
