"""Borders between ranges of a key that hold about equally many rows, by where the row groups of files start.

Files that the same hash made have their row groups start at nearly the same keys, so that the starts themselves are a
few clusters: ranges cut at them differ by a factor of a hundred. So the keys of a group are taken as evenly spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

PER_GROUP = 16
"""Samples of a row group."""

Samples = np.ndarray[Any, np.dtype[np.int64]]


def samples(starts: Iterable[Sequence[int]], low: int | None = None, high: int | None = None) -> Samples:
    """Return :data:`PER_GROUP` ascending keys for each row group, as far as ``low < key < high`` (None: no bound).

    ``starts``: for each file, the key at the start of each row group, and of its last row.
    """
    groups = [np.asarray(some, np.int64) for some in starts if len(some) > 1]
    if not groups:
        return np.zeros(0, np.int64)
    lefts = np.concatenate([some[:-1] for some in groups]).view(np.uint64)
    rights = np.concatenate([some[1:] for some in groups]).view(np.uint64)
    if low is not None or high is not None:
        keep = np.ones(len(lefts), bool)
        keep &= True if low is None else rights.view(np.int64) > low
        keep &= True if high is None else lefts.view(np.int64) < high
        lefts, rights = lefts[keep], rights[keep]
    step = (rights - lefts) // np.uint64(PER_GROUP)  # a difference may need the 64th bit
    keys = (lefts[:, None] + step[:, None] * np.arange(PER_GROUP, dtype=np.uint64)).ravel().view(np.int64)
    if low is not None:
        keys = keys[keys > low]
    if high is not None:
        keys = keys[keys < high]
    return np.sort(keys)


def borders(keys: Samples, each: int) -> list[int]:
    """Return ascending keys that cut the rows into ranges of about ``each`` samples; none is the first key."""
    if not keys.size:
        return []
    return [int(key) for key in np.unique(keys[each::each]) if key > keys[0]]
