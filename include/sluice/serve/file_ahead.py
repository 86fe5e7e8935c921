"""Reading the next stored file of a stream while the rows of the last one are on their way to the client.

A read goes from file to file, also from one batch to the next. With one file per batch, as a busy table has it, it
would otherwise send nothing while a file is decoded, and decode nothing while rows are put in order and sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from sluice.segments.manifest import SegmentFile

_Made = TypeVar("_Made")

WORTH_BYTES = 2**18
"""Size of a file from which on a thread of its own is worth its start."""


class FileAhead(Generic[_Made]):
    """Reads files, one of them ahead of the caller. One thread calls it.

    Args:
        load: what is read of a file; a thread of its own calls it, too.
    """

    def __init__(self, load: Callable[[SegmentFile], _Made]) -> None:
        self._load = load
        self._begun: _Begun[_Made] | None = None

    @staticmethod
    def is_worth(file: SegmentFile) -> bool:
        """Return True if a file is large enough to be read while another one is sent, or another one meanwhile."""
        return file.size_bytes >= WORTH_BYTES

    def read(self, file: SegmentFile, after: SegmentFile | None) -> _Made:
        """Return what ``load`` makes of a file, and begin to read the one that will be asked for ``after`` it.

        Raises what ``load`` raises for ``file``.
        """
        begun, self._begun = self._begun, None
        if begun is not None and begun.file != file:
            begun.end()
            begun = None
        made = begun.take() if begun is not None else self._load(file)
        if after is not None and self.is_worth(after):
            self._begun = _Begun(after, self._load)
        return made

    def close(self) -> None:
        """Drop the file that was begun, once it is read."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.end()


class _Begun(Generic[_Made]):
    """A file that a thread reads."""

    def __init__(self, file: SegmentFile, load: Callable[[SegmentFile], _Made]) -> None:
        self.file = file
        self._made: list[_Made] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(load,), name="file-ahead", daemon=True)
        self._thread.start()

    def _read(self, load: Callable[[SegmentFile], _Made]) -> None:
        try:
            self._made.append(load(self.file))
        except BaseException as error:  # whatever it is, it is raised where the file is asked for
            self._error = error

    def take(self) -> _Made:
        """Wait for the file and return it. Raises what reading it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made.pop()

    def end(self) -> None:
        """Wait until the thread is done."""
        self._thread.join()


__all__ = ["FileAhead"]
