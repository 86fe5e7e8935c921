"""The words of a statement, as the server that logged it would split it: versioned comments, quotes and escapes by its
own rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from sluice.errors import DecodeError

ANSI_QUOTES = 4
ORACLE = 1 << 9
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
    """A token.

    ``text``: a word as written, a name or string without quotes; ``start``, ``end``: its place in the statement.
    """

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
    """The server that logged a statement, and how its session read quotes.

    ``version``: 80403 for 8.4.3, 101105 for MariaDB 10.11.5; 0: the newest. ``charset``: of the session, in which the
    statement was sent.
    """

    mariadb: bool = False
    version: int = 0
    sql_mode: int = 0
    charset: str = "utf8mb4"

    def runs(self, maker: str, number: str) -> bool:
        """Return True if this server executes what stands in ``/*!number`` (``maker``: ``""`` or ``M``)."""
        if maker and not self.mariadb:
            return False
        if not number:
            return True
        minimum = int(number)
        if self.mariadb and not maker and 50700 <= minimum <= 99999:
            return False
        return not self.version or self.version >= minimum


_SPACE = re.compile(r"[ \t\n\v\f\r]+")
"""What the server takes for space: the spaces of Unicode are letters of a name to it."""
_PLAIN_COMMENT = re.compile(r"--(?=[\x00-\x20\x7f]|$)[^\n]*|#[^\n]*")
_LETTERS = r"^\x00-#%-/:-@\[-^`{-\x7f"
"""All but the ASCII characters that are no letters: a pattern with a range up to the last character takes 5 ms to
compile.
"""
_WORD = re.compile(f"[{_LETTERS}]+")
_EXPONENT = "(?:[eE][+-]?[0-9]+)"
_NUMBER = re.compile(rf"[0-9]+\.[0-9]*{_EXPONENT}?|\.[0-9]+{_EXPONENT}?|[0-9]+{_EXPONENT}|[0-9]+(?![{_LETTERS}])")
_VERSIONED = re.compile(r"/\*(M?)!([0-9]{5,6})?")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_HEX = re.compile(rf"0x[0-9A-Fa-f]+(?![{_LETTERS}])|[xX]'([0-9A-Fa-f]*)'")
_BITS = re.compile(rf"0b[01]+(?![{_LETTERS}])|[bB]'([01]*)'")
_VARIABLE = re.compile(rf"@@?(?:[{_LETTERS}]|\.)*")
_SIGNS = ("<=>", "->>", ":=", "<=", ">=", "<>", "!=", "||", "&&", "<<", ">>", "->")
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_QUOTE_PARTS = {
    (quote, escapes): re.compile(rf"[^{quote}\\]+" if escapes else f"[^{quote}]+")
    for quote in "`'\""
    for escapes in (True, False)
}


def tokens(sql: str, dialect: Dialect) -> list[Token]:
    """Return all tokens, then one of kind END. Raises DecodeError for a quote or comment that does not end."""
    return list(scan(sql, dialect))


def executed_text(sql: str, dialect: Dialect) -> str:
    """Return the statement as any server reads what this one ran: without the markers of versioned comments
    (``/*!80016``, ``/*M!``) that it executed, and without those that it skipped.

    A statement that cannot be split into tokens stays as it is.
    """
    if "!" not in sql or _VERSIONED.search(sql) is None:
        return sql
    skipped: list[tuple[int, int]] = []
    try:
        for _ in scan(sql, dialect, skipped):
            pass
    except DecodeError:
        return sql
    at, pieces = 0, list[str]()
    for start, end in skipped:
        pieces += [sql[at:start], " "]
        at = end
    return "".join([*pieces, sql[at:]]).strip() if skipped else sql


def scan(sql: str, dialect: Dialect, skipped: list[tuple[int, int]] | None = None) -> Iterator[Token]:
    """Yield the tokens one by one, so that only what is asked for is read: a routine's body is in another language.

    Args:
        skipped: gets (start, end) of each marker of a versioned comment and of each versioned comment that is not run.

    Raises what :func:`tokens` raises, where it gets there.
    """
    skipped = [] if skipped is None else skipped
    at, inside, size = 0, 0, len(sql)
    before: Token | None = None
    while at < size:
        space = _SPACE.match(sql, at)
        if space:
            at = space.end()
            continue
        if sql.startswith("/*", at):
            versioned = _VERSIONED.match(sql, at)
            if versioned and dialect.runs(versioned[1], versioned[2] or ""):
                inside += 1
                skipped.append((at, versioned.end()))
                at = versioned.end()
                continue
            end = _comment_end(sql, at + 2, nested=bool(versioned))
            if versioned:
                skipped.append((at, end))
            at = end
            continue
        if inside and sql.startswith("*/", at):
            inside -= 1
            skipped.append((at, at + 2))
            at += 2
            continue
        comment = _PLAIN_COMMENT.match(sql, at)
        if comment:
            at = comment.end()
            continue
        before = _token(sql, at, dialect, before)
        yield before
        at = before.end
    yield Token(Kind.END, "", size, size)


