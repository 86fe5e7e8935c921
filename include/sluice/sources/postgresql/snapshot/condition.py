"""The condition that somebody writes for the rows of a copy: read here, and written anew from what was understood.

The server never sees the person's text: names are quoted columns of the one table, words are on a list, and tokens are
written apart, so that there is no place for a comment, a second statement, a subquery, or a function that is not on the
list. The grammar is left to the server, which is asked for a plan first.
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
WORDS = frozenset(
    """
    AND OR NOT IS NULL IN LIKE ILIKE BETWEEN SYMMETRIC TRUE FALSE UNKNOWN DISTINCT FROM CASE WHEN THEN ELSE END ESCAPE
    DATE TIME TIMESTAMP TIMESTAMPTZ INTERVAL SMALLINT INTEGER INT BIGINT NUMERIC REAL TEXT BOOLEAN UUID
    CURRENT_DATE CURRENT_TIMESTAMP ABS CEIL CHAR_LENGTH COALESCE FLOOR GREATEST LEAST LEFT LENGTH LOWER LTRIM MD5 MOD
    NULLIF OCTET_LENGTH RIGHT ROUND RTRIM STARTS_WITH SUBSTR TRUNC UPPER
    """.split()  # noqa: SIM905
)
"""Words of the language, names of types after ``::`` or before a text, and functions that only compute."""


def rendered(text: str, table: TableId, columns: Sequence[str]) -> str:
    """Return the condition in one form. Raises ConfigError with what is not understood."""
    if len(text) > MAX_LENGTH:
        raise _refused(text, table, f"it has {len(text)} characters, and {MAX_LENGTH} are read")
    found, at, depth = [], 0, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _refused(text, table, f"{text[at:].split()[0][:20]!r} is not understood")
        at = token.end()
        if token.lastgroup is None:
            continue
        found.append(_written(text, token, table, columns))
        depth += {"(": 1, ")": -1}.get(found[-1], 0)
        if depth < 0:
            raise _refused(text, table, "a parenthesis closes that none opened")
    if depth or not found:
        raise _refused(text, table, "a parenthesis is not closed" if depth else "it is empty")
    return " ".join(found)


def _written(text: str, token: re.Match[str], table: TableId, columns: Sequence[str]) -> str:
    said = token[0]
    if token.lastgroup == "name" or (token.lastgroup == "word" and said.lower() in columns):
        name = said[1:-1].replace('""', '"') if token.lastgroup == "name" else said.lower()
        if name not in columns:
            raise _refused(text, table, f"the table has no column {name!r}{meant(name, columns)}")
        return quoted(name)
    if token.lastgroup == "word":
        if said.upper() not in WORDS:
            near = meant(said.lower(), columns)
            raise _refused(text, table, f"{said!r} is no column of the table, and no word that is known here{near}")
        return said.upper()
    if "\0" in said:
        raise _refused(text, table, "it has a NUL character")
    return said


def _refused(text: str, table: TableId, why: str) -> ConfigError:
    return ConfigError(
        f"the condition {text[:200]!r} for rows of {table} is not understood: {why}",
        hint="write comparisons of the table's columns with constants, joined by AND, OR, NOT; names with capitals in "
        "double quotes: \"createdAt\" >= DATE '2024-01-01'",
    )


__all__ = ["rendered"]
