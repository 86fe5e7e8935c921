"""Debezium's values as Python values."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

EPOCH, DAY = dt.datetime(1970, 1, 1), dt.date(1970, 1, 1)


def python_value(declared: str, value: Any) -> Any:
    """A value of a debezium-json document, read by the rules of Debezium's documentation."""
    if value is None or not declared:
        return value
    word, _, rest = declared.partition("(")
    word, first = word.split()[0], rest.rstrip(")").split(",")
    if word == "decimal":
        digits = int.from_bytes(base64.b64decode(value), "big", signed=True)
        return Decimal(f"{digits}E-{int(first[1])}")  # exact, whatever the precision of the context
    if word in {"binary", "varbinary", "blob"}:
        return base64.b64decode(value)
    if word == "date":
        return DAY + dt.timedelta(days=value)
    if word == "datetime":
        return EPOCH + dt.timedelta(microseconds=value if int(first[0] or 0) > 3 else value * 1000)
    if word == "time":
        return dt.timedelta(microseconds=value)
    return value


def python_row(types: dict[str, str], row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A whole image."""
    return None if row is None else {name: python_value(types.get(name, ""), value) for name, value in row.items()}
