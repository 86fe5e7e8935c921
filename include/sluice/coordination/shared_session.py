"""One session a ZooKeeper for everything that waits in a process, and one heartbeat for all of it.

A process that waits for hundreds of pipelines would otherwise have a connection and some threads for each, and say for
each of them every second that its installation is there. Here that is one transaction a second.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict

import structlog

from sluice.config.connections import Endpoint
from sluice.coordination.connecting import connect
from sluice.coordination.leader_election import BEAT_S
from sluice.coordination.port import Conflict, Put, Znodes
from sluice.errors import CoordinationUnavailable, SluiceError

_log = structlog.get_logger()

_STEPS = 200
"""Nodes a transaction: some kilobytes."""


class SharedSession:
    """A session and those who are heard of by it. Any thread may use it.

    Attributes:
        znodes: the session's.
    """

    def __init__(self, znodes: Znodes, opened: ExitStack) -> None:
        self.znodes = znodes
        self._opened = opened
        self._lock = threading.Lock()
        self._heard: dict[object, tuple[str, Callable[[], bool]]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="presence", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once the session has expired."""
        return self.znodes.alive and not self._over.is_set()

    def hear(self, who: object, path: str, lives: Callable[[], bool]) -> None:
        """Write the node ``path`` every second while ``lives`` says so, until ``who`` leaves."""
        with self._lock:
            self._heard[who] = (path, lives)

    def leave(self, who: object) -> None:
        """Remove ``who``, which waits no longer."""
        with self._lock:
            self._heard.pop(who, None)

    @property
    def in_use(self) -> bool:
        """Somebody waits."""
        return bool(self._heard)

    def close(self) -> None:
        """End the session."""
        self._over.set()
        self._opened.close()

    def _beat(self) -> None:
        while self.znodes.alive and not self._over.wait(BEAT_S):
            with self._lock:
                heard = list(self._heard.values())
            lives: dict[Callable[[], bool], bool] = {}
            paths = dict.fromkeys(path for path, is_alive in heard if lives.setdefault(is_alive, is_alive()))
            with suppress(SluiceError):  # ZooKeeper is away; who needs it says so
                for at in range(0, len(paths), _STEPS):
                    self._write(list(paths)[at : at + _STEPS])

    def _write(self, paths: list[str]) -> None:
        """Write all in one transaction; a missing node is created, and written with the others a second later."""
        while paths:
            try:
                self.znodes.transact([Put(path, b"", -1) for path in paths])
            except Conflict as conflict:
                self.znodes.ensure(conflict.step.path)
                paths = [path for path in paths if path != conflict.step.path]
            else:
                return


class SharedSessions:
    """The sessions of a process, one a connection (whatever its id) and session timeout."""

    def __init__(self) -> None:
        self._connecting = threading.Lock()
        """Held for as long as ZooKeeper may take to answer: :meth:`close` does not wait for it."""
        self._lock = threading.Lock()
        self._closed = False
        self._open: dict[str, SharedSession] = {}

    def get(self, endpoint: Endpoint, session_timeout_s: float) -> SharedSession:
        """Return the session, opened now if there is none that lives. Raises CoordinationUnavailable."""
        what = {**asdict(endpoint), "connection_id": "", "session_timeout_s": session_timeout_s}
        key = json.dumps(what, sort_keys=True, default=str)
        with self._connecting:
            with self._lock:
                session = self._open.get(key)
                if session is not None and session.alive:
                    return session
                if session is not None:
                    del self._open[key]
                    session.close()
                self._require_open(endpoint)
            opened = ExitStack()
            znodes = opened.enter_context(connect(endpoint, session_timeout_s=session_timeout_s))
            session = SharedSession(znodes, opened)
            with self._lock:
                try:
                    self._require_open(endpoint)
                except CoordinationUnavailable:
                    session.close()
                    raise
                self._open[key] = session
            _log.info("zookeeper_session_opened", zookeeper=endpoint.address)
            return session

    def _require_open(self, endpoint: Endpoint) -> None:
        if self._closed:
            raise CoordinationUnavailable(f"no session is opened at {endpoint.address}: the process ends")

    def __len__(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """End all of them; no more are opened."""
        with self._lock:
            self._closed = True
            for session in self._open.values():
                session.close()
            self._open.clear()
