"""Units in threads of this process, without Spark: for the command line and for tests.

Arrow and the servers release the GIL.

Only a rule of type spark needs Spark here, too: a session of this process, started when the first one runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from sluice.errors import ConfigError, SparkUnavailable
from sluice.spark.base import give_back


class _Room:
    """Memory of this process that units at work share. One that is larger than all of it runs alone."""

    def __init__(self) -> None:
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size: int, most: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= most)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


_ROOM = _Room()


def _at_once(sizes: Sequence[int], room: int) -> int:
    """Return how many units can be at work at the same time, at most, in a room of this many bytes.

    Decision: more threads than that would take turns, and allocators keep for each thread what it freed. A merge of
    10 GB, which has one unit at work at a time, had a peak of 611 MB in four threads and of 427 MB in one.
    """
    ends = accumulate(sorted(sizes))
    return max(sum(end <= room for end in ends), 1)


class LocalRunner:
    """See :class:`sluice.spark.base.UnitRunner`. A cancelled run ends when the units that have begun are done.

    ``room``: bytes that units at work may take together, by what they say of themselves (``memory_bytes``).
    """

    def __init__(self, room: int = 640 * 2**20) -> None:
        self._cancelled = threading.Event()
        self._room = room

    def cancel(self) -> None:
        """Start no further unit."""
        self._cancelled.set()

    def run(
        self,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        *,
        parallelism: int = 4,
        description: str = "",
    ) -> list[Any]:
        """Run the function on each unit in threads of this process."""
        self._cancelled.clear()

        def one(unit: Any) -> Any:
            if self._cancelled.is_set():
                raise SparkUnavailable(f"{description or 'the work'} was cancelled")
            with _ROOM.of(getattr(unit, "memory_bytes", 0), self._room):
                try:
                    return function(unit)
                finally:
                    give_back(unit)

        threads = min(parallelism, _at_once([getattr(unit, "memory_bytes", 0) for unit in units], self._room))
        if threads <= 1:
            return [one(unit) for unit in units]
        with ThreadPoolExecutor(threads, thread_name_prefix="unit") as pool:
            futures = [pool.submit(one, unit) for unit in units]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def statement(
        self, text: str, settings: Mapping[str, str], required: Mapping[str, str], *, description: str = ""
    ) -> None:
        """Raise ConfigError, since SQL statements need Spark."""
        raise ConfigError(
            f"{description or 'a statement'} needs Spark",
            hint="spark: {mode: connect} or {mode: submit} in the pipeline file; or leave execution: frame out",
        )

    def frames(self, tables: Sequence[Any], *, description: str = "") -> list[bytes]:
        """Run a rule on Spark frames in a local session and return its reports."""
        del description
        if not tables:
            return []
        from sluice.spark.frames import local_session, run_frames

        return run_frames(local_session(), tables)
