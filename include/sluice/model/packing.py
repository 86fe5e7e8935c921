"""The size of a work unit, and the packing of parts of tables into units.

A unit holds paths, bucket ranges, rule contents and routes, never rows. The number of units follows the rows, not the
tables: small tables share a unit, large ones are cut by key bucket, so a batch of 1,000 tables is as many Spark tasks
as one of five.

Memory is counted in bytes of rows as Arrow holds them, never in bytes of a file: wide rows that compress 20:1 are small
on disk only. A unit is cut so that four of them fit the memory that ``spark.memory`` gives a process. One that cannot
be cut further runs alone (see ``spark.local``).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

UNIT_ROWS = 25_000
"""Rows below which cutting a table costs more than it gains."""

MAX_UNIT_ROWS = 250_000
"""Rows of a unit, however narrow: some numbers per row are kept in addition to the rows."""

TABLE_COST = 300
"""What one more table costs a unit, in rows."""

ROW_BYTES = 256
"""Bytes of rows in memory that count as one row."""

PROCESS_BYTES = 200 * 2**20
"""What a process takes before it holds a row: the interpreter, libraries, compiled kernels, buffers of a connection."""

EXPANSION = 4
"""Bytes that a unit takes for each byte of its rows: as read, as one piece, the result, what is being written.

Measured: 3.1 to 3.8.
"""

KEYLESS_EXPANSION = 5
"""The same for rows without a key. Measured: 4.3 to 4.7."""

AT_ONCE = 4
"""Units that a process may work on at a time, if they are not larger than they should be."""

THIN_BYTES = 64 * 2**20
"""Rows of a part that are read so far are looked through for those that a merge does not need."""

PACKED = 5
"""Bytes of rows that a byte of a small file of an older version stands for, which has no figure; of a large one the
footer is read.
"""

SMALL_FILES = 16
"""Small tables of a batch that are stored as a Parquet file each, unless the pipeline file says otherwise; those of
more are packed together.
"""

_Part = TypeVar("_Part")


class Sized(Protocol):
    """A stored file, as far as its cost goes."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the stored file."""

    @property
    def arrow_bytes(self) -> int:
        """Bytes of the rows in memory."""


def bytes_of(file: Sized) -> int:
    """Return the bytes of a file's rows in memory. For older files see :func:`sluice.segments.footers.measured`."""
    return file.arrow_bytes or file.size_bytes * PACKED


def cost_of(rows: int, size_bytes: int) -> int:
    """Return the cost of rows, in rows: wide rows count more than once."""
    return max(rows, size_bytes // ROW_BYTES)


def rows_of(files: Iterable[Sized]) -> int:
    """Return the cost of files, in rows."""
    return sum(cost_of(file.rows, bytes_of(file)) for file in files)


def work_bytes(memory: int) -> int:
    """Return how many bytes rows may take in a process that may take ``memory`` bytes."""
    return max(memory - PROCESS_BYTES, 32 * 2**20)


def most_bytes(memory: int) -> int:
    """Return how many bytes of rows one unit can take if it is alone."""
    return work_bytes(memory) // EXPANSION


def unit_size(total: int, units: int, memory: int | None = None) -> int:
    """Return the rows per unit with which ``total`` rows become about ``units`` units, none too small or too large.

    ``memory``: of the process, for units that have all of their rows in memory at once.
    """
    most = MAX_UNIT_ROWS if memory is None else min(MAX_UNIT_ROWS, most_bytes(memory) // AT_ONCE // ROW_BYTES)
    return min(max(UNIT_ROWS, total // units + 1), most)


def memory_of(size_bytes: int, *, keyless: bool = False) -> int:
    """Return the memory of a unit for rows of this size, both in bytes.

    ``keyless``: equal rows are searched for, so that every value is compared.
    """
    return size_bytes * (KEYLESS_EXPANSION if keyless else EXPANSION)


def pack(items: Sequence[tuple[_Part, int]], size: int) -> list[list[_Part]]:
    """Divide items into groups of about ``size`` (cost) each: the largest first, each into the smallest group."""
    count = max(1, min(len(items), -(-sum(cost for _, cost in items) // size)))
    heap: list[tuple[int, int, list[_Part]]] = [(0, number, []) for number in range(count)]
    for item, cost in sorted(items, key=lambda entry: -entry[1]):
        load, number, group = heapq.heappop(heap)
        group.append(item)
        heapq.heappush(heap, (load + cost, number, group))
    return [group for _, _, group in sorted(heap, key=lambda entry: entry[1]) if group]
