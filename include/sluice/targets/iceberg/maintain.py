"""Maintenance of an Iceberg table: small files become larger ones, and files with many deleted rows are written anew
without them; old snapshots expire, and the files that only they need are deleted.

Files that nothing names are deleted, too: those of failed commits, by processes that were killed before they could
delete them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType

from sluice.errors import TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.iceberg.client import Place, errors, transaction
from sluice.targets.iceberg.commit_notes import lineage, names_batch, still_holding
from sluice.targets.iceberg.deletes import Deletes
from sluice.targets.iceberg.merge import Files
from sluice.targets.iceberg.options import IcebergOptions
from sluice.targets.iceberg.types import info_of
from sluice.targets.lake.format import Names, Raced
from sluice.targets.port import Upkeep

_FOLDERS = ("data", "metadata")
"""The folders in which the client writes. What lies elsewhere in the table's location may be another table's."""
_ATTEMPTS = 5
_MOST_DELETE_FILES = 8
"""Delete files of a data file from which it is written anew. Loads write one for each data file."""
_SORTED_FILES = 8
"""Files of full size whose rows are sorted together if a table is clustered.

They are in memory twice meanwhile: 1 GiB with the default size. A reader that looks for a value opens one file in
eight.
"""


@dataclass(frozen=True)
class _Plan:
    """The files (``FileScanTask``) to write anew, in groups that are merged, and the delete files without effect."""

    bins: list[list[Any]]
    idle: list[Any]

    @property
    def files(self) -> int:
        """The number of files that are replaced or removed."""
        return sum(map(len, self.bins)) + len(self.idle)


@dataclass(frozen=True)
class Maintenance:
    """The maintenance of one table."""

    place: Place
    names: Names
    table: TableId
    options: IcebergOptions
    dry_run: bool

    def _open(self) -> Any:
        return self.place.open(self.names, f"reading the metadata of {self.table}")

    def _errors(self, doing: str) -> AbstractContextManager[None]:
        return errors(self.place, f"{doing} {self.table}", ".".join(self.names))

    def compact(self, lake_table: Any) -> Upkeep:
        """Merge small files of the table (``lake_table``: Table) into larger ones. Raises Raced."""
        settings = self.options.maintenance
        for attempt in range(_ATTEMPTS):
            if lake_table is None or lake_table.current_snapshot() is None or not settings.compact:
                break
            with self._errors("compacting"):
                plan = self._planned(lake_table)
                if not plan.bins and not plan.idle:
                    break
                if self.dry_run:
                    return Upkeep(self.table, merged=plan.files)
                try:
                    return self._merged(lake_table, plan)
                except Raced:
                    if attempt + 1 == _ATTEMPTS:
                        raise
            lake_table = self._open()
        return Upkeep(self.table)

    def _planned(self, table: Any) -> _Plan:
        """Return the files to write anew, and the delete files that have no effect."""
        tasks, deletes = list(table.scan().plan_files()), Deletes(table.io)
        worn = {task.file.file_path for task in tasks if self._is_worn(task, deletes)}
        small = [task for task in tasks if task.file.file_size_in_bytes < self.options.file_size // 16]
        size = self._bin_bytes(table)
        bins = list(_bins(self._ordered(table, small), size))
        if sum(map(len, bins)) < self.options.maintenance.small_files:
            bins = []
        binned_paths = {task.file.file_path for some in bins for task in some}
        rest = [task for task in tasks if task.file.file_path in worn - binned_paths]
        bins += _bins(self._ordered(table, rest), size, alone=True)
        used = {delete_file.file_path for task in tasks for delete_file in task.delete_files}
        return _Plan(bins, [delete_file for delete_file in _delete_files(table) if delete_file.file_path not in used])

    def _is_worn(self, task: Any, deletes: Deletes) -> bool:
        """Return True for a file with too many deleted rows, or delete files."""
        if not task.delete_files:
            return False
        deleted = int(task.file.record_count) - deletes.alive(task)
        return (
            deleted > self.options.maintenance.deleted_share * task.file.record_count
            or len(task.delete_files) > _MOST_DELETE_FILES
        )

    def _ordered(self, table: Any, tasks: Sequence[Any]) -> list[Any]:
        """Return tasks ordered so that files with neighbouring rows are adjacent.

        The order is that of the first column by which the table is clustered, or its first column.
        """
        from pyiceberg.conversions import from_bytes

        order = self.options.clusters(self.table, info_of(table))
        first = table.schema().find_field(order[0]) if order else table.schema().fields[0]

        def place(task: Any) -> tuple[str, bool, Any]:
            bound = (task.file.lower_bounds or {}).get(first.field_id)
            return (
                str(task.file.partition),
                bound is None,
                from_bytes(first.field_type, bound) if bound is not None else 0,
            )

        return sorted(tasks, key=place)

    def _bin_bytes(self, table: Any) -> int:
        """Return how many bytes on disk to merge together; rows take about a quarter of what they take in memory."""
        files = _SORTED_FILES if self.options.clusters(self.table, info_of(table)) else 1
        return files * self.options.file_size // 4

    def _merged(self, table: Any, plan: _Plan) -> Upkeep:
        """Merge the files in one commit. Raises Raced."""
        with self._errors("compacting"):
            change = transaction(table)
            summary = {"sluice.doing": "compaction", **still_holding(table)}
            with change.replacing(summary) as snapshot:
                files = Files(table, change, snapshot, self.options.clusters(self.table, info_of(table)))
                for some in plan.bins:
                    files.write(pa.concat_tables([files.read(task) for task in some]))
                    for task in some:
                        snapshot.remove(task)
                for delete_file in plan.idle:
                    snapshot.remove_deletes(delete_file)
            change.commit_transaction()
        return Upkeep(self.table, merged=plan.files, written=files.written)

    def expire(self, upkeep: Upkeep) -> Upkeep:
        """Expire old snapshots and delete their files. Raises Raced."""
        table = self._open() if self.options.maintenance.expire else None
        if table is None:
            return upkeep
        before_ms = (datetime.now(UTC) - self.options.maintenance.keep).timestamp() * 1000
        retained_ids = {ref.snapshot_id for ref in table.refs().values()} | _as_of(table, before_ms)
        old = [
            snapshot
            for snapshot in table.snapshots()
            if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in retained_ids
        ]
        if not old:
            return upkeep
        with self._errors("giving up old snapshots of"):
            removed_paths = _files_of(table, old) - _files_of(
                table, [snapshot for snapshot in table.snapshots() if snapshot not in old]
            )
            if self.dry_run:
                return replace(upkeep, removed=len(removed_paths), expired=len(old))
            table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in old]).commit()
            now = self._open()
            if now is None:
                raise TargetUnavailable(f"{self.table} is gone")
            # later commits may use only files of the newest snapshot, which is kept
            for path in removed_paths - _files_of(now, now.snapshots()):
                table.io.delete(path)
        return replace(upkeep, removed=len(removed_paths), expired=len(old))

    def without_orphans(self, upkeep: Upkeep) -> Upkeep:
        """Delete files that nothing names."""
        settings = self.options.maintenance
        table = self._open() if settings.orphans else None
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if table is None or not isinstance(table.io, PyArrowFileIO):  # another client does not tell the times of files
            return upkeep
        with self._errors("removing files that nothing names of"):
            orphans = _orphans(table, datetime.now(UTC) - settings.keep)
            if not self.dry_run:
                _remove(table, orphans)
        return replace(upkeep, removed=upkeep.removed + len(orphans))


def _as_of(table: Any, time_ms: float) -> set[int]:
    """Return the older snapshots needed to read a table (``Table``) as it was at a time: the newest, back to one that
    names the batch it held.
    """
    older = [snapshot for snapshot in lineage(table) if snapshot.timestamp_ms < time_ms]
    last = next((place for place, snapshot in enumerate(older) if names_batch(snapshot)), 0)
    return {snapshot.snapshot_id for snapshot in older[: last + 1]}


def _delete_files(table: Any) -> Iterator[Any]:
    """Yield the position delete files of the current snapshot."""
    from pyiceberg.manifest import DataFileContent, ManifestContent

    for manifest in table.current_snapshot().manifests(table.io):
        if manifest.content == ManifestContent.DELETES:
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.data_file.content == DataFileContent.POSITION_DELETES:
                    yield entry.data_file


def _bins(tasks: Iterable[Any], size_bytes: int, *, alone: bool = False) -> Iterator[list[Any]]:
    """Yield groups of files of one partition and of about this size on disk; a single file stays as it is unless
    ``alone``.
    """
    some: list[Any] = []
    for task in tasks:
        full = sum(member.file.file_size_in_bytes for member in some) >= size_bytes
        if some and (full or some[0].file.partition != task.file.partition):
            if len(some) > 1 or alone:
                yield some
            some = []
        some.append(task)
    if len(some) > 1 or (alone and some):
        yield some


def _files_of(table: Any, snapshots: Iterable[Any]) -> set[str]:
    """Return all files that snapshots consist of."""
    paths: set[str] = set()
    for snapshot in snapshots:
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in paths:
                paths.add(manifest.manifest_path)
                paths |= {
                    entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                }
    return paths


def _orphans(table: Any, before: datetime) -> list[str]:
    """Return the paths of files that no snapshot and no metadata of a table (``Table``) names, last changed before a
    time.

    Call it inside the library's contexts. Files of a commit that is in progress are younger. A file that is named by a
    path with another scheme (``s3a://`` for ``s3://``) is the same file.
    """
    named = {_path(table, location)[1] for location in _named(table)}
    orphans = []
    for folder in _FOLDERS:
        files, root = _path(table, f"{table.location().rstrip('/')}/{folder}")
        for file in files.get_file_info(FileSelector(root, recursive=True, allow_not_found=True)):
            old = file.mtime is not None and file.mtime < before
            if file.type is FileType.File and old and file.path not in named:
                orphans.append(file.path)
    return orphans


def _remove(table: Any, paths: list[str]) -> None:
    """Delete the files that :func:`_orphans` found."""
    files, _ = _path(table, table.location())
    for path in paths:
        files.delete_file(path)


def _named(table: Any) -> set[str]:
    metadata = table.metadata
    paths = _files_of(table, table.snapshots()) | {table.metadata_location}
    paths |= {entry.metadata_file for entry in metadata.metadata_log}
    return paths | {file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)}


def _path(table: Any, location: str) -> tuple[Any, str]:
    """Return the file system of a location, and the path there."""
    scheme, host, path = table.io.parse_location(location, table.io.properties)
    return table.io.fs_by_scheme(scheme, host), path
