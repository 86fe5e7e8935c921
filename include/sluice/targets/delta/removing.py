"""Rows that only a Delta table has, by listed keys: they go, in one commit. A range of the source is none of the table, so none is cleared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.targets.base import Fence, RowReader, StoredRange, WriteResult
from sluice.targets.delta.client import errors
from sluice.targets.delta.column_types import type_of
from sluice.targets.delta.committing import committed
from sluice.targets.delta.keys import key_columns, keys_of, listed_keys, not_listed
from sluice.targets.delta.merging import Part, merge_parts
from sluice.targets.delta.site import Site
from sluice.targets.delta.tables import TableInfo, info_of
from sluice.targets.delta.values import converted, plain

_LOOKED_BACK = 1_000
"""Commits in which another pipeline is looked for."""


@dataclass(frozen=True)
class DeltaReconciler:
    """See :class:`sluice.targets.base.Reconciler` and :class:`sluice.targets.base.ListReconciler`."""

    site: Site

    def refuses(self, table: PlannedTable) -> str:
        """Always."""
        return "ranges of a Delta table's keys are not those of the source"

    def refuses_listed(self, table: PlannedTable) -> str:
        """Another pipeline writes to the table, too, or its keys are not the source's."""
        there = self.site.required(table.target)
        writers = {str(one.get("sluice.owner", self.site.owner)) for one in there.history(_LOOKED_BACK)}
        others = sorted(writers - {self.site.owner})
        return f"{table.target} is written by {others[0]}, too" if others else not_listed(table, info_of(there))

    def others(self) -> tuple[str, ...]:
        """It is told a table, by :meth:`refuses_listed`."""
        return ()


@dataclass(frozen=True)
class Removing:
    """Listed keys of one table on their way."""

    site: Site
    fence: Fence
    reader: RowReader
    stored: StoredRange
    scope: str

    def run(self) -> WriteResult:
        """Raises Fenced, LoadError, MappingError, TargetUnavailable."""
        return committed(self.site, self.fence, self.stored.plan.target, self.scope, "", self._write)

    def _write(self, table: Any, noted: Any) -> WriteResult:
        plan, info = self.stored.plan, info_of(table)
        part = self._part(info)
        count = len(part.gone)
        if not count or not table.file_uris():
            return WriteResult()
        doing = f"removing {count} rows of {plan.target} in batch {self.fence.batch}"
        with errors(self.site.place, doing, self.site.path(plan.target)):
            merge_parts(table, noted, [part], info, list(part.columns))
        return WriteResult(deleted=count, statements=1)

    def _part(self, info: TableInfo) -> Part:
        """The keys that are not kept, as the table has them."""
        plan, item = self.stored.plan, self.reader.key_range(self.stored)
        listed = listed_keys(plan, info, item.listed or ())
        kept = {}
        if item.kept is not None:
            for column, name in zip(key_columns(plan), listed, strict=True):
                there = info.find(name)
                kind = str(there.kind) if there is not None else ""
                kept[name], _ = converted(plain(item.kept[column.name]), type_of(column), kind)
        stay = set(keys_of(kept, list(kept))) if kept else set()
        gone = np.array([key not in stay for key in keys_of(listed, list(listed))], bool)
        return Part({name: values.filter(pa.array(gone)) for name, values in listed.items()}, np.ones(gone.sum(), bool))


__all__ = ["DeltaReconciler", "Removing"]
