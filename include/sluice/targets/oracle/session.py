"""A session at an Oracle target: a connection, its cursor, and the length of its waits."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import oracledb
import structlog

from sluice.targets.oracle.connection import LOCK_WAIT_S
from sluice.targets.sql.session_pool import KEPT_S, SessionPool

_log = structlog.get_logger()
_T = TypeVar("_T")

IDLE_S = 60
"""Seconds of silence in a transaction after which a sign of life is sent: a profile may end silent sessions."""
_PLACE = re.compile(r"%(?:s|%)")


class Cursor:
    """A cursor that takes what the shared SQL of targets says: places for values as ``%s``, and savepoints."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._cursor.arraysize = 1_000

    @property
    def rowcount(self) -> int:
        """The number of rows that the last statement changed."""
        return int(self._cursor.rowcount)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run a statement whose values are at ``%s``. Oracle has no RELEASE SAVEPOINT, which changes nothing."""
        if not statement.startswith("RELEASE SAVEPOINT "):
            self._cursor.execute(_numbered(statement) if parameters else statement, list(parameters), **_AS_VALUES)
        return self

    def ask(self, statement: str, values: Mapping[str, Any], types: Mapping[str, Any]) -> Cursor:
        """Run a query whose values are at ``:name``."""
        if types:
            self._cursor.setinputsizes(**types)
        self._cursor.execute(statement, dict(values), **_AS_VALUES)
        return self

    def run(self, statement: str, rows: Sequence[Mapping[str, Any]], types: Mapping[str, Any]) -> int:
        """Run a statement for many rows of values at once; return how many rows of the table it changed."""
        self._cursor.setinputsizes(**types)
        self._cursor.executemany(statement, rows)
        return self.rowcount

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None after the last."""
        row: tuple[Any, ...] | None = self._cursor.fetchone()
        return row

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        return list(self._cursor.fetchall())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._cursor)


_AS_VALUES: Mapping[str, Any] = {"fetch_lobs": False, "fetch_decimals": True}
"""Read texts and bytes of LOBs as such, and numbers with all of their digits."""


@lru_cache(512)
def _numbered(statement: str) -> str:
    """Return a statement with ``%s`` as ``:1``, ``:2``, …, and ``%%`` as ``%``."""
    count = 0

    def place(match: re.Match[str]) -> str:
        nonlocal count
        if match[0] == "%%":
            return "%"
        count += 1
        return f":{count}"

    return _PLACE.sub(place, statement)


class Session:
    """A connection with its cursor.

    ``longest_bytes``: bytes of an identifier at most; ``user``: the schema of names without one.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.cursor = Cursor(connection.cursor())
        self.lock_wait_s = 0
        self.longest_bytes = int(connection.max_identifier_length or 30)
        self.wait_for_locks(LOCK_WAIT_S)

    def fileno(self) -> int:
        """Return -1: the driver does not show its socket."""
        return -1

    def close(self) -> None:
        """Close the connection in an orderly way."""
        self.connection.close()

    def begin(self) -> None:
        """Begin a transaction: the first statement does."""

    def commit(self) -> None:
        """Commit it."""
        self.connection.commit()

    def rollback(self) -> None:
        """Roll back. If the connection is gone, the server does it; the first error is the one to show."""
        try:
            self.connection.rollback()
        except oracledb.Error as error:
            _log.debug("rollback_failed", error=str(error))

    def wait_for_locks(self, seconds: int) -> None:
        """Set how long a definition waits for a lock; rows are waited for by FOR UPDATE WAIT."""
        if self.lock_wait_s != seconds:
            self.cursor.execute(f"ALTER SESSION SET DDL_LOCK_TIMEOUT = {int(seconds)}")
            self.lock_wait_s = seconds

    def during(self, pieces: Iterable[_T]) -> Iterator[_T]:
        """Yield the same pieces, and keep the session alive while a large part is read."""
        spoke = time.monotonic()
        for piece in pieces:
            if time.monotonic() - spoke > IDLE_S / 4:
                self.connection.ping()
                spoke = time.monotonic()
            yield piece


class Sessions(SessionPool[Session]):
    """Idle sessions, of which the driver says whether they are alive."""

    def _is_good(self, since: float, session: Session) -> bool:
        return time.monotonic() - since <= KEPT_S and bool(session.connection.is_healthy())


kept = Sessions()
"""The sessions of this process that wait for their next use."""
