"""The words of a statement, as the server that logged it would split it: versioned comments, quotes and escapes by its own rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from sluice.errors import DecodeError

ANSI_QUOTES = 4
NO_BACKSLASH_ESCAPES = 1 << 20
"""Bits of ``sql_mode`` as a query event carries them."""


class Kind(Enum):
    """Kinds of token."""

    WORD = auto()
    NAME = auto()
    STRING = auto()
    NUMBER = auto()
    HEX = auto()
    BITS = auto()
    VARIABLE = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """``text``: a word as written, a name or string without its quotes; ``start``, ``end``: where it stands in the statement."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        """The word in capitals, ``""`` for what is no bare word or sign."""
        return self.text.upper() if self.kind in {Kind.WORD, Kind.SIGN} else ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which server, and how its session read quotes. ``version``: 80403 for 8.4.3, 101105 for MariaDB 10.11.5; 0: the newest."""

    mariadb: bool = False
    version: int = 0
    sql_mode: int = 0

    def runs(self, maker: str, number: str) -> bool:
        """True if this server executes what stands in ``/*!number`` (``maker``: ``""`` or ``M``)."""
        if maker and not self.mariadb:
            return False
        if not number:
            return True
        wanted = int(number)
        if self.mariadb and not maker and 50700 <= wanted <= 99999:
            return False
        return not self.version or self.version >= wanted


_SPACE = re.compile(r"\s+")
_PLAIN_COMMENT = re.compile(r"--(?=\s|$)[^\n]*|#[^\n]*")
_WORD = re.compile(r"[A-Za-z0-9_$\u0080-\U0010ffff]+")
_NUMBER = re.compile(r"(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![A-Za-z0-9_$\u0080-\U0010ffff])")
_VERSIONED = re.compile(r"/\*(M?)!(\d{5,6})?")
_HEX = re.compile(r"0x[0-9A-Fa-f]+(?![A-Za-z0-9_$])|[xX]'([0-9A-Fa-f]*)'")
_BITS = re.compile(r"0b[01]+(?![A-Za-z0-9_$])|[bB]'([01]*)'")
_VARIABLE = re.compile(r"@@?[A-Za-z0-9_$.`]*")
_SIGNS = ("<=>", "->>", ":=", "<=", ">=", "<>", "!=", "||", "&&", "<<", ">>", "->")
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


def tokens(sql: str, dialect: Dialect) -> list[Token]:
    """All tokens, then one of kind END. Raises DecodeError for a quote or comment that does not end."""
    found: list[Token] = []
    at, inside, size = 0, 0, len(sql)
    while at < size:
        char = sql[at]
        if char.isspace():
            at = _SPACE.match(sql, at).end()  # type: ignore[union-attr]
            continue
        if sql.startswith("/*", at):
            versioned = _VERSIONED.match(sql, at)
            if versioned and dialect.runs(versioned[1], versioned[2] or ""):
                inside += 1
                at = versioned.end()
                continue
            end = sql.find("*/", at + 2)
            if end < 0:
                raise DecodeError("a comment in the statement does not end")
            at = end + 2
            continue
        if inside and sql.startswith("*/", at):
            inside -= 1
            at += 2
            continue
        comment = _PLAIN_COMMENT.match(sql, at)
        if comment:
            at = comment.end()
            continue
        token = _token(sql, at, dialect, found)
        found.append(token)
        at = token.end
    found.append(Token(Kind.END, "", size, size))
    return found


def _token(sql: str, at: int, dialect: Dialect, before: list[Token]) -> Token:
    char = sql[at]
    if char == "`" or (char == '"' and dialect.sql_mode & ANSI_QUOTES):
        text, end = _quoted(sql, at, escapes=False)
        return Token(Kind.NAME, text, at, end)
    if char in {"'", '"'}:
        text, end = _quoted(sql, at, escapes=not dialect.sql_mode & NO_BACKSLASH_ESCAPES)
        return Token(Kind.STRING, text, at, end)
    after_dot = bool(before) and before[-1].text == "." and before[-1].end == at
    if not after_dot:
        for pattern, kind in ((_HEX, Kind.HEX), (_BITS, Kind.BITS), (_NUMBER, Kind.NUMBER)):
            match = pattern.match(sql, at)
            if match:
                text = match[1] if kind in {Kind.HEX, Kind.BITS} and match[1] is not None else match[0]
                return Token(kind, text.removeprefix("0x").removeprefix("0b"), at, match.end())
    match = _WORD.match(sql, at)
    if match:
        return Token(Kind.WORD, match[0], at, match.end())
    if char == "@":
        match = _VARIABLE.match(sql, at)
        assert match is not None
        return Token(Kind.VARIABLE, match[0], at, match.end())
    for sign in _SIGNS:
        if sql.startswith(sign, at):
            return Token(Kind.SIGN, sign, at, at + len(sign))
    return Token(Kind.SIGN, char, at, at + 1)


def _quoted(sql: str, at: int, *, escapes: bool) -> tuple[str, int]:
    quote, pieces, start = sql[at], [], at + 1
    i = start
    while i < len(sql):
        char = sql[i]
        if char == quote:
            pieces.append(sql[start:i])
            if sql.startswith(quote, i + 1):
                pieces.append(quote)
                i += 2
                start = i
                continue
            return "".join(pieces), i + 1
        if char == "\\" and escapes and i + 1 < len(sql):
            pieces.append(sql[start:i])
            following = sql[i + 1]
            pieces.append(f"\\{following}" if following in "%_" else _ESCAPES.get(following, following))
            i += 2
            start = i
            continue
        i += 1
    raise DecodeError(f"a quote ({quote}) in the statement does not end")
