"""Rows of an Iceberg table, read to be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
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
        yield from read(self.site, plan.target, table.scan(row_filter=where), names)


def read(site: Site, target: TableId, scan: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows of a scan (``DataScan``), one file at a time in memory. Raises LoadError, TargetUnavailable.

    Decision: not the library's reader of batches, which reads all files at once and holds those that are not requested yet.
    """
    from pyiceberg.io.pyarrow import ArrowScan

    with errors(site.place, f"reading rows of {target}", site.uri(target)):
        found = scan.select(*names)
        reader = ArrowScan(found.table_metadata, found.io, found.projection(), found.row_filter)
        for task in found.plan_files():
            yield from reader.to_record_batches([task])
