"""Delete rows that only a lake table has, by listed keys.

A range of the source is none of the table, so none is cleared.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.targets.lake.keys import keys_of, listed_keys, not_listed
from sluice.targets.lake.rows import Part
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.types import TableInfo
from sluice.targets.lake.values import converted, plain
from sluice.targets.port import OtherWriter, RowReader, StoredRange

LOOKED_BACK = 1_000
"""Commits that are searched for another pipeline."""


@dataclass(frozen=True)
class LakeReconciler:
    """See :class:`sluice.targets.port.Reconciler` and :class:`sluice.targets.port.ListReconciler`."""

    tables: LakeTables

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range is always refused."""
        return "ranges of a table's keys there are not those of the source"

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return why listed keys cannot be removed: another pipeline writes to the table, too, or its keys are not the
        source's. "" if they can.
        """
        there, format_ = self.tables.required(table.target), self.tables.format
        commits = itertools.islice(format_.history(table.target, there), LOOKED_BACK)
        others = sorted({commit.owner for commit in commits} - {self.tables.owner, ""})
        return f"{table.target} is written by {others[0]}, too" if others else not_listed(table, format_.info(there))

    def others(self) -> tuple[OtherWriter, ...]:
        """Return nothing: other writers are known only for a given table, see :meth:`refuses_listed`."""
        return ()


def removed_part(info: TableInfo, reader: RowReader, stored: StoredRange) -> Part:
    """Return the listed keys that are not kept, as the table has them. Raises LoadError, SegmentError."""
    plan, item = stored.plan, reader.key_range(stored)
    assert item.listed is not None  # ranges are refused
    listed = listed_keys(plan, info, item.listed)
    kept = {}
    if item.kept is not None:
        for column, name in zip(plan.key_columns, listed, strict=True):
            there = info.find(name)
            kind = str(there.kind) if there is not None else ""
            kept[name], _ = converted(plain(item.kept[column.name]), column.sent_type, kind)
    stay = set(keys_of(kept, list(kept))) if kept else set()
    gone = np.array([key not in stay for key in keys_of(listed, list(listed))], bool)
    return Part({name: values.filter(pa.array(gone)) for name, values in listed.items()}, np.ones(gone.sum(), bool))
