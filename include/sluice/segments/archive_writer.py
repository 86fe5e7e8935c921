"""Write an archive: under another name first, so that one that can be seen is whole."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.segments.archive import FOLDER, ArchivedBatch, ArchivedFile, ArchiveIndex, ArchiveName
from sluice.segments.store import FileInfo, SegmentStore

UNFINISHED = ".tmp"


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of a batch.

    ``kept``: those that the archive takes; ``left``: the others in its folder, which are never read.
    """

    batch: int
    kept: tuple[FileInfo, ...]
    left: tuple[FileInfo, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of the files that the archive takes."""
        return sum(info.size_bytes for info in self.kept)

    @property
    def written_s(self) -> float:
        """The time when the newest of them was written, seconds since 1970."""
        return max((info.written_s for info in self.kept), default=0.0)


def write_archive(store: SegmentStore, batches: Sequence[BatchFiles]) -> ArchiveName:
    """Put consecutive batches into an archive; it is durable and visible when this returns, and the folders are as they
    were.

    Raises:
        StorageUnavailable: it cannot be written, there is no space. SegmentError: a file is gone.
    """
    store.check_space(sum(batch.size_bytes for batch in batches))
    name = ArchiveName(batches[0].batch, batches[-1].batch, uuid.uuid4().hex[:12])
    temporary = f"{name.path}{UNFINISHED}"
    archived: list[ArchivedBatch] = []
    with store.open_output(temporary) as sink:
        for batch in batches:
            files: list[ArchivedFile] = []
            for info in batch.kept:
                start, crc = sink.size_bytes, 0
                for piece in store.pieces(info.path):
                    crc = zlib.crc32(piece, crc)
                    sink.write(piece)
                files.append(
                    ArchivedFile(path=info.path, start=start, size_bytes=sink.size_bytes - start, crc32=f"{crc:08x}")
                )
            archived.append(ArchivedBatch(batch=batch.batch, written_s=batch.written_s, files=tuple(files)))
        sink.write(ArchiveIndex(batches=tuple(archived)).ending())
    store.publish(temporary, name.path)
    return name


def unfinished(store: SegmentStore, *, before_s: float) -> list[str]:
    """Return the paths of unfinished archives that no process has written to since ``before_s``, seconds since 1970."""
    infos = store.folder_files(FOLDER)
    return [info.path for info in infos if info.path.endswith(UNFINISHED) and info.written_s < before_s]
