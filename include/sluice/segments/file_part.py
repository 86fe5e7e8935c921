"""A stretch of a random-access file, as a random-access file of its own."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa


def part_of(source: Any, start: int, size: int, *, mapped: bool) -> Any:
    """Return ``size`` bytes of ``source`` from ``start`` on, as a ``pyarrow.NativeFile``.

    A file that is mapped into memory is not copied; of others, what is read is.
    """
    if mapped:
        source.seek(start)
        return pa.BufferReader(source.read_buffer(size))
    return pa.PythonFile(_Part(source, start, size), mode="r")


class _Part(io.RawIOBase):
    def __init__(self, source: Any, start: int, size: int) -> None:
        super().__init__()
        self._source, self._start, self._size, self._at = source, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        remaining = max(self._size - self._at, 0)
        length = remaining if size is None or size < 0 else min(size, remaining)
        data = bytes(self._source.read_at(length, self._start + self._at)) if length else b""
        self._at += len(data)
        return data
