"""Sessions of a process that only looks: one for each ZooKeeper, whose answers are kept until ZooKeeper says that they
changed.

The operator's page asks for the status of every pipeline again and again. A session for each look costs a login, three
threads and some twenty requests. Here a pipeline that did not change since the last look costs none.

What is kept may be out of date by the time that an event takes. So nothing that is written may rest on it, and what
looks like a fault has to be asked for again by :attr:`WatchedSession.znodes`.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack

import structlog

from sluice.config.connections import Endpoint
from sluice.coordination.connecting import connect
from sluice.coordination.port import Znodes
from sluice.coordination.read_cache import ReadCache
from sluice.coordination.zookeeper import ZookeeperZnodes
from sluice.errors import SluiceError

_log = structlog.get_logger()

IDLE_S = 60.0
"""Seconds after its last use after which a session is closed. No look takes that long."""

AGE_S = 600.0
"""Seconds after which a session is replaced, so that what it keeps of old batches does not grow."""

_Key = tuple[str, str, int | None, str, str, float]


class WatchedSession:
    """A session that keeps its answers. Any thread may use it.

    Attributes:
        znodes: asks each time. kept: answers from memory what did not change.
    """

    def __init__(self, znodes: Znodes, opened: ExitStack, idle_s: float) -> None:
        self.znodes = znodes
        self.kept = ReadCache(znodes)
        self.began = self.used = time.monotonic()
        self._opened = opened
        self._idle_s = idle_s
        self._over = threading.Event()
        threading.Thread(target=self._close_when_idle, name="sluice-looks", daemon=True).start()

    @property
    def usable(self) -> bool:
        """False once the session has expired or was closed, or is to be replaced."""
        return self.znodes.alive and not self._over.is_set() and time.monotonic() - self.began < AGE_S

    def close(self) -> None:
        """End the session now."""
        self._over.set()

    def _close_when_idle(self) -> None:
        while (left_s := self.used + self._idle_s - time.monotonic()) > 0 and not self._over.wait(left_s):
            pass
        self._over.set()
        self._opened.close()


class _Place:
    """The session of one ZooKeeper, and the last attempt to open one that failed.

    Attributes:
        waiting: callers that want the session now. failed_at, error: of that attempt (monotonic).
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: WatchedSession | None = None
        self.waiting = 0
        self.failed_at = -1.0
        self.error: SluiceError | None = None


class WatchedReads:
    """The sessions of a process that only looks, one an ensemble, login and session timeout."""

    def __init__(self, *, answer_s: float, idle_s: float = IDLE_S) -> None:
        """Open nothing yet. ``answer_s``: how long ZooKeeper has for a session, and for each answer."""
        self._answer_s = answer_s
        self._idle_s = idle_s
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def get(self, endpoint: Endpoint, session_timeout_s: float) -> WatchedSession:
        """Return the session, opened now if there is none that lives. Raises CoordinationUnavailable, ConfigError.

        Another ZooKeeper that does not answer is not waited for, and one that does not answer is waited for once.
        """
        key = (endpoint.kind, endpoint.host, endpoint.port, endpoint.user, endpoint.password, session_timeout_s)
        with self._lock:
            place = self._places.setdefault(key, _Place())
            place.waiting += 1
            called_at = time.monotonic()
        try:
            return self._session(place, endpoint, session_timeout_s, called_at)
        finally:
            with self._lock:
                place.waiting -= 1

    def _session(self, place: _Place, endpoint: Endpoint, session_timeout_s: float, called_at: float) -> WatchedSession:
        with place.lock:
            if place.session is None or not place.session.usable:
                if place.error is not None and place.failed_at >= called_at:  # it failed while this caller waited
                    raise place.error
                place.session = None  # an old one closes by itself, after those who use it
                try:
                    place.session = self._open(endpoint, session_timeout_s)
                except SluiceError as error:
                    place.failed_at, place.error = time.monotonic(), error
                    raise
            place.session.used = time.monotonic()
            return place.session

    def drop(self, session: WatchedSession) -> None:
        """Close a session that did not answer; the next look opens another."""
        session.close()

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            places = list(self._places.values())
        for place in places:
            if place.session is not None:
                place.session.close()

    def _open(self, endpoint: Endpoint, session_timeout_s: float) -> WatchedSession:
        opened = ExitStack()
        znodes = opened.enter_context(
            connect(endpoint, session_timeout_s=session_timeout_s, connect_timeout_s=self._answer_s)
        )
        if isinstance(znodes, ZookeeperZnodes):
            znodes.answer_s = self._answer_s
        _log.info("zookeeper_session_opened", zookeeper=endpoint.address)
        return WatchedSession(znodes, opened, self._idle_s)

    def _forget(self) -> None:
        """Start anew, also in a forked child, which has none of the sessions' threads."""
        self._lock = threading.Lock()
        self._places: dict[_Key, _Place] = {}
