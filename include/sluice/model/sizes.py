"""How many bytes rows take in memory, row by row: what bounds a row group, a slice, a work unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Sizes = np.ndarray[Any, np.dtype[np.int64]]


def row_bytes(rows: pa.Table) -> Sizes:
    """Bytes of each row in Arrow's layout, without the bits that say what is NULL."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        at = 0
        for chunk in column.chunks:
            _add(sizes[at : at + len(chunk)], chunk)
            at += len(chunk)
    return sizes


def _add(sizes: Sizes, values: pa.Array) -> None:
    kind = values.type
    if pa.types.is_struct(kind):
        for child in range(kind.num_fields):
            _add(sizes, values.field(child))
    elif pa.types.is_dictionary(kind):
        sizes += 4
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind):
        sizes += 8 if _is_large(kind) else 4
        if values.null_count < len(values):
            lengths = pc.binary_length(values)
            sizes += np.asarray(pc.fill_null(lengths, 0) if values.null_count else lengths)
    elif not pa.types.is_null(kind):
        sizes += max(kind.bit_width // 8, 1)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def cuts(sizes: Sizes, max_bytes: int, max_rows: int) -> list[tuple[int, int]]:
    """(start, stop) of runs of rows: at most ``max_bytes`` and ``max_rows``, but at least one row."""
    ends = np.cumsum(sizes)
    found, start = [], 0
    while start < len(ends):
        base = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, base + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows)
        found.append((start, stop))
        start = stop
    return found
