"""A session on the target, set up as a replica's applier is, and its errors as Sluice's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pymysql
from pymysql.constants import CLIENT, COMMAND, CR, ER
from pymysql.protocol import OKPacketWrapper

from sluice.config.connections import Endpoint, tls_settings
from sluice.config.credentials import logged_in
from sluice.errors import ConfigError, LoadError, SluiceError, TargetUnavailable
from sluice.mysql.client import SHOW_INVISIBLE_KEYS, AccessDenied, MySQLConnection, server_words
from sluice.targets.sql.loader import Contention

_T = TypeVar("_T")

STRICT = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
"""The strict sql_mode: it accepts every date the source could hold and zero in AUTO_INCREMENT columns, and cuts nothing
to fit without an error.
"""

LAX = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
"""The sql_mode for rows whose ENUM holds the error value (index 0), or whose computed values do not fit, which a strict
session refuses.
"""

MAX_WARNINGS = 65_535
"""Warnings that the server keeps of a statement, the most it can: each is checked.

MySQL lets only SESSION_VARIABLES_ADMIN raise it; with fewer kept, a statement that has more of them is refused.
"""
_NOT_ALLOWED = 1227

CONTENTION = {ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, 3572}
"""The errors after which the same transaction may succeed at once."""

DATA_ERRORS = frozenset({
    1032, 1048, 1062, 1153, 1136, 1216, 1217, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1369, 1406, 1416, 1426, 1441,
    1451, 1452, 1525, 1526, 1586,
    1644, 1690, 1748, 1761, 3037, 3140, 3141, 3156, 3157, 3617, 3618, 3751, 3819, 3903, 3991, 4025, 4161,
})  # fmt: skip
"""The errors that can be the fault of a row: values that do not fit, keys, checks, foreign keys, triggers that refuse.

Others (no such table, no privilege, disk full) concern no row.
"""

_GONE = {
    CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_UNKNOWN_HOST,
    ER.SERVER_SHUTDOWN, ER.CON_COUNT_ERROR, ER.NORMAL_SHUTDOWN, ER.NEW_ABORTING_CONNECTION, 3168, 1927, 1021,
    ER.TOO_MANY_USER_CONNECTIONS, 0,
}  # fmt: skip
_READ_ONLY = {ER.OPTION_PREVENTS_STATEMENT, 1836}
_DENIED = {ER.ACCESS_DENIED_ERROR, 1698, ER.DBACCESS_DENIED_ERROR, 3118, 1820}

_NOT_TRANSACTIONAL = 1785

_LOAD_PACKET = 128 * 1024
_CONNECT_TIMEOUT_S = 8
_READ_TIMEOUT_S = 600
IDLE_S = 60
"""Seconds after which the server ends a silent session, so that a loader that was paused inside a transaction releases
its locks.
"""


class TargetConnection(MySQLConnection):
    """A session on the target that can load data."""

    packet_limit = 0
    """The server's max_allowed_packet, 0: unknown yet. It cuts the connection of a client that sends more."""

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if self.packet_limit and len(sql) >= self.packet_limit:
            size = len(sql) + 1024
            refused = LoadError(
                f"a row takes a statement of {len(sql):,} bytes, and max_allowed_packet of the target is "
                f"{self.packet_limit:,} (error {ER.NET_PACKET_TOO_LARGE})",
                hint=f"SET GLOBAL max_allowed_packet = {-(-size >> 20) << 20} at the target (1 GiB is the most), and "
                "keep it in the server's configuration; binary values take twice their size",
            )
            refused.code = ER.NET_PACKET_TOO_LARGE
            raise refused
        super()._execute_command(command, sql)

    def load(self, sql: bytes, data: bytes | memoryview) -> int:
        """Run a LOAD DATA LOCAL and send ``data``, whatever file the server asks for. Returns the number of warnings.

        ``local_infile`` stays off: a server that asks for a file at any other time gets none.
        """
        self._execute_command(COMMAND.COM_QUERY, sql)
        try:
            requested_packet = self._read_packet()  # type: ignore[no-untyped-call]
        except pymysql.err.OperationalError as error:
            raise self.with_grant(error) from error.__cause__
        if not requested_packet.is_load_local_packet():
            raise pymysql.err.InternalError(0, "the server did not ask for the data")
        view = memoryview(data)
        for start in range(0, len(view), _LOAD_PACKET):
            self.write_packet(bytes(view[start : start + _LOAD_PACKET]))
        self.write_packet(b"")
        return int(OKPacketWrapper(self._read_packet()).warning_count)  # type: ignore[no-untyped-call]

    def during(self, pieces: Iterator[_T]) -> Iterator[_T]:
        """Yield the same pieces and keep the session alive.

        The server ends a silent session, and a large part may be read for minutes before one of its rows is written.
        """
        spoke = time.monotonic()
        for piece in pieces:
            if time.monotonic() - spoke > IDLE_S / 4:
                self.query("DO 0")
                spoke = time.monotonic()
            yield piece


