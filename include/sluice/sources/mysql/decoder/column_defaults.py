"""A column's constant default, as the value a row that was inserted without it has."""

from __future__ import annotations

import datetime as dt
import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

import pyarrow as pa

from sluice.errors import DecodeError, UnsupportedType
from sluice.model.column_types import ColumnKind
from sluice.model.definitions import ColumnDefinition, may_be_cut
from sluice.model.tables import Column
from sluice.model.temporal import special_date, special_timestamp
from sluice.mysql.charsets import decode_bytes, decoded
from sluice.mysql.column_types import NUMERIC, Literal, type_named
from sluice.mysql.ddl.lexer import Dialect, Kind, Token, tokens

K = ColumnKind
_DAY = re.compile(r"^\s*(\d{1,4})[^\w\s](\d{1,2})[^\w\s](\d{1,2})(?:[ T]+(.*))?$")
_PLAIN_DAY = re.compile(r"^\s*(\d{2}|\d{4})(\d\d)(\d\d)(?:T?(\d\d)(\d\d)(\d\d)?(?:\.(\d*))?)?$")
_CLOCK = re.compile(r"^\s*(-?)(?:(\d+) +)?(\d+):(\d+)(?::(\d+)(?:\.(\d*))?)?$")
_PLAIN_CLOCK = re.compile(r"^\s*(-?)(\d*?)(\d{0,2}?)(\d{1,2})(?:\.(\d*))?$")
_EPOCH = dt.date(1970, 1, 1).toordinal()
_WIDE = {"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"}
"""Charsets with characters that information_schema prints as ?, since it is in utf8mb3."""
_ROUNDED = Context(prec=200, rounding=ROUND_HALF_UP)
"""DECIMAL has up to 65 digits; Python's own context would stop at 28."""


class _Number(str):
    """A number as the statement wrote it; other text was in quotes."""

    __slots__ = ()


def default_scalar(definition: ColumnDefinition, column: Column) -> pa.Scalar:
    """The default, of the column's Arrow type. Raises UnsupportedType for an expression, or a timestamp whose time zone is not known."""
    value = _literal(definition)
    kind = column.arrow_type
    if value is None:
        return pa.scalar(None, kind) if definition.nullable else _implicit(definition, column)
    try:
        return _typed(value, definition, column)
    except (ValueError, InvalidOperation, pa.ArrowException) as error:
        raise UnsupportedType(f"its default {definition.default} is not understood") from error


