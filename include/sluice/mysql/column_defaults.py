"""The value that the server itself stores for a column's default: in the rows that are there when the column is added,
and in a row without it.

The one place that reads a default's text for its value: row images that leave a column out, and targets of every kind,
have it from here. What is not known raises :class:`~sluice.errors.UnsupportedType`, and says why.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import unicodedata
import uuid
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import DecodeError, UnsupportedType
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition, may_be_cut
from sluice.model.schema_changes import StatementSession
from sluice.mysql.charsets import decode_bytes, decoded, has_character
from sluice.mysql.column_types import NUMERIC, Literal, type_named
from sluice.mysql.ddl.lexer import Dialect, Kind, Token, tokens
from sluice.mysql.mariadb_types import inet4_text, inet6_text
from sluice.mysql.temporal_text import DAY_US, Precision, is_calendar_day, read_day, read_moment, read_span, read_year
from sluice.mysql.type_loss import definition_type

K = ColumnKind
_LAST_DAY = 2_932_896
"""9999-12-31, in days since 1970."""

_TRUNCATES, _ROUNDS, _INVALID_DATES = 1 << 32, 1 << 34, 1 << 25
"""Bits of ``sql_mode``: TIME_TRUNCATE_FRACTIONAL of MySQL, TIME_ROUND_FRACTIONAL of MariaDB, ALLOW_INVALID_DATES of
both.
"""
_WIDE = {"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"}
"""Charsets with characters that information_schema prints as ?, since it is in utf8mb3."""
_ROUNDED = Context(prec=200, rounding=ROUND_HALF_UP)
"""DECIMAL has up to 65 digits; Python's own context would stop at 28."""
_MOST_DIGITS = 15
_NOW = {"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"}
_TODAY = {"CURRENT_DATE", "CURDATE"}
_EMPTY_JSON = {"JSON_OBJECT": "{}", "JSON_ARRAY": "[]"}
_TYPED = {"DATE", "TIME", "TIMESTAMP"}
_DAYS = frozenset({K.DATE, K.DATETIME, K.TIMESTAMP})


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement that a default stands in.

    Attributes:
        mariadb: which server ran it. sql_mode: bits of its session's.
        session: what else the log says of its session, None if nothing.
    """

    mariadb: bool
    sql_mode: int = 0
    session: StatementSession | None = None


@dataclass(frozen=True, slots=True)
class _Constant:
    """A literal: text or the bytes of a hexadecimal or bit literal.

    ``number``: text that was not in quotes. ``charset``: of its introducer, "" for none; ``bracketed``: it is an
    expression to the server.
    """

    value: str | bytes
    number: bool = False
    charset: str = ""
    bracketed: bool = False

    @property
    def exact(self) -> bool:
        """True for a number that is a decimal to the server, and not a double."""
        return self.number and isinstance(self.value, str) and "e" not in self.value.lower()


def default_scalar(definition: ColumnDefinition, neutral: ColumnType, statement: Statement | None = None) -> pa.Scalar:
    """Return the value of the default, of the column's Arrow type.

    Args:
        definition: the column; neutral: what its values are.
        statement: the statement that wrote the default. None: the text may be as the server prints it, by whatever
            session it was written.

    Raises:
        UnsupportedType: the value is not known, e.g. of an expression, or of a timestamp whose time zone is not known.
    """
    if definition.auto_increment:
        raise UnsupportedType("it is numbered")
    if definition.generated is not None:
        raise UnsupportedType("it is generated")
    try:
        constant = None if definition.default is None else _parsed(definition, neutral, statement)
        if isinstance(constant, pa.Scalar):
            return constant
        if constant is None:
            return pa.scalar(None, neutral.arrow_type) if definition.nullable else _implicit(definition, neutral)
        return _Reader(definition, neutral, statement).read(constant)
    except (ValueError, OverflowError, InvalidOperation, pa.ArrowException, DecodeError) as error:
        raise UnsupportedType(f"its default {definition.default} is not understood") from error


def default_value(column: ColumnDefinition, statement: Statement | None = None) -> DefaultValue:
    """Return the value of a default, or why it is not known. ``statement``: as :func:`default_scalar` has it."""
    neutral = definition_type(column)
    if neutral is None:
        return DefaultValue(None, f"the type {column.type} is not known")
    try:
        return DefaultValue(default_scalar(column, neutral, statement))
    except UnsupportedType as error:
        return DefaultValue(None, error.message)


def _parsed(
    definition: ColumnDefinition, column_type: ColumnType, statement: Statement | None
) -> _Constant | pa.Scalar | None:
    """Return the literal, or the value of a function of the statement's time; None for NULL."""
    rest: Sequence[Token] = tokens(definition.default or "", Dialect(statement is not None and statement.mariadb))[:-1]
    expression = UnsupportedType(f"its default {definition.default} is an expression")
    bracketed = False
    while len(rest) > 2 and rest[0].text == "(" and rest[-1].text == ")":
        rest, bracketed = rest[1:-1], True
    sign = ""
    while rest and rest[0].text in {"+", "-"} and rest[0].kind is Kind.SIGN:
        sign = "-" if (rest[0].text == "-") != (sign == "-") else ""
        rest = rest[1:]
    if not rest:
        raise expression
    name = rest[0].upper if rest[0].kind is Kind.WORD else ""
    charset = ""
    if len(rest) > 1 and (name.startswith("_") or name in {*_TYPED, "N"}):
        if rest[1].kind not in {Kind.STRING, Kind.HEX, Kind.BITS}:
            raise expression
        charset = name[1:].lower() if name.startswith("_") else ""
        rest = rest[1:]
        if charset and rest[0].kind is Kind.STRING:  # its bytes are of that charset, whatever the statement was sent in
            data = "".join(token.text for token in rest).encode("utf-8", "surrogateescape")
            return _Constant(data if charset == "binary" else decoded(data, charset), bracketed=bracketed)
    if all(token.kind is Kind.STRING for token in rest):
        if sign:
            raise expression
        return _Constant("".join(token.text for token in rest), charset=charset, bracketed=bracketed)
    if name in _NOW | _TODAY and not sign:
        return _now(rest, definition, column_type, statement, bracketed=bracketed)
    if name in _EMPTY_JSON and column_type.kind is K.JSON and [t.text for t in rest[1:]] == ["(", ")"]:
        return _Constant(_EMPTY_JSON[name], bracketed=True)
    if len(rest) != 1:
        raise expression
    token = rest[0]
    if token.kind is Kind.NUMBER:
        return _Constant(sign + token.text, number=True, bracketed=bracketed)
    if sign:
        raise expression
    if token.kind is Kind.BITS:
        data = int(token.text or "0", 2).to_bytes((len(token.text) + 7) // 8, "big")
        return _Constant(data, charset=charset, bracketed=bracketed)
    if token.kind is Kind.HEX:
        data = bytes.fromhex(token.text if len(token.text) % 2 == 0 else "0" + token.text)
        return _Constant(data, charset=charset, bracketed=bracketed)
    if token.upper == "0X":  # how information_schema prints an empty binary string
        return _Constant(b"")
    if token.upper in {"TRUE", "FALSE"}:
        return _Constant("1" if token.upper == "TRUE" else "0", number=True, bracketed=bracketed)
    if token.upper == "NULL":
        return None
    raise expression


# -- the statement's own time ------------------------------------------------------------------------------------------


def _now(
    tokens: Sequence[Token], definition: ColumnDefinition, column_type: ColumnType, statement: Statement | None, *,
    bracketed: bool
) -> pa.Scalar:  # fmt: skip
    """Return the value of NOW() and its like: the time at which the statement began, in its session's time zone."""
    rest = [token.text for token in tokens[1:]]
    precision = int(rest[1]) if len(rest) == 3 and rest[1].isdigit() else 0
    session = statement.session if statement is not None else None
    plain = not rest or (rest[0] == "(" and rest[-1] == ")" and len(rest) == 2 + (len(rest) == 3 and rest[1].isdigit()))
    today = tokens[0].upper in _TODAY
    if not plain or column_type.kind not in _DAYS or (today and rest[1:2] not in ([], [")"])):
        raise UnsupportedType(f"its default {definition.default} is an expression")
    if session is None or not session.timestamp_us:
        raise UnsupportedType(f"its default {definition.default} is the time of a statement, which is not known")
    micros = session.timestamp_us
    digits = (
        0
        if today
        else min(precision, column_type.digits)
        if bracketed or rest[1:2] not in ([], [")"])
        else column_type.digits
    )
    micros -= micros % 10 ** (6 - digits)
    if column_type.kind is K.TIMESTAMP and not today:
        return pa.scalar(micros, pa.int64()).cast(column_type.arrow_type)
    zone = _zone(session, f"its default {definition.default}")
    local_time = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    local_time = local_time.astimezone(zone).replace(tzinfo=None)
    if column_type.kind is K.DATE:
        return pa.scalar(local_time.date(), column_type.arrow_type)
    if today:
        raise UnsupportedType(f"its default {definition.default} is an expression")
    return pa.scalar(local_time, column_type.arrow_type)


def _zone(session: StatementSession | None, what: str) -> dt.tzinfo:
    """Return the session's time zone. Raises UnsupportedType."""
    name = session.time_zone if session is not None else None
    if name is None:
        raise UnsupportedType(f"{what} is a time in a time zone that the log does not name")
    if name.upper() == "SYSTEM":
        raise UnsupportedType(
            f"{what} is a time in the time zone of the source's machine, which the log does not name (the session had "
            "time_zone = SYSTEM; SET GLOBAL time_zone = '+00:00', or another offset or name, ends that)"
        )
    if name[:1] in {"+", "-"}:
        hours, _, minutes = name[1:].partition(":")
        off = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
        return dt.timezone(-off if name[0] == "-" else off)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise UnsupportedType(f"{what} is a time in the time zone {name}, which is not known here") from error


def _in_utc(micros: int, zone: dt.tzinfo) -> int:
    """Convert a wall time to a point in time. Raises ValueError for one that the zone has twice, or not at all."""
    wall = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)
    first, second = (wall.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    if first is None or first != second:
        raise ValueError(wall)
    return micros - first // dt.timedelta(microseconds=1)


# -- literals ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads a literal as the default of one column. Its methods raise ValueError for what no server takes."""

    definition: ColumnDefinition
    made: ColumnType
    statement: Statement | None

    def read(self, constant: _Constant) -> pa.Scalar:
        """Return the value, of the column's Arrow type."""
        neutral, literal = self.made, type_named(self.definition.type).literal
        arrow_type = neutral.arrow_type
        as_printed = self.statement is None and (literal is Literal.BYTES or neutral.charset in _WIDE)
        if as_printed and isinstance(constant.value, str) and "?" in constant.value:
            raise self._unknown("may have other characters where the server prints ?")
        if neutral.kind is K.GEOMETRY or neutral.kind is K.VECTOR:
            raise self._unknown("is an expression")
        if constant.number and neutral.kind in {K.ENUM, K.SET} and (self.statement is None or self.statement.mariadb):
            return pa.scalar(self._numbered(constant), arrow_type)
        if (
            constant.bracketed
            and constant.number
            and neutral.kind in {K.ENUM, K.SET, K.YEAR, K.BIT, *_DAYS, K.TIME, K.JSON}
        ):
            raise self._unknown("is an expression")
        if literal is Literal.BYTES:
            return pa.scalar(self._bytes(constant), arrow_type)
        number = isinstance(constant.value, bytes) and literal in NUMERIC
        if number:
            constant = self._as_number(constant)
        elif isinstance(constant.value, bytes):
            constant = replace(constant, value=self._characters(constant), charset="")
        assert isinstance(constant.value, str)
        value = constant.value
        if neutral.kind is K.BIT:
            return pa.scalar(self._bits(constant, is_number=number), arrow_type)
        if neutral.kind is K.YEAR:
            rounded = int(_ROUNDED.quantize(Decimal(value), Decimal(1)))
            return pa.scalar(read_year(value, rounded, quoted=not constant.number), arrow_type)
        if literal is Literal.NUMBER:
            return pa.scalar(self._whole(constant), arrow_type)
        if literal is Literal.DECIMAL:
            return pa.scalar(self._decimal(value), arrow_type)
        if literal is Literal.FLOAT:
            return pa.scalar(self._float(constant), arrow_type)
        if literal is Literal.TEMPORAL:
            return self._temporal(constant)
        return pa.scalar(self._text(constant), arrow_type)

    def _unknown(self, why: str) -> UnsupportedType:
        return UnsupportedType(f"its default {self.definition.default} {why}")

    # -- numbers ---------------------------------------------------------------------------------------------------
    def _as_number(self, constant: _Constant) -> _Constant:
        """Read a hexadecimal or bit literal in a column of numbers."""
        assert isinstance(constant.value, bytes)
        text = (self.definition.default or "").lstrip("( ").lower()
        if constant.charset:
            raise self._unknown("is text to a column of numbers")
        if text.startswith("x'"):
            if self.statement is None:
                raise self._unknown("is a number to MySQL and text to MariaDB")
            if self.statement.mariadb:
                return _Constant(constant.value.decode("ascii"))
        if len(constant.value.lstrip(b"\0")) > 8:
            raise ValueError(constant.value)
        return _Constant(str(int.from_bytes(constant.value, "big")), number=True)

    def _whole(self, constant: _Constant) -> int:
        assert isinstance(constant.value, str)
        double = constant.number and not constant.exact  # it is rounded to the even one of two
        number = int(
            np.rint(float(constant.value)) if double else _ROUNDED.quantize(Decimal(constant.value), Decimal(1))
        )
        low, high = type_named(self.definition.type).range[self.made.unsigned]
        if not low <= number <= high:
            raise ValueError(constant.value)
        return number

    def _decimal(self, value: str) -> Decimal:
        number = _ROUNDED.quantize(Decimal(value), Decimal(1).scaleb(-self.made.scale))
        if self.made.unsigned and number < 0:
            raise ValueError(value)
        return number

    def _float(self, constant: _Constant) -> float:
        assert isinstance(constant.value, str)
        number = float(constant.value)
        if self.made.kind is K.FLOAT and self.statement is None and may_be_cut(constant.value):
            raise UnsupportedType(
                f"its default {constant.value} may have more digits than the six that the server prints "
                "(`sluice schema reload` asks it for all of them, with SELECT on the table)"
            )
        mariadb = self.statement is not None and self.statement.mariadb
        if constant.exact or (
            mariadb and not constant.number
        ):  # a decimal, and text to MariaDB, has no zero below zero
            number += 0.0
        elif mariadb and number == 0 and constant.value.startswith("-"):
            raise self._unknown("is a zero whose sign is not known")
        if len(self.definition.arguments) == 2:
            number = self._cut(number, *self.definition.arguments)
        stored = float(np.float32(number)) if self.made.kind is K.FLOAT else number
        if not np.isfinite(stored) or (self.made.unsigned and stored < 0):
            raise ValueError(constant.value)
        return number

    def _cut(self, number: float, width: int, digits: int) -> float:
        """Round a FLOAT(M,D) or DOUBLE(M,D) by the server's own arithmetic."""
        down = float(np.floor(number))
        rounded = down + float(np.rint((number - down) * 10.0**digits)) / 10.0**digits
        if abs(rounded) > 10.0 ** (width - digits) - 10.0**-digits:
            raise ValueError(number)
        return rounded

    def _bits(self, constant: _Constant, *, is_number: bool) -> int:
        assert isinstance(constant.value, str)
        if constant.number:
            number = int(_ROUNDED.quantize(Decimal(constant.value), Decimal(1)))
        elif is_number:
            number = int(constant.value)
        else:  # a string's bytes are its bits
            number = int.from_bytes(self._encoded(constant.value), "big")
        if not 0 <= number < 1 << (self.made.length or 1):
            raise ValueError(constant.value)
        return number

    # -- dates and times -------------------------------------------------------------------------------------------
    def _temporal(self, constant: _Constant) -> pa.Scalar:
        neutral = self.made
        assert isinstance(constant.value, str)
        text = constant.value
        if constant.number and not constant.exact:
            raise ValueError(text)
        if neutral.kind is K.TIME:
            return pa.scalar(read_span(text, self._precision()), pa.int64()).cast(neutral.arrow_type)
        if constant.number and len(text.partition(".")[0]) not in {6, 8, 12, 14}:
            if not Decimal(text).is_zero():
                raise ValueError(text)
            text = "0000-00-00"
        if neutral.kind is K.DATE:
            number, day, rest = read_day(text)
            self._require_day(is_calendar_day(number), day)
            if rest and self._is_next_day(text, rest, number):
                number += 1
            return pa.scalar(number, pa.int32()).cast(neutral.arrow_type)
        micros, is_real = read_moment(text, self._precision())
        self._require_day(is_real, read_day(text)[1])
        if neutral.kind is K.TIMESTAMP and is_real:
            what = f"its default {self.definition.default}"
            session = self.statement.session if self.statement is not None else None
            micros = _in_utc(micros, _zone(session, what))
        return pa.scalar(micros, pa.int64()).cast(neutral.arrow_type)

    def _is_next_day(self, text: str, rest: str, number: int) -> bool:
        """Return True if the time rounds up to the next day.

        MySQL rounds to microseconds, then to seconds, and keeps the day of that; MariaDB cuts the time off, whatever
        its mode.
        """
        statement = self.statement
        cut = statement is not None and bool(statement.mariadb or statement.sql_mode & _TRUNCATES)
        micros, is_real = read_moment(text, Precision(6, rounds=not cut))
        if cut or "." not in rest or (is_real and micros + 500_000 < (number + 1) * DAY_US):
            return False
        if statement is None or not is_real or number >= _LAST_DAY:
            raise ValueError(text)
        return True

    def _require_day(self, is_real: bool, day: tuple[int, int, int]) -> None:
        """Raise ValueError for a day that no calendar has, unless it has a zero, or the session allows it."""
        if not is_real and all(day) and self.statement is not None and not self.statement.sql_mode & _INVALID_DATES:
            raise ValueError(day)

    def _precision(self) -> Precision:
        if self.statement is None:
            return Precision(self.made.digits)
        mode = self.statement.sql_mode
        rounds = bool(mode & _ROUNDS) if self.statement.mariadb else not mode & _TRUNCATES
        return Precision(self.made.digits, rounds)

    # -- text and bytes --------------------------------------------------------------------------------------------
    def _characters(self, constant: _Constant) -> str:
        """Return a hexadecimal or bit literal as text: bytes of its introducer's charset, else of the column's."""
        assert isinstance(constant.value, bytes)
        if constant.charset not in {"", "binary"}:
            return decoded(constant.value, constant.charset)
        return decode_bytes(constant.value, self.made.charset or "utf8mb4")

    def _encoded(self, text: str) -> bytes:
        """Return the bytes of a text in a column of bytes: those of the session's charset, so only ASCII is known."""
        if self.statement is not None and not text.isascii():
            raise self._unknown("has characters whose bytes depend on the session")
        return text.encode()

    def _bytes(self, constant: _Constant) -> bytes:
        data = (
            constant.value
            if isinstance(constant.value, bytes)
            else self._encoded(_number_text(constant) if constant.number else constant.value)
        )
        length = self.made.length
        if self.made.kind in {K.BINARY, K.VARBINARY} and len(data) > length > 0:
            raise ValueError(data)
        return data.ljust(length, b"\0") if self.made.kind is K.BINARY else data

    def _text(self, constant: _Constant) -> str:
        neutral = self.made
        assert isinstance(constant.value, str)
        value = _number_text(constant) if constant.number else constant.value
        if neutral.kind is K.JSON:
            if self.statement is not None and constant.number:
                raise self._unknown("is an expression")
            return _json_text(json.loads(value)) if constant.bracketed else value
        if neutral.kind is K.ENUM:
            return self._label(value, exact=constant.bracketed)
        if neutral.kind is K.SET:
            chosen = (
                {self._label(part, exact=constant.bracketed) for part in value.rstrip(" ").split(",")}
                if value.rstrip(" ")
                else set()
            )
            return ",".join(label for label in neutral.labels if label in chosen)
        if neutral.kind is K.UUID:
            return str(uuid.UUID(value))
        if neutral.kind in {K.INET4, K.INET6}:
            return _address(value, neutral.kind)
        if neutral.kind is K.CHAR:
            value = value.rstrip(" ")
        if neutral.kind in {K.CHAR, K.VARCHAR} and 0 < neutral.length < len(value):
            if value[neutral.length :].strip(" "):
                raise ValueError(value)
            value = value[: neutral.length]
        narrow = neutral.charset if self.statement is not None and neutral.charset not in _WIDE else ""
        if narrow and not value.isascii() and not all(has_character(narrow, character) for character in value):
            raise ValueError(value)
        return value

    def _numbered(self, constant: _Constant) -> str:
        """Return the label that a number of MariaDB's means: its number, or a bit per label of a SET.

        To MySQL it is text.
        """
        if self.statement is None or constant.bracketed or not constant.exact:
            raise self._unknown("is a number, and the servers do not mean the same label by it")
        number, labels = int(str(constant.value)), self.made.labels
        if self.made.kind is K.ENUM:
            if not 1 <= number <= len(labels):
                raise ValueError(constant.value)
            return labels[number - 1]
        if not 0 <= number < 1 << len(labels):
            raise ValueError(constant.value)
        return ",".join(label for place, label in enumerate(labels) if number >> place & 1)

    def _label(self, value: str, *, exact: bool) -> str:
        """Resolve a label of an ENUM or SET by the collation of its column.

        The server compares in the column's collation, by which no two labels are equal. ``exact``: compare as it
        is, for an expression, which may match no label.
        """
        value = value.rstrip(" ")
        for alike in (str,) if exact else (str, str.casefold, _bare):
            labels = [label for label in self.made.labels if alike(label) == alike(value)]
            if len(labels) == 1:
                return labels[0]
        raise ValueError(value)


def _bare(text: str) -> str:
    """Remove case and accents."""
    apart = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in apart if not unicodedata.combining(character))