@contextmanager
def kept_alive(*connections: TargetConnection) -> Iterator[None]:
    """Keep silent sessions alive inside the context, which must not use them itself. The server ends those of a process
    that is paused, with their locks.
    """
    over = threading.Event()

    def ping() -> None:
        while not over.wait(IDLE_S / 4):
            for connection in connections:
                with suppress(pymysql.err.Error, OSError):  # the session is gone, as its next use says
                    connection.query("DO 0")

    thread = threading.Thread(target=ping, name="sluice-kept-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


LOCK_WAIT_S = 20
"""Seconds that a statement waits for another session's lock, unless the target sets another limit."""


def set_lock_wait(seconds: int) -> str:
    """Return the statement that sets it, for rows and for definitions (for which the server would wait a year)."""
    return f"SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"


def connect(endpoint: Endpoint) -> TargetConnection:
    """Open a session with a replica's settings: no foreign-key checks (the source made them), UTC, utf8mb4, read
    committed.

    Raises:
        TargetUnavailable: no answer.
        ConfigError: wrong user or password, or TLS is set up wrongly.
    """
    extra = endpoint.extra
    with errors(endpoint, "connecting"):
        connection = logged_in(
            endpoint,
            lambda password: TargetConnection(
                host=endpoint.host or "127.0.0.1",
                port=endpoint.port or 3306,
                user=endpoint.user,
                password=password,
                charset="utf8mb4",
                unix_socket=extra.get("unix_socket"),
                connect_timeout=_CONNECT_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S,
                write_timeout=_READ_TIMEOUT_S,
                autocommit=True,
                max_allowed_packet=1 << 30,
                client_flag=CLIENT.LOCAL_FILES,
                **tls_settings(endpoint),
            ),
            lambda error: code_of(error) in _DENIED,
        )
    try:
        with errors(endpoint, "setting the session up"), connection.cursor() as cursor:
            cursor.execute(
                f"SET SESSION foreign_key_checks = 0, unique_checks = 1, sql_mode = '{STRICT}', time_zone = '+00:00', "
                "character_set_client = utf8mb4, character_set_connection = utf8mb4, collation_connection = "
                "utf8mb4_bin, "
                f"innodb_lock_wait_timeout = {LOCK_WAIT_S}, lock_wait_timeout = {LOCK_WAIT_S}, wait_timeout = "
                f"{IDLE_S}, @sluice = 1{SHOW_INVISIBLE_KEYS}"  # lets a trigger at the target recognise these rows
            )
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            _keep_warnings(cursor)
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_warnings(cursor: Any) -> None:
    """Raise the number of kept warnings where the login may; else the server's own number has to do."""
    try:
        cursor.execute(f"SET SESSION max_error_count = {MAX_WARNINGS}")
    except pymysql.err.MySQLError as error:
        if error.args[:1] != (_NOT_ALLOWED,):
            raise


def code_of(error: BaseException) -> int:
    """Return MySQL's error number, 0 if there is none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


@contextmanager
def errors(endpoint: Endpoint, doing: str, where: str | None = None) -> Iterator[None]:
    """Turn the driver's exceptions into ours. Deadlocks and lock waits become :class:`Contention`."""
    try:
        yield
    except SluiceError:
        raise
    except pymysql.err.Error as error:
        code, text = code_of(error), server_words(error)[:300]
        place = where or f"{endpoint.connection_id} ({endpoint.address})"
        if code in CONTENTION:
            raise Contention(f"the target was busy while {doing}: {text}", where=place) from error
        if code in _DENIED or isinstance(error, AccessDenied):
            raise ConfigError(
                f"the target refused connection {endpoint.connection_id!r} (user {endpoint.user!r}) while {doing}: "
                f"{text}",
                where=place,
                hint=error.hint
                if isinstance(error, AccessDenied)
                else f"check login and password of connection {endpoint.connection_id}",
            ) from error
        if code in _READ_ONLY:
            raise TargetUnavailable(
                f"the target takes no writes while {doing}: {text}",
                where=place,
                hint="if this server is to be written (a replica that takes over): SET GLOBAL read_only = OFF; the "
                "same batch is tried again",
            ) from error
        if code in _GONE or isinstance(error, pymysql.err.InterfaceError):
            raise TargetUnavailable(
                f"the target does not answer while {doing}: {text or 'the connection was lost'}",
                where=place,
                hint="is the server up? the same batch is tried again",
            ) from error
        refused = LoadError(f"the target refused a statement while {doing}: {text} (error {code})", where=place)
        refused.code = code
        if code == _NOT_TRANSACTIONAL:
            refused.hint = (
                "a server with enforce_gtid_consistency=ON takes rows of a table without transactions into no "
                "transaction: ALTER TABLE … ENGINE = InnoDB at the target (the source's may stay as it is); "
                "`sluice check` names these tables. The same batch is tried again"
            )
        raise refused from error
    except OSError as error:
        raise TargetUnavailable(
            f"the target does not answer while {doing}: {error}", where=where or endpoint.address
        ) from error
