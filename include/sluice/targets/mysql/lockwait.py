"""Find who holds the lock that a session waits for, from a second connection while it waits: for the log, and for the
error that may follow.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import pymysql
import structlog

from sluice.config.connections import Endpoint
from sluice.errors import SluiceError
from sluice.model.dialects import MARIADB, MYSQL
from sluice.mysql.rights import DENIED, LOCK_HOLDERS
from sluice.targets.mysql.connection import TargetConnection, code_of, connect

_log = structlog.get_logger()

PATIENCE_S = 2.0
"""Seconds that an operation may take before its locks are checked."""
_AGAIN_S = 5.0
_TOLD_S = 30.0
_STEP_S = 0.5

_SECONDS = re.compile(r"\d+ s\b")

_ROWS = """SELECT t.PROCESSLIST_ID, t.PROCESSLIST_USER, t.PROCESSLIST_HOST, t.PROCESSLIST_TIME, t.PROCESSLIST_COMMAND, t.PROCESSLIST_INFO,
  CONCAT('rows of ', l.OBJECT_SCHEMA, '.', l.OBJECT_NAME)
FROM performance_schema.data_lock_waits w
JOIN performance_schema.threads r ON r.THREAD_ID = w.REQUESTING_THREAD_ID
JOIN performance_schema.threads t ON t.THREAD_ID = w.BLOCKING_THREAD_ID
JOIN performance_schema.data_locks l ON l.ENGINE_LOCK_ID = w.REQUESTING_ENGINE_LOCK_ID
WHERE r.PROCESSLIST_ID = %s AND t.PROCESSLIST_ID <> r.PROCESSLIST_ID LIMIT 1"""  # noqa: E501
_DEFINITIONS = """SELECT t.PROCESSLIST_ID, t.PROCESSLIST_USER, t.PROCESSLIST_HOST, t.PROCESSLIST_TIME, t.PROCESSLIST_COMMAND,
  t.PROCESSLIST_INFO, CONCAT_WS('.', p.OBJECT_SCHEMA, p.OBJECT_NAME)
FROM performance_schema.metadata_locks p
JOIN performance_schema.threads r ON r.THREAD_ID = p.OWNER_THREAD_ID
JOIN performance_schema.metadata_locks g ON g.OBJECT_TYPE = p.OBJECT_TYPE AND g.OBJECT_SCHEMA <=> p.OBJECT_SCHEMA
  AND g.OBJECT_NAME <=> p.OBJECT_NAME AND g.LOCK_STATUS = 'GRANTED' AND g.OWNER_THREAD_ID <> p.OWNER_THREAD_ID
JOIN performance_schema.threads t ON t.THREAD_ID = g.OWNER_THREAD_ID
WHERE p.LOCK_STATUS = 'PENDING' AND r.PROCESSLIST_ID = %s ORDER BY t.PROCESSLIST_TIME DESC LIMIT 1"""  # noqa: E501
_MARIADB_ROWS = """SELECT p.ID, p.USER, p.HOST, p.TIME, p.COMMAND, p.INFO, CONCAT('rows of ', REPLACE(l.lock_table, '`', ''))
FROM information_schema.INNODB_LOCK_WAITS w
JOIN information_schema.INNODB_TRX r ON r.trx_id = w.requesting_trx_id
JOIN information_schema.INNODB_TRX b ON b.trx_id = w.blocking_trx_id
JOIN information_schema.INNODB_LOCKS l ON l.lock_id = w.requested_lock_id
JOIN information_schema.PROCESSLIST p ON p.ID = b.trx_mysql_thread_id
WHERE r.trx_mysql_thread_id = %s LIMIT 1"""  # noqa: E501
_MARIADB_DEFINITIONS = """SELECT p.ID, p.USER, p.HOST, p.TIME, p.COMMAND, p.INFO, CONCAT(m.TABLE_SCHEMA, '.', m.TABLE_NAME)
FROM information_schema.METADATA_LOCK_INFO m JOIN information_schema.PROCESSLIST p ON p.ID = m.THREAD_ID
WHERE m.THREAD_ID <> %s AND m.LOCK_TYPE = 'Table metadata lock' AND m.TABLE_NAME NOT IN ('_sluice_ack', '_sluice_digests') ORDER BY p.TIME DESC"""  # noqa: E501
_MARIADB_OPEN = """SELECT p.ID, p.USER, p.HOST, p.TIME, p.COMMAND, p.INFO, ''
FROM information_schema.INNODB_TRX b JOIN information_schema.PROCESSLIST p ON p.ID = b.trx_mysql_thread_id
WHERE b.trx_mysql_thread_id <> %s ORDER BY b.trx_started"""


class Session(Protocol):
    """A session that may wait. ``blocker``: what is known of the lock that it waits, or waited, for."""

    connection: TargetConnection
    mariadb: bool
    blocker: str


@dataclass
class _Watched:
    session: Session
    endpoint: Endpoint
    owner: tuple[str, str]
    doing: str
    since: float = field(default_factory=time.monotonic)
    look_at: float = 0.0
    told_at: float = 0.0
    told: str = ""


class LockWatch:
    """Watches the sessions in use of this process, in a thread that lives while there are some.

    It never raises: it only reports.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._thread: threading.Thread | None = None

    def enter(self, session: Session, endpoint: Endpoint, owner: tuple[str, str], doing: str) -> None:
        """Watch ``session``, which ``owner`` (pipeline, target) uses from now on."""
        session.blocker = ""
        with self._lock:
            self._watched[id(session)] = _Watched(session, endpoint, owner, doing)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="lock-watch", daemon=True)
                self._thread.start()

    def leave(self, session: Session) -> None:
        """Stop watching a session that is no longer in use."""
        with self._lock:
            self._watched.pop(id(session), None)

    def interrupt(self, endpoint: Endpoint, owner: tuple[str, str]) -> int:
        """End the current statements of sessions of ``owner``; return how many sessions there are.

        Raises what connecting raises.
        """
        with self._lock:
            ids = [_number(watched.session) for watched in self._watched.values() if watched.owner == owner]
        if not ids:
            return 0
        connection = connect(endpoint)
        try:
            with connection.cursor() as cursor:
                for number in ids:
                    with suppress(pymysql.err.MySQLError):  # it has ended already
                        cursor.execute(f"KILL QUERY {number}")
        finally:
            connection.close()
        return len(ids)

    # -- inside --------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        connections: dict[tuple[str, str, str], TargetConnection] = {}
        idle = 0
        try:
            while idle < 4:
                time.sleep(_STEP_S)
                now = time.monotonic()
                with self._lock:
                    due = [w for w in self._watched.values() if now - w.since >= PATIENCE_S and now >= w.look_at]
                    idle = 0 if self._watched else idle + 1
                    if idle >= 4:
                        self._thread = None
                for watched in due:
                    watched.look_at = now + _AGAIN_S
                    self._look(watched, connections)
        finally:
            for connection in connections.values():
                connection.close()

    def _look(self, watched: _Watched, connections: dict[tuple[str, str, str], TargetConnection]) -> None:
        key = watched.endpoint.connection_id, watched.endpoint.address, watched.endpoint.user
        try:
            if key not in connections or not connections[key].open:
                connections[key] = connect(watched.endpoint)
            with connections[key].cursor() as cursor:
                with self._lock:
                    own_numbers = {_number(w.session) for w in self._watched.values() if w.endpoint == watched.endpoint}
                blocker = blocker_of(
                    cursor, _number(watched.session), watched.session.mariadb, watched.endpoint, own_numbers
                )
        except (pymysql.err.MySQLError, SluiceError, OSError) as error:
            _log.debug("lock_watch_failed", error=str(error))
            with suppress(KeyError):
                connections.pop(key).close()
            return
        now = time.monotonic()
        if not blocker:
            return
        watched.session.blocker = blocker
        alike = _SECONDS.sub("", blocker)
        if alike != watched.told or now - watched.told_at > _TOLD_S:
            watched.told, watched.told_at = alike, now
            _log.warning(
                "target_blocked",
                target=watched.owner[1],
                doing=watched.doing,
                waits_s=round(now - watched.since),
                reason=blocker,
            )


