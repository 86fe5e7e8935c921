"""Shared parts of the formats: the columns of a change, values as text, and JSON that keeps every digit."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.model.changes import Change
from sluice.model.fields import declared_type, is_key, is_required, true_name
from sluice.model.schema_changes import TableChange
from sluice.model.tables import ENUM_ERROR_VALUE, TableId
from sluice.model.temporal import BEFORE_CHRIST, time_text
from sluice.mysql.column_types import Literal, MysqlType
from sluice.mysql.type_loss import SqlType

MICROSECOND = dt.timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that changed definitions, at its place in the log. ``changes``: what it did, a table each."""

    file: str
    offset: int
    gtid: str | None
    commit_time_us: int
    schema: str
    sql: str
    changes: tuple[TableChange, ...]
    table: TableId | None = None
    """The table it names, where that could be told."""

    @property
    def tables(self) -> tuple[TableId, ...]:
        """The tables it changed, else the one it names."""
        tables = tuple(dict.fromkeys(change.table for change in self.changes))
        return tables or ((self.table,) if self.table else ())


@dataclass(frozen=True, slots=True)
class Format:
    """A format: ``row(change, source)`` and ``statement(statement, source)`` give the documents of one change or
    statement, in order.

    ``source`` is the name under which the documents speak of their source (the pipeline's name).
    """

    row: Callable[[Change, str], tuple[str, ...]]
    statement: Callable[[Statement, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the formats need it.

    Attributes:
        declared: the type as SQL; sql: taken apart; row: what is known of it, None for a column that a rule made; word:
            its first word.
        digits: of fractional seconds; temporal: a DATE, DATETIME, TIMESTAMP or TIME; day: a DATE; geometry: one of the
            spatial types.
        required: NOT NULL; utc: a TIMESTAMP.
    """

    name: str
    declared: str
    sql: SqlType
    row: MysqlType | None = None
    word: str = ""
    digits: int = 0
    temporal: bool = False
    day: bool = False
    geometry: bool = False
    required: bool = False
    utc: bool = False


_known: dict[int, tuple[tuple[pa.Field, ...], dict[str, Column]]] = {}


def columns_of(fields: tuple[pa.Field, ...]) -> dict[str, Column]:
    """Return the columns that a change's fields describe, by true name.

    The last tuples that were asked for are cached.
    """
    entry = _known.get(id(fields))
    if entry is None or entry[0] is not fields:
        if len(_known) >= 256:
            _known.clear()
        entry = _known[id(fields)] = (fields, {column.name: column for column in map(_column, fields)})
    return entry[1]


def _column(field: pa.Field) -> Column:
    declared = declared_type(field)
    sql = _parsed(declared)
    row = sql.row
    by_rule = row is None and pa.types.is_temporal(field.type)  # by a rule
    temporal = by_rule or (row is not None and row.literal is Literal.TEMPORAL)
    return Column(
        name=true_name(field),
        declared=declared,
        sql=sql,
        row=row,
        word=sql.word,
        digits=_DIGITS if by_rule else sql.first if temporal else 0,
        temporal=temporal,
        day=temporal and pa.types.is_date32(field.type),
        geometry=row is not None and row.shape is not None,
        required=is_required(field) or is_key(field),
        utc=pa.types.is_timestamp(field.type) and field.type.tz is not None,
    )


_DIGITS = 6
"""Digits of a second in Arrow's times."""


@lru_cache(maxsize=4096)
def _parsed(declared: str) -> SqlType:
    return SqlType.parse(declared)


def after_of(change: Change) -> dict[str, Any] | None:
    """Return the row after the change, with all that is known of it.

    An update's after image leaves out columns that did not change (``binlog_row_image`` MINIMAL, NOBLOB), so these have
    the before image's values.
    """
    before, after = change.before, change.after
    if after is None or before is None or before.keys() <= after.keys():
        return after
    return {
        name: after[name] if name in after else before[name]
        for name in columns_of(change.fields)
        if name in after or name in before
    }


def converted(
    change: Change, row: Mapping[str, Any] | None, convert: Callable[[Any, Column], Any]
) -> dict[str, Any] | None:
    """Convert every value that the log has of a row; NULL stays None."""
    if row is None:
        return None
    columns = columns_of(change.fields)
    return {name: None if value is None else convert(value, columns[name]) for name, value in row.items()}


def changed(change: Change) -> list[str]:
    """Return the names of the columns that both images have and whose values differ, in column order."""
    before, after = change.before or {}, change.after or {}
    return [name for name in before if name in after and not _same(before[name], after[name])]


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return first == second and math.copysign(1, first) == math.copysign(1, second)
    return bool(first == second)


def label(value: str) -> str:
    """Return an ENUM's value as the server prints it: the error value is empty."""
    return "" if value == ENUM_ERROR_VALUE else value


def temporal_text(value: Any, column: Column) -> str:
    """Format a DATE, DATETIME, TIMESTAMP (UTC) or TIME as the server prints it, with the column's digits.

    ``value`` may already be text.
    """
    digits = column.digits
    if isinstance(value, str):  # a date that Python has not: text with all digits that there can be
        time, era, _ = value.partition(BEFORE_CHRIST)
        if " " not in time:
            return value
        time, _, fraction = time.partition(".")
        return time + (f".{fraction.ljust(6, '0')}"[: digits + 1] if digits else "") + era
    if isinstance(value, dt.timedelta):
        return time_text(value // MICROSECOND, digits)
    if isinstance(value, dt.datetime):
        text = f"{value.year:04d}-{value:%m-%d %H:%M:%S}"
        return text + f".{value.microsecond:06d}"[: digits + 1] if digits else text
    return str(value.isoformat())


def float_of(value: float, column: Column) -> float:
    """Return the shortest number that reads back as the same FLOAT, as the server prints it; a DOUBLE unchanged."""
    return float(str(np.float32(value))) if column.word == "float" else value


def number_text(value: float) -> str:
    """Return the shortest text that reads back the same; NaN, Infinity, -Infinity as PostgreSQL and Java print them."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def floats_of(value: bytes) -> list[float]:
    """Return the numbers of a VECTOR."""
    return [float(str(number)) for number in np.frombuffer(value, "<f4")]


def base64_of(value: bytes) -> str:
    """Base64 with padding."""
    return base64.b64encode(value).decode()


class Raw(str):
    """Text that is JSON already."""

    __slots__ = ()


def json_text(value: Any) -> str:
    """Format JSON without blanks.

    Decimals are numbers that keep all their digits; :class:`Raw` is inserted unchanged. Floats that JSON has no number
    for are texts (:func:`number_text`), as Kafka Connect's JsonConverter has them.
    """
    return "".join(_pieces(value))


_quoted: Callable[[str], str] = json.JSONEncoder(ensure_ascii=False).encode


def _pieces(value: Any) -> Iterator[str]:
    if value is None:
        yield "null"
    elif value is True or value is False:
        yield "true" if value else "false"
    elif isinstance(value, Raw):
        yield str.__str__(value)
    elif isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, Decimal):
        yield f"{value:f}"
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, float):
        text = number_text(value)
        yield text if math.isfinite(value) else _quoted(text)
    elif isinstance(value, Mapping):
        for number, (name, item) in enumerate(value.items()):
            yield ("," if number else "{") + _quoted(str(name)) + ":"
            yield from _pieces(item)
        yield "}" if value else "{}"
    elif isinstance(value, Sequence):
        for number, item in enumerate(value):
            yield "," if number else "["
            yield from _pieces(item)
        yield "]" if value else "[]"
    else:
        raise TypeError(f"{type(value).__name__} has no JSON")
