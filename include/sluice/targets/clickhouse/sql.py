"""Names and values as SQL of ClickHouse."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.model.tables import TableId

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "\b": "\\b", "\f": "\\f"}


def _escaped(text: str, quote: str) -> str:
    return "".join(f"\\{character}" if character == quote else _ESCAPES.get(character, character) for character in text)


def name(text: str) -> str:
    """Return a quoted identifier."""
    return f"`{_escaped(text, '`')}`"


def names(texts: Iterable[str]) -> str:
    """Return quoted identifiers, separated by commas."""
    return ", ".join(map(name, texts))


def literal(text: str) -> str:
    """Return a quoted text."""
    return f"'{_escaped(text, chr(39))}'"


def table_name(table: TableId) -> str:
    """Return the quoted name of a table with its database."""
    return f"{name(table.schema)}.{name(table.table)}"


__all__ = ["literal", "name", "names", "table_name"]
