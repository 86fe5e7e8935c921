"""An archive: the files of consecutive batches, one after the other in one file, with an index at its end.

::

    archive/{first batch}-{last batch}-{unique}.slog:
        bytes of the files    batch after batch, as they were
        index                 JSON: each batch with its files, their places, sizes and CRC32
        end                   size of the index (8 bytes), CRC32 of the index (4), magic number (8); integers are big-endian

It is written once, and never changed. The name says which batches it has: every number from the first to the last.

Decision: the files stay as they are, to the byte, and are not made into larger Parquet files. So manifests, checksums
and places inside files hold as before, and the archive of a batch is equal to its folder. Readers that are slow because
row groups are small would make this wrong.
"""  # noqa: E501

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.errors import SegmentError, first_line

FOLDER = "archive"
MAGIC = b"SLUICEA1"
_END = struct.Struct(">QI8s")
END_BYTES = _END.size
_NAME = re.compile(r"(\d{10,})-(\d{10,})-([0-9a-f]+)\.slog")


@dataclass(frozen=True, slots=True, order=True)
class ArchiveName:
    """The name of an archive: its batches, and what distinguishes it from another archive of the same batches."""

    first: int
    last: int
    unique: str

    @property
    def path(self) -> str:
        """Relative to the pipeline's folder."""
        return f"{FOLDER}/{self.first:010d}-{self.last:010d}-{self.unique}.slog"

    @property
    def batches(self) -> range:
        """Their numbers."""
        return range(self.first, self.last + 1)

    @classmethod
    def parse(cls, name: str) -> ArchiveName | None:
        """Parse a file's name; None if it is not an archive."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArchivedFile(_Stored):
    """A file's place in the archive. ``path``: relative to the pipeline's folder, as before."""

    path: str
    start: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    crc32: str


class ArchivedBatch(_Stored):
    """A batch of an archive. ``written_s``: when its newest file was written, seconds since 1970."""

    batch: int = Field(ge=1)
    written_s: float
    files: tuple[ArchivedFile, ...]


class ArchiveIndex(_Stored):
    """The contents of an archive."""

    format_version: Literal[1] = 1
    batches: tuple[ArchivedBatch, ...]

    def ending(self) -> bytes:
        """Return the bytes that follow the files."""
        text = self.model_dump_json().encode()
        return text + _END.pack(len(text), zlib.crc32(text), MAGIC)


def read_index(source: Any, where: str) -> ArchiveIndex:
    """Read the index of an archive from a random-access file.

    Raises SegmentError if it is damaged or of a newer format.
    """
    size = source.size()
    if size < END_BYTES:
        raise _damaged(where, "it is too short")
    index_bytes, crc32, magic = _END.unpack(bytes(source.read_at(END_BYTES, size - END_BYTES)))
    if magic != MAGIC or index_bytes > size - END_BYTES:
        raise _damaged(where, "its end is not that of an archive")
    text = bytes(source.read_at(index_bytes, size - END_BYTES - index_bytes))
    if zlib.crc32(text) != crc32:
        raise _damaged(where, "its index is not the one that was written")
    try:
        return ArchiveIndex.model_validate_json(text)
    except ValidationError as error:
        raise _damaged(where, first_line(error)) from error


def _damaged(where: str, why: str) -> SegmentError:
    return SegmentError(
        f"an archive of batches cannot be read: {why}",
        where=where,
        hint="was it written by a newer version? If it is damaged, put it back from a copy of the store: targets have "
        "had its batches, and readers that need older ones can begin with the snapshot or a later batch",
    )
