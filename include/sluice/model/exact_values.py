"""Values that travel without their column: in its type where that holds each exactly, in a wider one where not.

A bound of a range that a person typed need not be a value of the key (``1.55`` for a DECIMAL(10,1)), and a target may
hold keys that its source cannot. Texts that only the source's own server can read as a value are ``large_string``.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from sluice.errors import ConfigError
from sluice.model.column_types import ColumnType

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
    """Return one value of a key as text, for a source without SQL: JSON, of other types an object with the type as its
    only name (``{"date": "2024-01-31"}``).
    """
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


_T = TypeVar("_T")

AS_TYPED: pa.DataType = pa.large_string()
"""The type of texts that stand for values, as somebody wrote them."""
_WHOLE = Context(prec=76)


def exact_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array of type ``kind`` if it holds each exactly, otherwise of a type that does.

    Dates and times are given as the numbers that :mod:`sluice.model.temporal` stores. Raises ValueError for values of
    which no type holds all.
    """
    try:
        if pa.types.is_temporal(kind):
            return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
        if pa.types.is_float32(kind) and not _fit(values, np.float32):
            return pa.array(values, pa.float64())
        if not pa.types.is_integer(kind) or all(isinstance(value, int) for value in values):  # Arrow cuts fractions off
            return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    if not all(isinstance(value, int | Decimal) for value in values):
        raise ValueError(f"{kind} does not hold {list(values)!r:.100}")
    return pa.array([_WHOLE.create_decimal(value) for value in values])


def table_of_keys(
    types: Mapping[str, ColumnType],
    keys: Sequence[Sequence[_T]],
    read: Callable[[ColumnType, Sequence[_T]], pa.Array],
) -> pa.Table:
    """Return keys as a table of their values; they may have fewer columns than ``types``.

    ``read``: reads one column.
    """
    if not keys:
        return pa.table({name: pa.array([], column_type.arrow_type) for name, column_type in types.items()})
    columns = zip(types.items(), zip(*keys, strict=True), strict=False)
    return pa.table({name: read(column_type, values) for (name, column_type), values in columns})


def _fit(values: Sequence[Any], kind: type[np.floating[Any]]) -> bool:
    doubles = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        return bool((doubles.astype(kind).astype(np.float64) == doubles).all())
