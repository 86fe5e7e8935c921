"""A dimension table that a rule holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sluice.config.engine import LookupConfig


@dataclass
class Lookup:
    """Rows found by key.

    Attributes:
        table: all of them, as a ``pyarrow.Table``; for rules of type arrow, pandas and sql.
        key: names of the columns a row is found by.
    """

    table: pa.Table
    key: tuple[str, ...]
    _rows: dict[Any, dict[str, Any]] | None = field(default=None, repr=False)

    def get(self, *key: Any) -> dict[str, Any] | None:
        """Return the row of that key, None if there is none. The first of several wins."""
        if self._rows is None:
            by_key: dict[Any, dict[str, Any]] = {}
            for row in self.table.to_pylist():
                by_key.setdefault(tuple(row[name] for name in self.key), row)
            self._rows = by_key
        return self._rows.get(key)

    def __contains__(self, key: Any) -> bool:
        return self.get(*(key if isinstance(key, tuple) else (key,))) is not None

    def __len__(self) -> int:
        return int(self.table.num_rows)


LookupSource = Callable[[str, LookupConfig], Lookup]
"""Finds the lookup of a rule: name and configuration in, the table as of now out. Raises SluiceError."""


def resolved(configs: Mapping[str, LookupConfig], source: LookupSource | None) -> dict[str, Lookup]:
    """Resolve all lookups of a rule. Without a source (a test of a rule that has none) there are none."""
    if source is None:
        return {}
    return {name: source(name, config) for name, config in configs.items()}
