"""Ask other servers with a deadline of a few seconds: one that accepts connections and stays silent delays neither the
caller nor others.

No client library times out in every state of a connection, so each question has its own thread, and no caller waits for
a late one. A server that let a deadline pass is *silent* until it answers. Meanwhile it is tried again from time to
time, each time after twice the pause while earlier tries are still stuck, so that a server that never answers keeps a
handful of threads; any other caller is told at once how long it has been silent.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sluice.config.connections import ConnectionResolver
from sluice.errors import (
    CoordinationUnavailable,
    SourceUnavailable,
    StorageUnavailable,
    TargetUnavailable,
)

_T = TypeVar("_T")

ANSWER_S = 8.0
"""Seconds to wait for a server, unless the caller sets another deadline: longer than a login at a busy server takes."""

PROBE_S = 5.0
"""Seconds before a silent server is tried again; doubled for each try that is still stuck."""

_QUICK_S = 1.0
"""Seconds within which a server that refuses may be asked by everybody."""

UNAVAILABLE = (SourceUnavailable, TargetUnavailable, CoordinationUnavailable, StorageUnavailable)
"""The errors that mean that no server answered, as opposed to a server's answer."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[_T]):
    """The answer of a server that came in time."""

    value: _T


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A server that did not answer in time, or not at all.

    Attributes:
        server: who was asked, as :func:`ask` was told.
        since_ms: when the first question was asked that has no answer (Unix time).
        because: what the client library made of it, "" while it still waits.
    """

    server: str
    since_ms: int
    because: str = ""

    @property
    def since(self) -> str:
        """ISO 8601, UTC."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since_ms / 1000))

    def __str__(self) -> str:
        clock = time.strftime("%H:%M:%S", time.gmtime(self.since_ms / 1000))
        return f"{self.server}: no answer since {clock} UTC" + (f": {self.because}" if self.because else "")


@dataclass(slots=True)
class _Server:
    """A server that is being asked, or is silent.

    Attributes:
        asked: questions that are under way. stuck: those of them whose deadline is over.
        silent_since_ms, because: as in :class:`NoAnswer`; None: it is not silent. slow: it let a deadline pass, or took
            long to refuse.
        tried: when it was asked last (monotonic).
    """

    asked: int = 0
    stuck: set[int] = field(default_factory=set)
    silent_since_ms: int | None = None
    because: str = ""
    slow: bool = False
    tried: float = 0.0


class Question(Generic[_T]):
    """A question that is under way; :meth:`answer` waits for what comes of it."""

    def __init__(self, questions: ServerQuestions, server: str, refused: NoAnswer | None = None) -> None:
        self._questions = questions
        self._server = server
        self._refused = refused
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self.began, self.began_ms = time.monotonic(), int(time.time() * 1000)

    def answer(self, deadline_s: float | None = None) -> Answer[_T] | NoAnswer:
        """Wait until ``deadline_s`` after the question was asked; None: :data:`ANSWER_S`.

        Raises what the call did, but for :data:`UNAVAILABLE`.
        """
        if self._refused is not None:
            return self._refused
        deadline_s = ANSWER_S if deadline_s is None else deadline_s
        if not self._done.wait(max(0.0, self.began + deadline_s - time.monotonic())):
            late = self._questions._overdue(self._server, self)
            if late is not None:
                return late
        if isinstance(self._error, UNAVAILABLE):
            return self._questions._silent(self._server, self)
        if self._error is not None:
            raise self._error
        return Answer(self._value)

    def _run(self, call: Callable[[], _T]) -> None:
        try:
            self._value = call()
        except BaseException as error:
            self._error = error
        self._questions._ended(self._server, self, self._done)


class ServerQuestions:
    """The questions of this process. ``threads``: how many are under way, waited for or not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}
        os.register_at_fork(after_in_child=self._forget)

    @property
    def threads(self) -> int:
        """Number of threads that ask a server now."""
        with self._lock:
            return sum(server.asked for server in self._servers.values())

    def begin(self, server: str, call: Callable[[], _T]) -> Question[_T]:
        """Ask ``server`` in its own thread.

        A silent server that was tried lately is not asked: its NoAnswer is there at once.
        """
        with self._lock:
            known_server = self._servers.setdefault(server, _Server())
            pause = PROBE_S * 2 ** len(known_server.stuck)
            if (
                known_server.silent_since_ms is not None
                and known_server.slow
                and time.monotonic() - known_server.tried < pause
            ):
                return Question(self, server, NoAnswer(server, known_server.silent_since_ms, known_server.because))
            question: Question[_T] = Question(self, server)
            known_server.asked += 1
            known_server.tried = question.began
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(question._run, call), name=f"look {server}"[:60], daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads in this process
            question._error = error
            self._ended(server, question, question._done)
        return question

    def ask(self, server: str, call: Callable[[], _T], deadline_s: float | None = None) -> Answer[_T] | NoAnswer:
        """Ask and wait. Raises what ``call`` raises, except :data:`UNAVAILABLE`, which counts as no answer."""
        return self.begin(server, call).answer(deadline_s)

    # -- inside --------------------------------------------------------------------------------------------------------
    def _overdue(self, server: str, question: Question[Any]) -> NoAnswer | None:
        """Record that the deadline has passed; return None if the answer came meanwhile."""
        with self._lock:
            if question._done.is_set():
                return None
            known_server = self._servers[server]
            known_server.stuck.add(id(question))
            known_server.slow = True
            if known_server.silent_since_ms is None:
                known_server.silent_since_ms, known_server.because = question.began_ms, ""
            return NoAnswer(server, known_server.silent_since_ms, known_server.because)

    def _silent(self, server: str, question: Question[Any]) -> NoAnswer:
        """Return what the end of ``question`` noted; another one may have been answered since."""
        with self._lock:
            known_server = self._servers.get(server)
            since_ms = known_server.silent_since_ms if known_server is not None else None
        return NoAnswer(server, since_ms if since_ms is not None else question.began_ms, str(question._error))

    def _ended(self, server: str, question: Question[Any], event: threading.Event) -> None:
        with self._lock:
            event.set()
            known_server = self._servers.get(server)
            if known_server is None:
                return
            known_server.asked -= 1
            late = id(question) in known_server.stuck
            known_server.stuck.discard(id(question))
            error = question._error
            if isinstance(error, UNAVAILABLE):
                known_server.slow = late or known_server.slow or time.monotonic() - question.began > _QUICK_S
                # A late error may only say that the caller closed the connection.
                known_server.because = "" if late else str(error)
                if known_server.silent_since_ms is None:
                    known_server.silent_since_ms = question.began_ms
            elif error is None or not late:
                known_server.silent_since_ms, known_server.because, known_server.slow = None, "", False
            if not known_server.asked and known_server.silent_since_ms is None:
                del self._servers[server]

    def _forget(self) -> None:
        """Start anew in a forked child, which has none of the threads."""
        self._lock = threading.Lock()
        self._servers = {}


server_questions = ServerQuestions()
"""The questions of this process."""


def server_name(what: str, resolver: ConnectionResolver, connection: str) -> str:
    """Return the name of a server in messages: ``source shop_mysql (db1:3306)``. Raises ConfigError."""
    endpoint = resolver(connection)
    address = endpoint.extra.get("unix_socket") or endpoint.address
    return f"{what} {connection} ({address})" if address else f"{what} {connection}"


__all__ = ["ANSWER_S", "Answer", "NoAnswer", "Question", "ServerQuestions", "server_name", "server_questions"]
