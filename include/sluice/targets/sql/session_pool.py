"""Sessions that wait for the next operation of this process: a login takes eight round trips, most of a small batch
over a distance.

A session is kept only after an operation that succeeded, so it is in no transaction and holds no lock. One that the
server has closed meanwhile is not used again. A forked process starts with none.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from sluice.config.connections import Endpoint

KEPT_S = 15.0
"""Seconds that a session is kept; much less than the time after which the server ends a silent session."""

MOST = 8
"""Sessions of one server that are kept; others are closed at once."""


class Session(Protocol):
    """A session that is kept."""

    def fileno(self) -> int:
        """Return the socket's file descriptor; -1 if it is closed."""
        ...

    def close(self) -> None:
        """Close the session in an orderly way."""
        ...


_S = TypeVar("_S", bound=Session)


class SessionPool(Generic[_S]):
    """Idle sessions by endpoint; for all threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[float, _S]]] = {}
        os.register_at_fork(after_in_child=self._forget)

    def take(self, endpoint: Endpoint) -> _S | None:
        """Return the most recently used session, if it is still good."""
        with self._lock:
            idle = self._idle.get(_key(endpoint), [])
            expired = [idle_session for at, idle_session in idle if not self._is_good(at, idle_session)]
            idle[:] = [(at, idle_session) for at, idle_session in idle if idle_session not in expired]
            session = idle.pop()[1] if idle else None
        _close(expired)
        return session

    def give(self, endpoint: Endpoint, session: _S) -> None:
        """Keep a session for a while."""
        with self._lock:
            idle = self._idle.setdefault(_key(endpoint), [])
            idle.append((time.monotonic(), session))
            surplus = [idle_session for _, idle_session in idle[:-MOST]]
            del idle[:-MOST]
        _close(surplus)

    def end(self) -> None:
        """Close them all."""
        with self._lock:
            sessions = [session for idle in self._idle.values() for _, session in idle]
            self._idle.clear()
        _close(sessions)

    def _is_good(self, since: float, session: _S) -> bool:
        """Return True if the session is young and silent: a server that ends a session says so, or hangs up."""
        if time.monotonic() - since > KEPT_S or session.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(session.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return not poll.poll(0)

    def _forget(self) -> None:
        """Forget the sessions in a forked child: they are the parent's. Nothing is sent on them."""
        self._lock = threading.Lock()
        self._idle = {}


def _key(endpoint: Endpoint) -> str:
    parts = (endpoint.host, endpoint.port, endpoint.user, endpoint.password, endpoint.schema, dict(endpoint.extra))
    return json.dumps(parts, sort_keys=True, default=str)


def _close(sessions: list[_S]) -> None:
    for session in sessions:
        with suppress(Exception):  # it may be closed already, and is no longer needed
            session.close()
