"""Compare rows with what a target of type memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sluice.model.key_literals import literal, read_key
from sluice.model.planned import PlannedTable
from sluice.targets.memory.rows import merged_rows
from sluice.targets.memory.schema import require
from sluice.targets.memory.store import Key, MemoryStore
from sluice.targets.port import MOST_EXTRA, ComparesRowsOnly, KeyRange, RangeDifferences, RowDifference


@dataclass(frozen=True)
class MemoryComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`. It reads :mod:`sluice.model.key_literals`."""

    store: MemoryStore

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`."""
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
        extra = tuple(tuple(map(literal, key)) for key in sorted(beyond)[:most])
        return RangeDifferences(tuple(missing), tuple(different), extra, more=len(beyond) > most)

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return ""

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        require(self.store, plan)
        with self.store.lock:
            there = list(self.store.tables[plan.target].rows)
        types = {column.name: column.type for column in plan.columns}
        columns = []
        for number, name in enumerate(plan.key):
            made = types.get(name)
            columns.append(pa.array([key[number] for key in there], made.arrow_type if made is not None else None))
        yield pa.table(columns, names=list(plan.key))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _inside(key: Key, item: KeyRange) -> bool:
    if item.listed is not None:
        return key in {read_key(one) for one in item.listed}
    lower, upper, after, upto = map(read_key, (item.lower, item.upper, item.after, item.upto))
    asked = (not lower or key[: len(lower)] >= lower) and (not upper or key[: len(upper)] <= upper)
    return asked and (not after or key[: len(after)] > after) and (not upto or key[: len(upto)] <= upto)


__all__ = ["MemoryComparer"]
