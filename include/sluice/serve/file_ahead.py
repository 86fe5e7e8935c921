"""Reading the next stored file of a stream while the rows of the last one are on their way to the client.

A read goes from file to file, also from one batch to the next. With one file per batch, as a busy table has it, it
would otherwise send nothing while a file is decoded, and decode nothing while rows are put in order and sent.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
        self._thread: ThreadPoolExecutor | None = None
        self._begun: tuple[SegmentFile, Future[_Made]] | None = None

    @staticmethod
    def is_worth(file: SegmentFile) -> bool:
        """Return True if a file is large enough to be read while another one is sent, or another one meanwhile."""
        return file.size_bytes >= WORTH_BYTES

    def read(self, file: SegmentFile, after: SegmentFile | None) -> _Made:
        """Return what ``load`` makes of a file, and begin to read the one that will be asked for ``after`` it.

        Raises what ``load`` raises for ``file``.
        """
        begun, self._begun = self._begun, None
        made = begun[1].result() if begun is not None and begun[0] == file else self._load(file)
        del begun
        if after is not None and self.is_worth(after):
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="file-ahead")
            self._begun = after, self._thread.submit(self._load, after)
        return made

    def close(self) -> None:
        """Drop the file that was begun, once it is read."""
        self._begun = None
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
