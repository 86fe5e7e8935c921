"""Upkeep of a target's tables: small files become larger ones, and files that no version needs any more are removed.

Nothing here is fenced: a compaction changes no row, and a commit of it that meets a load's is refused, as the load's is that meets a compaction.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import SluiceError, TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.base import Upkeep
from sluice.targets.delta.client import errors
from sluice.targets.delta.site import Site
from sluice.targets.lake.checkpoints import Raced

_ATTEMPTS = 5
_COMMIT_EVERY = timedelta(minutes=1)
"""A long compaction commits what it has, so that a load that comes between costs a minute of it at most."""


@dataclass(frozen=True)
class DeltaMaintainer:
    """See :class:`sluice.targets.base.Maintainer`."""

    site: Site

    def maintain(self, tables: Sequence[TableId], *, dry_run: bool = False) -> list[Upkeep]:
        """See :meth:`sluice.targets.base.Maintainer.maintain`."""
        done = []
        for table in tables:
            try:
                found = self._compacted(table, dry_run)
                if found is not None:
                    done.append(self._vacuumed(found, dry_run))
            except SluiceError as error:
                done.append(Upkeep(table, error=str(error)))
        return [one for one in done if one != Upkeep(one.table)]

    def _compacted(self, table: TableId, dry_run: bool) -> Upkeep | None:
        wanted, path = self.site.options.maintenance, self.site.path(table)
        for attempt in range(_ATTEMPTS):
            found = self.site.open(table)
            if found is None:
                return None
            small = _small(found, wanted.file_size // 2) if wanted.compact else 0
            if small < wanted.small_files:
                return Upkeep(table)
            if dry_run:
                return Upkeep(table, merged=small)
            try:
                with errors(self.site.place, f"compacting {table}", path):
                    said = found.optimize.compact(target_size=wanted.file_size, min_commit_interval=_COMMIT_EVERY)
                return Upkeep(table, merged=int(said["numFilesRemoved"]), written=int(said["numFilesAdded"]))
            except Raced:
                time.sleep(random.uniform(0.5, 1.0) * 0.2 * 2**attempt)  # noqa: S311 - no secret
        raise TargetUnavailable(
            f"compacting {table}: loads were quicker {_ATTEMPTS} times",
            where=self.site.uri(table),
            hint="it is tried again at the next run",
        )

    def _vacuumed(self, done: Upkeep, dry_run: bool) -> Upkeep:
        wanted = self.site.options.maintenance
        found = self.site.open(done.table) if wanted.vacuum else None
        if found is None:
            return done
        hours = max(1, round(wanted.keep / timedelta(hours=1)))
        with errors(self.site.place, f"removing old files of {done.table}", self.site.path(done.table)):
            gone = found.vacuum(retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
        return replace(done, removed=len(gone))


def _small(table: Any, size_bytes: int) -> int:
    """Files of a table (``DeltaTable``) that are smaller."""
    sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"]
    return int(pc.sum(pc.less(sizes, size_bytes)).as_py() or 0)
