"""The library's snapshot that replaces files, which merges manifests, and which adds and removes delete files.

Each commit of rows adds a manifest, and each merge of rows reads all of them. The library merges those of appends, if a
table's properties say so, but not those of snapshots that replace files. Here these are merged in the same way, so that
the cost of a commit does not grow with the number of earlier commits.

Decision: the library reads delete files, and writes none. Its writers of manifests and of the manifest list are used
here, with the content that the format gives to manifests of delete files. A version of the library that writes delete
files would make this needless.

Imports the library: only functions of this package import it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import TableProperties
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.utils.concurrent import ExecutorFactory

from sluice.targets.iceberg.deletes import own_deletes, write_deletes
from sluice.targets.iceberg.types import MERGE_MANIFESTS


class ReplacedFiles(_OverwriteFiles):  # type: ignore[misc]
    """The snapshot that replaces files."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._marks: list[tuple[DataFile, np.ndarray]] = []
        self._added_deletes: list[DataFile] = []
        self._removed_deletes: set[DataFile] = set()

    def remove(self, task: Any) -> None:
        """Remove a data file (``FileScanTask``), and the delete files that name only its rows."""
        self.delete_data_file(task.file)
        self._removed_deletes.update(own_deletes(task))

    def mark(self, task: Any, positions: np.ndarray) -> None:
        """Delete the rows of a data file (``FileScanTask``) at these positions: all that are, also those of before."""
        self._marks.append((task.file, positions))
        self._removed_deletes.update(own_deletes(task))

    def remove_deletes(self, delete_file: Any) -> None:
        """Remove a delete file that has no effect."""
        self._removed_deletes.add(delete_file)

    def _manifests(self) -> list[ManifestFile]:
        """Write the delete files, then the manifests."""
        where = self._transaction._table.location_provider()
        number = itertools.count()
        jobs = [
            (where.new_data_location(f"00000-{next(number)}-{self.commit_uuid}-deletes.parquet"), file, positions)
            for file, positions in self._marks
        ]
        pool = ExecutorFactory.get_or_create()
        self._added_deletes = list(pool.map(lambda job: write_deletes(self._io, *job), jobs))
        manifests: list[ManifestFile] = super()._manifests()
        return manifests

    def _existing_manifests(self) -> list[ManifestFile]:
        """See the library, which reads all manifests although no file is replaced."""
        before = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
        if before is None or self._deleted_data_files:
            manifests: list[ManifestFile] = super()._existing_manifests()
            return manifests
        return [
            manifest
            for manifest in before.manifests(self._io)
            if manifest.has_added_files() or manifest.has_existing_files()
        ]

    def _deleted_entries(self) -> list[ManifestEntry]:
        """See the library."""
        entries: list[ManifestEntry] = super()._deleted_entries() if self._deleted_data_files else []
        return entries

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        properties = {**MERGE_MANIFESTS, **self._transaction.table_metadata.properties}
        most = int(properties["commit.manifest.min-count-to-merge"])
        enabled = str(properties["commit.manifest-merge.enabled"]).lower() == "true"
        merging = _ManifestMergeManager(
            target_size_bytes=int(properties["commit.manifest.target-size-bytes"]),
            min_count_to_merge=most,
            merge_enabled=enabled,
            snapshot_producer=self,
        )
        rows = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        deletes = [manifest for manifest in manifests if manifest.content == ManifestContent.DELETES]
        if self._added_deletes or self._removed_deletes:
            deletes = self._delete_manifests(deletes, most if enabled else len(deletes) + 1)
        return [*merging.merge_manifests(rows), *deletes]

    def _delete_manifests(self, before: list[ManifestFile], most: int) -> list[ManifestFile]:
        """Return the manifests of delete files: those of ``before`` that stay, if they are fewer than ``most``, and one
        of each partition spec for the others.
        """
        unchanged: list[ManifestFile] = []
        entries: dict[int, list[ManifestEntry]] = defaultdict(list)
        for manifest in before:
            manifest_entries = self.fetch_manifest_entry(manifest)
            if not manifest_entries:
                continue
            if len(before) < most and not any(entry.data_file in self._removed_deletes for entry in manifest_entries):
                unchanged.append(manifest)
                continue
            for entry in manifest_entries:
                removed = entry.data_file in self._removed_deletes
                entries[manifest.partition_spec_id].append(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.DELETED if removed else ManifestEntryStatus.EXISTING,
                        snapshot_id=self._snapshot_id if removed else entry.snapshot_id,
                        sequence_number=entry.sequence_number,
                        file_sequence_number=entry.file_sequence_number,
                        data_file=entry.data_file,
                    )
                )
        for file in self._added_deletes:
            entries[file.spec_id].append(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
            )
        return [*(self._delete_manifest(spec, some) for spec, some in entries.items()), *unchanged]

    def _delete_manifest(self, spec_id: int, entries: list[ManifestEntry]) -> ManifestFile:
        output = self.new_manifest_output()
        with _DeletesWriter(self.spec(spec_id), self.schema(), output, self._snapshot_id, self._compression) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        """See the library: with delete files, each with the partition spec that it has."""
        metadata = self._transaction.table_metadata
        most = metadata.properties.get(
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT
        )
        counted, specs, schema = SnapshotSummaryCollector(int(most)), metadata.specs(), metadata.schema()
        for file in self._added_data_files:
            counted.add_file(file, schema, metadata.spec())
        for file in self._added_deletes:
            counted.add_file(file, schema, specs[file.spec_id])
        for file in (*self._deleted_data_files, *self._removed_deletes):
            counted.remove_file(file, schema, specs[file.spec_id])
        before = metadata.snapshot_by_id(self._parent_snapshot_id) if self._parent_snapshot_id is not None else None
        return update_snapshot_summaries(
            Summary(operation=self._operation, **counted.build(), **(snapshot_properties or {})),
            before.summary if before is not None else None,
        )


class _DeletesWriter(ManifestWriterV2):  # type: ignore[misc]
    """The library's writer of manifests, for delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def replacing(change: Any, summary: dict[str, str]) -> ReplacedFiles:
    """Open a snapshot of a transaction that adds and removes files. ``summary``: properties of its summary."""
    has_snapshot = change.table_metadata.current_snapshot() is not None
    operation = Operation.OVERWRITE if has_snapshot else Operation.APPEND
    return ReplacedFiles(operation, change, change._table.io, snapshot_properties=summary)
