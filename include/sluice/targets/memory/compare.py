"""Compare rows with what a target of type memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.targets.memory.keys import is_in, key_table, merged_rows
from sluice.targets.memory.schema import require
from sluice.targets.memory.store import Key, MemoryStore
from sluice.targets.port import MOST_EXTRA, ComparesRowsOnly, KeyRange, RangeDifferences, RowDifference


@dataclass(frozen=True)
class MemoryComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`."""

    store: MemoryStore

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`."""
        require(self.store, plan)
        with self.store.lock:
            held_rows = dict(self.store.tables[plan.target].rows)
        missing, different, sent_keys = [], [], set[Key]()
        for row in merged_rows(rows):
            key = tuple(row.values[name] for name in plan.key)
            sent_keys.add(key)
            held_row = held_rows.get(key)
            if held_row is None:
                missing.append(row.number)
                continue
            odd = tuple(name for name, value in row.values.items() if repr(held_row.get(name)) != repr(value))
            if odd:
                pairs = tuple((_text(row.values[name]), _text(held_row.get(name))) for name in odd) if values else ()
                different.append(RowDifference(row.number, odd, pairs))
        inside = is_in(item) if item is not None else lambda key: False
        beyond = [key for key in held_rows if key not in sent_keys and inside(key)]
        most = len(beyond) if item is None or item.listed is not None else MOST_EXTRA
        extra = key_table(plan, sorted(beyond)[:most]) if beyond else None
        return RangeDifferences(tuple(missing), tuple(different), extra, more=len(beyond) > most)

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return ""

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        require(self.store, plan)
        with self.store.lock:
            rows = list(self.store.tables[plan.target].rows)
        yield key_table(plan, rows)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
