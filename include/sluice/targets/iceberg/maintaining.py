"""Maintenance of a target's tables: small files become larger ones; old snapshots expire, and the files that only they need are deleted.

Nothing here is fenced: a compaction changes no row. If its commit conflicts with a load's, the later one of the two is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sluice.errors import SluiceError, TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.iceberg.client import errors, transaction
from sluice.targets.iceberg.merging import Files
from sluice.targets.iceberg.notes import lineage, names_batch, still_holding
from sluice.targets.iceberg.orphans import files_of, orphans, remove
from sluice.targets.iceberg.site import Site
from sluice.targets.lake.checkpoints import Raced
from sluice.targets.port import Upkeep

_ATTEMPTS = 5
_SORTED_FILES = 8
"""Files of full size whose rows are sorted together if a table is clustered.

They are in memory twice meanwhile: 1 GiB with the default size. A reader that looks for a value opens one file in eight.
"""


@dataclass(frozen=True)
class IcebergMaintainer:
    """See :class:`sluice.targets.port.Maintainer`."""

    site: Site

    def maintain(self, tables: Sequence[TableId], *, dry_run: bool = False) -> list[Upkeep]:
        """See :meth:`sluice.targets.port.Maintainer.maintain`."""
        done = []
        for table in tables:
            try:
                found = self._compacted(table, dry_run)
                done.append(self._without_orphans(self._expired(found, dry_run), dry_run))
            except Raced:
                done.append(Upkeep(table, error=f"loads of {table} came first; it is tried again at the next run"))
            except SluiceError as error:
                done.append(Upkeep(table, error=str(error)))
        return [one for one in done if one != Upkeep(one.table)]

    def _compacted(self, table: TableId, dry_run: bool) -> Upkeep:
        """Merge small files into larger ones. Raises Raced."""
        wanted = self.site.options.maintenance
        for attempt in range(_ATTEMPTS):
            found = self.site.open(table)
            if found is None or found.current_snapshot() is None or not wanted.compact:
                break
            with errors(self.site.place, f"compacting {table}", self.site.uri(table)):
                bins = list(_bins(self._small(table, found), self._bin_bytes(table, found)))
                count = sum(map(len, bins))
                if count < wanted.small_files:
                    break
                if dry_run:
                    return Upkeep(table, merged=count)
                try:
                    return self._merged(table, found, bins)
                except Raced:
                    if attempt + 1 == _ATTEMPTS:
                        raise
        return Upkeep(table)

    def _small(self, name: TableId, table: Any) -> list[Any]:
        """Return the tasks of small files, ordered so that files with neighbouring rows are adjacent.

        The order is that of the first column by which the table is clustered, or its first column.
        """
        from pyiceberg.conversions import from_bytes

        tasks = [
            task
            for task in table.scan().plan_files()
            if task.file.file_size_in_bytes < self.site.options.file_size // 16
        ]
        order = self.site.clusters(name, self.site.info(table))
        first = table.schema().find_field(order[0]) if order else table.schema().fields[0]

        def place(task: Any) -> tuple[str, bool, Any]:
            bound = (task.file.lower_bounds or {}).get(first.field_id)
            return (
                str(task.file.partition),
                bound is None,
                from_bytes(first.field_type, bound) if bound is not None else 0,
            )

        return sorted(tasks, key=place)

    def _bin_bytes(self, name: TableId, table: Any) -> int:
        """Return how many bytes on disk to merge together; rows take about a quarter of what they take in memory."""
        files = _SORTED_FILES if self.site.clusters(name, self.site.info(table)) else 1
        return files * self.site.options.file_size // 4

    def _merged(self, table: TableId, found: Any, bins: Sequence[Sequence[Any]]) -> Upkeep:
        """Merge the files in one commit. Raises Raced."""
        with errors(self.site.place, f"compacting {table}", self.site.uri(table)):
            change = transaction(found)
            said = {"sluice.doing": "compaction", **still_holding(found)}
            with change.replacing(said) as snapshot:
                files = Files(found, change, snapshot, self.site.clusters(table, self.site.info(found)))
                for some in bins:
                    files.write(pa.concat_tables([files.read(task) for task in some]))
                    for task in some:
                        snapshot.delete_data_file(task.file)
            change.commit_transaction()
        return Upkeep(table, merged=sum(map(len, bins)), written=files.written)

    def _expired(self, done: Upkeep, dry_run: bool) -> Upkeep:
        """Expire old snapshots and delete their files. Raises Raced."""
        table = done.table
        found = self.site.open(table) if self.site.options.maintenance.expire else None
        if found is None:
            return done
        before_ms = (datetime.now(UTC) - self.site.options.maintenance.keep).timestamp() * 1000
        kept = {ref.snapshot_id for ref in found.refs().values()} | _as_of(found, before_ms)
        old = [one for one in found.snapshots() if one.timestamp_ms < before_ms and one.snapshot_id not in kept]
        if not old:
            return done
        with errors(self.site.place, f"giving up old snapshots of {table}", self.site.uri(table)):
            gone = files_of(found, old) - files_of(found, [one for one in found.snapshots() if one not in old])
            if dry_run:
                return replace(done, removed=len(gone), expired=len(old))
            found.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in old]).commit()
            now = self.site.open(table)
            if now is None:
                raise TargetUnavailable(f"{table} is gone")
            # later commits may use only files of the newest snapshot, which is kept
            for path in gone - files_of(now, now.snapshots()):
                found.io.delete(path)
        return replace(done, removed=len(gone), expired=len(old))

    def _without_orphans(self, done: Upkeep, dry_run: bool) -> Upkeep:
        wanted, table = self.site.options.maintenance, done.table
        found = self.site.open(table) if wanted.orphans else None
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if found is None or not isinstance(found.io, PyArrowFileIO):  # another client does not tell the times of files
            return done
        with errors(self.site.place, f"removing files of {table} that nothing names", self.site.uri(table)):
            left = orphans(found, datetime.now(UTC) - wanted.keep)
            if not dry_run:
                remove(found, left)
        return replace(done, removed=done.removed + len(left))


def _as_of(table: Any, time_ms: float) -> set[int]:
    """Return the older snapshots needed to read a table (``Table``) as it was at a time: the newest, back to one that names the batch it held."""
    older = [one for one in lineage(table) if one.timestamp_ms < time_ms]
    said = next((place for place, one in enumerate(older) if names_batch(one)), 0)
    return {one.snapshot_id for one in older[: said + 1]}


def _bins(tasks: Iterable[Any], size_bytes: int) -> Iterator[list[Any]]:
    """Yield groups of files of one partition and of about this size on disk; a single file stays as it is."""
    some: list[Any] = []
    for task in tasks:
        full = sum(one.file.file_size_in_bytes for one in some) >= size_bytes
        if some and (full or some[0].file.partition != task.file.partition):
            if len(some) > 1:
                yield some
            some = []
        some.append(task)
    if len(some) > 1:
        yield some
