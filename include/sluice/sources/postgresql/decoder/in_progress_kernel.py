"""The kernels that take blocks of transactions in progress apart: where they stand, and their messages as a whole
transaction has them.

Their messages stand in an arena as the connection received them, see
:mod:`sluice.sources.postgresql.decoder.scan_kernel`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.kernels import kernel
from sluice.sources.machine import copy_bytes, load_u32
from sluice.sources.postgresql.decoder.scan_kernel import be32

HEADER = 4 + 25
"""A message's length, and what stands between it and the first byte of pgoutput."""
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = 83, 69, 99, 65
"""S, E, c, A."""
_ORIGIN = 79
_XID = 4

N_WRITTEN, N_KEPT, N_MARKS, N_LAST, N_TOP = range(5)
"""Bytes written to ``out``; where the next kept message goes; marks made; transactions: the last message's, the top."""


@kernel
def _size_at(arena: Any, at: Any, used: Any) -> Any:
    """Return the size of the message at ``at``; -1 if it does not end at ``used`` or before."""
    size = np.int64(load_u32(arena, at))
    return size if size >= 1 and at + 4 + size <= used else np.int64(-1)


@kernel
def _is_border(arena: Any, at: Any, size: Any) -> Any:
    if arena[at + 4] != 119 or size <= 25:  # w: data
        return False
    what = arena[at + HEADER]
    return what in (STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT)


@kernel
def next_border(arena: Any, at: Any, used: Any) -> Any:
    """Return where the next message stands that begins, ends, commits or aborts; ``used`` if there is none.

    -1: the messages do not have their format.
    """
    while at < used:
        size = _size_at(arena, at, used)
        if size < 0:
            return size
        if _is_border(arena, at, size):
            return at
        at += 4 + size
    return at


@kernel
def whole_until(arena: Any, at: Any, used: Any) -> Any:
    """Return the end of the last whole message between ``at`` and ``used``."""
    while at + 4 <= used:
        end = at + 4 + np.int64(load_u32(arena, at))
        if end > used:
            break
        at = end
    return at


@kernel
def take_block(arena: Any, at: Any, used: Any, out: Any, marks: Any, n: Any) -> Any:
    """Copy the messages of a block to ``out`` without ids of transactions, up to its end.

    What is not of the transaction stays in the arena, from ``n[N_KEPT]`` on. ``marks`` gets (id, bytes written before
    it) where messages of a sub-transaction begin. Returns where it stopped: in front of a border, at ``used``, or in
    front of a message for which ``marks`` has no room; -1: the messages do not have their format.
    """
    while at < used:
        size = _size_at(arena, at, used)
        if size < 0:
            return size
        if _is_border(arena, at, size):
            return at
        if arena[at + 4] != 119:
            for byte in range(4 + size):
                arena[n[N_KEPT] + byte] = arena[at + byte]
            n[N_KEPT] += 4 + size
        elif size <= 25:
            return np.int64(-1)
        elif arena[at + HEADER] != _ORIGIN:
            if size < 26 + _XID:
                return np.int64(-1)
            xid = be32(arena, at + HEADER + 1)
            if xid != n[N_LAST]:
                if xid != n[N_TOP]:
                    if n[N_MARKS] >= marks.shape[1]:
                        return at
                    marks[0, n[N_MARKS]] = xid
                    marks[1, n[N_MARKS]] = n[N_WRITTEN]
                    n[N_MARKS] += 1
                n[N_LAST] = xid
            to = n[N_WRITTEN]
            new_size = size - _XID
            for byte in range(4):
                out[to + byte] = (new_size >> (8 * byte)) & 255
            copy_bytes(out, to + 4, arena, at + 4, 26)
            copy_bytes(out, to + 30, arena, at + HEADER + 1 + _XID, new_size - 26)
            n[N_WRITTEN] = to + 4 + new_size
        at += 4 + size
    return at


__all__ = [
    "HEADER", "N_KEPT", "N_LAST", "N_MARKS", "N_TOP", "N_WRITTEN", "STREAM_ABORT", "STREAM_COMMIT",
    "STREAM_START", "STREAM_STOP", "next_border", "take_block", "whole_until",
]  # fmt: skip
