"""Units on a warm Spark Connect server.

A session has a fixed id, so its Python workers stay warm from task to task; it is never stopped (a stopped id is closed for good),
only the client's channel is. An id that the server closed after an idle hour is followed by the next of its generation.
"""

from __future__ import annotations

import itertools
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import structlog
from pyspark.errors import PySparkException
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from sluice.config.connections import Endpoint
from sluice.errors import SluiceError, SparkUnavailable
from sluice.spark.frames import run_frames
from sluice.spark.work import UnitFailed, new_tag, run_on

_log = structlog.get_logger()

CONNECT_TIMEOUT_S = 5.0
_NAMESPACE = uuid.UUID("8a4a5e0c-6b0f-5a0e-9a53-5b1d1ce5f00d")
_CLOSED = ("SESSION_CLOSED", "SESSION_CHANGED", "SESSION_NOT_FOUND")
_REMOTE = "SPARK_CONNECT_MODE_ENABLED"
_generation = itertools.count()
_current = next(_generation)
"""Generation of the session ids that this process uses; moves on when the server has closed one."""


@contextmanager
def _visible(session: SparkSession) -> Iterator[None]:
    """While a rule is called, the functions of pyspark.sql in its file find this session."""
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
    """See :class:`sluice.spark.base.UnitRunner`. All runners use one warm session: a cold one costs seconds."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._running: tuple[SparkSession, str] | None = None

    def cancel(self) -> None:
        """Interrupt the job under way on the server; its Python workers end, and with them their connections."""
        if self._running is None:
            return
        session, tag = self._running
        with suppress(PySparkException, grpc.RpcError, ValueError):  # it ended by itself just now
            session.interruptTag(tag)

    def run(
        self,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        *,
        parallelism: int = 4,
        description: str = "",
    ) -> list[Any]:
        global _current
        if not units:
            return []
        self._require_server()
        for _ in range(64):
            try:
                return self._run_once(function, units, parallelism)
            except PySparkException as error:
                if not any(word in str(error) for word in _CLOSED):
                    raise self._lost(description, error) from error
                _current = next(_generation)
                _log.info("spark_session_rotated", server=self._endpoint.address, generation=_current)
            except grpc.RpcError as error:
                raise self._lost(description, error) from error
        raise self._lost(description, RuntimeError("every session id is closed"))

    def _run_once(self, function: Callable[[Any], Any], units: Sequence[Any], parallelism: int) -> list[Any]:
        session = SparkSession.builder.remote(self._url()).create()
        try:
            session.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=2000)])
            self._running = session, new_tag()
            return run_on(session, function, units, parallelism=parallelism, tag=self._running[1])
        finally:
            self._running = None
            session.client.close()

    def frames(self, tables: Sequence[Any], *, description: str = "") -> list[bytes]:
        """One job. Raises PySparkException, too."""
        global _current
        self._require_server()
        for _ in range(64):
            session = SparkSession.builder.remote(self._url()).create()
            try:
                session.client.set_retry_policies([DefaultPolicy(max_retries=5, max_backoff=2000)])
                with _visible(session):
                    return run_frames(session, tables)
            except PySparkException as error:
                if not any(word in str(error) for word in _CLOSED):
                    raise
                _current = next(_generation)
            except grpc.RpcError as error:
                raise self._lost(description, error) from error
            finally:
                session.client.close()
        raise self._lost(description, RuntimeError("every session id is closed"))

    def _url(self) -> str:
        session_id = uuid.uuid5(_NAMESPACE, str(_current))
        url = f"sc://{self._host}:{self._port}/;user_id=sluice;session_id={session_id}"
        if self._endpoint.password:
            url += f";token={self._endpoint.password}"
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

    def _require_server(self) -> None:
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
