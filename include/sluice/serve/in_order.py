"""Rows of one table from several files of a batch, as one stream in the order of the log.

A file has its rows by key bucket. Files of a table may overlap: rows of small transactions wait while larger ones are
written. So rows stay where they are until no later file has any before them; each is then moved once, with the others
of a window. A large transaction makes a batch larger than memory: rows beyond :data:`HELD_BYTES` that have to wait go
through temporary files, which are mapped and read window by window.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.batches import Op

HELD_BYTES = 128 * 2**20
"""Bytes of rows that are held in memory before they go through files."""

WINDOW_BYTES = 4 * 2**20
WINDOW_ROWS = 65_536
"""The size of what is put in order at a time."""

_SPARSE = 4
"""Places for each row up to which rows are put in order without a sort: two of them are for one ``_seq``."""

_Places = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass
class _Run:
    """Rows of one file.

    ``order``: their numbers in order, None if that is how they are; ``places``: of :func:`_places`, ordered; ``at``:
    rows that were given.
    """

    rows: pa.Table
    order: np.ndarray[Any, Any] | None
    places: _Places
    at: int = 0
    mapped: bool = False

    @classmethod
    def of(cls, rows: pa.Table) -> _Run:
        places = _places(rows)
        if bool((places[1:] >= places[:-1]).all()):
            return cls(rows, None, places)
        order = _order(places)
        return cls(rows, order, places[order])

    @property
    def left(self) -> int:
        return len(self.places) - self.at

    def until(self, place: int | None) -> int:
        """Return how many rows are before a place."""
        return len(self.places) if place is None else int(np.searchsorted(self.places, place))

    def taken(self, stop: int) -> pa.Table:
        """Return the rows up to number ``stop`` that were not returned before."""
        begin, self.at = self.at, stop
        if self.order is None:
            return self.rows.slice(begin, stop - begin)
        return _taken(self.rows, self.order[begin:stop])


class Runs:
    """Rows of one schema; close it when they are read."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._files = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows in any order. Rows of equal ``_seq`` keep theirs."""
        if not rows.num_rows:
            return
        self._runs.append(_Run.of(rows.combine_chunks()))
        held_runs = [run for run in self._runs if not run.mapped]
        if len(self._runs) > 1 and sum(run.rows.nbytes for run in held_runs) > HELD_BYTES:
            self._runs = [run if run.mapped else self._mapped(run) for run in self._runs]

    def _mapped(self, run: _Run) -> _Run:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="sluice-read-")
        self._files += 1
        path = Path(self._folder.name) / f"{self._files}.arrow"
        places = run.places[run.at :]
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, run.rows.schema) as writer:
            for stop in range(run.at + WINDOW_ROWS, len(run.places) + WINDOW_ROWS, WINDOW_ROWS):
                writer.write_table(run.taken(min(stop, len(run.places))))
        with pa.memory_map(str(path)) as source:
            return _Run(pa.ipc.open_file(source).read_all(), None, places, mapped=True)

    def before(self, seq: int | None) -> Iterator[pa.Table]:
        """Yield the rows whose ``_seq`` is smaller and that were not yielded yet, window by window; None: all of
        them.
        """
        limit = None if seq is None else 2 * seq
        here = [run for run in self._runs if run.until(limit) > run.at]
        size = _window(here)
        for border in [*_borders(here, limit, size), limit]:
            stops = [(run, run.until(border)) for run in here]
            parts = [run.taken(stop) for run, stop in stops if stop > run.at]
            if parts:
                yield _sorted(parts)
        self._runs = [run for run in self._runs if run.left]

    def close(self) -> None:
        """Let the rows go, and their files."""
        self._runs = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _window(runs: list[_Run]) -> int:
    """Return the number of rows of one window."""
    rows = sum(len(run.places) for run in runs)
    size: int = sum(run.rows.nbytes for run in runs)
    return max(1, min(WINDOW_ROWS, rows * WINDOW_BYTES // max(size, 1)))


def _borders(runs: list[_Run], limit: int | None, size: int) -> _Places:
    """Return the places at which windows end, except the last. Rows of one place are in one window."""
    step = max(1, size // max(len(runs), 1))
    ends = [run.places[run.at + step : run.until(limit) : step] for run in runs]
    return np.unique(np.concatenate(ends)) if ends else np.zeros(0, np.int64)


def _places(rows: pa.Table) -> _Places:
    """Return the sort key of rows: a row that a dump read comes before the change whose number it has."""
    was_read: Any = pc.equal(rows["_op"], Op.READ.value).to_numpy()
    places: _Places = rows["_seq"].to_numpy().astype(np.int64) * 2 + ~was_read
    return places


def _order(places: _Places) -> np.ndarray[Any, Any]:
    """Return the numbers of rows in the order of their places; rows of one place keep theirs.

    A file of a table alone has nearly every place between its first and its last, and each once: then each row is put
    where its place is, which takes less than half of a sort.
    """
    first, last = int(places.min()), int(places.max())
    if last - first <= _SPARSE * len(places):
        at = np.full(last - first + 1, -1, np.int64)
        at[places - first] = np.arange(len(places))
        order = at[at >= 0]
        if len(order) == len(places):
            return order
    return np.argsort(places, kind="stable")


def _sorted(parts: list[pa.Table]) -> pa.Table:
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_tables(parts)
    return _taken(rows, _order(_places(rows)))


def _taken(rows: pa.Table, numbers: np.ndarray[Any, Any]) -> pa.Table:
    """Return those rows.

    A column without values need not be moved: ``_before`` of inserts, ``_present`` of whole rows.
    """
    chosen = pa.array(numbers)
    columns = [
        pa.nulls(len(chosen), column.type) if column.null_count == len(column) else column.take(chosen)
        for column in rows.columns
    ]
    return pa.table(columns, schema=rows.schema)
