"""The condition that somebody writes for the rows of a copy: read here, and written anew from what was understood.

The server never sees the person's text: names are quoted columns of the one table, words are on a list, and tokens are
written apart, so that there is no place for a comment, a second statement, a subquery, or a function that is not on the
list, also if a column has its name. The grammar is left to the server, which is asked for a plan first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.errors import ConfigError
from sluice.model.nearest import meant
from sluice.model.tables import TableId
from sluice.postgresql.names import quoted

MAX_LENGTH = 10_000
_TOKEN = re.compile(
    r"""\s+|(?P<string>'(?:[^']|'')*')|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>"(?:[^"]|"")+")"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|<>|!=|\|\||::|[-+*/%<>=(),])"""
)
KEYWORDS = frozenset(
    """
    AND OR NOT IS NULL IN LIKE ILIKE BETWEEN SYMMETRIC TRUE FALSE UNKNOWN DISTINCT FROM CASE WHEN THEN ELSE END ESCAPE
    CURRENT_DATE CURRENT_TIMESTAMP
    """.split()  # noqa: SIM905
)
"""Words of the language; a column of such a name stands in double quotes."""
TYPES = frozenset(
    """
    DATE TIME TIMESTAMP TIMESTAMPTZ INTERVAL SMALLINT INTEGER INT BIGINT NUMERIC REAL TEXT BOOLEAN UUID
    """.split()  # noqa: SIM905
)
"""Names of types, which stand after ``::``, before a text or a parenthesis; anywhere else such a word is a column."""
FUNCTIONS = frozenset(
    """
    ABS CEIL CHAR_LENGTH COALESCE FLOOR GREATEST LEAST LEFT LENGTH LOWER LTRIM MD5 MOD NULLIF OCTET_LENGTH RIGHT ROUND
    RTRIM STARTS_WITH SUBSTR TRUNC UPPER
    """.split()  # noqa: SIM905
)
"""Functions that only compute, which stand before a parenthesis; anywhere else such a word is a column."""


def rendered(text: str, table: TableId, columns: Sequence[str]) -> str:
    """Return the condition in one form. Raises ConfigError with what is not understood."""
    if len(text) > MAX_LENGTH:
        raise _refused(text, table, f"it has {len(text)} characters, and {MAX_LENGTH} are read")
    tokens: list[re.Match[str]] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _refused(text, table, f"{text[at:].split()[0][:20]!r} is not understood")
        at = token.end()
        if token.lastgroup is not None:
            tokens.append(token)
    before, after = ["", *(token[0] for token in tokens)], [*tokens[1:], None]
    written = [_written(text, *around, table, columns) for around in zip(before, tokens, after, strict=False)]
    depth = 0
    for sign in written:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if depth < 0:
            raise _refused(text, table, "a parenthesis closes that none opened")
    if depth or not written:
        raise _refused(text, table, "a parenthesis is not closed" if depth else "it is empty")
    return " ".join(written)


def _written(
    text: str, before: str, token: re.Match[str], after: re.Match[str] | None, table: TableId, columns: Sequence[str]
) -> str:
    """Return a token as it is sent, which depends on the one ``before`` it and the one ``after`` it.

    In front of a parenthesis or a text, and after ``::``, the server takes any name as that of a function or a type,
    quoted or not.
    """
    written, word = token[0], token[0].upper() if token.lastgroup == "word" else ""
    if token.lastgroup not in {"name", "word"}:
        if "\0" in written:
            raise _refused(text, table, "it has a NUL character")
        return written
    opens, quotes = after is not None and after[0] == "(", after is not None and after.lastgroup == "string"
    cast = before == "::"
    if word in KEYWORDS and not cast:
        return word
    if (word in TYPES and (cast or quotes or opens)) or (word in FUNCTIONS and opens and not cast):
        return word
    if cast or opens or quotes:
        what = "type" if cast or quotes else "function"
        raise _refused(text, table, f"{written!r} is no {what} that is known here")
    name = written[1:-1].replace('""', '"') if token.lastgroup == "name" else written.lower()
    if name in columns:
        return quoted(name)
    if not word:
        raise _refused(text, table, f"the table has no column {name!r}{meant(name, columns)}")
    near = meant(name, columns)
    raise _refused(text, table, f"{written!r} is no column of the table, and no word that is known here{near}")


def _refused(text: str, table: TableId, why: str) -> ConfigError:
    return ConfigError(
        f"the condition {text[:200]!r} for rows of {table} is not understood: {why}",
        hint="write comparisons of the table's columns with constants, joined by AND, OR, NOT; names with capitals in "
        "double quotes: \"createdAt\" >= DATE '2024-01-01'",
    )


__all__ = ["rendered"]
