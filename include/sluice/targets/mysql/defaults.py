"""Defaults of another dialect's columns in this server's SQL, and the value that rows get when a column is added."""

from __future__ import annotations

import math
import re

import pyarrow as pa

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition
from sluice.model.temporal import is_special, time_text
from sluice.mysql.literals import text_literal
from sluice.targets.schema.defaults import Default

K = ColumnKind
_NOW = re.compile(r"(?:current_timestamp|now|localtimestamp|transaction_timestamp)(?:\s*\(\s*\d?\s*\))?", re.I)
_LONG = frozenset({K.TEXT, K.BLOB, K.JSON})
"""The kinds whose default is an expression, in brackets."""


def default_of(column: ColumnDefinition, made: ColumnType, known: DefaultValue) -> Default:
    """Return this server's counterpart of the source's default. ``known``: its value at the source."""
    now = "(utc_timestamp(6))" if made.kind in {K.TIMESTAMP, K.DATETIME} else ""
    later = now if _NOW.fullmatch((column.default or "").strip()) else ""
    if known.value is None:
        return Default(later, None, known.why)
    try:
        rows = literal(known.value, made)
    except ValueError as error:
        return Default(later, None, str(error))
    if rows == "NULL":
        return Default(later)
    return Default(f"({rows})" if made.kind in _LONG else rows, rows)


def literal(value: pa.Scalar, made: ColumnType) -> str:
    """Return a value as SQL. Raises ValueError, with the reason, for one that this server does not have."""
    if not value.is_valid:
        return "NULL"
    kind = value.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        try:
            found = value.as_py() if not is_special(pa.repeat(value, 1)).any() else None
        except (ValueError, OverflowError):
            found = None
        if found is None:
            raise ValueError("MySQL has no such date")
        text = found.isoformat() if pa.types.is_date32(kind) else found.replace(tzinfo=None).isoformat(" ")
        return f"'{text}'"
    if pa.types.is_duration(kind):
        return f"'{time_text(int(value.cast(pa.int64()).as_py()), made.digits)}'"
    found = value.as_py()
    if made.kind is K.BIT:
        return f"b'{found:0{made.length or 1}b}'"
    if isinstance(found, bytes):
        return f"x'{found.hex()}'"
    if isinstance(found, str):
        return text_literal(found)
    if isinstance(found, float):
        if not math.isfinite(found):
            raise ValueError("MySQL has no NaN and no infinite numbers")
        return repr(found)
    return f"{found:f}" if pa.types.is_decimal(kind) else str(found)


__all__ = ["Default", "default_of", "literal"]
