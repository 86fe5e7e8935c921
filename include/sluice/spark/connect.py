"""Units on a warm Spark Connect server.

A session has a fixed id, so its Python workers stay warm from task to task; it is never stopped (a stopped id is closed
for good). An id that the server closed after an idle hour, or that it lost with a restart, is followed by the next of
its generation.

A process opens one client for a server at its first job, and keeps it: all its threads use it for all their jobs. After
a job that failed, the next one opens another.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
import structlog
from pyspark.errors import PySparkException
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, SluiceError, SparkUnavailable
from sluice.spark.frames import run_frames
from sluice.spark.work import UnderWay, UnitFailed, run_on, run_statement

_log = structlog.get_logger()
_T = TypeVar("_T")

CONNECT_TIMEOUT_S = 5.0
_NAMESPACE = uuid.UUID("8a4a5e0c-6b0f-5a0e-9a53-5b1d1ce5f00d")
_CLOSED = ("SESSION_CLOSED", "SESSION_CHANGED", "SESSION_NOT_FOUND", "NO_ACTIVE_SESSION")
"""What the server says, and the client once it was told so."""
_AWAY = "UNAVAILABLE"
_PLAN_CACHE = "spark.connect.session.planCache.enabled"
"""No server answered: a client that was open waits ever longer before it connects again, and does not see at once that
a server was started.
"""
_REMOTE = "SPARK_CONNECT_MODE_ENABLED"
_FRAMES = threading.Lock()
"""Rules find their session in variables of the process: one job of frames at a time."""


@dataclass(eq=False)
class _Client:
    """A client with its session.

    ``users``: jobs under way; the last one closes it once it is ``dropped``. ``worked``: a job ended well.
    """

    session: SparkSession
    generation: int
    users: int = 0
    dropped: bool = False
    worked: bool = False


class _Clients:
    """The clients of this process by server.

    A forked child begins with none: its parent's channels are the parent's.
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, _Client] = {}
        self._generation = 0

    @contextmanager
    def of(self, runner: ConnectRunner) -> Iterator[_Client]:
        """Yield the client of the runner's server, and open it if there is none. Raises SparkUnavailable."""
        with self._lock:
            client = self._open.get(runner.key)
            if client is None:
                runner.require_server()
                session = _opened(runner.url(str(uuid.uuid5(_NAMESPACE, str(self._generation)))), runner.address)
                client = self._open[runner.key] = _Client(session, self._generation)
            client.users += 1
        try:
            yield client
        finally:
            with self._lock:
                client.users -= 1
                ends = client.dropped and not client.users
            if ends:
                _close(client.session)

    def drop(self, key: str, client: _Client) -> None:
        """Make the next job open another client. Jobs that still use this one finish with it. Called by one of them."""
        with self._lock:
            client.dropped = True
            if self._open.get(key) is client:
                del self._open[key]

    def rotate(self, client: _Client) -> int:
        """Return the generation to go on with, after the session id of ``client`` was closed."""
        with self._lock:
            self._generation = max(self._generation, client.generation + 1)
            return self._generation


_clients = _Clients()


def _opened(url: str, address: str) -> SparkSession:
    """Open a session. Raises ConfigError for a server whose cached plans would read stale files."""
    session = SparkSession(connection=url)
    session.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=2000)])
    try:
        cached = session.conf.get(_PLAN_CACHE, "true")
    except BaseException:
        _close(session)
        raise
    if str(cached).lower() != "false":
        _close(session)
        raise ConfigError(
            f"the Spark server caches plans ({_PLAN_CACHE}), and a session that is used again would read stale files "
            "silently",
            where=address,
            hint=f"start it with {_PLAN_CACHE}=false",
        )
    return session


def probe(endpoint: Endpoint) -> str:
    """Open a session and return the server's version. Raises ConfigError, SparkUnavailable."""
    return ConnectRunner(endpoint).version()


def _close(session: SparkSession) -> None:
    with suppress(Exception):  # nothing is sent to the server, which may be gone
        session.client.close()


@contextmanager
def _visible(session: SparkSession) -> Iterator[None]:
    """Let the functions of pyspark.sql in a rule's file find this session while the rule is called."""
    before = os.environ.get(_REMOTE)
    os.environ[_REMOTE] = "1"
    SparkSession._default_session = SparkSession._active_session.session = session  # in place of one that was closed
    try:
        yield
    finally:
        SparkSession._default_session = None
        SparkSession._active_session.session = None
        if before is None:
            del os.environ[_REMOTE]


