"""The ports of row files: where they are read, and where they are written."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import IO, Protocol

from sluice.model.sizes import in_units

PIECE_BYTES = 1 << 20
"""Bytes that are read and written at a time: a deadline is looked at after each."""

ORPHANED_S = 24 * 3600.0
"""Age from which on a temporary file belongs to no process any more."""


class FileRefused(Exception):
    """A file that is not taken: its name may not be looked up, or it is no plain file, or too large.

    The message says why, without the name.
    """


class FileAbsent(FileRefused):
    """No such file exists, although the location is there."""


class FileChanged(Exception):
    """The file was written while it was read."""


class OutOfTime(Exception):
    """The deadline of a file has passed."""


class Deadline:
    """The time by which a file must have been copied. Each piece of work asks before it changes anything."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.seconds = seconds
        self._end = clock() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(self._end - self._clock(), 0.0)

    def require(self) -> None:
        """Raise OutOfTime if it has passed."""
        if not self.left_s:
            raise OutOfTime


class Spool:
    """A temporary file that a file is fetched into: counts, hashes, and refuses what is too large."""

    def __init__(self, file: IO[bytes], max_bytes: int, deadline: Deadline, name: str = "") -> None:
        self.file = file
        self.name = name
        """The name of the temporary file at a store that made it there; "" elsewhere."""
        self.deadline = deadline
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Return the checksum of what was written, in hex."""
        return self._sha256.hexdigest()

    def expect(self, size_bytes: int) -> None:
        """Refuse a file of this size before it is read, if it is too large."""
        if size_bytes > self._max_bytes:
            raise FileRefused(f"it has {in_units(size_bytes)}, and max_size is {in_units(self._max_bytes)}")

    def write(self, piece: bytes) -> None:
        """Append a piece. Raises FileRefused, OutOfTime."""
        self.deadline.require()
        self.size_bytes += len(piece)
        self.expect(self.size_bytes)
        self._sha256.update(piece)
        self.file.write(piece)


class FileSource(Protocol):
    """A location that files are read from. Threads share it.

    Raises:
        FileAbsent, FileRefused: concern the one file. FileChanged: it was written meanwhile.
        OSError, StorageUnavailable: the location does not answer. ConfigError: it refuses the login.
    """

    def fetch(self, name: str, spool: Spool, *, unless: str = "") -> str | None:
        """Write a file into ``spool`` and return its identity, "" if it has none.

        Return None, and write nothing, if its identity is still ``unless``.
        """

    def require_readable(self, deadline: Deadline) -> str:
        """Look whether the location answers, and return what it said. Raises what :meth:`fetch` raises."""

    def close(self) -> None:
        """Close the connections."""


class FileStore(Protocol):
    """A location that files are written to. Threads share it. Raises OSError, StorageUnavailable, FileRefused."""

    def spool(self, max_bytes: int, deadline: Deadline) -> Spool:
        """Return an empty temporary file."""

    def discard(self, spool: Spool) -> None:
        """Remove a temporary file, unless it was put in its place."""

    def put(self, name: str, spool: Spool) -> None:
        """Give the contents of ``spool`` the name ``name``: a reader sees the old file or the new one, never a part."""

    def identity(self, name: str) -> str:
        """Return the identity of a stored file, which changes whenever somebody writes it; "" if it is not there."""

    def read(self, name: str) -> bytes | None:
        """Return the contents of a small file; None if it is not there."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, all or nothing."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the files directly in a folder; none if it is not there."""

    def remove_orphans(self) -> None:
        """Remove temporary files of processes that died a day ago or earlier."""

    def close(self) -> None:
        """Close the connections."""
