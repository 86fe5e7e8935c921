"""Rows of an Iceberg table, read to be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.targets.iceberg.client import errors
from sluice.targets.iceberg.site import Site
from sluice.targets.lake.comparing import LakeComparer


@dataclass(frozen=True)
class IcebergComparer(LakeComparer):
    """See :class:`sluice.targets.lake.comparing.LakeComparer`."""

    site: Site

    def _read(
        self, table: Any, plan: PlannedTable, names: Sequence[str], bounds: Mapping[str, tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual

        where: Any = AlwaysTrue()
        for name, (low, high) in bounds.items():
            where = And(where, GreaterThanOrEqual(name, low), LessThanOrEqual(name, high))
        with errors(self.site.place, f"reading rows of {plan.target}", self.site.uri(plan.target)):
            yield from table.scan(row_filter=where, selected_fields=tuple(names)).to_arrow_batch_reader()
