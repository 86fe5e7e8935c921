"""The archives of a pipeline's store: which there are, and where in them a file of a batch is.

Archives are immutable and their names are never used again, so what was read of one holds for the life of the process.
Which there are is listed anew by whoever does not find a file: an archive is visible before the first file of its
batches is deleted.
"""

from __future__ import annotations

import posixpath
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from pyarrow import fs

from sluice.segments.archive import FOLDER, ArchivedBatch, ArchivedFile, ArchiveName, read_index

_BATCH = re.compile(r"batch=(\d{10,})(?:/|$)")
_KEPT_INDEXES = 16


@dataclass(frozen=True, slots=True)
class Contents:
    """The index of an archive, as it is looked up: batches by number, files by path."""

    batches: dict[int, ArchivedBatch]
    files: dict[str, ArchivedFile]


_contents: OrderedDict[tuple[str, str], Contents] = OrderedDict()
_listed: dict[str, tuple[ArchiveName, ...]] = {}
_lock = threading.Lock()


def batch_of(path: str) -> int | None:
    """Return the batch that a path belongs to; None if it belongs to none."""
    match = _BATCH.match(path)
    return int(match[1]) if match else None


class Archives:
    """The archives in ``base``, the pipeline's folder in the file system. Safe to share between threads.

    ``store``: what distinguishes this store from all others. Raises OSError; FileNotFoundError if an archive was
    removed meanwhile; SegmentError if one is damaged.
    """

    def __init__(self, filesystem: fs.FileSystem, base: str, store: str) -> None:
        self._fs, self._base, self._store = filesystem, base, store

    def names(self) -> tuple[ArchiveName, ...]:
        """List the archives there are now, by their first batch."""
        infos = self._fs.get_file_info(fs.FileSelector(posixpath.join(self._base, FOLDER), allow_not_found=True))
        archives = tuple(sorted(name for info in infos if (name := ArchiveName.parse(info.base_name)) is not None))
        _listed[self._store] = archives
        return archives

    def contents(self, name: ArchiveName) -> Contents:
        """Return the contents of an archive."""
        key = (self._store, name.path)
        with _lock:
            if key in _contents:
                _contents.move_to_end(key)
                return _contents[key]
        with self._fs.open_input_file(posixpath.join(self._base, name.path)) as source:
            index = read_index(source, name.path)
        contents = Contents({b.batch: b for b in index.batches}, {f.path: f for b in index.batches for f in b.files})
        with _lock:
            _contents[key] = contents
            while len(_contents) > _KEPT_INDEXES:
                _contents.popitem(last=False)
        return contents

    def of_batch(self, batch: int, *, listed: bool = False) -> Iterator[tuple[ArchiveName, Contents]]:
        """Return the archives that have a batch.

        ``listed``: only those that an earlier call saw, some of which may be gone by now.
        """
        names = _listed.get(self._store, ()) if listed else self.names()
        return self._there(name for name in names if batch in name.batches)

    def _there(self, names: Iterable[ArchiveName]) -> Iterator[tuple[ArchiveName, Contents]]:
        for name in names:
            with suppress(FileNotFoundError):  # removed since: another one has its batches, or none
                yield name, self.contents(name)

    def place(self, path: str, *, listed: bool = False) -> tuple[ArchiveName, ArchivedFile] | None:
        """Return where the file ``path`` is, None if in no archive. ``listed``: see :meth:`of_batch`."""
        batch = batch_of(path)
        if batch is None:
            return None
        for name, contents in self.of_batch(batch, listed=listed):
            if path in contents.files:
                return name, contents.files[path]
        return None

    def has(self, path: str) -> bool:
        """Return True for a file of an archive, and for a folder that has one."""
        batch = batch_of(path)
        return batch is not None and any(
            path in contents.files or any(file.startswith(f"{path}/") for file in contents.files)
            for _, contents in self.of_batch(batch)
        )

    def below(self, folder: str) -> list[str]:
        """Return the paths of all archived files below a folder; with "" those of all archives."""
        batch = batch_of(folder)
        if folder and batch is None:
            return []
        archives = self._there(self.names()) if batch is None else self.of_batch(batch)
        return [p for _, contents in archives for p in contents.files if not folder or p.startswith(f"{folder}/")]
