"""The key bucket of a row: which of 64 slices of a table its key falls into. It never changes: stored in every segment.

FNV-1a (64 bits) over the names, then a mix of each key column's stored value: numbers by their little-endian bytes,
text and binary by their bytes, null by one marker. Equal keys give equal buckets whatever reader wrote the row; a table
without a primary key is one bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.kernels import kernel
from sluice.model.hashing import PRIME, SEED, mix_values
from sluice.model.tables import KEY_BUCKETS


def seed_of(schema: str, table: str) -> int:
    """Hash of the names, the start value for a table's keys."""
    value = SEED
    for byte in f"{schema}\x00{table}".encode():
        value = ((value ^ byte) * PRIME) & 0xFFFFFFFFFFFFFFFF
    return value


def key_bucket(schema: str, table: str, keys: Sequence[pa.Array], rows: int | None = None) -> np.ndarray[Any, Any]:
    """Return the bucket (uint8, 0..63) of each row.

    Args:
        keys: the primary key's columns in key order, equal lengths; empty for a table without a primary key.
        rows: number of rows where ``keys`` is empty.
    """
    if not keys:
        return np.zeros(rows or 0, np.uint8)
    state = np.full(len(keys[0]), seed_of(schema, table), np.uint64)
    for key in keys:
        mix_values(state, key)
    out = np.empty(len(state), np.uint8)
    _finish(state, out)
    return out


@kernel
def _finish(state: Any, out: Any) -> None:
    for i in range(len(state)):
        h = state[i]
        h ^= h >> np.uint64(33)
        h *= np.uint64(0xC4CEB9FE1A85EC53)
        h ^= h >> np.uint64(33)
        out[i] = h & np.uint64(KEY_BUCKETS - 1)
