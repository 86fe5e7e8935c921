"""An Iceberg table as of a batch, by its snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.targets.iceberg.client import errors
from sluice.targets.iceberg.comparing import read
from sluice.targets.iceberg.notes import is_first, lineage, said_by
from sluice.targets.iceberg.site import Site
from sluice.targets.iceberg.tables import info_in
from sluice.targets.lake.columns import TableInfo
from sluice.targets.lake.versions import Commit, LakeVersions
from sluice.targets.port import TableVersion

_NONE = 0
"""The number that stands for a table without a snapshot."""
_TOTALS = ("total-records", "total-data-files", "total-files-size", "total-delete-files")


@dataclass(frozen=True)
class IcebergVersions(LakeVersions):
    """See :class:`sluice.targets.port.VersionReader`; a version is a snapshot's id."""

    KEPT: ClassVar[str] = (
        "snapshots are kept for maintenance.keep of the target's options, a pipeline's snapshot for its retain_log"
    )

    site: Site

    def _commits(self, found: Any, table: TableId) -> Iterator[Commit]:
        for one in lineage(found):
            yield Commit.of(one.snapshot_id, said_by(one), begins=is_first(one))

    def _version(self, found: Any, table: TableId, version: int, commit: Commit) -> TableVersion:
        said = said_by(found.snapshot_by_id(version))
        totals = [int(said.get(name, -1)) for name in _TOTALS]
        if totals[3] != 0 or min(totals) < 0:  # after other writers the number of remaining rows is not in a summary
            with errors(self.site.place, f"counting the rows of snapshot {version} of {table}", self.site.uri(table)):
                scan = found.scan(snapshot_id=version)
                files = [task.file for task in scan.plan_files()]
                totals = [scan.count(), len(files), sum(file.file_size_in_bytes for file in files)]
        rows, count, size = totals[:3]
        place = self.site.uri(table)
        return TableVersion(table, place, version, commit.batch, commit.commit_time, rows, count, size)

    def _empty(self, table: TableId) -> TableVersion:
        return TableVersion(table, self.site.uri(table), _NONE, 0, "", 0, 0, 0)

    def _at(self, version: TableVersion) -> tuple[Any, TableInfo]:
        found = self.site.open(version.table)
        if found is None:
            raise self.site.missing(version.table)
        if version.version == _NONE:
            return None, self.site.info(found)
        head = found.current_snapshot()
        if head is not None and head.snapshot_id == version.version:  # columns may have been added since that snapshot
            return found.scan(), self.site.info(found)
        if found.snapshot_by_id(version.version) is None:
            raise LoadError(
                f"snapshot {version.version} of {version.table} is no longer kept", where=version.place, hint=self.KEPT
            )
        scan = found.scan(snapshot_id=version.version)
        return scan, info_in(found.metadata, scan.projection())

    def _read(self, at: Any, table: TableId, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if at is not None:
            yield from read(self.site, table, at, names)
