"""compact: put the files of older batches together into archives, which are few, large and immutable.

The order of steps makes an end at any point harmless: an archive is written under another name, made durable, and
renamed; only then the files in the folders of its batches are deleted. Until then a batch is in both places and is read
from its folder. The next run deletes what is left over.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from sluice.coordination.state import PipelineState
from sluice.errors import SegmentError, StorageUnavailable
from sluice.flows.runtime import Runtime
from sluice.flows.stored import stored_manifest
from sluice.model.batches import Batch
from sluice.segments.archive import ArchiveName
from sluice.segments.archive_writer import BatchFiles, unfinished, write_archive
from sluice.segments.changeset import read_changeset
from sluice.segments.packed import file_of
from sluice.segments.store import FileInfo, SegmentStore, is_manifest

_log = structlog.get_logger()

MOST_BYTES = 128 * 2**20
"""Bytes of an archive, at most. A batch that is this large is left as it is: its files are large."""

MOST_FILES = 20_000
"""Files in an archive, at most: a reader has its index in memory."""

SPAN_S = 24 * 3600.0
"""Seconds within which the batches of an archive were written: it is removed as a whole, when the newest of them may
be.
"""

ABANDONED_S = 3600.0
"""Seconds after which an unfinished archive that no process writes to counts as abandoned."""


@dataclass(slots=True)
class Compacted:
    """The batches that were put into archives, the number of archives, and what could not be done."""

    batches: list[int] = field(default_factory=list)
    archives: int = 0
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Compaction:
    """One run. ``waited_for``: targets that have to have a batch before it is put into an archive."""

    runtime: Runtime
    state: PipelineState
    waited_for: Sequence[str]

    def run(self, removed: Collection[int] = (), *, dry_run: bool = False) -> Compacted:
        """Compact what is due and not ``removed``.

        What a full disk stops is a warning: the folders stay as they are.
        """
        after = self.runtime.pipeline.capture.segments.compact_after
        compacted = Compacted()
        if after is None:
            return compacted
        store, before_s = self.runtime.store, time.time() - after.total_seconds()
        archived = {batch for name in store.archives.names() for batch in name.batches}
        folders, pruned = store.batch_folders(), set(removed)
        if not dry_run:
            self._tidy(store, [batch for batch in folders if batch in archived], before_s, compacted)
        files = self._due(
            store, [batch for batch in folders if batch not in archived and batch not in pruned], before_s, compacted
        )
        try:
            for group in grouped(files):
                if not dry_run:
                    self._archive(store, group)
                compacted.archives += 1
                compacted.batches += [batch_files.batch for batch_files in group]
        except StorageUnavailable as error:
            compacted.warnings.append(f"batches were not compacted: {error}")
        return compacted

    def _archive(self, store: SegmentStore, group: Sequence[BatchFiles]) -> None:
        name = write_archive(store, group)
        for files in group:
            if self._is_delivered(files.batch):  # otherwise it was withdrawn just now, to be delivered again
                store.delete_files(files.batch, [*files.kept, *files.left])
        _log.info("batches_compacted", pipeline=self.runtime.name, archive=name.path, batches=len(group))

    def _due(
        self, store: SegmentStore, batches: Sequence[int], before_s: float, compacted: Compacted
    ) -> Iterator[BatchFiles]:
        for batch in batches:
            infos = store.folder_files(store.batch_path(batch))
            if sum(info.size_bytes for info in infos) < MOST_BYTES and self._is_due(batch, infos, before_s):
                files = self._files(store, batch, infos, compacted)
                if files is not None:
                    yield files

    def _is_due(self, batch: int, infos: Sequence[FileInfo], before_s: float) -> bool:
        return self._is_delivered(batch) and all(info.written_s < before_s for info in infos)

    def _is_delivered(self, batch: int) -> bool:
        return batch <= self.state.delivered(self.waited_for)

    def _may_be_merged(self, batch: int, record: Batch | None) -> bool:
        """Return True if a target that is not waited for still needs the batch merged: files that no manifest names yet
        may soon count.
        """
        return record is not None and not record.changeset and batch > self.state.delivered()

    def _files(
        self, store: SegmentStore, batch: int, infos: Sequence[FileInfo], compacted: Compacted
    ) -> BatchFiles | None:
        """Return the files of a batch to put into an archive; None if the batch stays as it is."""
        record = self.state.batches.get(batch)
        if (record is not None and record.dropped) or self._may_be_merged(batch, record):
            return None
        try:
            named = named_files(store, batch, record)
        except SegmentError as error:
            compacted.warnings.append(f"batch {batch} was not compacted: {error}")
            return None
        if not named:
            return None
        missing = named.difference(info.path for info in infos)
        if missing:
            compacted.warnings.append(f"batch {batch} was not compacted: {min(missing)} is gone")
            return None
        return _parted(batch, infos, named)

    def _tidy(self, store: SegmentStore, both: Sequence[int], before_s: float, compacted: Compacted) -> None:
        """Delete what an earlier run left."""
        for path in unfinished(store, before_s=time.time() - ABANDONED_S):
            store.delete(path)
        for name in needless(store):
            store.delete(name.path)
        for batch in both:
            infos, record = store.folder_files(store.batch_path(batch)), self.state.batches.get(batch)
            if not self._is_due(batch, infos, before_s) or self._may_be_merged(batch, record):
                continue
            try:
                files = _parted(batch, infos, named_files(store, batch, record))
            except SegmentError as error:
                compacted.warnings.append(f"the folder of batch {batch}, which is in an archive, stays: {error}")
                continue
            copied = [info for info in files.kept if _is_archived(store, info)]
            store.delete_files(batch, [*copied, *files.left])


def named_files(store: SegmentStore, batch: int, record: Batch | None) -> set[str]:
    """Return the paths of a batch's manifest, its changesets and all files that these name; none if it has no manifest.

    Raises:
        SegmentError: a manifest is gone or damaged.
    """
    manifest = stored_manifest(store, batch, record)
    if manifest is None:
        return set()
    paths = {record.manifest if record else store.manifest_path(batch, manifest.epoch)}
    paths.update(file.path for file in manifest.files)
    replaces = list(manifest.replaces)
    for path in _changesets(store, batch, record):
        changeset = read_changeset(store, path).manifest
        paths.add(path)
        paths.update(file.path for table in changeset.tables for file in table.files)
        paths.update(changeset.dead_letters)
        replaces += changeset.replaces
    for replaced in replaces:
        paths |= {replaced.kept, replaced.listed}
    return {file_of(path) for path in paths if path.startswith(f"{store.batch_path(batch)}/")}


def _changesets(store: SegmentStore, batch: int, record: Batch | None) -> list[str]:
    if record is not None and record.changeset:
        return [record.changeset]
    return [path for path, _ in store.files(batch) if "/changeset-" in path and path.endswith("/manifest.json")]


def _parted(batch: int, infos: Sequence[FileInfo], named: set[str]) -> BatchFiles:
    """Separate the files that count from those of failed attempts: manifests, and files in folders, that no manifest
    names.
    """
    kept_infos = [
        info for info in infos if info.path in named or (info.path.count("/") == 1 and not is_manifest(info.path))
    ]
    remaining_infos = [info for info in infos if info not in kept_infos]
    return BatchFiles(batch, tuple(sorted(kept_infos, key=lambda info: info.path)), tuple(remaining_infos))


def _is_archived(store: SegmentStore, info: FileInfo) -> bool:
    """Return True if an archive has the same content of the file as the folder."""
    place = store.archives.place(info.path)
    return place is not None and (place[1].size_bytes, place[1].crc32) == store.checksum(info.path)


def grouped(batches: Iterable[BatchFiles]) -> Iterator[list[BatchFiles]]:
    """Yield groups of batches that become one archive: at least two, with consecutive numbers, within an archive's
    limits.
    """
    group: list[BatchFiles] = []
    size = files = 0
    for batch_files in batches:
        size, files = size + batch_files.size_bytes, files + len(batch_files.kept)
        fits = group and batch_files.batch == group[-1].batch + 1 and size <= MOST_BYTES and files <= MOST_FILES
        if not fits or abs(batch_files.written_s - group[0].written_s) > SPAN_S:
            if len(group) > 1:
                yield group
            group, size, files = [], batch_files.size_bytes, len(batch_files.kept)
        group.append(batch_files)
    if len(group) > 1:
        yield group


def needless(store: SegmentStore) -> list[ArchiveName]:
    """Return the archives of which another one has every file, because two runs made them at the same time."""
    names = store.archives.names()
    return [
        name
        for name in names
        if any(
            candidate.first <= name.first
            and name.last <= candidate.last
            and (len(candidate.batches) > len(name.batches) or candidate.unique < name.unique)
            and _has_all_of(store, candidate, name)
            for candidate in names
        )
    ]


def _has_all_of(store: SegmentStore, other_name: ArchiveName, name: ArchiveName) -> bool:
    with suppress(SegmentError, FileNotFoundError):
        other_files = {(file.path, file.crc32) for file in store.archives.contents(other_name).files.values()}
        return all((file.path, file.crc32) in other_files for file in store.archives.contents(name).files.values())
    return False
