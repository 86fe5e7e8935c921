"""A session at a PostgreSQL target: a connection, what its login may do, and its lock wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg
import structlog

from sluice.postgresql.connection import Connection
from sluice.targets.postgresql.connection import IDLE_S, LOCK_WAIT_S
from sluice.targets.sql.session_pool import SessionPool

_log = structlog.get_logger()
_T = TypeVar("_T")
_POSTGIS = (
    "(SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE "
    "e.extname = 'postgis')"
)
"""The schema that has PostGIS's types, in quotes if needed."""


class Session:
    """A connection with its cursor.

    ``replica``: triggers and foreign keys are off, as at a replica; ``version``: 180006; ``spatial``: PostGIS's type,
    "" where it is not there."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.version = connection.info.server_version
        self.lock_wait_s = LOCK_WAIT_S
        self.pid = connection.info.backend_pid
        may = (
            "has_parameter_privilege('session_replication_role', 'SET')"
            if self.version >= 150000
            else "(SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"
        )
        row = self.cursor.execute(f"SELECT {may}, current_user, current_database(), {_POSTGIS}").fetchone()
        assert row is not None
        self.replica, self.user, self.database = bool(row[0]), str(row[1]), str(row[2])
        self.spatial = f"{row[3]}.geometry" if row[3] is not None else ""
        if self.replica:
            self.cursor.execute("SET session_replication_role = replica")

    def fileno(self) -> int:
        """Return the socket's file descriptor; -1 if it is closed."""
        return -1 if self.connection.closed else self.connection.fileno()

    def close(self) -> None:
        """Close the connection in an orderly way."""
        self.connection.close()

    def begin(self) -> None:
        """Begin a transaction."""
        self.cursor.execute("BEGIN")

    def commit(self) -> None:
        """Commit it."""
        self.cursor.execute("COMMIT")

    def rollback(self) -> None:
        """Roll back. If the connection is gone, the server does it; the first error is the one to show."""
        try:
            self.cursor.execute("ROLLBACK")
        except psycopg.Error as error:
            _log.debug("rollback_failed", error=str(error))

    def wait_for_locks(self, seconds: int) -> None:
        """Set how long a statement waits for a lock."""
        if self.lock_wait_s != seconds:
            self.cursor.execute(f"SET lock_timeout = '{int(seconds)}s'")
            self.lock_wait_s = seconds

    @contextmanager
    def foreign_keys(self, *, checked: bool) -> Iterator[None]:
        """Check foreign keys of rows written inside the context, or do not."""
        if not checked or not self.replica:
            yield
            return
        self.cursor.execute("SET LOCAL session_replication_role = origin")
        yield
        self.cursor.execute(
            "SET LOCAL session_replication_role = replica"
        )  # after an error the transaction, or its savepoint, is rolled back

    def during(self, pieces: Iterable[_T]) -> Iterator[_T]:
        """Yield the same pieces and keep the transaction alive.

        The server ends a silent transaction, and a large part may be read for minutes before one of its rows is
        written.
        """
        spoke = time.monotonic()
        for piece in pieces:
            if time.monotonic() - spoke > IDLE_S / 4:
                self.cursor.execute("SELECT 1")
                spoke = time.monotonic()
            yield piece


kept: SessionPool[Session] = SessionPool()
"""The sessions of this process that wait for their next use."""
