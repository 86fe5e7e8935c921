"""Maintenance of a target's tables: small files become larger ones, and files that no version needs any more are deleted.

Nothing here is fenced: a compaction or clustering changes no row. If its commit conflicts with a load's, the later one of the two is refused.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from sluice.errors import SluiceError, TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.delta.client import errors
from sluice.targets.delta.clustering import Files, application, cluster, note
from sluice.targets.delta.site import Site
from sluice.targets.lake.checkpoints import Raced
from sluice.targets.port import Upkeep

T = TypeVar("T")
_ATTEMPTS = 5
_COMMIT_EVERY = timedelta(minutes=1)
"""The time after which a long compaction commits what it has, so that a load that is committed meanwhile costs a minute of it at most."""


@dataclass(frozen=True)
class DeltaMaintainer:
    """See :class:`sluice.targets.port.Maintainer`."""

    site: Site

    def maintain(self, tables: Sequence[TableId], *, dry_run: bool = False) -> list[Upkeep]:
        """See :meth:`sluice.targets.port.Maintainer.maintain`."""
        done = []
        for table in tables:
            try:
                found = self._rewritten(table, dry_run)
                if found is not None:
                    done.append(self._vacuumed(found, dry_run))
            except SluiceError as error:
                done.append(Upkeep(table, error=str(error)))
        return [one for one in done if one != Upkeep(one.table)]

    def _rewritten(self, table: TableId, dry_run: bool) -> Upkeep | None:
        """Cluster the table if that is due, else compact it. Return None if there is no such table."""
        found = self.site.open(table)
        if found is None:
            return None
        if not self.site.options.maintenance.compact:
            return Upkeep(table)
        columns = self.site.clusters(table, self.site.info(found))
        clustered = self._clustered(table, found, columns, dry_run) if columns else Upkeep(table)
        if clustered.merged and (dry_run or not clustered.error):
            return clustered
        done = self._compacted(table, application(self.site.owner, columns), dry_run)
        return replace(
            done, merged=clustered.merged + done.merged, written=clustered.written + done.written, error=clustered.error
        )

    def _clustered(self, table: TableId, found: Any, columns: Sequence[str], dry_run: bool) -> Upkeep:
        """Cluster partition by partition. One that loads write to all the time is an error and waits for more files; the others are done."""
        name = application(self.site.owner, columns)
        with errors(self.site.place, f"reading the files of {table}", self.site.path(table)):
            files = Files.of(found, name)
        due = files.due()
        if dry_run:
            return Upkeep(table, merged=sum(due.values()))
        done = Upkeep(table)
        for values in due:
            place = dict(zip(files.partitions, values, strict=True))

            def one(now: Any, place: dict[str, Any] = place) -> tuple[int, int]:
                return cluster(now, columns, place, self.site.options.maintenance.file_size)

            try:
                merged, written = self._until_taken(table, "clustering", one)
                done = replace(done, merged=done.merged + merged, written=done.written + written)
            except TargetUnavailable as error:
                done = replace(done, error=str(error))
        if done.merged:

            def noted(now: Any) -> None:
                note(now, name, Files.of(now, name).newest)

            self._until_taken(table, "clustering", noted)
        return done

    def _compacted(self, table: TableId, clustered: str, dry_run: bool) -> Upkeep:
        """Compact small files. ``clustered``: the name under which a clustering is noted; clustered files that are not small stay."""
        wanted = self.site.options.maintenance
        least, size = (
            (wanted.file_size // 16, wanted.file_size // 8) if clustered else (wanted.file_size // 2, wanted.file_size)
        )

        def compact(now: Any) -> Upkeep:
            small = Files.of(now, clustered).small(least)
            if small < wanted.small_files:
                return Upkeep(table)
            if dry_run:
                return Upkeep(table, merged=small)
            said = now.optimize.compact(target_size=size, min_commit_interval=_COMMIT_EVERY)
            return Upkeep(table, merged=int(said["numFilesRemoved"]), written=int(said["numFilesAdded"]))

        return self._until_taken(table, "compacting", compact)

    def _until_taken(self, table: TableId, doing: str, write: Callable[[Any], T]) -> T:
        """Call ``write`` (with the current DeltaTable) until its commit succeeds. Raises TargetUnavailable, LoadError, MappingError."""
        for attempt in range(_ATTEMPTS):
            found = self.site.required(table)
            try:
                with errors(self.site.place, f"{doing} {table}", self.site.path(table)):
                    return write(found)
            except Raced:
                time.sleep(random.uniform(0.5, 1.0) * 0.2 * 2**attempt)  # noqa: S311 - no secret
        raise TargetUnavailable(
            f"{doing} {table}: loads were quicker {_ATTEMPTS} times",
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
