"""Copy one file: fetch it unless a receipt says that it is there, and write it.

Two batches may be merged at the same time, and a worker that was thought dead may come back. Whoever writes a file that
is kept under its own name asks the source again afterwards, and fetches it again if it is another one by then. So the
last one that writes leaves the newest contents, whichever batch it belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from sluice.errors import SluiceError, StorageUnavailable
from sluice.model.backoff import wait_after
from sluice.row_files.port import (
    Deadline,
    FileAbsent,
    FileChanged,
    FileRefused,
    FileSource,
    FileStore,
    OutOfTime,
    Spool,
)
from sluice.row_files.receipts import Receipt, Receipts

_ATTEMPTS = 4
"""Attempts at one file while its location does not answer; after that the batch is tried again."""

_FIRST_WAIT, _LONGEST_WAIT = timedelta(milliseconds=250), timedelta(seconds=4)
_REWRITES = 5
"""Times that a file may change while it is copied."""

_T = TypeVar("_T")


class Layout(StrEnum):
    """The name under which a file is kept."""

    PATH = "path"
    CONTENT = "content"


class CopyState(StrEnum):
    """The outcome of a file."""

    COPIED = "copied"
    UNCHANGED = "unchanged"
    ABSENT = "absent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a row names. ``version``: None without a column for that; ``shown``: its name in messages."""

    name: str
    version: str | None
    shown: str


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """The outcome of one file. ``fetched_bytes``: read at the source; ``why``: of one that is absent or refused."""

    state: CopyState
    fetched_bytes: int = 0
    why: str = ""


class Copier:
    """Copies files between two locations. Threads share it."""

    def __init__(
        self,
        source: FileSource,
        store: FileStore,
        *,
        where: str,
        max_bytes: int,
        timeout: timedelta,
        layout: Layout = Layout.PATH,
        notes_missing: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source, self._store, self._receipts = source, store, Receipts(store)
        self._where, self._max_bytes, self._layout, self._sleep = where, max_bytes, layout, sleep
        self.timeout_s = timeout.total_seconds()
        self._notes_missing = notes_missing

    @property
    def receipts(self) -> Receipts:
        """The receipts of what was written."""
        return self._receipts

    def remove_orphans(self) -> None:
        """Remove temporary files of processes that died a day ago or earlier."""
        self._store.remove_orphans()

    def copy(self, file: NamedFile) -> CopyOutcome:
        """Copy a file, unless it is there.

        Raises:
            StorageUnavailable: a location does not answer, or the file took too long. ConfigError: a login is refused.
        """
        deadline = Deadline(self.timeout_s)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._named(file, lambda: self._attempt(file, deadline))
            except StorageUnavailable:
                wait_s = wait_after(attempt, _FIRST_WAIT, _LONGEST_WAIT).total_seconds()
                if attempt == _ATTEMPTS or wait_s >= deadline.left_s:
                    raise
                self._sleep(wait_s)
        raise AssertionError

    def _attempt(self, file: NamedFile, deadline: Deadline) -> CopyOutcome:
        """Copy a file once. An absent or refused one is noted, so that the next change of its row asks for it again."""
        try:
            return self._copied(file, deadline)
        except FileRefused as error:
            if self._notes_missing:
                self._receipts.set_missing(file.name)
            state = CopyState.ABSENT if isinstance(error, FileAbsent) else CopyState.REFUSED
            return CopyOutcome(state, why=str(error))

    def _copied(self, file: NamedFile, deadline: Deadline) -> CopyOutcome:
        receipt = self._receipts.read(file.name)
        intact = receipt is not None and receipt.written == self._store.identity(receipt.path)
        if receipt is None or not intact or self._path(file, receipt.sha256) != receipt.path:
            receipt = None
        elif file.version is not None and file.version == receipt.version:
            return CopyOutcome(CopyState.UNCHANGED)
        unless = receipt.fetched if receipt is not None and file.version is None else ""
        fetched_bytes = 0
        for _ in range(_REWRITES):
            spool = self._store.spool(self._max_bytes, deadline)
            try:
                identity = self._source.fetch(file.name, spool, unless=unless)
                if identity is None:  # as it was when it was written
                    break
                fetched_bytes += spool.size_bytes
                receipt = self._written(file, spool, identity, receipt)
                unless = identity
            except FileChanged:
                continue
            finally:
                self._store.discard(spool)
            if not identity or self._layout is Layout.CONTENT:
                break
        else:
            raise StorageUnavailable(
                f"the file {file.shown} is written all the time: it was another one after each of {_REWRITES} attempts",
                where=self._where,
                hint="the batch is tried again; write files under a temporary name and rename them",
            )
        if receipt is not None and fetched_bytes + (receipt.version != file.version):
            deadline.require()
            self._receipts.write(receipt)
        return CopyOutcome(CopyState.COPIED if fetched_bytes else CopyState.UNCHANGED, fetched_bytes)

    def _written(self, file: NamedFile, spool: Spool, identity: str, receipt: Receipt | None) -> Receipt:
        """Write a fetched file, unless the same contents are there."""
        path = self._path(file, spool.sha256)
        if receipt is not None and receipt.sha256 == spool.sha256 and receipt.path == path:
            written = receipt.written
        else:
            written = self._store.identity(path) if self._layout is Layout.CONTENT else ""
            if not written:
                self._store.put(path, spool)
                written = self._store.identity(path)
        return Receipt(
            name=file.name,
            version=file.version,
            sha256=spool.sha256,
            size_bytes=spool.size_bytes,
            path=path,
            written=written,
            fetched=identity,
            written_ms=time.time_ns() // 1_000_000,
        )

    def _path(self, file: NamedFile, sha256: str) -> str:
        return file.name if self._layout is Layout.PATH else f"sha256/{sha256[:2]}/{sha256}"

    def _named(self, file: NamedFile, action: Callable[[], _T]) -> _T:
        """Name the file in errors of its locations."""
        hidden = file.shown != file.name
        try:
            return action()
        except OutOfTime:
            raise StorageUnavailable(
                f"the file {file.shown} was not copied within {self.timeout_s:g} s",
                where=self._where,
                hint="the batch is tried again; raise timeout in the mapping's files if the file is large",
            ) from None
        except SluiceError as error:
            raise type(error)(
                f"copying the file {file.shown}: {error.message}", where=error.where or self._where, hint=error.hint
            ) from None
        except OSError as error:
            reason = error.strerror or str(error).partition("\n")[0]
            why = type(error).__name__ if hidden or not reason else reason[:300]
            raise StorageUnavailable(
                f"copying the file {file.shown}: {why}", where=self._where, hint="the batch is tried again"
            ) from None
