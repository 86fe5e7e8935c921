"""The key bucket of a row: which of 64 slices of a table its key falls into. It never changes: stored in every segment.

FNV-1a (64 bits) over the names, then a mix of each key column's stored value: numbers by their little-endian bytes, text and binary by
their bytes, null by one marker. Equal keys give equal buckets whatever reader wrote the row; a table without a primary key is one bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.kernels import kernel
from sluice.model.tables import KEY_BUCKETS

_PRIME = 0x100000001B3
_SEED = 0xCBF29CE484222325
_NULL = 0x9E3779B97F4A7C15


def seed_of(schema: str, table: str) -> int:
    """Hash of the names, the start value for a table's keys."""
    value = _SEED
    for byte in f"{schema}\x00{table}".encode():
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFFFFFFFFFF
    return value


def key_bucket(schema: str, table: str, keys: Sequence[pa.Array], rows: int | None = None) -> np.ndarray[Any, Any]:
    """Bucket (uint8, 0..63) of each row.

    Args:
        keys: the primary key's columns in key order, equal lengths; empty for a table without a primary key.
        rows: number of rows where ``keys`` is empty.
    """
    if not keys:
        return np.zeros(rows or 0, np.uint8)
    state = np.full(len(keys[0]), seed_of(schema, table), np.uint64)
    for key in keys:
        _mix(state, key.combine_chunks() if isinstance(key, pa.ChunkedArray) else key)
    out = np.empty(len(state), np.uint8)
    _finish(state, out)
    return out


def _mix(state: np.ndarray[Any, Any], key: pa.Array) -> None:
    valid = np.ones(len(key), np.bool_)
    if key.null_count:
        valid = np.asarray(pc.is_valid(key).to_numpy(zero_copy_only=False))
    kind = key.type
    if pa.types.is_dictionary(kind):
        key = key.dictionary_decode()
        kind = key.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        key = key.cast(pa.binary())
        kind = key.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = key.buffers()
        ends = np.frombuffer(offsets, np.int32, len(key) + 1, key.offset * 4)
        chars = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
        _mix_bytes(state, _fixed(chars), _fixed(ends), _fixed(valid))
        return
    if pa.types.is_null(kind):
        _mix_words(state, _fixed(np.zeros((len(key), 1), np.uint64)), _fixed(np.zeros(len(key), np.bool_)))
        return
    width = kind.byte_width if pa.types.is_decimal(kind) else kind.bit_width // 8
    buffer = key.buffers()[1]
    if width >= 8:
        words = np.frombuffer(buffer, np.uint64, len(key) * width // 8, key.offset * width).reshape(
            len(key), width // 8
        )
    else:  # sign-extended, so that int32 and int64 keys of the same value agree
        signed = not pa.types.is_unsigned_integer(kind) and not pa.types.is_floating(kind)
        plain = np.frombuffer(buffer, np.dtype(f"{'i' if signed else 'u'}{width}"), len(key), key.offset * width)
        words = plain.astype(np.int64).view(np.uint64).reshape(len(key), 1)
    _mix_words(state, _fixed(words), _fixed(valid))


def _fixed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Read-only, as Arrow's buffers mostly are: one kind of array, so one compilation."""
    array = array.view()
    array.flags.writeable = False
    return array


@kernel
def _mix_words(state: Any, words: Any, valid: Any) -> None:
    for i in range(len(state)):
        h = state[i]
        if valid[i]:
            for j in range(words.shape[1]):
                h = (h ^ words[i, j]) * np.uint64(0xFF51AFD7ED558CCD)
                h ^= h >> np.uint64(32)
        else:
            h = (h ^ np.uint64(_NULL)) * np.uint64(_PRIME)
        state[i] = h


@kernel
def _mix_bytes(state: Any, chars: Any, ends: Any, valid: Any) -> None:
    for i in range(len(state)):
        h = state[i]
        if valid[i]:
            for j in range(ends[i], ends[i + 1]):
                h = (h ^ np.uint64(chars[j])) * np.uint64(_PRIME)
            h = (h ^ np.uint64(0xFF)) * np.uint64(_PRIME)
        else:
            h = (h ^ np.uint64(_NULL)) * np.uint64(_PRIME)
        state[i] = h


@kernel
def _finish(state: Any, out: Any) -> None:
    for i in range(len(state)):
        h = state[i]
        h ^= h >> np.uint64(33)
        h *= np.uint64(0xC4CEB9FE1A85EC53)
        h ^= h >> np.uint64(33)
        out[i] = h & np.uint64(KEY_BUCKETS - 1)
