"""Columns whose values never appear in errors, logs, XCom or on a screen: ``masked:`` of the pipeline file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.config import patterns

SHOWN = "***"
"""What stands for a masked value."""


@dataclass(frozen=True, slots=True)
class Masking:
    """Regular expressions on schema.table.column, anchored at both ends. Picklable."""

    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def hides(self, schema: str, table: str, column: str) -> bool:
        """Return True if values of the column must not be shown."""
        name = f"{schema}.{table}.{column}"
        return any(patterns.fullmatch(pattern, name) for pattern in self.patterns)

    def hidden(self, schema: str, table: str, columns: Iterable[str]) -> frozenset[str]:
        """Return those of ``columns`` that must not be shown."""
        return frozenset(c for c in columns if self.patterns and self.hides(schema, table, c))


def without_values(message: str) -> str:
    """Replace whatever stands between the quotes of a server's message, except the name of a column at its end."""
    column = re.search(r" for (?:column|key) '[^']*'(?: at row \d+)?(?: \(error \d+\))?\W*$", message)
    head, tail = (message[: column.start()], message[column.start() :]) if column else (message, "")
    return re.sub(r"'.*'", f"'{SHOWN}'", head, flags=re.DOTALL) + tail
