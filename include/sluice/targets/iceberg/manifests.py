"""Manifests and lists of manifests, which a process reads once.

Decision: a commit asks for a table's manifests three times (to plan, to keep those of the snapshot before it, to find
the files that it replaces), and the library reads and resolves them each time, which took a third of the time of a
commit to a small table. The files never change. So the functions here replace the library's and ask it only for what
is not kept. The list of a snapshot is also kept as this process writes it, so that the next batch does not read it.
A version of the library that keeps them would make this module needless.
"""

from __future__ import annotations

from typing import Any

from sluice.targets.iceberg.kept import Kept

_ENTRY_BYTES = 4 * 2**10
"""Bytes of an entry in memory, or of a manifest in a list."""

MANIFESTS = Kept()


def use_kept_manifests() -> None:
    """Make the library ask for manifests here first. A repeat does nothing."""
    from pyiceberg.manifest import ManifestFile, ManifestListWriterV2
    from pyiceberg.table import snapshots

    if getattr(snapshots._manifests, "kept", False):
        return
    read_list, read_entries = snapshots._manifests, ManifestFile.fetch_manifest_entry

    def manifests(io: Any, manifest_list: str) -> Any:
        found = MANIFESTS.get(manifest_list)
        if found is None:
            found = read_list(io, manifest_list)
            MANIFESTS.put(manifest_list, found, _ENTRY_BYTES * (1 + len(found)))
        return found

    def entries(self: Any, io: Any, discard_deleted: bool = True) -> Any:
        if self.sequence_number is None or self.sequence_number < 0:  # of a commit in progress: no entry has its number
            return read_entries(self, io, discard_deleted)
        key = (self.manifest_path, discard_deleted)
        found = MANIFESTS.get(key)
        if found is None:
            found = read_entries(self, io, discard_deleted)
            MANIFESTS.put(key, tuple(found), _ENTRY_BYTES * (1 + len(found)))
        return list(found)

    write, close = ManifestListWriterV2.add_manifests, ManifestListWriterV2.__exit__

    def add_manifests(self: Any, manifest_files: Any) -> Any:
        done = write(self, manifest_files)
        self.written = [*getattr(self, "written", ()), *map(self.prepare_manifest, manifest_files)]
        return done

    def closed(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        close(self, exc_type, exc_value, traceback)
        written = tuple(getattr(self, "written", ()))
        if exc_type is None:
            MANIFESTS.put(self._output_file.location, written, _ENTRY_BYTES * (1 + len(written)))

    manifests.kept = True  # type: ignore[attr-defined]
    ManifestListWriterV2.add_manifests, ManifestListWriterV2.__exit__ = add_manifests, closed
    ManifestFile.fetch_manifest_entry = entries
    snapshots._manifests = manifests
