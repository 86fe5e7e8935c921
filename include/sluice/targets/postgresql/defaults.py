"""Defaults of the source's columns in PostgreSQL's words, and the value that rows get which are there when a column is added."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import suppress
from dataclasses import dataclass

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.definitions import ColumnDefinition
from sluice.model.sessions import StatementSession
from sluice.mysql.charsets import decoded

K = ColumnKind
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_BITS = re.compile(r"[bB]'([01]+)'")
_HEX = re.compile(r"(?:_(?P<charset>\w+) ?)?[xX]'(?P<digits>[0-9a-fA-F]*)'")
_TEXT = re.compile(r"(?:_\w+ ?)?'((?:[^'\\]|''|\\.)*)'", re.S)
_NOW = re.compile(r"(?:current_timestamp|now|localtime|localtimestamp)(?:\s*\(\s*\d?\s*\))?", re.I)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_UTC = {"+00:00", "UTC"}
_NUMBERS = frozenset({K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.DECIMAL, K.FLOAT, K.DOUBLE, K.YEAR})
_BYTES = frozenset({K.BINARY, K.VARBINARY, K.BLOB})
_CHARACTERS = frozenset({K.CHAR, K.VARCHAR, K.TEXT, K.ENUM, K.SET})


@dataclass(frozen=True, slots=True)
class Default:
    """``later``: SQL of the default from now on, "" for none. ``rows``: SQL of the value of rows that are there; None: it is not known, ``why``."""

    later: str = ""
    rows: str | None = "NULL"
    why: str = ""


def text_literal(text: str) -> str:
    """An SQL string."""
    return "'" + text.replace("'", "''") + "'"


def default_of(column: ColumnDefinition, made: ColumnType, session: StatementSession | None) -> Default:
    """What the source's default is here."""
    if column.default is None or column.default.upper() == "NULL":
        return Default() if column.nullable else _implied(made)
    text = column.default.strip()
    if _NOW.fullmatch(text) and made.kind in {K.DATETIME, K.TIMESTAMP}:
        return _now(made, session)
    constant = _constant(text, made)
    if constant is None:
        return Default("", None, f"its default {text} is not translated")
    return Default(constant, constant)


def _implied(made: ColumnType) -> Default:
    """The value that MySQL gives rows in a new column that is NOT NULL and has no default."""
    if made.kind in {K.DATE, K.DATETIME, K.TIMESTAMP}:
        return Default("", None, "at the source they have the date 0000-00-00 in it")
    if made.kind in _NUMBERS:
        return Default("", "0")
    if made.kind is K.TIME:
        return Default("", "'0'")
    if made.kind is K.BIT:
        return Default("", f"B'{'0' * (made.length or 1)}'")
    if made.kind is K.ENUM and made.labels:
        return Default("", text_literal(made.labels[0]))
    if made.kind is K.JSON:
        return Default("", "'null'")
    if made.kind is K.BINARY:
        return Default("", rf"'\x{'00' * (made.length or 1)}'")
    if made.kind in {K.CHAR, K.VARCHAR, K.TEXT, K.SET, *_BYTES}:
        return Default("", "''")
    return Default("", None, "the value that they have in it at the source is not known")


def _now(made: ColumnType, session: StatementSession | None) -> Default:
    later = "now()" if made.kind is K.TIMESTAMP else "(now() AT TIME ZONE 'UTC')"
    zone = session.time_zone if session is not None else None
    if session is None or not session.timestamp_us or (made.kind is K.DATETIME and zone not in _UTC):
        return Default(later, None, "the time of the statement, in its session's time zone, is not known")
    when = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=session.timestamp_us)
    cut = 10 ** (6 - made.digits)
    when = when.replace(microsecond=when.microsecond // cut * cut)
    zone = "+00" if made.kind is K.TIMESTAMP else ""
    return Default(later, f"'{when:%Y-%m-%d %H:%M:%S.%f}{zone}'")


def _introduced(charset: str, digits: str) -> str | None:
    """A hexadecimal literal that names its charset as text, None if it is none that can be written here."""
    if charset.lower() in {"", "binary"}:
        return None
    with suppress(DecodeError, ValueError):
        value = decoded(bytes.fromhex(digits), charset.lower())
        return None if "\0" in value else text_literal(value)
    return None


def _constant(text: str, made: ColumnType) -> str | None:
    bits, hexadecimal = _BITS.fullmatch(text), _HEX.fullmatch(text)
    if bits is not None:
        return f"B'{bits[1].lstrip('0').rjust(made.length or 1, '0')}'" if made.kind is K.BIT else str(int(bits[1], 2))
    if hexadecimal is not None:
        if made.kind in _BYTES:
            return rf"'\x{hexadecimal['digits']}'"
        return _introduced(hexadecimal["charset"] or "", hexadecimal["digits"]) if made.kind in _CHARACTERS else None
    if _NUMBER.fullmatch(text):
        if made.kind is K.BIT:
            return f"B'{int(text):0{made.length or 1}b}'"
        return text if made.kind in _NUMBERS else text_literal(text) if made.kind in {K.CHAR, K.VARCHAR} else None
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    value = re.sub(r"''|\\(.)", lambda m: "'" if m[0] == "''" else _ESCAPES.get(m[1], m[1]), found[1], flags=re.S)
    if made.kind in _BYTES:
        padded = value.encode().ljust(made.length if made.kind is K.BINARY else 0, b"\0")
        return rf"'\x{padded.hex()}'"
    if "\0" in value or (made.kind in {K.DATE, K.DATETIME, K.TIMESTAMP} and re.search(r"^0000|-00", value)):
        return None
    if made.kind in _NUMBERS:
        return value if _NUMBER.fullmatch(value) else None
    if made.kind is K.TIMESTAMP:
        return None  # written in the session's time zone
    return text_literal(value) if made.kind not in {K.GEOMETRY, K.VECTOR, K.BIT} else None
