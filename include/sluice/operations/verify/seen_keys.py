"""The keys that were read from the source, eight bytes each in a file on disk: a target's keys that are not among them
are compared again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import IO

import numpy as np

from sluice.sources.port import Key

_BYTES = 8


def hashes_of(keys: Sequence[Key]) -> bytes:
    """Return eight bytes for each key, the same in every process."""
    return b"".join(blake2b("\0".join(key).encode(), digest_size=_BYTES).digest() for key in keys)


class SeenKeys:
    """A set that only grows.

    Its file has no name and goes with the process; two keys of one hash are as rare as a fault of the memory.
    """

    def __init__(self) -> None:
        self._sorted: np.ndarray[tuple[int], np.dtype[np.uint64]] | None = None

    @cached_property
    def _file(self) -> IO[bytes]:
        """The temporary file; made at first use, as most tables need none."""
        return tempfile.TemporaryFile(prefix="sluice-verify-")

    def add(self, hashes: bytes) -> None:
        """Add hashes that :func:`hashes_of` made."""
        if not hashes:
            return
        self._sorted = None
        self._file.seek(0, 2)
        self._file.write(hashes)

    def among(self, keys: Sequence[Key]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return a mask of the keys that were added. Sorts in the file, whose pages the system may write out."""
        wanted = np.frombuffer(hashes_of(keys), np.uint64)
        if self._sorted is None:
            self._file.flush()
            empty = not self._file.seek(0, 2)
            self._sorted = np.zeros(0, np.uint64) if empty else np.memmap(self._file, np.uint64, "r+")
            self._sorted.sort()
        if not len(self._sorted):
            return np.zeros(len(wanted), np.bool_)
        at = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = self._sorted[at] == wanted
        return found


__all__ = ["SeenKeys", "hashes_of"]
