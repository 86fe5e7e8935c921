"""Files whose checksum is computed while they are written."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

LARGEST_FOOTER = 2 * 2**20
"""Bytes of a Parquet footer of which the manifest has a checksum; one of a larger footer would keep too much in memory.
"""

GATHERED_BYTES = 2**18
"""Bytes that are handed to a sink together: Arrow writes the header and the values of each page apart, 64 pieces for a
table of 20 columns.
"""


class ChecksumSink:
    """A writable file object that counts and sums (CRC32) what goes through; for ``pyarrow.parquet.ParquetWriter``."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.size_bytes = 0
        self.crc32 = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write bytes or a buffer."""
        view = memoryview(data).cast("B")
        self._raw.write(view)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size_bytes += len(view)
        self._tail.append(bytes(view[-LARGEST_FOOTER:]))
        self._tail_bytes += len(self._tail[-1])
        while self._tail_bytes - len(self._tail[0]) >= LARGEST_FOOTER:
            self._tail_bytes -= len(self._tail.popleft())
        return len(view)

    @contextmanager
    def gathering(self) -> Iterator[pa.NativeFile]:
        """Yield a file for Arrow to write to, which joins small pieces to few large ones.

        All of it is written by the end of the block.
        """
        with pa.BufferedOutputStream(pa.PythonFile(self, mode="w"), GATHERED_BYTES) as file:
            yield file

    def tail(self) -> bytes:
        """Return the last bytes that were written: at least :data:`LARGEST_FOOTER` of them, or all."""
        return b"".join(self._tail)

    def flush(self) -> None:
        """Do nothing: this file buffers nothing."""

    def close(self) -> None:
        """Mark the file closed. The store closes the file itself."""
        self.closed = True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size_bytes

    def writable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return False."""
        return False
