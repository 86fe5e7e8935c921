"""Rows of a Delta table, read to be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.delta.client import errors, library
from sluice.targets.delta.site import Site
from sluice.targets.lake.comparing import LakeComparer


@dataclass(frozen=True)
class DeltaComparer(LakeComparer):
    """See :class:`sluice.targets.lake.comparing.LakeComparer`."""

    site: Site

    def _read(
        self, table: Any, plan: PlannedTable, names: Sequence[str], bounds: Mapping[str, tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        where = " AND ".join(f"{_quoted(name)} BETWEEN {low} AND {high}" for name, (low, high) in bounds.items())
        yield from read(self.site, plan.target, table, names, where)


def read(site: Site, target: TableId, table: Any, names: Sequence[str], where: str = "") -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows of a table (``DeltaTable``). ``where``: a condition in SQL. Raises LoadError, TargetUnavailable."""
    sql = f"SELECT {', '.join(map(_quoted, names))} FROM t WHERE {where or 'TRUE'}"  # noqa: S608 - quoted names, numbers
    with errors(site.place, f"reading rows of {target}", site.path(target)):
        reader = library().QueryBuilder().register("t", table).execute(sql)
        yield from pa.RecordBatchReader.from_stream(reader)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
