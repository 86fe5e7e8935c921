"""How much a work unit is given, and how parts of tables are packed into units.

A unit holds paths, bucket ranges, rule contents and routes, never rows. The number of units follows the rows, not the tables: small tables
share a unit, large ones are cut by key bucket, so a batch of 1,000 tables is as many Spark tasks as one of five.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

UNIT_ROWS = 25_000
"""Rows below which cutting a table costs more than it gains."""

MAX_UNIT_ROWS = 250_000
"""Bounds the memory of a unit."""

TABLE_COST = 300
"""What one more table costs a unit, in rows."""

ROW_BYTES = 200
"""Parquet bytes that count as one row."""

_Part = TypeVar("_Part")


class Sized(Protocol):
    """A stored file, as far as its cost goes."""

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


def rows_of(files: Iterable[Sized]) -> int:
    """What files cost, in rows: wide rows count more than once."""
    return sum(max(file.rows, file.size_bytes // ROW_BYTES) for file in files)


def unit_size(total: int, units: int) -> int:
    """Rows a unit, so that ``total`` rows become about ``units`` units, none of them too small or too large."""
    return min(max(UNIT_ROWS, total // units + 1), MAX_UNIT_ROWS)


def pack(items: Sequence[tuple[_Part, int]], size: int) -> list[list[_Part]]:
    """Groups of about ``size`` (cost) each: the dearest first, each to the group that has least."""
    count = max(1, min(len(items), -(-sum(cost for _, cost in items) // size)))
    heap: list[tuple[int, int, list[_Part]]] = [(0, number, []) for number in range(count)]
    for item, cost in sorted(items, key=lambda entry: -entry[1]):
        load, number, group = heapq.heappop(heap)
        group.append(item)
        heapq.heappush(heap, (load + cost, number, group))
    return [group for _, _, group in sorted(heap, key=lambda entry: entry[1]) if group]
