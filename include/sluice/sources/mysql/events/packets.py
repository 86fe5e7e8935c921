"""Events on the wire: how long the one at hand is, and those of 16 MB and more, which come in several packets."""

from __future__ import annotations

from typing import Any

import numpy as np

_FULL = 0xFFFFFF
_HEAD = 4


def bytes_of_next(buffer: np.ndarray[Any, Any], end: int, at: int) -> int:
    """Return the bytes (from ``at``) that the next event takes with its packet headers, 0 if that is not known yet."""
    if end - at < _HEAD + 1:
        return 0
    size = _size(buffer, at)
    if size != _FULL:
        return size + _HEAD
    if end - at < 24:
        return 0
    payload = int.from_bytes(buffer[at + 14 : at + 18].tobytes(), "little") + 1
    return payload + _HEAD * (payload // _FULL + 1)


def join(buffer: np.ndarray[Any, Any], at: int) -> tuple[np.ndarray[Any, Any], int, int]:
    """Move the pieces of the event at ``at``, which is all there, together where they lie.

    Returns (the event, with sixteen bytes after it; its length; offset after its last packet in ``buffer``).
    """
    begin = into = at + _HEAD
    place, size = at, _FULL
    while size == _FULL:
        size = _size(buffer, place)
        if into != place + _HEAD:
            buffer[into : into + size] = buffer[place + _HEAD : place + _HEAD + size]
        into += size
        place += _HEAD + size
    return buffer[begin + 1 : into + 16], into - begin - 1, place  # after the first packet's status byte


def _size(buffer: np.ndarray[Any, Any], at: int) -> int:
    return int(buffer[at]) | int(buffer[at + 1]) << 8 | int(buffer[at + 2]) << 16
