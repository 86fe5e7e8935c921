"""The bytes that rows take in memory, row by row: they limit a row group, a slice, a work unit."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.tables import plain_numbers

Sizes = np.ndarray[Any, np.dtype[np.int64]]


def in_units(size_bytes: float) -> str:
    """Return a number of bytes for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def row_bytes(rows: pa.Table) -> Sizes:
    """Return the bytes of each row in Arrow's layout, without the bits that say what is NULL."""
    sizes = np.full(rows.num_rows, sum(_width(field.type) for field in rows.schema), np.int64)
    for column in rows.columns:
        if not _varies(column.type):
            continue
        at = 0
        for chunk in column.chunks:
            _add_lengths(sizes[at : at + len(chunk)], chunk)
            at += len(chunk)
    return sizes


def _width(kind: pa.DataType) -> int:
    """Return the bytes that every value of a type takes; for a text, those of its offset."""
    if pa.types.is_struct(kind):
        return sum(_width(child.type) for child in kind)
    if pa.types.is_dictionary(kind):
        return 4
    if _is_text(kind):
        return 8 if _is_large(kind) else 4
    return 0 if pa.types.is_null(kind) else max(kind.bit_width // 8, 1)


def _varies(kind: pa.DataType) -> bool:
    """Return True if the lengths of a type's values differ."""
    return any(_varies(child.type) for child in kind) if pa.types.is_struct(kind) else _is_text(kind)


def _add_lengths(sizes: Sizes, values: pa.Array) -> None:
    kind = values.type
    if pa.types.is_struct(kind):
        for child in range(kind.num_fields):
            _add_lengths(sizes, values.field(child))
    elif _is_text(kind) and values.null_count < len(values):
        lengths = pc.binary_length(values)
        sizes += plain_numbers(pc.fill_null(lengths, _zero(lengths.type)) if values.null_count else lengths)


@cache
def _zero(kind: pa.DataType) -> pa.Scalar:
    """Return 0 as a scalar, which ``pa.scalar`` makes only after it has loaded pandas."""
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(8))])[0]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind)) or _is_large(kind)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def cuts(sizes: Sizes, max_bytes: int, max_rows: int) -> list[tuple[int, int]]:
    """Return (start, stop) of runs of rows: at most ``max_bytes`` and ``max_rows``, but at least one row."""
    ends = np.cumsum(sizes)
    runs, start = [], 0
    while start < len(ends):
        base = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, base + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows)
        runs.append((start, stop))
        start = stop
    return runs
