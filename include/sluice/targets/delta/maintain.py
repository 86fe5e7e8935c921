"""Maintenance of a Delta table: its small files become larger ones, and files that no version needs any more are
deleted.

A clustering puts rows next to each other by columns, so that a file has a narrow range of their values and readers open
few files.

Decision: not with each compaction. The client (delta-rs) clusters a partition by writing all of it anew (``z_order``),
so it is done where it pays: files that came since the last time have to hold a notable share of what is written. A
client that clusters parts of a partition would make it wrong.

What came since is told by the times at which files were made. A clustering notes the newest of them in a ``txn`` action
of a commit of its own, which has no rows: the commit that clusters cannot know it. A clustering that was killed has not
noted anything, and begins again. Of files that loads make while it runs some count as clustered: they are few, and are
with the next one that comes to their partition.
"""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa

from sluice.errors import TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.delta.client import Place, errors, library
from sluice.targets.delta.options import DeltaOptions
from sluice.targets.delta.types import info_of
from sluice.targets.lake.format import Raced
from sluice.targets.port import Upkeep

T = TypeVar("T")
_ATTEMPTS = 5
_COMMIT_EVERY = timedelta(minutes=1)
"""The time after which a long compaction commits what it has, so that a load that is committed meanwhile costs a minute
of it at most.
"""
_SHARE = 10
"""The share of new files, one tenth of the bytes of their partitions, from which on they are clustered.

So each new byte costs about ten that are written, and a reader that looks for a value opens files with at most a tenth
of the bytes besides those that have it.
"""
_MEMORY = 2**30
"""Bytes of memory for sorting; the rest is on disk meanwhile."""
_DOING = "sluice.doing"


