"""Rows of a table in key order, even if they do not fit into memory.

They arrive in any order. Sorted runs go to temporary files, which are mapped and read window by window.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

_log = structlog.get_logger()

RUN_BYTES = 128 * 2**20
"""Bytes of rows that are sorted in memory; sorting holds them twice."""

_SAMPLE_ROWS = 1_000
"""The distance of the rows that are sampled to find where windows end."""

_FREE = 2
"""The free space that the temporary folder must have, as a multiple of the bytes of the rows."""

Key = tuple[tuple[bool, Any], ...]
"""The key of a row; NULL sorts last."""


@dataclass
class _Run:
    """Rows in key order. ``at``: how many of them were passed on."""

    rows: pa.Table
    key: Sequence[str]
    at: int = 0

    def key_at(self, row: int) -> Key:
        values = [self.rows[name][row].as_py() for name in self.key]
        return tuple((value is None, value) for value in values)

    def until(self, border: Key | None) -> pa.Table:
        """Return the rows before ``border`` that were not passed on yet; None: all the rest."""
        begin, end = self.at, self.rows.num_rows
        self.at = end if border is None else bisect_left(range(end), border, begin, key=self.key_at)
        return self.rows.slice(begin, self.at - begin)


def in_key_order(
    pieces: Iterator[pa.Table], key: Sequence[str], rows: int, *, window_rows: int, window_bytes: int
) -> Iterator[pa.Table]:
    """Yield all rows of ``pieces`` in the order of ``key``, about ``window_rows`` or ``window_bytes`` at a time,
    whichever is less.

    Text is ordered by its bytes, whatever the collation. If the temporary folder has too little room, rows come in
    their own order.

    Args:
        key: names of columns; none: rows come in their own order.
        rows: how many there are; an estimate is enough.
    """
    if not key:
        yield from pieces
        return
    with tempfile.TemporaryDirectory(prefix="sluice-sort-") as folder:
        runs: list[_Run] = []
        for number, piece in enumerate(_of_size(pieces, RUN_BYTES)):
            if number == 0 and not _has_room(folder, piece, rows):
                yield piece
                yield from pieces
                return
            if number == 1:  # a single run stays in memory
                runs[0].rows = _mapped(Path(folder) / "0.arrow", runs[0].rows)
            ordered = _sorted(piece, key)
            runs.append(_Run(ordered if number == 0 else _mapped(Path(folder) / f"{number}.arrow", ordered), key))
        if runs:
            yield from _merged(runs, window_rows, window_bytes)


def _of_size(pieces: Iterator[pa.Table], most: int) -> Iterator[pa.Table]:
    buffer: list[pa.Table] = []
    for piece in pieces:
        buffer.append(piece)
        if sum(table.nbytes for table in buffer) >= most:
            yield pa.concat_tables(buffer)
            buffer = []
    if buffer:
        yield pa.concat_tables(buffer)


def _has_room(folder: str, first: pa.Table, rows: int) -> bool:
    """Return True if the folder has room for all rows, estimated by the size of the first ones."""
    needed_bytes = _FREE * first.nbytes * max(rows, first.num_rows) // max(first.num_rows, 1)
    free = shutil.disk_usage(folder).free
    if first.num_rows >= rows or free >= needed_bytes:
        return True
    _log.warning("rows_left_unsorted", rows=rows, folder=folder, free_bytes=free, wanted_bytes=needed_bytes)
    return False


def _mapped(path: Path, rows: pa.Table) -> pa.Table:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _merged(runs: list[_Run], window_rows: int, window_bytes: int) -> Iterator[pa.Table]:
    rows = sum(run.rows.num_rows for run in runs)
    size = sum(run.rows.nbytes for run in runs)
    window = max(1, min(window_rows, rows * window_bytes // max(size, 1)))
    if len(runs) == 1:
        [run] = runs
        yield from (run.rows.slice(begin, window) for begin in range(0, rows, window))
        return
    step = max(1, min(_SAMPLE_ROWS, window // len(runs)))
    sampled = sorted(run.key_at(row) for run in runs for row in range(step, run.rows.num_rows, step))
    every = max(1, window // step)
    for border in [*sampled[every::every], None]:
        parts = [part for part in (run.until(border) for run in runs) if part.num_rows]
        if parts:
            yield _sorted(pa.concat_tables(parts), runs[0].key)


def _sorted(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in key])
