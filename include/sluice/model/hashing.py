"""64-bit hashes of columns, row by row: FNV-1a of text and binary by their bytes, of numbers by their words, null by
one marker.

They never change: the key bucket that is stored in every segment is made of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.kernels import kernel

PRIME = 0x100000001B3
SEED = 0xCBF29CE484222325
_NULL = 0x9E3779B97F4A7C15


def mix_values(state: np.ndarray[Any, Any], key: pa.Array | pa.ChunkedArray) -> None:
    """Mix the values of a column into ``state`` (uint64, one a row), in place. Whole numbers of any width agree."""
    if isinstance(key, pa.ChunkedArray):
        key = key.combine_chunks()
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
    """Return a read-only view, as Arrow's buffers mostly are: one kind of array means one compilation."""
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
            h = (h ^ np.uint64(_NULL)) * np.uint64(PRIME)
        state[i] = h


@kernel
def _mix_bytes(state: Any, chars: Any, ends: Any, valid: Any) -> None:
    for i in range(len(state)):
        h = state[i]
        if valid[i]:
            for j in range(ends[i], ends[i + 1]):
                h = (h ^ np.uint64(chars[j])) * np.uint64(PRIME)
            h = (h ^ np.uint64(0xFF)) * np.uint64(PRIME)
        else:
            h = (h ^ np.uint64(_NULL)) * np.uint64(PRIME)
        state[i] = h
