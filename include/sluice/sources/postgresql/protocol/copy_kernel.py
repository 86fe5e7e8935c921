"""Messages of the log, and rows of a copy, from libpq straight into an array, without a Python object a message.

psycopg hands over one message a call. These kernels call the same function of the same library (``PQgetCopyData``) on
the same connection in a loop. Where the library cannot be told for sure, :func:`library_of` finds none, and messages
are taken through psycopg.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from psycopg import pq

from sluice.kernels import Deferred, kernel

NOTHING = 0
ENDED = -1
FAILED = -2
UNREAD = -3
"""The connection failed while bytes were read; ``PQerrorMessage`` has the reason."""
FULL = 1
NEEDS_ROOM = 2
"""The message at hand does not fit: it is at ``pointer[0]``, and has ``pointer[1]`` bytes."""

_FUNCTIONS = ("PQgetCopyData", "PQfreemem", "PQconsumeInput")
_MAPS = Path("/proc/self/maps")
_LIBRARY = re.compile(r"libpq[-.][^/]*so[^/]*$")


_CALLS = "sluice.sources.postgresql.protocol.libpq_calls"
_get: Any = Deferred(_CALLS, "get")
_free: Any = Deferred(_CALLS, "free")
_consume: Any = Deferred(_CALLS, "consume")
_copy: Any = Deferred(_CALLS, "copy")


@kernel
def _put(arena: Any, used: Any, address: Any, size: Any, free: Any) -> Any:
    """Put a message behind its length; return where the next one goes."""
    for byte in range(4):
        arena[used + byte] = (size >> (8 * byte)) & 255
    _copy(arena, used + 4, address, size)
    _free(free, address)
    return used + 4 + size


@kernel
def _take(get: Any, free: Any, connection: Any, arena: Any, bounds: Any, pointer: Any) -> Any:
    """Put messages into the arena; return why it ends.

    ``bounds``: bytes used, bytes from which it is full, its end, messages taken.
    """
    while bounds[0] <= bounds[1]:
        size = _get(get, connection, pointer)
        if size <= 0:
            return size
        if bounds[0] + 4 + size > bounds[2]:
            pointer[1] = size
            return NEEDS_ROOM
        bounds[0] = _put(arena, bounds[0], pointer[0], size, free)
        bounds[3] += 1
    return FULL


@kernel
def _append(arena: Any, used: Any, address: Any, size: Any, free: Any) -> Any:
    """Put the bytes of a message without their length; return where the next ones go."""
    _copy(arena, used, address, size)
    _free(free, address)
    return used + size


@kernel
def _take_bytes(calls: Any, arena: Any, bounds: Any, pointer: Any) -> Any:
    """Put the bytes of messages into the arena, see :func:`_take`, also of those that arrive meanwhile.

    ``calls``: the functions' addresses as :class:`Library` names them, and the connection. ``bounds`` counts no
    messages.
    """
    get, free, consume, connection = calls[0], calls[1], calls[2], calls[3]
    while bounds[0] <= bounds[1]:
        size = _get(get, connection, pointer)
        if size == 0:
            if _consume(consume, connection) == 0:
                return UNREAD
            size = _get(get, connection, pointer)
        if size <= 0:
            return size
        if bounds[0] + size > bounds[2]:
            pointer[1] = size
            return NEEDS_ROOM
        bounds[0] = _append(arena, bounds[0], pointer[0], size, free)
    return FULL


def compile_for_libpq() -> None:
    """Compile what needs a connection to run, for the types that :class:`Library` calls it with."""
    from numba.core import types

    take: Any = _take
    put: Any = _put
    take_bytes: Any = _take_bytes
    append: Any = _append
    take_bytes.compile((types.int64[::1], types.uint8[::1], types.int64[::1], types.int64[::1]))
    append.compile((types.uint8[::1], types.int64, types.int64, types.int64, types.int64))
    take.compile((types.int64, types.int64, types.int64, types.uint8[::1], types.int64[::1], types.int64[::1]))
    put.compile((types.uint8[::1], types.int64, types.int64, types.int64, types.int64))


@dataclass(frozen=True, slots=True)
class Library:
    """Addresses of libpq's functions."""

    get: int
    free: int
    consume: int

    def take(
        self,
        connection: int,
        arena: np.ndarray[Any, Any],
        bounds: np.ndarray[Any, Any],
        pointer: np.ndarray[Any, Any],
    ) -> int:
        """Put messages into the arena, see :func:`_take`."""
        return int(_take(self.get, self.free, connection, arena, bounds, pointer))

    def put(self, arena: np.ndarray[Any, Any], used: int, pointer: np.ndarray[Any, Any]) -> None:
        """Put the message for which there was no room into an arena that has it."""
        _put(arena, used, int(pointer[0]), int(pointer[1]), self.free)

    def take_bytes(
        self,
        connection: int,
        arena: np.ndarray[Any, Any],
        bounds: np.ndarray[Any, Any],
        pointer: np.ndarray[Any, Any],
    ) -> int:
        """Put the bytes of messages into the arena, see :func:`_take_bytes`."""
        calls = np.array([self.get, self.free, self.consume, connection], np.int64)
        return int(_take_bytes(calls, arena, bounds, pointer))

    def append(self, arena: np.ndarray[Any, Any], used: int, pointer: np.ndarray[Any, Any]) -> None:
        """Put the bytes for which there was no room into an arena that has it."""
        _append(arena, used, int(pointer[0]), int(pointer[1]), self.free)


@cache
def _loaded() -> tuple[Library, Any] | None:
    """Return the functions of the one libpq that this process has loaded, and the library; None if that is unclear."""
    try:
        lines = _MAPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1] for line in lines if _LIBRARY.search(line)}
    if len(paths) != 1:
        return None
    try:
        library = ctypes.CDLL(paths.pop())
        if int(library.PQlibVersion()) != pq.version():
            return None
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS]
    except (OSError, AttributeError):
        return None
    return (Library(*addresses), library) if all(addresses) else None


def library_of(connection: pq.abc.PGconn) -> Library | None:
    """Return the library that made a connection; None if it cannot be told."""
    loaded, pointer = _loaded(), getattr(connection, "pgconn_ptr", None)
    if loaded is None or not pointer:
        return None
    library, handle = loaded
    handle.PQsocket.argtypes = [ctypes.c_void_p]
    return library if int(handle.PQsocket(pointer)) == connection.socket else None


__all__ = ["ENDED", "FAILED", "FULL", "NEEDS_ROOM", "NOTHING", "UNREAD", "Library", "compile_for_libpq", "library_of"]
