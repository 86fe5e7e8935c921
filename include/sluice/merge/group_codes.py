"""Rows with equal keys get equal numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Identity = Callable[[pa.Field, pa.Array], pa.Array]
"""Maps a key column's values to what the server compares (a collation's sort key); the default is the stored value."""


def group_codes(table: pa.Table, columns: Sequence[str], identity: Identity | None = None) -> npt.NDArray[np.int64]:
    """One int64 a row: rows are equal in ``columns`` (null equals null) exactly if their numbers are. Not dense."""
    codes: npt.NDArray[np.int64] = np.zeros(table.num_rows, np.int64)
    size = 1
    for name in columns:
        values = table[name].combine_chunks()
        if identity is not None:
            values = identity(table.schema.field(name), values)
        column, count = _encode(values)
        if size > 1 and size * count > 1 << 62:
            codes, size = _encode(pa.array(codes))
        codes = column if size == 1 else codes * count + column
        size *= count
    return codes


def dense(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """The same grouping as numbers 0..n-1 in order of first appearance, and n."""
    return _encode(pa.array(codes))


def _encode(values: pa.Array) -> tuple[npt.NDArray[Any], int]:
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(len(encoded.dictionary), 1)
