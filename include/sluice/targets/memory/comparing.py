"""Rows compared with what a target of type memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.targets.base import MOST_EXTRA, ComparesRowsOnly, KeyRange, RangeDifferences, RowDifference
from sluice.targets.memory.rows import merged_rows
from sluice.targets.memory.schema import require
from sluice.targets.memory.store import Key, MemoryStore


@dataclass(frozen=True)
class MemoryComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.base.Comparer` and :class:`sluice.targets.base.KeyLister`. It reads literals of whole numbers."""

    store: MemoryStore

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.base.Comparer.compare`."""
        require(self.store, plan)
        with self.store.lock:
            there = dict(self.store.tables[plan.target].rows)
        missing, different, seen = [], [], set[Key]()
        for row in merged_rows(rows):
            key = tuple(row.values[name] for name in plan.key)
            seen.add(key)
            mine = there.get(key)
            if mine is None:
                missing.append(row.number)
                continue
            odd = tuple(name for name, value in row.values.items() if repr(mine.get(name)) != repr(value))
            if odd:
                pairs = tuple((_text(row.values[name]), _text(mine.get(name))) for name in odd) if values else ()
                different.append(RowDifference(row.number, odd, pairs))
        beyond = [key for key in there if key not in seen and _inside(key, item)] if item is not None else []
        most = len(beyond) if item is None or item.listed is not None else MOST_EXTRA
        extra = tuple(tuple(map(str, key)) for key in sorted(beyond)[:most])
        return RangeDifferences(tuple(missing), tuple(different), extra, more=len(beyond) > most)

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.base.KeyLister.not_listed`."""
        return ""

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.base.KeyLister.keys`."""
        with self.store.lock:
            there = list(self.store.tables[plan.target].rows)
        columns = [pa.array([key[number] for key in there]) for number in range(len(plan.key))]
        yield pa.table(columns, names=list(plan.key))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _inside(key: Key, item: KeyRange) -> bool:
    if item.listed is not None:
        return key in {tuple(map(int, one)) for one in item.listed}
    after, upto = tuple(map(int, item.after)), tuple(map(int, item.upto))
    return (not after or key > after) and (not upto or key <= upto)


__all__ = ["MemoryComparer"]