def _literal(definition: ColumnDefinition) -> str | bytes | None:
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
        if found[0].text.startswith("_") and found[1].kind in {Kind.STRING, Kind.HEX}:
            return _introduced(found[0].text[1:].lower(), found[1], text)
        found = found[1:]
    if found and all(token.kind is Kind.STRING for token in found):
        return sign + "".join(token.text for token in found)
    if len(found) != 1:
        raise UnsupportedType(f"its default {text} is an expression")
    token = found[0]
    if token.kind is Kind.NUMBER:
        return _Number(sign + token.text)
    if token.kind is Kind.BITS:
        return int(token.text or "0", 2).to_bytes((len(token.text) + 7) // 8, "big")
    if token.kind is Kind.HEX:
        return bytes.fromhex(token.text if len(token.text) % 2 == 0 else "0" + token.text)
    if token.upper == "0X":  # how information_schema prints an empty binary string
        return b""
    if token.upper in {"TRUE", "FALSE"}:
        return _Number("1" if token.upper == "TRUE" else "0")
    if token.upper == "NULL":
        return None
    raise UnsupportedType(f"its default {text} is an expression")


def _introduced(charset: str, token: Token, text: str) -> str | bytes:
    """A literal that names its charset, as text; of ``_binary`` its bytes."""
    if token.kind is Kind.HEX:
        data = bytes.fromhex(token.text if len(token.text) % 2 == 0 else "0" + token.text)
    else:
        data = token.text.encode("utf-8", "surrogateescape")
    if charset == "binary":
        return data
    try:
        return decoded(data, charset)
    except DecodeError as error:
        raise UnsupportedType(f"its default {text} is not understood") from error


def _typed(value: str | bytes, definition: ColumnDefinition, column: Column) -> pa.Scalar:
    kind, arrow_type, literal = column.kind, column.arrow_type, type_named(column.sql_type).literal
    if isinstance(value, str) and "?" in value and (literal is Literal.BYTES or column.charset in _WIDE):
        raise UnsupportedType(f"its default {definition.default} may have other characters where the server prints ?")
    if literal is Literal.BYTES:
        data = value.encode() if isinstance(value, str) else value
        return pa.scalar(data.ljust(column.length, b"\0") if kind is K.BINARY else data, arrow_type)
    number = isinstance(value, bytes) and literal in NUMERIC
    if number and (definition.default or "").lstrip("( ").lower().startswith("x'"):
        raise UnsupportedType(f"its default {definition.default} is a number to MySQL and text to MariaDB")
    if isinstance(value, bytes):  # x'…' and b'…' are numbers to a number, and text in the column's charset to text
        value = str(int.from_bytes(value, "big")) if number else decode_bytes(value, column.charset or "utf8mb4")
    if kind is K.BIT and not isinstance(value, _Number) and not number:  # a string's bytes are its bits
        return pa.scalar(int.from_bytes(value.encode(), "big"), arrow_type)
    if kind is K.YEAR:
        return pa.scalar(_year(value), arrow_type)
    if literal is Literal.NUMBER:
        return pa.scalar(int(_ROUNDED.quantize(Decimal(value), Decimal(1))), arrow_type)
    if literal is Literal.DECIMAL:
        return pa.scalar(_ROUNDED.quantize(Decimal(value), Decimal(1).scaleb(-column.scale)), arrow_type)
    if literal is Literal.FLOAT:
        return pa.scalar(_float(value, column), arrow_type)
    if kind is K.DATE:
        return pa.scalar(_day(value)[0], pa.int32()).cast(arrow_type)
    if kind in {K.DATETIME, K.TIMESTAMP}:
        return pa.scalar(_moment(value, column.fsp, utc=kind is K.TIMESTAMP), pa.int64()).cast(arrow_type)
    if kind is K.TIME:
        return pa.scalar(_clock(value, column.fsp), pa.int64()).cast(arrow_type)
    return pa.scalar(_text(value, column), arrow_type)


def _float(value: str, column: Column) -> float:
    number = float(value)
    if column.kind is K.FLOAT and may_be_cut(value):
        raise UnsupportedType(
            f"its default {value} may have more digits than the six that the server prints (`sluice schema reload` asks it for all of them, "
            "with SELECT on the table)"
        )
    exact = isinstance(value, _Number) and "e" not in value.lower()
    return number + 0.0 if exact else number  # a number without an exponent is a decimal: it has no zero below zero


def _text(value: str, column: Column) -> str:
    if isinstance(value, _Number) and "e" in value.lower():
        number = float(value)
        if not number.is_integer() or abs(number) >= 1e15:
            raise ValueError(value)
        return str(int(number))
    if column.kind is K.ENUM:
        return _label(value, column)
    if column.kind is K.SET:
        chosen = {_label(part, column) for part in value.split(",")} if value else set()
        return ",".join(label for label in column.labels if label in chosen)
    return str(value).rstrip(" ") if column.kind is K.CHAR else str(value)


def _label(value: str, column: Column) -> str:
    """The label that is meant: the server compares in the column's collation."""
    if value in column.labels:
        return str(value)
    return next((label for label in column.labels if label.casefold() == value.casefold()), str(value))


def _implicit(definition: ColumnDefinition, column: Column) -> pa.Scalar:
    """What a session that is not strict puts into a column that must have a value and got none."""
    if column.kind is K.ENUM:
        return pa.scalar(column.labels[0], column.arrow_type)
    row = type_named(column.sql_type)
    if row.zero is None:
        raise UnsupportedType("it has no default")
    return _typed(_Number(row.zero) if row.literal in NUMERIC else row.zero, definition, column)


def _year(text: str) -> int:
    """A year as the server stores it: of one or two digits it means 1970 to 2069, and the number 0 is the year 0000."""
    number = int(_ROUNDED.quantize(Decimal(text), Decimal(1)))
    if number > 99 or len(text) == 4 or (number == 0 and isinstance(text, _Number)):
        return number
    return number + (2000 if number < 70 else 1900)


def _day(text: str) -> tuple[int, tuple[int, int, int], str]:
    """(date32 number, (year, month, day), what stands after the day)."""
    match = _DAY.match(text)
    rest = ""
    if match is not None:
        rest = match[4] or ""
    else:
        match = _PLAIN_DAY.match(text)
        if match is None:
            raise ValueError(text)
        if match[4]:
            rest = f"{match[4]}:{match[5]}:{match[6] or '00'}" + (f".{match[7]}" if match[7] else "")
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if len(match[1]) <= 2 and (year, month, day) != (0, 0, 0):
        year += 2000 if year < 70 else 1900
    try:
        number = dt.date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        number = special_date(year, month, day)
    return number, (year, month, day), rest


def _moment(text: str, fsp: int, *, utc: bool) -> int:
    number, day, rest = _day(text)
    micros = _clock(rest, fsp) if rest else 0
    if day == (0, 0, 0) or number < -(1 << 29):
        return special_timestamp(*day, micros)
    if utc:
        raise UnsupportedType(f"its default {text} is a timestamp in a time zone that the log does not name")
    return number * 86_400_000_000 + micros


def _clock(text: str, fsp: int) -> int:
    """Microseconds. Raises ValueError for more digits than the column has: MySQL rounds them, MariaDB cuts them off."""
    match = _CLOCK.match(text)
    if match is not None:
        days, hours, minutes, seconds, fraction = match[2], match[3], match[4], match[5], match[6]
    else:
        match = _PLAIN_CLOCK.match(text)
        if match is None:
            raise ValueError(text)
        days, hours, minutes, seconds, fraction = None, match[2], match[3], match[4], match[5]
    if (fraction or "")[fsp:].strip("0"):
        raise ValueError(text)
    whole = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    micros = whole * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])
    return -micros if match[1] else micros
