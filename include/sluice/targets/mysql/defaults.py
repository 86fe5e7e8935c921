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


def default_of(column: ColumnDefinition, column_type: ColumnType, source_default: DefaultValue) -> Default:
    """Return this server's counterpart of the source's default. ``source_default``: its value at the source."""
    now = "(utc_timestamp(6))" if column_type.kind in {K.TIMESTAMP, K.DATETIME} else ""
    later = now if _NOW.fullmatch((column.default or "").strip()) else ""
    if source_default.value is None:
        return Default(later, None, source_default.why)
    try:
        rows = literal(source_default.value, column_type)
    except ValueError as error:
        return Default(later, None, str(error))
    if rows == "NULL":
        return Default(later)
    return Default(f"({rows})" if column_type.kind in _LONG else rows, rows)


def literal(value: pa.Scalar, column_type: ColumnType) -> str:
    """Return a value as SQL. Raises ValueError, with the reason, for one that this server does not have."""
    if not value.is_valid:
        return "NULL"
    kind = value.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        try:
            native = value.as_py() if not is_special(pa.repeat(value, 1)).any() else None
        except (ValueError, OverflowError):
            native = None
        if native is None:
            raise ValueError("MySQL has no such date")
        text = native.isoformat() if pa.types.is_date32(kind) else native.replace(tzinfo=None).isoformat(" ")
        return f"'{text}'"
    if pa.types.is_duration(kind):
        return f"'{time_text(int(value.cast(pa.int64()).as_py()), column_type.digits)}'"
    native = value.as_py()
    if column_type.kind is K.BIT:
        return f"b'{native:0{column_type.length or 1}b}'"
    if isinstance(native, bytes):
        return f"x'{native.hex()}'"
    if isinstance(native, str):
        return text_literal(native)
    if isinstance(native, float):
        if not math.isfinite(native):
            raise ValueError("MySQL has no NaN and no infinite numbers")
        return repr(native)
    return f"{native:f}" if pa.types.is_decimal(kind) else str(native)


__all__ = ["Default", "default_of", "literal"]
