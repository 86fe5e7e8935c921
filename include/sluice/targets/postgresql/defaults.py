"""Defaults of the source's columns in PostgreSQL's SQL, and the value that existing rows get when a column is added."""

from __future__ import annotations

import re

import pyarrow as pa

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.model.temporal import is_special, time_text
from sluice.postgresql.names import text_literal
from sluice.targets.schema.defaults import Default

K = ColumnKind
_MICROS = 6
_NOW = re.compile(r"(?:current_timestamp|now|localtime|localtimestamp)(?:\s*\(\s*\d?\s*\))?", re.I)


def default_of(column: ColumnDefinition, kind: ColumnType, preset: DefaultValue, zero_dates: str = "refuse") -> Default:
    """Return the target's counterpart of the source's default.

    ``preset``: its value at the source; ``zero_dates``: how dates are treated that no calendar has.
    """
    declared = column.default is not None and column.default.upper() != "NULL"
    if preset.value is None:
        return Default(_expression(column, kind), None, preset.why)
    try:
        rows = literal(preset.value, kind)
    except ValueError as error:
        if zero_dates == "null" and column.nullable and kind.kind in {K.DATE, K.DATETIME, K.TIMESTAMP}:
            return Default()
        return Default(_expression(column, kind), None, str(error))
    return Default(_expression(column, kind) or (rows if declared and rows != "NULL" else ""), rows)


def _expression(column: ColumnDefinition, column_type: ColumnType) -> str:
    """Return the default of future rows if it is a time, "" for others."""
    if not _NOW.fullmatch((column.default or "").strip()):
        return ""
    return {K.TIMESTAMP: "now()", K.DATETIME: "(now() AT TIME ZONE 'UTC')"}.get(column_type.kind, "")


def literal(value: pa.Scalar, source: ColumnType) -> str:
    """Return a value as SQL for a column of the target's own type.

    Raises ValueError, with the reason, for one that PostgreSQL does not have.
    """
    if not value.is_valid:
        return "NULL"
    if source.native == "boolean":
        return "true" if value.as_py() else "false"
    kind = value.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        if is_special(pa.repeat(value, 1)).any():
            raise ValueError(
                "it is a date that no calendar has, like 0000-00-00 (options.zero_dates: null makes NULL of it)"
            )
        text = (
            value.as_py().isoformat() if pa.types.is_date32(kind) else value.as_py().replace(tzinfo=None).isoformat(" ")
        )
        return text_literal(text + ("+00" if pa.types.is_timestamp(kind) and kind.tz else ""))
    if pa.types.is_duration(kind):
        micros = int(value.cast(pa.int64()).as_py())
        return f"'{time_text(micros, _MICROS)}'" if source.native else f"'{micros} microseconds'"
    plain = value.as_py()
    if source.kind is K.BIT:
        return f"B'{plain:0{source.length or 1}b}'"
    if isinstance(plain, bytes):
        return rf"'\x{plain.hex()}'"
    if isinstance(plain, str):
        if source.kind is K.ENUM and plain == ENUM_ERROR_VALUE:
            plain = ""
        if "\0" in plain:
            raise ValueError("it has a NUL character, which PostgreSQL does not store")
        return text_literal(plain)
    if isinstance(plain, float):
        return f"'{plain!r}'"
    return f"{plain:f}" if pa.types.is_decimal(kind) else str(plain)
