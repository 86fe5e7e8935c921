"""A Delta table as of a batch, by the history of its log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.delta.client import errors
from sluice.targets.delta.comparing import read
from sluice.targets.delta.notes import said_by
from sluice.targets.delta.site import Site
from sluice.targets.lake.columns import TableInfo
from sluice.targets.lake.versions import Commit, LakeVersions
from sluice.targets.port import TableVersion

_FIRST_LOOK = 32
"""Commits to read first: the newest ones answer most questions, and a log may have a million."""

_LOOKS = 100
"""Attempts to read a log that grows: a read takes milliseconds, a commit more."""


@dataclass(frozen=True)
class DeltaVersions(LakeVersions):
    """See :class:`sluice.targets.port.VersionReader`."""

    KEPT: ClassVar[str] = "a table's log is kept for its delta.logRetentionDuration (30 days)"

    site: Site

    def _commits(self, found: Any, table: TableId) -> Iterator[Commit]:
        below, limit = None, _FIRST_LOOK
        while True:
            history = self._history(found, table, limit)
            for entry in history:
                version = int(entry["version"])
                if below is not None and version >= below:
                    continue
                below = version
                yield Commit.of(version, said_by(entry), begins=version == 0)
            if len(history) < limit:
                return
            limit *= 8

    def _history(self, found: Any, table: TableId, limit: int) -> list[dict[str, Any]]:
        """Return the newest ``limit`` commits, each with its version.

        The library lists the current commits, and numbers them down from the version that it has read. If one was added in between, each would be
        taken for the one before it. So the answer is valid only if the table has no newer version after it.
        """
        for _ in range(_LOOKS):
            with errors(self.site.place, f"reading the history of {table}", self.site.path(table)):
                seen = found.version()
                history: list[dict[str, Any]] = found.history(limit)
                found.update_incremental()
                if found.version() == seen:
                    return history
        raise TargetUnavailable(
            f"the history of {table} cannot be read: it grew {_LOOKS} times in a row meanwhile",
            where=self.site.uri(table),
        )

    def _version(self, found: Any, table: TableId, version: int, commit: Commit) -> TableVersion:
        with errors(self.site.place, f"reading version {version} of {table}", self.site.path(table)):
            if found.version() != version:
                found.load_as_version(version)
            files = pa.table(found.get_add_actions(flatten=True))
        rows, size = (int(pc.sum(files[name]).as_py() or 0) for name in ("num_records", "size_bytes"))
        place = self.site.uri(table)
        return TableVersion(table, place, version, commit.batch, commit.commit_time, rows, files.num_rows, size)

    def _at(self, version: TableVersion) -> tuple[Any, TableInfo]:
        found = self.site.required(version.table)
        with errors(self.site.place, f"reading version {version.version} of {version.table}", version.place):
            found.load_as_version(version.version)
        return found, self.site.info(found)

    def _read(self, at: Any, table: TableId, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from read(self.site, table, at, names)