class ConnectRunner:
    """See :class:`sluice.spark.base.UnitRunner`.

    All runners use one warm session: a cold one costs seconds. For several threads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._under_way = UnderWay()

    def cancel(self) -> None:
        """Interrupt the jobs under way on the server; their Python workers end, and with them their connections."""
        self._under_way.interrupt(PySparkException, grpc.RpcError, ValueError)

    def run(
        self,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        *,
        parallelism: int = 4,
        description: str = "",
    ) -> list[Any]:
        """Run the function on each unit at the Spark Connect server."""
        if not units:
            return []

        def job(session: SparkSession) -> list[Any]:
            with self._under_way.job(session) as tag:
                return run_on(session, function, units, parallelism=parallelism, tag=tag)

        try:
            return self._with_session(job, description)
        except PySparkException as error:
            raise self._lost(description, error) from error

    def statement(
        self, text: str, settings: Mapping[str, str], required: Mapping[str, str], *, description: str = ""
    ) -> None:
        """Run the statement in a session that is opened for it and closed after it.

        The session has no Python workers, so it is cheap.
        """
        self.require_server()
        session = _opened(self.url(str(uuid.uuid4())), self.address)
        try:
            with self._under_way.job(session) as tag:
                run_statement(session, text, settings, required, tag=tag, description=description)
        except grpc.RpcError as error:
            raise self._lost(description, error) from error
        finally:
            with suppress(Exception):  # the server may be gone; it ends idle sessions by itself
                session.client.release_session()
            _close(session)

    def frames(self, tables: Sequence[Any], *, description: str = "") -> list[bytes]:
        """Run the tables in one job. Raises PySparkException, too."""

        def job(session: SparkSession) -> list[bytes]:
            with _FRAMES, _visible(session):
                return run_frames(session, tables)

        return self._with_session(job, description)

    def _with_session(self, job: Callable[[SparkSession], _T], description: str) -> _T:
        """Run a job; again in another session if the server has closed this one, and with another client if the server
        was away meanwhile.

        Raises PySparkException, SparkUnavailable.
        """
        for _ in range(64):
            with _clients.of(self) as client:
                try:
                    result = job(client.session)
                    client.worked = True
                    return result
                except PySparkException as error:
                    _clients.drop(self.key, client)
                    message = str(error)
                    if any(word in message for word in _CLOSED):
                        generation = _clients.rotate(client)
                        _log.info("spark_session_rotated", server=self._endpoint.address, generation=generation)
                    elif not (client.worked and _AWAY in message):
                        raise
                except grpc.RpcError as error:
                    _clients.drop(self.key, client)
                    raise self._lost(description, error) from error
        raise self._lost(description, RuntimeError("every session id is closed"))

    def version(self) -> str:
        """Return the version of the server. Raises ConfigError, PySparkException, SparkUnavailable."""
        return self._with_session(lambda session: f"Spark {session.version}", "ask for the version")

    @property
    def address(self) -> str:
        """``host:port`` for messages."""
        return f"{self._host}:{self._port}"

    @property
    def key(self) -> str:
        """Tells servers, and logins there, apart."""
        endpoint = self._endpoint
        return json.dumps(
            (self._host, self._port, endpoint.user, endpoint.password, dict(endpoint.extra)),
            sort_keys=True,
            default=str,
        )

    def url(self, session_id: str) -> str:
        """Return the address for a client. It contains the password."""
        user = quote(self._endpoint.user or "sluice", safe="")
        url = f"sc://{self._host}:{self._port}/;user_id={user};session_id={session_id}"
        if self._endpoint.password:
            url += f";token={quote(self._endpoint.password, safe='')}"
        if self._endpoint.extra.get("use_ssl") in {True, "true", "True"}:
            url += ";use_ssl=true"
        return url

    @property
    def _host(self) -> str:
        host = self._endpoint.host.removeprefix("sc://") or "localhost"
        return "localhost" if self._endpoint.password and host == "127.0.0.1" else host

    @property
    def _port(self) -> int:
        return self._endpoint.port or 15002

    def require_server(self) -> None:
        """Check at once that a server answers; a client would retry for seconds. Raises SparkUnavailable."""
        try:
            socket.create_connection((self._host, self._port), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise SparkUnavailable(
                f"no Spark Connect server answers: {error.strerror or error}",
                where=f"connection {self._endpoint.connection_id} ({self._host}:{self._port})",
                hint="start it, or set `spark: {mode: local}` to work without Spark",
            ) from error

    def _lost(self, description: str, error: Exception) -> SluiceError:
        text = str(error).strip().splitlines()
        return SparkUnavailable(
            f"{description or 'a Spark job'} did not finish: {type(error).__name__} {text[0][:300] if text else ''}",
            where=f"{self._host}:{self._port}",
            hint="the server's log has the details; the work starts again from the same batch",
        )


__all__ = ["ConnectRunner", "UnitFailed"]
