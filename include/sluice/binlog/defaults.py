"""A column's constant default, as the value a row that was inserted without it has."""

from __future__ import annotations

import datetime as dt
import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

import pyarrow as pa

from sluice.errors import DecodeError, UnsupportedType
from sluice.model.tables import Column, ColumnKind
from sluice.model.temporal import special_date, special_timestamp
from sluice.schema.definitions import ColumnDefinition
from sluice.schema.lexer import Dialect, Kind, tokens

K = ColumnKind
_INTEGERS = {K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR, K.BIT}
_BINARY = {K.BINARY, K.VARBINARY, K.BLOB}
_DAY = re.compile(r"^(\d{1,4})\D(\d{1,2})\D(\d{1,2})(?:[ T](.*))?$")
_CLOCK = re.compile(r"^(-?)(\d+):(\d+)(?::(\d+)(?:\.(\d+))?)?$")
_EPOCH = dt.date(1970, 1, 1).toordinal()


def default_scalar(definition: ColumnDefinition, column: Column) -> pa.Scalar:
    """The default, of the column's Arrow type. Raises UnsupportedType for an expression, or a moment whose time zone nobody knows."""
    value = _literal(definition)
    kind = column.arrow_type
    if value is None:
        return pa.scalar(None, kind) if definition.nullable else _implicit(definition, column)
    try:
        return _typed(value, definition, column)
    except (ValueError, InvalidOperation, pa.ArrowException) as error:
        raise UnsupportedType(f"its default {definition.default} is not understood") from error


def _literal(definition: ColumnDefinition) -> str | bytes | int | None:
    text = definition.default
    if text is None:
        return None
    try:
        found = tokens(text, Dialect())[:-1]
    except DecodeError as error:
        raise UnsupportedType(f"its default {text} is not understood") from error
    while len(found) > 2 and found[0].text == "(" and found[-1].text == ")":
        found = found[1:-1]
    sign = ""
    while found and found[0].text in {"+", "-"} and found[0].kind is Kind.SIGN:
        sign = "-" if (found[0].text == "-") != (sign == "-") else ""
        found = found[1:]
    if (
        len(found) == 2
        and found[0].kind is Kind.WORD
        and (found[0].text.startswith("_") or found[0].upper in {"DATE", "TIME", "TIMESTAMP", "N"})
    ):
        found = found[1:]
    if found and all(token.kind is Kind.STRING for token in found):
        return sign + "".join(token.text for token in found)
    if len(found) != 1:
        raise UnsupportedType(f"its default {text} is an expression")
    token = found[0]
    if token.kind is Kind.NUMBER:
        return sign + token.text
    if token.kind is Kind.BITS:
        return int(token.text or "0", 2)
    if token.kind is Kind.HEX:
        return bytes.fromhex(token.text if len(token.text) % 2 == 0 else "0" + token.text)
    if token.upper in {"TRUE", "FALSE"}:
        return int(token.upper == "TRUE")
    if token.upper == "NULL":
        return None
    raise UnsupportedType(f"its default {text} is an expression")


def _typed(value: str | bytes | int, definition: ColumnDefinition, column: Column) -> pa.Scalar:
    kind, arrow_type = column.kind, column.arrow_type
    if kind in _BINARY:
        data = (
            value.encode()
            if isinstance(value, str)
            else value
            if isinstance(value, bytes)
            else value.to_bytes(8, "big").lstrip(b"\0")
        )
        return pa.scalar(data.ljust(column.length, b"\0") if kind is K.BINARY else data, arrow_type)
    if isinstance(value, bytes):
        value = int.from_bytes(value, "big") if kind in _INTEGERS else value.decode()
    if kind in _INTEGERS:
        number = value if isinstance(value, int) else int(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP))
        return pa.scalar(number, arrow_type)
    if kind is K.DECIMAL:
        return pa.scalar(Decimal(value).quantize(Decimal(1).scaleb(-column.scale), ROUND_HALF_UP), arrow_type)
    if kind in {K.FLOAT, K.DOUBLE}:
        return pa.scalar(float(value), arrow_type)
    text = str(value)
    if kind is K.DATE:
        return pa.scalar(_day(text)[0], pa.int32()).cast(arrow_type)
    if kind in {K.DATETIME, K.TIMESTAMP}:
        return pa.scalar(_moment(text, utc=kind is K.TIMESTAMP), pa.int64()).cast(arrow_type)
    if kind is K.TIME:
        return pa.scalar(_clock(text), pa.int64()).cast(arrow_type)
    if kind is K.ENUM and text not in column.labels:
        text = next((label for label in column.labels if label.lower() == text.lower()), text)
    return pa.scalar(text, arrow_type)


def _implicit(definition: ColumnDefinition, column: Column) -> pa.Scalar:
    """What a session that is not strict puts into a column that must have a value and got none."""
    if column.kind is K.ENUM:
        return pa.scalar(column.labels[0], column.arrow_type)
    if column.kind in {K.JSON, K.GEOMETRY, K.VECTOR, K.UUID, K.INET4, K.INET6}:
        raise UnsupportedType("it has no default")
    zero = {
        K.DATE: "0000-00-00",
        K.DATETIME: "0000-00-00 00:00:00",
        K.TIMESTAMP: "0000-00-00 00:00:00",
        K.TIME: "00:00:00",
    }
    text = column.kind in {K.CHAR, K.VARCHAR, K.TEXT, K.SET} | _BINARY
    return _typed("" if text else zero.get(column.kind, "0"), definition, column)


def _day(text: str) -> tuple[int, tuple[int, int, int], str]:
    match = _DAY.match(text)
    if match is None:
        raise ValueError(text)
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    try:
        number = dt.date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        number = special_date(year, month, day)
    return number, (year, month, day), match[4] or ""


def _moment(text: str, *, utc: bool) -> int:
    number, day, rest = _day(text)
    micros = _clock(rest) if rest else 0
    if day == (0, 0, 0) or number < -(1 << 29):
        return special_timestamp(*day, micros)
    if utc:
        raise UnsupportedType(f"its default {text} is a moment in a time zone that the log does not name")
    return number * 86_400_000_000 + micros


def _clock(text: str) -> int:
    match = _CLOCK.match(text)
    if match is None:
        raise ValueError(text)
    micros = ((int(match[2]) * 60 + int(match[3])) * 60 + int(match[4] or 0)) * 1_000_000 + int(
        (match[5] or "").ljust(6, "0")[:6]
    )
    return -micros if match[1] else micros
