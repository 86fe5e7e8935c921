"""What a process keeps of the files of tables from one batch to the next: keys of data files, and deleted positions.

A file never changes, so what was read of it once stays true. Decision: no ordinary LRU. Each batch of changes all over
a table asks for all of its files in the same order, so that a table larger than the memory would find nothing in one.
Here a file is kept as long as there is room, and gives its room up when no batch asked for it for a while.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

_MOST_BYTES = 64 * 2**20
_IDLE_S = 600.0


class Kept:
    """Values of a process by their key, each with its size in bytes."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Start with nothing."""
        self._lock = threading.Lock()
        self._there: dict[Hashable, tuple[Any, int, float]] = {}
        self._bytes = 0
        self._oldest = 0.0

    def get(self, key: Hashable) -> Any:
        """Return the value, None if it is not kept."""
        with self._lock:
            if key not in self._there:
                return None
            value, size, _ = self._there[key]
            self._there[key] = value, size, time.monotonic()
            return value

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value if there is room."""
        with self._lock:
            if key in self._there:
                return
            idle = time.monotonic() - _IDLE_S
            if self._bytes + size > self.most_bytes and self._oldest < idle:
                self._give_up(idle)
            if self._bytes + size <= self.most_bytes:
                self._there[key] = value, size, time.monotonic()
                self._bytes += size

    def _give_up(self, before: float) -> None:
        """Drop the idle values, and note since when the others may be idle: no value has to be looked at until then."""
        for key in [key for key, (_, _, used) in self._there.items() if used < before]:
            self._bytes -= self._there.pop(key)[1]
        self._oldest = min((used for _, _, used in self._there.values()), default=before)


KEPT = Kept()

_T = TypeVar("_T")


class MostRecent(Generic[_T]):
    """The most recently used values of a process, up to ``most_bytes``; the newest one stays whatever its size."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Start with nothing."""
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[_T, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable) -> _T | None:
        """Return the value, None if there is none."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def size(self, key: Hashable) -> int:
        """Return the size with which a value was put, 0 if there is none."""
        with self._lock:
            return self._values[key][1] if key in self._values else 0

    def put(self, key: Hashable, value: _T, size: int) -> None:
        """Add a value of ``size`` bytes, unless the key has one."""
        with self._lock:
            if key not in self._values:
                self._values[key] = (value, size)
                self._bytes += size
            while self._bytes > self.most_bytes and len(self._values) > 1:
                self._bytes -= self._values.popitem(last=False)[1][1]


@dataclass(frozen=True)
class FileKeys:
    """The keys of a data file by their positions, if the key is one column of integers.

    Attributes:
        least, most: the least and the greatest key.
        offsets: each key minus ``base``, in the narrowest type.
        in_order: whether each key is greater than the one before it.
    """

    base: int
    least: int
    most: int
    offsets: np.ndarray
    in_order: bool

    @classmethod
    def of(cls, keys: np.ndarray) -> FileKeys:
        """Build it from at least one key."""
        least, most = int(keys.min()), int(keys.max())
        narrow = most - least < 2**32
        offsets = (keys.astype(np.int64) - least).astype(np.uint32) if narrow else keys.astype(np.int64)
        return cls(least if narrow else 0, least, most, offsets, bool((offsets[1:] > offsets[:-1]).all()))

    def offsets_of(self, keys: np.ndarray) -> np.ndarray:
        """Return keys between ``least`` and ``most`` as this file has them."""
        return (keys.astype(np.int64) - self.base).astype(self.offsets.dtype)