@dataclass(frozen=True)
class Maintenance:
    """The maintenance of one table."""

    place: Place
    uri: str
    table: TableId
    options: DeltaOptions
    dry_run: bool

    def compact(self, lake_table: Any, owner: str) -> Upkeep:
        """Cluster the table (``lake_table``: DeltaTable) if that is due, else compact it.

        ``owner``: pipeline/target. Raises TargetUnavailable, LoadError.
        """
        if not self.options.maintenance.compact:
            return Upkeep(self.table)
        columns = self.options.clusters(self.table, info_of(lake_table))
        clustered = self._clustered(lake_table, owner, columns) if columns else Upkeep(self.table)
        if clustered.merged and (self.dry_run or not clustered.error):
            return clustered
        compacted = self._compacted(_application(owner, columns))
        return replace(
            compacted,
            merged=clustered.merged + compacted.merged,
            written=clustered.written + compacted.written,
            error=clustered.error,
        )

    def _open(self) -> Any:
        lake_table = self.place.open(self.uri, f"reading the files of {self.table}")
        if lake_table is None:
            raise TargetUnavailable(f"the table {self.table} is gone", where=self.uri)
        return lake_table

    def _clustered(self, lake_table: Any, owner: str, columns: Sequence[str]) -> Upkeep:
        """Cluster partition by partition.

        A partition that loads write to all the time is reported as an error; the others are clustered.
        """
        name, table = _application(owner, columns), self.table
        with errors(self.place, f"reading the files of {table}", self.uri):
            files = _Files.of(lake_table, name)
        due = files.due()
        if self.dry_run:
            return Upkeep(self.table, merged=sum(due.values()))
        upkeep = Upkeep(table)
        for values in due:
            place = dict(zip(files.partitions, values, strict=True))

            def cluster(now: Any, place: dict[str, Any] = place) -> tuple[int, int]:
                return _cluster(now, columns, place, self.options.maintenance.file_size)

            try:
                merged, written = self._until_taken("clustering", cluster)
                upkeep = replace(upkeep, merged=upkeep.merged + merged, written=upkeep.written + written)
            except TargetUnavailable as error:
                upkeep = replace(upkeep, error=str(error))
        if upkeep.merged:

            def noted(now: Any) -> None:
                _note(now, name, _Files.of(now, name).newest)

            self._until_taken("clustering", noted)
        return upkeep

    def _compacted(self, clustered: str) -> Upkeep:
        """Compact small files.

        ``clustered``: the name under which a clustering is noted; clustered files that are not small stay.
        """
        settings = self.options.maintenance
        least, size = (
            (settings.file_size // 16, settings.file_size // 8)
            if clustered
            else (settings.file_size // 2, settings.file_size)
        )

        def compact(now: Any) -> Upkeep:
            small = _Files.of(now, clustered).small(least)
            if small < settings.small_files:
                return Upkeep(self.table)
            if self.dry_run:
                return Upkeep(self.table, merged=small)
            metrics = now.optimize.compact(target_size=size, min_commit_interval=_COMMIT_EVERY)
            return Upkeep(self.table, merged=int(metrics["numFilesRemoved"]), written=int(metrics["numFilesAdded"]))

        return self._until_taken("compacting", compact)

    def _until_taken(self, doing: str, write: Callable[[Any], T]) -> T:
        """Call ``write`` (with the current DeltaTable) until its commit succeeds.

        Raises TargetUnavailable, LoadError.
        """
        for attempt in range(_ATTEMPTS):
            lake_table = self._open()
            try:
                with errors(self.place, f"{doing} {self.table}", self.uri):
                    return write(lake_table)
            except Raced:
                time.sleep(random.uniform(0.5, 1.0) * 0.2 * 2**attempt)  # noqa: S311 - no secret
        raise TargetUnavailable(
            f"{doing} {self.table}: loads were quicker {_ATTEMPTS} times",
            where=self.uri,
            hint="it is tried again at the next run",
        )

    def vacuum(self, upkeep: Upkeep) -> Upkeep:
        """Delete files that no version needs any more. Raises TargetUnavailable, LoadError."""
        settings = self.options.maintenance
        if not settings.vacuum:
            return upkeep
        hours = max(1, round(settings.keep / timedelta(hours=1)))
        with errors(self.place, f"removing old files of {self.table}", self.uri):
            removed_paths = self._open().vacuum(
                retention_hours=hours, dry_run=self.dry_run, enforce_retention_duration=False, full=True
            )
        return replace(upkeep, removed=len(removed_paths))


@dataclass(frozen=True)
class _Files:
    """The files of a table (``DeltaTable``) at a version: partition, size_bytes, modification_time (ms since 1970), as
    lists.
    """

    partitions: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    since: int
    """The time up to which they were clustered, 0: they were not."""

    @classmethod
    def of(cls, table: Any, application: str) -> _Files:
        """Read the files of a table as it is. ``application``: the name under which a clustering is noted."""
        names = tuple(table.metadata().partition_columns)
        actions = pa.table(table.get_add_actions(flatten=True))
        columns = ["size_bytes", "modification_time", *(f"partition.{name}" for name in names)]
        since = table.transaction_version(application) if application else None
        return cls(names, tuple(actions.select(columns).to_pylist()), since or 0)

    @property
    def newest(self) -> int:
        """The time at which the newest file was written."""
        return max((row["modification_time"] for row in self.rows), default=0)

    def due(self) -> dict[tuple[Any, ...], int]:
        """Return the partitions to cluster, with the number of their files: all that got new files, if those are a
        notable share of them.
        """
        count: dict[tuple[Any, ...], int] = {}
        total: dict[tuple[Any, ...], int] = {}
        new: dict[tuple[Any, ...], int] = {}
        for row in self.rows:
            place = tuple(row[f"partition.{name}"] for name in self.partitions)
            count[place] = count.get(place, 0) + 1
            total[place] = total.get(place, 0) + row["size_bytes"]
            if row["modification_time"] > self.since:
                new[place] = new.get(place, 0) + row["size_bytes"]
        touched = [place for place in new if count[place] > 1]
        if sum(new[place] for place in touched) * _SHARE < sum(total[place] for place in touched):
            return {}
        return {place: count[place] for place in sorted(touched, key=lambda place: -new[place])}

    def small(self, size_bytes: int) -> int:
        """Return the number of files that were written since and are smaller."""
        return sum(row["size_bytes"] < size_bytes and row["modification_time"] > self.since for row in self.rows)


def _application(owner: str, columns: Sequence[str]) -> str:
    """Return the name under which a clustering by these columns is noted; other columns are another clustering.

    ``owner``: pipeline/target.
    """
    return f"sluice/{owner}#clustered/{','.join(columns)}" if columns else ""


def _cluster(table: Any, columns: Sequence[str], place: Mapping[str, Any], size_bytes: int) -> tuple[int, int]:
    """Rewrite the files of a partition in one commit. Call it inside the library's contexts.

    Returns:
        (number of files removed, number of files added).
    """
    metrics = table.optimize.z_order(
        list(columns),
        partition_filters=[(name, "=", _text(value)) for name, value in place.items()] or None,
        target_size=size_bytes,
        max_spill_size=_MEMORY,
        commit_properties=library().CommitProperties(
            custom_metadata={_DOING: "clustering", "sluice.clustered_by": ", ".join(columns)}
        ),
    )
    return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])


def _note(table: Any, name: str, newest: int) -> None:
    """Commit a note without rows. Call it inside the library's contexts."""
    delta = library()
    noted = delta.CommitProperties(
        custom_metadata={_DOING: "clustering"}, app_transactions=[delta.Transaction(name, newest)]
    )
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        partition_by=list(table.metadata().partition_columns) or None,
        commit_properties=noted,
    )


def _text(value: Any) -> str:
    """Format a partition's value as the library compares it; "" is NULL."""
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        plain = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        return plain.isoformat(" ", "microseconds")
    return value.isoformat() if isinstance(value, dt.date) else str(value)
