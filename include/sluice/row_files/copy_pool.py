"""Copy many files side by side, in threads that a location which hangs cannot hold the process by."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sluice.errors import StorageUnavailable
from sluice.row_files.copier import Copier, CopyOutcome, CopyState, NamedFile

_TICK_S = 0.5
_GRACE_S = 15.0
"""Seconds that a copy has after its deadline to end by itself, before it is abandoned."""


@dataclass(frozen=True, slots=True)
class FileTotals:
    """Files of a batch by what became of them.

    ``size_bytes``: fetched; ``seconds``: of the work units, each of which copies several files side by side;
    ``rejected``: rows.
    """

    copied: int = 0
    unchanged: int = 0
    absent: int = 0
    refused: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    rejected: int = 0

    def __bool__(self) -> bool:
        return self.files > 0

    def __add__(self, more: FileTotals) -> FileTotals:
        return FileTotals(
            self.copied + more.copied,
            self.unchanged + more.unchanged,
            self.absent + more.absent,
            self.refused + more.refused,
            self.size_bytes + more.size_bytes,
            self.seconds + more.seconds,
            self.rejected + more.rejected,
        )

    @property
    def files(self) -> int:
        """Files that rows named."""
        return self.copied + self.unchanged + self.absent + self.refused

    @property
    def bytes_per_s(self) -> int:
        """Bytes that were fetched per second of a work unit."""
        return round(self.size_bytes / self.seconds) if self.seconds else 0

    def with_outcome(self, outcome: CopyOutcome) -> FileTotals:
        """Return the totals with one more file."""
        name = str(outcome.state)
        return replace(self, **{name: getattr(self, name) + 1}, size_bytes=self.size_bytes + outcome.fetched_bytes)


def copy_files(
    copier: Copier,
    files: Sequence[NamedFile],
    parallel: int,
    progress: Callable[[FileTotals], None] = lambda totals: None,
) -> tuple[list[CopyOutcome], FileTotals]:
    """Copy files and return what became of each, in their order, and the totals.

    ``progress``: told the totals after each file, by the calling thread.

    Raises what :meth:`Copier.copy` raises for the first file that fails; no further one is begun then.
    """
    began = time.monotonic()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    finished: queue.SimpleQueue[tuple[int, CopyOutcome | BaseException]] = queue.SimpleQueue()
    stopped, at_work = threading.Event(), dict[int, float]()
    for number in range(len(files)):
        waiting.put(number)

    def work() -> None:
        while not stopped.is_set():
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            at_work[number] = time.monotonic()
            try:
                finished.put((number, copier.copy(files[number])))
            except BaseException as error:
                finished.put((number, error))

    for index in range(min(parallel, len(files))):
        threading.Thread(target=work, name=f"file-{index}", daemon=True).start()
    outcomes: list[CopyOutcome] = [CopyOutcome(CopyState.UNCHANGED)] * len(files)
    totals, remaining = FileTotals(), len(files)
    try:
        while remaining:
            try:
                number, outcome = finished.get(timeout=_TICK_S)
            except queue.Empty:
                _require_alive(copier, files, at_work)
                continue
            at_work.pop(number, None)
            if isinstance(outcome, BaseException):
                raise outcome
            outcomes[number], remaining = outcome, remaining - 1
            totals = replace(totals.with_outcome(outcome), seconds=time.monotonic() - began)
            progress(totals)
    finally:
        stopped.set()
    return outcomes, totals


def _require_alive(copier: Copier, files: Sequence[NamedFile], at_work: dict[int, float]) -> None:
    """Raise StorageUnavailable if a copy hangs in a call that does not end: a dead mount, for example."""
    limit_s = copier.timeout_s + _GRACE_S
    late = [number for number, since in list(at_work.items()) if time.monotonic() - since > limit_s]
    if late:
        raise StorageUnavailable(
            f"the file {files[late[0]].shown} hangs: its location has not answered for {limit_s:g} s",
            hint="is a network file system mounted whose server is gone? The batch is tried again",
        )
