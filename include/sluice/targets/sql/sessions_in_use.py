"""The sessions in use of this process, by pipeline and target: they can be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol


class Session(Protocol):
    """A session whose driver's connection has ``cancel()``."""

    connection: Any


_lock = threading.Lock()
_used: dict[int, tuple[Session, tuple[str, str]]] = {}


@contextmanager
def in_use(session: Session, owner: tuple[str, str]) -> Iterator[None]:
    """Register ``session`` as used by ``owner`` (pipeline, target) inside the context."""
    with _lock:
        _used[id(session)] = (session, owner)
    try:
        yield
    finally:
        with _lock:
            _used.pop(id(session), None)


def interrupt(owner: tuple[str, str]) -> int:
    """End the current statements of sessions of ``owner``; return how many sessions there are."""
    with _lock:
        sessions = [session for session, whose in _used.values() if whose == owner]
    for session in sessions:
        with suppress(Exception):  # it has ended already
            session.connection.cancel()
    return len(sessions)
