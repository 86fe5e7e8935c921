"""Manifests and lists of manifests, which a process reads once, and not if it wrote them.

Decision: a commit asks for a table's manifests three times (to plan, to keep those of the snapshot before it, to find
the files that it replaces), and the library reads and resolves them each time, which took a third of the time of a
commit to a small table. The files never change. So the functions here replace the library's and ask it only for what
is not kept. The list of a snapshot and the entries of a manifest are also kept as this process writes them, so that the
next batch does not read them. Not so the entries of files with partition values, which the format may store as another
type than they are given. What a commit leaves without use is dropped, or a thousand tables would fill the room in a few
batches. A version of the library that keeps them would make this module needless.
"""

from __future__ import annotations

from typing import Any

from sluice.targets.iceberg.kept import Kept

_LISTED_BYTES = 2**10
"""Bytes of a manifest in a list, in memory."""
_ENTRY_BYTES = 4 * 2**10
"""Bytes of an entry of a manifest, in memory."""

MANIFESTS = Kept()


def use_kept_manifests() -> None:
    """Make the library ask for manifests here first. A repeat does nothing."""
    from pyiceberg.manifest import (
        ManifestEntry,
        ManifestEntryStatus,
        ManifestFile,
        ManifestListWriterV2,
        ManifestWriter,
        ManifestWriterV2,
        _inherit_from_manifest,
    )
    from pyiceberg.table import snapshots

    if getattr(snapshots._manifests, "kept", False):
        return
    read_list, read_entries = snapshots._manifests, ManifestFile.fetch_manifest_entry

    def manifests(io: Any, manifest_list: str) -> Any:
        listed = MANIFESTS.get(manifest_list)
        if listed is None:
            listed = read_list(io, manifest_list)
            MANIFESTS.put(manifest_list, listed, _LISTED_BYTES * (1 + len(listed)))
        return listed

    def entries(self: Any, io: Any, discard_deleted: bool = True) -> Any:
        if self.sequence_number is None or self.sequence_number < 0:
            # A commit in progress puts it together with others: no entry has its number, and nobody asks again.
            MANIFESTS.drop(self.manifest_path)
            return read_entries(self, io, discard_deleted)
        cached_entries = MANIFESTS.get(self.manifest_path)
        if cached_entries is None:
            cached_entries = tuple(read_entries(self, io, discard_deleted=False))
            MANIFESTS.put(self.manifest_path, cached_entries, _bytes_of(cached_entries))
        elif isinstance(cached_entries, _Written):
            cached_entries = tuple(_inherit_from_manifest(copied(entry), self) for entry in cached_entries.entries)
            MANIFESTS.drop(self.manifest_path)
            MANIFESTS.put(self.manifest_path, cached_entries, _bytes_of(cached_entries))
        return [entry for entry in cached_entries if not discard_deleted or entry.status != ManifestEntryStatus.DELETED]

    def copied(entry: Any) -> Any:
        return ManifestEntry.from_args(
            status=entry.status,
            snapshot_id=entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    add_entry, close_entries = ManifestWriter.add_entry, ManifestWriter.__exit__

    def added(self: Any, entry: Any) -> Any:
        writer = add_entry(self, entry)
        self.__dict__.setdefault("kept_entries", []).append(entry)
        return writer

    def closed_entries(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        close_entries(self, exc_type, exc_value, traceback)
        written = tuple(getattr(self, "kept_entries", ()))
        if exc_type is None and isinstance(self, ManifestWriterV2) and not self._spec.fields:
            MANIFESTS.put(self._output_file.location, _Written(written), _bytes_of(written))

    write, close = ManifestListWriterV2.add_manifests, ManifestListWriterV2.__exit__

    def add_manifests(self: Any, manifest_files: Any) -> Any:
        writer = write(self, manifest_files)
        self.written = [*getattr(self, "written", ()), *map(self.prepare_manifest, manifest_files)]
        return writer

    def closed(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        close(self, exc_type, exc_value, traceback)
        written = tuple(getattr(self, "written", ()))
        if exc_type is None:
            MANIFESTS.put(self._output_file.location, written, _LISTED_BYTES * (1 + len(written)))

    manifests.kept = True  # type: ignore[attr-defined]
    ManifestListWriterV2.add_manifests, ManifestListWriterV2.__exit__ = add_manifests, closed
    ManifestWriter.add_entry, ManifestWriter.__exit__ = added, closed_entries
    ManifestFile.fetch_manifest_entry = entries
    snapshots._manifests = manifests


class _Written:
    """The entries of a manifest as they were given to its writer, without the numbers that a commit gives them."""

    def __init__(self, entries: tuple[Any, ...]) -> None:
        self.entries = entries


def _bytes_of(entries: tuple[Any, ...]) -> int:
    return _LISTED_BYTES + _ENTRY_BYTES * len(entries)


def drop_replaced(before: Any, after: Any) -> None:
    """Drop cached entries that a commit made useless: the manifest list of the snapshot ``before``, and its manifests
    that ``after`` does not list. Both are ``Snapshot`` or None.
    """
    if before is None or after is None or before.manifest_list == after.manifest_list:
        return
    current = MANIFESTS.get(after.manifest_list)
    if current is None:
        return
    stay = {file.manifest_path for file in current}
    old = [file.manifest_path for file in MANIFESTS.get(before.manifest_list) or () if file.manifest_path not in stay]
    MANIFESTS.drop(before.manifest_list, *old)
