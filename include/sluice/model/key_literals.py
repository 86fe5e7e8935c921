"""Keys as texts of a source that has no SQL: how its chunks, lists of keys and ranges are stored.

Numbers and texts are JSON values; values that JSON does not have are an object with their type as its only name
(``{"date": "2024-01-31"}``).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from sluice.errors import ConfigError

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
