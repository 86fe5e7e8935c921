"""Equal numbers for rows with equal keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.hashing import SEED, mix_values

_WIDE_BYTES = 64
"""Mean length of texts of which a dictionary would cost more memory than a number each."""
_MANY_BYTES = 4 * 2**20
_COMPARED_BYTES = 8 * 2**20
"""Bytes of texts that are compared at a time."""

Identity = Callable[[pa.Field, pa.Array], pa.Array]
"""Maps a key column's values to what the server compares (a collation's sort key); the default is the stored value."""


def group_codes(table: pa.Table, columns: Sequence[str], identity: Identity | None = None) -> npt.NDArray[np.int64]:
    """Return one int64 per row: two rows are equal in ``columns`` (null equals null) exactly if their numbers are.

    Not dense.
    """
    codes: npt.NDArray[np.int64] = np.zeros(table.num_rows, np.int64)
    size = 1
    for name in columns:
        values = table[name].chunk(0) if table[name].num_chunks == 1 else table[name].combine_chunks()
        if identity is not None:
            values = identity(table.schema.field(name), values)
        column, count = _encode(values)
        if size > 1 and size * count > 1 << 62:
            codes, size = _encode(pa.array(codes))
        codes = column if size == 1 else codes * count + column
        size *= count
    return codes


def dense(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Renumber a grouping as 0..n-1 in order of first appearance. Return the numbers, and n."""
    return _encode(pa.array(codes))


def _encode(values: pa.Array) -> tuple[npt.NDArray[Any], int]:
    if _is_wide(values):
        hashed = _by_hash(values)
        if hashed is not None:
            return hashed
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(len(encoded.dictionary), 1)


def _is_wide(values: pa.Array) -> bool:
    kind = values.type
    if not any(test(kind) for test in (pa.types.is_string, pa.types.is_binary)):
        return False
    size: int = values.nbytes
    return size > max(_MANY_BYTES, len(values) * _WIDE_BYTES)


def _by_hash(values: pa.Array) -> tuple[npt.NDArray[Any], int] | None:
    """Encode values by their hashes. Return None if two different values have one hash.

    Arrow's dictionary of wide texts takes several times their size for a while; this takes a few bytes a value.
    """
    hashes = np.full(len(values), SEED, np.uint64)
    mix_values(hashes, values)
    codes, count = _encode(pa.array(hashes, mask=pc.is_null(values).to_numpy(zero_copy_only=False)))
    rows = np.arange(len(codes))
    first = np.empty(count, np.int64)
    first[codes[::-1]] = rows[::-1]
    again = rows[first[codes] != rows]
    step = max(int(_COMPARED_BYTES * len(values) / values.nbytes), 1)
    for start in range(0, len(again), step):
        some = again[start : start + step]
        same = pc.equal(values.take(pa.array(some)), values.take(pa.array(first[codes[some]])))
        if not pc.all(same, min_count=0).as_py():  # nulls, which have a number of their own, count as true
            return None
    return codes, count
