"""Labels of ENUM and SET that have characters of four bytes.

Servers print a column's type in utf8mb3 (information_schema, SHOW COLUMNS, SHOW CREATE TABLE), in which such a
character is a question mark. The column itself gives them: the column of a recursive query has the type of the first
SELECT's column, and a number that is stored in it comes out as the label. That takes SELECT on the column, and no row
of the table is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pymysql

from sluice.errors import UnsupportedType
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.client import of_server, server_words

_WIDE = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030", "binary"})
"""Charsets with characters of four bytes, and labels that are bytes, which are kept as text."""
_FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")
_LOCK_WAIT_TIMEOUT = 1205
_AT_ONCE = 1000


def printed(text: str) -> str:
    """Return the text as the server prints it, unless it consists of bytes."""
    return _FOUR_BYTES.sub("?", text)


def may_hide(labels: Sequence[str], charset: str | None) -> bool:
    """Return True if a printed question mark in labels may stand for another character.

    ``charset``: MySQL names none for bytes.
    """
    return (charset or "binary") in _WIDE and any("?" in label for label in labels)


def _is_printed(text: str, label: str) -> bool:
    """Return True if the server prints ``text`` as ``label``: each byte of a character as ``?``, if it prints bytes."""
    return label in {printed(text), _FOUR_BYTES.sub("????", text)}


def exact_labels(
    ask: Callable[[str], Sequence[tuple[Any, ...]]],
    table: TableId,
    column: str,
    family: str,
    labels: Sequence[str],
    charset: str | None,
) -> tuple[str, ...]:
    """Return the labels as they are stored.

    Args:
        ask: runs a query, in utf8mb4. family: ``enum`` or ``set``. labels: as printed. charset: as for
            :func:`may_hide`.

    Raises:
        UnsupportedType: the server does not answer (no right to SELECT; a server without recursive queries). Connection
            errors stay as they are.
    """
    exact_labels = list(labels)
    hidden = [number for number, label in enumerate(labels) if "?" in label]
    try:
        for at in range(0, len(hidden), _AT_ONCE):
            for number, label in ask(_query(table, column, family, charset, hidden[at : at + _AT_ONCE])):
                exact_labels[int(number) - 1] = bytes(label).decode()
    except (UnicodeDecodeError, TypeError) as error:  # bytes that are no character, which a conversion left in them
        raise _hidden(table, column, "they are no text") from error
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args else 0
        if code == _LOCK_WAIT_TIMEOUT or not isinstance(code, int) or not of_server(code):
            raise
        raise _hidden(table, column, f"{server_words(error)} ({code})") from error
    if not all(_is_printed(label, display) for label, display in zip(exact_labels, labels, strict=True)):
        raise _hidden(table, column, "it was changed meanwhile")
    return tuple(exact_labels)


def _query(table: TableId, column: str, family: str, charset: str | None, numbers: Sequence[int]) -> str:
    text = "CONVERT(label USING utf8mb4)" if charset and charset != "binary" else "label"
    numbers_sql = " UNION ALL ".join(
        f"SELECT {number + 1} AS n, {number + 1 if family == 'enum' else 1 << number} AS number_" for number in numbers
    )
    return (
        f"WITH RECURSIVE labels (n, label) AS (SELECT 0, c.{quoted(column)} FROM (SELECT 1 AS one) o "  # noqa: S608 - quoted
        f"LEFT JOIN {quoted_table(table)} c ON FALSE "
        f"UNION ALL SELECT w.n, w.number_ FROM labels l JOIN ({numbers_sql}) w ON l.n = 0) "
        f"SELECT n, CAST({text} AS BINARY) FROM labels WHERE n > 0"
    )


def _hidden(table: TableId, column: str, why: str) -> UnsupportedType:
    return UnsupportedType(
        f"the server prints ? for some characters in the labels of {column}, and does not say which they are: {why}",
        where=str(table),
        hint=f"GRANT SELECT ON {quoted_table(table)} TO the pipeline's user",
    )