def _number_text(constant: _Constant) -> str:
    """Return a number as text: a decimal keeps its digits."""
    assert isinstance(constant.value, str)
    if not constant.exact:
        number = float(constant.value)
        if not number.is_integer() or abs(number) >= 10.0**_MOST_DIGITS:
            raise ValueError(constant.value)
        return str(int(number))
    number_ = Decimal(constant.value)
    return f"{-number_ if number_.is_zero() and number_.is_signed() else number_:f}"


def _json_text(value: Any) -> str:
    """Return a document as MySQL prints it. Raises ValueError for one that may be printed otherwise."""
    match value:
        case None | bool():
            return json.dumps(value)
        case int() if -(1 << 63) <= value < 1 << 63:
            return str(value)
        case str() if value.isprintable() and "/" not in value:
            return json.dumps(value, ensure_ascii=False)
        case list():
            return "[" + ", ".join(map(_json_text, value)) + "]"
        case dict():
            names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
            return "{" + ", ".join(f"{_json_text(name)}: {_json_text(value[name])}" for name in names) + "}"
    raise ValueError(value)


def _address(text: str, kind: ColumnKind) -> str:
    """Return an address as MariaDB prints it. Raises ValueError for text that is none."""
    if kind is K.INET4:
        return inet4_text(ipaddress.IPv4Address(text).packed)
    return inet6_text(ipaddress.IPv6Address(text).packed)


def _implicit(definition: ColumnDefinition, column_type: ColumnType) -> pa.Scalar:
    """Return what a session that is not strict puts into a column that must have a value and got none."""
    if column_type.kind is K.ENUM and column_type.labels:
        return pa.scalar(column_type.labels[0], column_type.arrow_type)
    row = type_named(definition.type)
    if row.zero is None:
        raise UnsupportedType("it has no default")
    return _Reader(definition, column_type, None).read(_Constant(row.zero, number=row.literal in NUMERIC))
