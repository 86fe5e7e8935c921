"""Partitions as Kafka's Java client chooses them: murmur2 of the key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sluice.kernels import kernel


@kernel
def _murmur2(data: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
    """Compute ``org.apache.kafka.common.utils.Utils.murmur2`` of each value, without its sign bit."""
    m = np.uint32(0x5BD1E995)
    for number in range(out.size):
        at, end = offsets[number], offsets[number + 1]
        length = end - at
        h = np.uint32(0x9747B28C) ^ np.uint32(length)
        while end - at >= 4:
            k = (
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            )
            k = np.uint32(k * m)
            k ^= k >> np.uint32(24)
            k = np.uint32(k * m)
            h = np.uint32(h * m) ^ k
            at += 4
        rest = end - at
        if rest >= 3:
            h ^= np.uint32(data[at + 2]) << np.uint32(16)
        if rest >= 2:
            h ^= np.uint32(data[at + 1]) << np.uint32(8)
        if rest >= 1:
            h ^= np.uint32(data[at])
            h = np.uint32(h * m)
        h ^= h >> np.uint32(13)
        h = np.uint32(h * m)
        h ^= h >> np.uint32(15)
        out[number] = h & np.uint32(0x7FFFFFFF)


def partitions(keys: pa.Array, count: int) -> np.ndarray[Any, Any]:
    """Return the partition of each key (binary, none of them null) among ``count``."""
    keys = keys.cast(pa.large_binary())
    _, offsets, data = keys.buffers()
    places = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    out = np.zeros(len(keys), np.uint32)
    _murmur2(content, places, out)
    return (out % np.uint32(count)).astype(np.int64)


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of one key."""
    return int(partitions(pa.array([key], pa.binary()), count)[0])
