"""Defaults of the source's columns in Oracle's SQL, and the value that existing rows get when a column is added."""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.model.temporal import is_special
from sluice.targets.oracle.values import BLANK
from sluice.targets.schema.defaults import Default

K = ColumnKind
_NOW = re.compile(r"(?:current_timestamp|now|localtime|localtimestamp)(?:\s*\(\s*\d?\s*\))?", re.I)
_LONGEST_LITERAL = 4_000
_SMALLEST, _LARGEST = 1e-100, 1e100


def default_of(
    column: ColumnDefinition, column_type: ColumnType, source_default: DefaultValue, empty_strings: str, zero_dates: str
) -> Default:
    """Return the target's counterpart of the source's default.

    ``source_default``: its value at the source; ``empty_strings``, ``zero_dates``: the target's options.
    """
    declared = column.default is not None and column.default.upper() != "NULL"
    if source_default.value is None:
        return Default(_expression(column, column_type), None, source_default.why)
    try:
        rows = literal(source_default.value, column_type, empty_strings)
    except ValueError as error:
        if zero_dates == "null" and column_type.kind in {K.DATE, K.DATETIME, K.TIMESTAMP}:
            return Default()
        return Default(_expression(column, column_type), None, str(error))
    return Default(_expression(column, column_type) or (rows if declared and rows != "NULL" else ""), rows)


def _expression(column: ColumnDefinition, column_type: ColumnType) -> str:
    """Return the default of future rows if it is a time, "" for others."""
    if not _NOW.fullmatch((column.default or "").strip()):
        return ""
    return "SYS_EXTRACT_UTC(SYSTIMESTAMP)" if column_type.kind in {K.TIMESTAMP, K.DATETIME} else ""


def literal(value: pa.Scalar, column_type: ColumnType, empty_strings: str = "refuse") -> str:
    """Return a value as SQL for a column of the target's own type.

    Raises ValueError, with the reason, for one that Oracle does not have.
    """
    if not value.is_valid:
        return "NULL"
    kind = value.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        if is_special(pa.repeat(value, 1)).any():
            raise ValueError(
                "it is a date that no calendar has, like 0000-00-00 (options.zero_dates: null makes NULL of it)"
            )
        if pa.types.is_date32(kind):
            return f"DATE '{value.as_py().isoformat()}'"
        return f"TIMESTAMP '{value.as_py().replace(tzinfo=None).isoformat(' ')}'"
    if pa.types.is_duration(kind):
        return _span(value.cast(pa.int64()).as_py())
    python_value = value.as_py()
    if isinstance(python_value, bytes):
        return f"HEXTORAW('{python_value.hex()}')" if python_value else _empty(empty_strings, text=False)
    if isinstance(python_value, str):
        if column_type.kind is K.ENUM and python_value == ENUM_ERROR_VALUE:
            python_value = ""
        if len(python_value.encode()) > _LONGEST_LITERAL or "\0" in python_value:
            raise ValueError("it is a text that a statement cannot have")
        return _quoted(python_value) if python_value else _empty(empty_strings, text=True)
    if isinstance(python_value, float):
        if python_value and not _SMALLEST < abs(python_value) < _LARGEST:
            raise ValueError("it is a number that only a binary type holds")
        return f"{Decimal(repr(python_value)):f}"
    return f"{python_value:f}" if pa.types.is_decimal(kind) else str(int(python_value))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _empty(empty_strings: str, *, text: bool) -> str:
    if empty_strings == "null":
        return "NULL"
    if empty_strings == "blank" and text:
        return _quoted(BLANK)
    raise ValueError("it is empty, which is NULL to Oracle (options.empty_strings)")


def _span(micros: int) -> str:
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, hours = seconds // 60, seconds // 3600
    return (
        f"INTERVAL '{sign}{hours // 24} {hours % 24:02d}:{minutes % 60:02d}:{seconds % 60:02d}.{fraction:06d}' "
        "DAY TO SECOND(6)"
    )