def _number(session: Session) -> int:
    """Return the number of the session's connection at the server."""
    return int(session.connection.thread_id())  # type: ignore[no-untyped-call]


def blocker_of(
    cursor: Any, thread: int, mariadb: bool, endpoint: Endpoint, own_sessions: Collection[int] = frozenset()
) -> str:
    """Return a sentence on what session ``thread`` waits for and who holds it; "" if it does not wait, as far as this
    login may see.

    ``own_sessions``: sessions of this process; they are excluded where the server lists only candidates. Raises
    pymysql.err.MySQLError.
    """
    cursor.execute("SELECT STATE FROM information_schema.PROCESSLIST WHERE ID = %s", (thread,))
    row = cursor.fetchone()
    state = str(row[0] or "") if row else ""
    waits = state.lower().startswith("waiting for") and "lock" in state.lower()
    denied = False
    questions = (
        [_MARIADB_ROWS, *((_MARIADB_DEFINITIONS, _MARIADB_OPEN) if waits else ())]
        if mariadb
        else [_ROWS, *((_DEFINITIONS,) if waits else ())]
    )
    for question in questions:
        try:
            cursor.execute(question, (thread,))
            blocker_row = next((row for row in cursor.fetchall() if row[0] not in own_sessions), None)
        except pymysql.err.MySQLError as error:
            if code_of(error) not in DENIED | {1109, 1146}:
                raise
            denied = denied or code_of(error) in DENIED
            continue
        if blocker_row:
            number, user, host, seconds, command, statement, what = blocker_row
            doing = (
                f"running {str(statement)[:120]!r}"
                if statement
                else "idle in a transaction"
                if command == "Sleep"
                else str(command).lower()
            )
            relation = (
                "the oldest open transaction is that of"
                if question is _MARIADB_OPEN
                else f"it waits for a lock on {what}, held by"
            )
            begin = f"{state}; " if question is _MARIADB_OPEN else ""
            return (
                f"{begin}{relation} connection {number} ({user}@{host or 'localhost'}), {doing}, {int(seconds or 0)} s "
                f"(KILL {number} ends it)"
            )
    if not waits:
        return ""
    return f"{state}; {grant_to_see(mariadb, endpoint)}" if denied or not mariadb else state


def grant_to_see(mariadb: bool, endpoint: Endpoint) -> str:
    """Return which privilege this login lacks to see who holds a lock."""
    what = LOCK_HOLDERS[MARIADB if mariadb else MYSQL]
    return (
        f"who holds it is seen with GRANT {what} TO the user {endpoint.user!r} of connection {endpoint.connection_id}"
    )


watch = LockWatch()
