"""Runners of work units. A unit is a small picklable value: paths, bucket ranges, contents of rules; never rows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

U = TypeVar("U")
R = TypeVar("R")


class UnitRunner(Protocol):
    """Runs one function over many units, in one job.

    Raises:
        SluiceError: the first one that a unit raised, same type and message.
        SparkUnavailable: there is no server, or it lost the work; the same call may succeed later.
    """

    def run(
        self,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        *,
        parallelism: int = 4,
        description: str = "",
    ) -> list[Any]:
        """Call ``function`` for each unit, at most ``parallelism`` at a time.

        Return the results in the order of ``units``.
        """

    def cancel(self) -> None:
        """Cancel the running job, if there is one; its call raises. Called from another thread."""

    def statement(
        self, text: str, settings: Mapping[str, str], required: Mapping[str, str], *, description: str = ""
    ) -> None:
        """Run one SQL statement to its end.

        Its ``settings`` belong to a session of its own and concern no other statement.

        Its ``settings`` belong to a session of its own and concern no other statement.

        Raises:
            LoadError: Spark refused it. SparkUnavailable: as above; the statement may run still.
            ConfigError: the server was started with another setting than one that is ``required``; nothing was run.
        """

    def frames(self, tables: Sequence[Any], *, description: str = "") -> list[bytes]:
        """Return the reports of :func:`sluice.spark.frames.run_frames` (``tables``: FrameTable).

        Raises also what Spark says of a rule's plan.
        """


LARGE_BYTES = 48 * 2**20
"""Memory of a unit from which on what it leaves in the allocators is worth the page faults of the next one."""


def give_back(unit: Any) -> None:
    """Give the memory that a large unit has freed back to the system.

    Decision: 2 GB of rows, merged one unit of 33 MB after the other, had a peak of 457 MB, of which 173 MB were free in
    Arrow's pool and 96 MB in the C library's. Allocators keep what a thread frees for that thread, so every thread
    gives back its own. Small units keep theirs: the next batch takes it without a page fault.
    """
    if getattr(unit, "memory_bytes", 0) >= LARGE_BYTES:
        pa.default_memory_pool().release_unused()
        pa.system_memory_pool().release_unused()  # malloc_trim


def balanced(units: Sequence[Any], bins: int) -> list[list[int]]:
    """Divide ``units`` into at most ``bins`` groups of about equal ``unit.cost`` (1 if it has none), heaviest first.

    Return their indices.
    """
    count = max(1, min(bins, len(units)))
    heap: list[tuple[float, int, list[int]]] = [(0.0, i, []) for i in range(count)]
    costs = [float(getattr(unit, "cost", 1) or 1) for unit in units]
    for index in sorted(range(len(units)), key=lambda i: -costs[i]):
        load, tie, members = heapq.heappop(heap)
        members.append(index)
        heapq.heappush(heap, (load + costs[index], tie, members))
    return [members for _, _, members in sorted(heap, key=lambda item: item[1]) if members]