def _comment_end(sql: str, at: int, *, nested: bool) -> int:
    """Return where a comment ends. ``nested``: a versioned one that is not run may hold comments of its own."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(sql, at)
        if edge is None:
            raise DecodeError("a comment in the statement does not end")
        at = edge.end()
        if edge[0] == "*/":
            depth -= 1
        elif nested and depth == 1:
            depth += 1
    return at


def _token(sql: str, at: int, dialect: Dialect, before: Token | None) -> Token:
    char = sql[at]
    if char == "`" or (char == '"' and dialect.sql_mode & ANSI_QUOTES):
        text, end = _quoted(sql, at, escapes=False)
        return Token(Kind.NAME, text, at, end)
    if char in {"'", '"'}:
        text, end = _quoted(sql, at, escapes=not dialect.sql_mode & NO_BACKSLASH_ESCAPES)
        return Token(Kind.STRING, text, at, end)
    if char == "@":
        return _variable(sql, at, dialect)
    if char == "\\" and sql.startswith("N", at + 1):  # \N is NULL, for MariaDB still
        return Token(Kind.WORD, "NULL", at, at + 2)
    touching = before is not None and before.end == at
    if char == "." and touching and before is not None and before.kind in _MAY_BE_QUALIFIED:
        return Token(Kind.SIGN, ".", at, at + 1)  # t.1a, t.20151214: digits after a name's dot are a name, too
    if not (touching and before is not None and before.kind is Kind.SIGN and before.text == "."):
        for pattern, kind in ((_HEX, Kind.HEX), (_BITS, Kind.BITS), (_NUMBER, Kind.NUMBER)):
            match = pattern.match(sql, at)
            if match:
                text = match[1] if kind in {Kind.HEX, Kind.BITS} and match[1] is not None else match[0]
                return Token(kind, text.removeprefix("0x").removeprefix("0b"), at, match.end())
    match = _WORD.match(sql, at)
    if match:
        return Token(Kind.WORD, match[0], at, match.end())
    for sign in _SIGNS:
        if sql.startswith(sign, at):
            return Token(Kind.SIGN, sign, at, at + len(sign))
    return Token(Kind.SIGN, char, at, at + 1)


_MAY_BE_QUALIFIED = {Kind.WORD, Kind.NAME}


def _variable(sql: str, at: int, dialect: Dialect) -> Token:
    """Read ``@a.b``, ``@@global``, ``@'x'``, ``@`x```; and the host of an account, which is written as a variable
    is.
    """
    start = at + (2 if sql.startswith("@@", at) else 1)
    if start < len(sql) and sql[start] in "`'\"":
        name = sql[start] == "`" or (sql[start] == '"' and bool(dialect.sql_mode & ANSI_QUOTES))
        escapes = not name and not dialect.sql_mode & NO_BACKSLASH_ESCAPES
        end = _quoted(sql, start, escapes=escapes)[1]
        return Token(Kind.VARIABLE, sql[at:end], at, end)
    match = _VARIABLE.match(sql, at)
    assert match is not None
    return Token(Kind.VARIABLE, match[0], at, match.end())


def _quoted(sql: str, at: int, *, escapes: bool) -> tuple[str, int]:
    quote, pieces, i, size = sql[at], [], at + 1, len(sql)
    plain = _QUOTE_PARTS[quote, escapes]
    while i < size:
        part = plain.match(sql, i)
        if part:
            pieces.append(part[0])
            i = part.end()
            continue
        if sql[i] == quote:
            if sql.startswith(quote, i + 1):
                pieces.append(quote)
                i += 2
                continue
            return "".join(pieces), i + 1
        if i + 1 >= size:
            break
        following = sql[i + 1]
        pieces.append(f"\\{following}" if following in "%_" else _ESCAPES.get(following, following))
        i += 2
    raise DecodeError(f"a quote ({quote}) in the statement does not end")
