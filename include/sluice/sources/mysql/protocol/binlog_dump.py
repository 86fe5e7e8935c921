"""The dump connection: mysql-replication logs in, registers and asks for the log.

From then on :class:`sluice.sources.mysql.protocol.socket_reader.SocketReader` reads the socket.
"""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pymysql

from sluice.config.connections import Endpoint
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.protocol.socket_reader import SocketReader
from sluice.sources.mysql.server.connection import connect_settings, log_in, source_errors

HEARTBEAT_S = 5.0
SILENCE_S = 20.0
"""A connection that is silent for so long (four heartbeats) is dead."""

_EARLY_S = 5.0


class PrefetchedLogin:
    """A login for the log's connection, under way while the server is asked about itself: over a distance those are
    eight round trips.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="login")
        self._began = time.monotonic()
        self._endpoint = endpoint
        self._made: Future[Any] | None = self._pool.submit(prepared, endpoint, **stream_settings(endpoint))

    def connection(self, **settings: Any) -> Any:
        """Return the connection, for its one user.

        It opens a new one with ``settings`` if the early one is older than servers leave silent sessions alone.
        """
        future, self._made = self._made, None
        if future is None or time.monotonic() - self._began > _EARLY_S:
            _hang_up(future)
            return prepared(self._endpoint, **settings)
        return future.result()

    def close(self) -> None:
        """Close the connection if it was not used."""
        future, self._made = self._made, None
        _hang_up(future)
        self._pool.shutdown(wait=False)


def _hang_up(future: Future[Any] | None) -> None:
    if future is not None:
        future.add_done_callback(lambda finished: None if finished.exception() else finished.result().close())


class BinlogDump:
    """Bytes of the log from a position.

    One connection, one dump; never reconnects. ``login``: one that is under way already.

    Raises (all methods): SourceUnavailable, ConfigError, LostPosition.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        server_id: int,
        start: Position,
        mariadb: bool = False,
        login: PrefetchedLogin | None = None,
    ) -> None:
        from pymysqlreplication import BinLogStreamReader

        self.endpoint = endpoint
        with source_errors(endpoint, f"asking for the log from {start}", login=True):
            self._reader = BinLogStreamReader(
                connection_settings=stream_settings(endpoint),
                server_id=server_id,
                log_file=start.file,
                log_pos=start.offset & 0xFFFFFFFF,
                resume_stream=True,
                blocking=True,
                slave_heartbeat=HEARTBEAT_S,
                report_slave={"hostname": socket.gethostname()[:60], "username": "sluice", "password": "", "port": 0},
                is_mariadb=False,  # True would ignore file and offset
                enable_logging=False,
                pymysql_wrapper=login.connection if login else partial(prepared, endpoint),
            )
            self._reader._BinLogStreamReader__connect_to_stream()  # its only way to start a dump without reading events
            self._reader._BinLogStreamReader__connected_stream = True
        self.connection: Any = self._reader._stream_connection
        self.checksum: bool = bool(self._reader._BinLogStreamReader__use_checksum)
        what = f"connection {endpoint.connection_id}, {endpoint.address}"
        self._wire = SocketReader(self.connection._sock, what=what, silence_s=SILENCE_S)
        self._given_back = b""

    def receive(self, buffer: np.ndarray[Any, Any], at: int, timeout_s: float, enough: int = 2**20) -> int:
        """See :meth:`sluice.sources.mysql.protocol.socket_reader.SocketReader.receive`."""
        if self._given_back:
            returned_bytes = self._given_back[: len(buffer) - at]
            self._given_back = self._given_back[len(returned_bytes) :]
            buffer[at : at + len(returned_bytes)] = np.frombuffer(returned_bytes, np.uint8)
            return len(returned_bytes)
        return self._wire.receive(buffer, at, timeout_s, enough)

    def give_back(self, data: bytes) -> None:
        """Make ``receive`` return these bytes first."""
        self._given_back = data + self._given_back

    def check_alive(self) -> None:
        """Raise SourceUnavailable if not even heartbeats have come for SILENCE_S."""
        self._wire.check_alive()

    def close(self) -> None:
        """Close the connection. The dump thread on the server ends when it next writes."""
        with contextlib.suppress(Exception):
            self.connection._force_close()


def stream_settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the arguments of ``pymysql.connect`` but the password for the log's connection. Raises ConfigError."""
    return connect_settings(endpoint) | {"read_timeout": SILENCE_S}


def _login(**settings: Any) -> Any:
    """Log in.

    Nothing is encrypted on the way to this machine itself, unless the connection asks for it or the server insists.
    """
    local = settings.get("unix_socket") or str(settings.get("host")).startswith(("127.", "localhost", "::1"))
    if local and not any(name.startswith("ssl") for name in settings):
        with contextlib.suppress(
            pymysql.err.MySQLError, RuntimeError
        ):  # RuntimeError: a password by RSA without cryptography
            return pymysql.connect(**settings, ssl_disabled=True)
    return pymysql.connect(**settings)


def prepared(endpoint: Endpoint, **settings: Any) -> Any:
    """Return a connection on which the server sends a log with its checksums, and heartbeats."""
    connection = log_in(endpoint, _login, settings)
    with connection.cursor() as cursor:  # the new names of what mysql-replication sets by the old ones
        cursor.execute(
            "SET @source_binlog_checksum = @@global.binlog_checksum, @source_heartbeat_period = %s, "
            # which mysql-replication leaves out where the server writes none now: its older files may have them all the
            # same
            "@master_binlog_checksum = @@global.binlog_checksum",
            (int(HEARTBEAT_S * 1e9),),
        )
    return connection
