"""Commits to small tables in the thread that asks for them.

Decision: the library hands each of about ten jobs of a commit to a pool of threads. In a small table a job takes well
under a millisecond. To hand it over takes processor time and, beside other busy threads, up to a third of the
commit's time, since each change of threads waits for the interpreter. So inside :func:`in_own_thread` the pool is
one that runs a job at once. Large tables keep the library's pool, which reads and writes several files at a time.

Imports the library only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sluice.targets.iceberg.commit_notes import said_by

MOST_ROWS = 20_000
MOST_FILES = 16
"""Data files and delete files of a table, at most, for which no thread is worth its handover."""

_own: ContextVar[bool] = ContextVar("own_thread", default=False)


class OwnThread(Executor):
    """A pool that runs each job in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Run the job; return a finished future with its result or error."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **named))
        except Exception as error:
            future.set_exception(error)
        return future


_POOL = OwnThread()


@contextmanager
def in_own_thread(table: Any, rows: int) -> Iterator[None]:
    """Let the library work in this thread inside the context if the table (``pyiceberg.table.Table``) and the number of
    rows to write are small.
    """
    _use_own_pool()
    before = _own.set(rows <= MOST_ROWS and _files(table) <= MOST_FILES)
    try:
        yield
    finally:
        _own.reset(before)


def _files(table: Any) -> int:
    """Return the number of files that a table has; more than any if it does not say."""
    last = table.metadata.current_snapshot()
    if last is None:
        return 0
    summary = said_by(last)
    counted = summary.get("total-data-files", "")
    return int(counted) + int(summary.get("total-delete-files", "0")) if counted.isdigit() else MOST_FILES + 1


def _use_own_pool() -> None:
    """Make the library ask here for its pool first. A repeat does nothing."""
    from pyiceberg.utils.concurrent import ExecutorFactory

    if getattr(ExecutorFactory.get_or_create, "own", False):
        return
    library_pool = ExecutorFactory.get_or_create

    def get_or_create() -> Executor:
        return _POOL if _own.get() else library_pool()

    get_or_create.own = True  # type: ignore[attr-defined]
    ExecutorFactory.get_or_create = staticmethod(get_or_create)
