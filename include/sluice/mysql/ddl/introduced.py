"""Literals that name their own charset (``_utf8mb4'…'``, ``_binary'…'``, ``N'…'``), written so that no session's
charset matters.

The server takes the bytes of such a literal as they are, in whatever charset the statement was sent. A statement as
text has lost them: it is decoded by the session's charset. So these literals are written as hexadecimal ones, while the
statement is bytes still.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sluice.errors import DecodeError
from sluice.mysql.charsets import is_known
from sluice.mysql.ddl.lexer import NO_BACKSLASH_ESCAPES, Dialect, Kind, Token, scan

_MARK = re.compile(rb"_[A-Za-z0-9]+\s*['\"]|[nN]['\"]")
"""A statement without this has no such literal."""
_WIDE = {
    "sjis": re.compile(rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"),
    "cp932": re.compile(rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"),
    "gbk": re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]"),
    "big5": re.compile(rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]"),
    "gb18030": re.compile(rb"[\x81-\xfe](?:[\x40-\x7e\x80-\xfe]|[\x30-\x39][\x81-\xfe][\x30-\x39])"),
}
"""Characters of charsets in which a part of a character may look like a quote or a backslash; the others have no such
bytes.
"""
_ESCAPES = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"Z": b"\x1a"}
_NAMED_UTF8MB3 = 10_06_00
"""The version from which MariaDB knows ``_utf8mb3``."""


def as_hexadecimal(raw: bytes, dialect: Dialect) -> bytes:
    """Return the statement with each non-ASCII literal that names its charset as a hexadecimal one of the same charset.

    ``dialect``: of the session, with its charset. What is not understood stays as it is.
    """
    if raw.isascii() or _MARK.search(raw) is None:
        return raw
    wide = _WIDE.get(dialect.charset)
    masked = raw if wide is None else wide.sub(lambda match: b"\xc0" * len(match[0]), raw)
    out, at = [], 0
    try:
        for start, end, written in _literals(raw, masked, dialect):
            out += [raw[at:start], written]
            at = end
    except DecodeError:
        return raw
    return b"".join([*out, raw[at:]]) if out else raw


def _literals(raw: bytes, masked: bytes, dialect: Dialect) -> Iterator[tuple[int, int, bytes]]:
    """Yield (start, end, text) of the literals to rewrite, introducer included.

    Raises DecodeError for a statement without an end.
    """
    tokens = list(scan(masked.decode("latin-1"), dialect))  # a byte a character: places are the same
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if before.kind is not Kind.WORD or token.kind is not Kind.STRING:
            continue
        charset = _charset(before, token, dialect)
        if not charset or raw[token.start : token.end].isascii():
            continue
        if after.kind is Kind.STRING:  # literals one after the other are one, which hexadecimal ones are not
            continue
        data = _content(raw, masked, token, escapes=not dialect.sql_mode & NO_BACKSLASH_ESCAPES)
        yield before.start, token.end, f"_{charset} x'{data.hex()}'".encode()


def _charset(introducer: Token, literal: Token, dialect: Dialect) -> str:
    """Return the charset that a word before a literal names, "" if it names none."""
    if introducer.text in {"n", "N"} and introducer.end == literal.start:
        return "utf8" if dialect.mariadb and 0 < dialect.version < _NAMED_UTF8MB3 else "utf8mb3"
    charset = introducer.text[1:].lower() if introducer.text.startswith("_") else ""
    return charset if charset == "binary" or (charset and is_known(charset)) else ""


def _content(raw: bytes, masked: bytes, token: Token, *, escapes: bool) -> bytes:
    """Return a literal's bytes, without quotes and escapes."""
    quote = masked[token.start : token.start + 1]
    out, at, end = [], token.start + 1, token.end - 1
    while at < end:
        here = masked[at : at + 1]
        if here == b"\\" and escapes:
            following = raw[at + 1 : at + 2]
            out.append(b"\\" + following if following in {b"%", b"_"} else _ESCAPES.get(following, following))
            at += 2
        elif here == quote:
            out.append(quote)
            at += 2
        else:
            out.append(raw[at : at + 1])
            at += 1
    return b"".join(out)
