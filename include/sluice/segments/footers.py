"""Footers of stored Parquet files: a checksum of each, and what its rows take in memory, for files whose manifest does
not say it.

Pages have checksums of their own, the footer has none. A reader of some row groups or columns does not sum the whole
file: a bit of the footer would rename a column, or leave a row group out, without a word. So the manifest has the
footer's CRC32, and whoever reads a part compares it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from sluice.errors import SegmentError
from sluice.segments.store import SegmentStore

WORTH_A_LOOK = 2**18
"""Bytes of a file below which an estimate will do."""

_OURS = 48
"""Bytes a row that dictionaries (_op, _file, _origin) and the encoding of _seq and _offset save on disk only."""


_END = 8
"""Bytes after the footer: its length and the magic number."""


def footer_crc32(tail: bytes) -> str:
    """Return the CRC32 of the footer of the Parquet file that ends with ``tail``, as hexadecimal digits.

    Returns "" if ``tail`` lacks a part of the footer.
    """
    size = int.from_bytes(tail[-_END:-4], "little") + _END
    return f"{zlib.crc32(tail[-size:]):08x}" if _END < size <= len(tail) else ""


def opened(source: Any, crc32: str, *, verify: bool = True) -> pq.ParquetFile:
    """Open the Parquet file of ``source`` (random access) and compare its footer with ``crc32`` ("": not known).

    Raises pyarrow.ArrowInvalid if it is not the footer that was written. Pages are verified when they are read.
    """
    if not crc32 or not verify:
        return pq.ParquetFile(source, page_checksum_verification=verify)
    end = source.size()
    size = int.from_bytes(source.read_at(_END, max(end - _END, 0))[:4], "little") + _END
    tail = source.read_at(size, end - size) if size <= end else b""
    if footer_crc32(tail) != crc32:
        raise pa.ArrowInvalid("its footer is not the one that was written")
    footer = pq.read_metadata(pa.BufferReader(tail))
    return pq.ParquetFile(source, metadata=footer, page_checksum_verification=True)


class _Sized(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def arrow_bytes(self) -> int: ...


_File = TypeVar("_File", bound=BaseModel)


def measured(store: SegmentStore, files: Iterable[_File]) -> tuple[_File, ...]:
    """Return the same files.

    Large ones whose manifest lacks the bytes that their rows take get them from their footers.
    """
    return tuple(_measured(store, file) for file in files)


def _measured(store: SegmentStore, file: _File) -> _File:
    sized: _Sized = file  # type: ignore[assignment]
    if sized.arrow_bytes or sized.size_bytes < WORTH_A_LOOK:
        return file
    try:
        with store.open_input(sized.path) as source:
            footer = pq.read_metadata(source)
    except (SegmentError, pa.ArrowException, OSError):  # who reads the rows says what is wrong with the file
        return file
    total = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
    return file.model_copy(update={"arrow_bytes": total + footer.num_rows * _OURS})
