"""A batch that is being captured: the sink, and the workers that decode what was received and feed it.

The calling thread receives and scans; workers turn sealed arenas into Arrow tables and give them to the sink, which
writes Parquet in the same worker. Kernels, zstd and the socket release the interpreter lock, so the stages overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic

import pyarrow as pa
from typing_extensions import TypeVar

from sluice.model.tables import TableSchema
from sluice.sources.port import ChangeSink

M = TypeVar("M", default=Any)
R = TypeVar("R", default=Any)

_WORKERS = 2
_QUEUED_ARENAS = 2


class DecodingBatch(Generic[M, R]):
    """The sink and the workers that feed it.

    Args:
        factory: makes the sink; called at the first change.
        decode: turns sealed rows into tables by definition; the buckets are the sink's.
    """

    def __init__(
        self, factory: Callable[[], ChangeSink[M]], decode: Callable[[R, Any], Iterable[tuple[TableSchema, pa.Table]]]
    ) -> None:
        self._factory = factory
        self._decode = decode
        self.writer: ChangeSink[M] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._slots = threading.Semaphore(_WORKERS + _QUEUED_ARENAS)
        self._jobs: list[Future[None]] = []
        self._finished = False
        self._opening = threading.Lock()

    def __enter__(self) -> DecodingBatch[M, R]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self.writer is not None and not self._finished:
            self.writer.abort()

    def open(self) -> ChangeSink[M]:
        """Return the writer; any thread may ask."""
        with self._opening:
            if self.writer is None:
                self.writer = self._factory()
            return self.writer

    def seal(self, rows: R, *, last: bool = False) -> None:
        """Decode and write in a worker; waits while too many are waiting. The last small arena is done right here."""
        writer = self.open()
        if last and self._pool is None:
            self._write(rows, writer)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="decode")
        for job in [j for j in self._jobs if j.done()]:
            job.result()
            self._jobs.remove(job)
        self._slots.acquire()
        job = self._pool.submit(self._write, rows, writer)
        job.add_done_callback(lambda _: self._slots.release())
        self._jobs.append(job)

    def _write(self, rows: R, writer: ChangeSink[Any]) -> None:
        for schema, table in self._decode(rows, writer.buckets):
            writer.add(schema, table, in_order=True)

    def wait(self) -> None:
        """Wait until the workers are done; raise what they raised."""
        for job in self._jobs:
            job.result()
        self._jobs.clear()

    def finish(self, *args: Any, **named: Any) -> M:
        """Write the manifest."""
        assert self.writer is not None
        manifest = self.writer.finish(*args, **named)
        self._finished = True
        return manifest


__all__ = ["DecodingBatch"]
