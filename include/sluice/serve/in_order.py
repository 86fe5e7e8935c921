"""Rows of one table from several files of a batch, each in the order of the log, as one stream in that order.

Files of a table overlap: rows of small transactions wait while larger ones are written. A large transaction makes a batch larger than memory; so
rows beyond :data:`HELD_BYTES` go through temporary files, which are mapped and read window by window.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.batches import Op

HELD_BYTES = 128 * 2**20
"""Of rows in memory, before they go through files."""

WINDOW_BYTES = 8 * 2**20
WINDOW_ROWS = 65_536
"""Of rows that are put in order at a time."""


class Runs:
    """Rows of one schema; close it when they are read."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._held = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, rows: pa.Table) -> None:
        """Rows in the order of ``_seq``."""
        if not rows.num_rows:
            return
        self._tables.append(rows)
        self._bytes += rows.nbytes
        self._held += rows.nbytes
        if self._held > HELD_BYTES and len(self._tables) > 1:
            self._tables = [self._mapped(number, table) for number, table in enumerate(self._tables)]
            self._held = 0

    def _mapped(self, number: int, rows: pa.Table) -> pa.Table:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="sluice-read-")
        path = Path(self._folder.name) / f"{number}.arrow"
        if not path.exists():
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows, max_chunksize=WINDOW_ROWS)
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()

    def in_order(self) -> Iterator[pa.Table]:
        """All rows, window by window."""
        total = sum(table.num_rows for table in self._tables)
        if not total:
            return
        size = max(1, min(WINDOW_ROWS, total * WINDOW_BYTES // max(self._bytes, 1)))
        if len(self._tables) == 1:
            for start in range(0, total, size):
                yield self._tables[0].slice(start, size)
            return
        numbers = [table["_seq"].to_numpy() for table in self._tables]
        step = max(1, size // len(numbers))
        borders = np.unique(np.concatenate([seq[::step] for seq in numbers]))
        at = [0] * len(numbers)
        for border in [*borders[1:], None]:
            parts = []
            for run, (table, seq) in enumerate(zip(self._tables, numbers, strict=True)):
                stop = len(seq) if border is None else int(np.searchsorted(seq, border))
                if stop > at[run]:
                    parts.append(table.slice(at[run], stop - at[run]))
                    at[run] = stop
            if parts:
                yield _sorted(parts)

    def close(self) -> None:
        """Let the rows go, and their files."""
        self._tables = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _sorted(parts: list[pa.Table]) -> pa.Table:
    """A row that a dump read comes before the change whose number it has."""
    rows = pa.concat_tables(parts)
    if len(parts) == 1:
        return rows
    was_read: Any = pc.equal(rows["_op"], Op.READ.value).to_numpy()
    moment = rows["_seq"].to_numpy().astype(np.int64) * 2 + ~was_read
    return rows.take(pa.array(np.argsort(moment, kind="stable")))
