"""A session at a MySQL target: a connection, its server's syntax, and statements that must do exactly what they
should.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import pymysql
import structlog

from sluice.errors import LoadError
from sluice.targets.mysql import statements
from sluice.targets.mysql.collations import Knows
from sluice.targets.mysql.column_types import Server
from sluice.targets.mysql.connection import LAX, LOCK_WAIT_S, STRICT, TargetConnection, code_of
from sluice.targets.sql.session_pool import SessionPool

_log = structlog.get_logger()

KEY_NOT_FOUND = 1032
"""The error by which a replica, too, stops at a row that does not exist."""
TRUNCATED = 1265
CUT = frozenset({1264, 1265, 1292, 1365, 1366, 1406, 1411, 1441, 1916, 1918})
"""The errors of a strict session, and warnings of another, for a value that is cut to fit or that an expression does
not understand.
"""
INDEXED = frozenset({1105, 3751, 3752})
"""The same about the value that a functional index computes: a session that is not strict stores the row as it is."""


def _knowing(cursor: Any) -> Knows:
    """Return what tells which collations the target has; the server is asked at the first question."""

    @cache
    def known() -> frozenset[tuple[str, str]]:
        statement = (
            "SELECT CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
        )
        try:  # MariaDB 10.10+: collations that several charsets share have their whole name here
            cursor.execute(statement.replace("COLLATION_NAME", "FULL_COLLATION_NAME"))
        except pymysql.err.MySQLError:
            cursor.execute(statement)
        return frozenset((str(charset), str(collation)) for charset, collation in cursor.fetchall())

    return lambda charset, collation: (charset, collation) in known()


class Session:
    """A connection with its cursor and what its server understands."""

    def __init__(self, connection: TargetConnection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.cursor.execute("SELECT VERSION(), @@max_allowed_packet, @@GLOBAL.local_infile")
        version, packet, local_infile = self.cursor.fetchone()
        self.local_infile = bool(int(local_infile))
        self.connection.packet_limit = int(packet)
        self.mariadb = "mariadb" in version.lower()
        self.server = Server(self.mariadb, knows=_knowing(self.cursor))
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:3])
        self.dialect = statements.Dialect(
            row_alias=not self.mariadb and numbers >= (8, 0, 19),
            row_constructors=not self.mariadb,
            max_bytes=min(statements.MAX_BYTES, int(packet) - 1024),
            exact_collation="utf8mb4_nopad_bin"
            if self.mariadb
            else "utf8mb4_0900_bin"
            if numbers >= (8, 0, 17)
            else "utf8mb4_bin",
        )
        self._lax = False
        self.lock_wait_s = LOCK_WAIT_S
        self.blocker = ""

    def fileno(self) -> int:
        """Return the file descriptor of the connection, -1 if it is closed."""
        sock: Any = self.connection._sock  # type: ignore[attr-defined]
        return int(sock.fileno()) if sock is not None else -1

    def close(self) -> None:
        """Close the connection. The server rolls back what is open."""
        self.connection.close()

    def begin(self) -> None:
        """Begin a transaction; the statement is sent with the next one."""
        self.connection.ahead("BEGIN")

    def commit(self) -> None:
        """Commit the transaction."""
        self.connection.commit()

    def rollback(self) -> None:
        """Roll back. If the connection is gone, the server does it; the first error is the one to show."""
        try:
            self.connection.rollback()
        except (
            Exception
        ) as error:  # the connection is gone, and the server rolls back by itself; the first error is the one to show
            _log.debug("rollback_failed", error=str(error))

    @contextmanager
    def foreign_keys(self, *, checked: bool) -> Iterator[None]:
        """Check foreign keys of rows written inside the context, or do not."""
        if not checked:
            yield
            return
        self.cursor.execute("SET SESSION foreign_key_checks = 1")
        try:
            yield
        finally:
            with suppress(
                pymysql.err.Error
            ):  # the connection is gone, and its session with it; the first error is the one to show
                self.cursor.execute("SET SESSION foreign_key_checks = 0")

    def write(self, statement: statements.Statement) -> int:
        """Return how many rows the server says it changed, 0 for LOAD DATA.

        Raises LoadError if it does not do exactly what it should.
        """
        self._set_lax(bool(statement.lax))
        try:
            changed, warned = self._send(statement)
        except pymysql.err.MySQLError as error:
            if self._lax or not _is_of_computed(code_of(error), str(error.args[-1]), statement.computed):
                raise
            self._set_lax(True)
            changed, warned = self._send(statement)
        if self._lax or warned:
            self._refuse_other_warnings(statement.lax, statement.computed)
        self._require(statement, changed)
        if statement.absent is not None and not changed:
            self._require_row(statement.absent)
        return changed

    def _send(self, statement: statements.Statement) -> tuple[int, int]:
        """Return how many rows the server says it changed, and how many warnings LOAD DATA LOCAL has, which are as good
        as errors.
        """
        if statement.data is not None:
            return 0, self.connection.load(statement.sql, statement.data)
        return int(self.connection.query(statement.sql) or 0), 0

    def _set_lax(self, lax: bool) -> None:
        if lax != self._lax:
            self.cursor.execute("SET SESSION sql_mode = %s", (LAX if lax else STRICT,))
            self._lax = lax

    def run(self, todo: Iterator[statements.Statement]) -> int:
        """Execute statements; return their number. Raises LoadError if one does not do exactly what it should."""
        count = 0
        for statement in todo:
            self.write(statement)
            count += 1
        return count

    def _require(self, statement: statements.Statement, changed: int) -> None:
        if statement.removes and changed > statement.rows:
            raise LoadError(
                f"a DELETE of {statement.rows} rows would have removed {changed} rows of the target",
                where=statement.where,
                hint="the target's key holds values for equal that the source tells apart: compare its collation "
                "(`sluice check`)",
            )
        if not statement.exactly or changed == statement.rows:
            return
        missing = LoadError(
            f"the target has {changed} of the {statement.rows} rows to delete{statement.wanted} (error "
            f"{KEY_NOT_FOUND})",
            where=statement.where,
            hint="somebody else changed the table, or it never had these rows: copy it anew (`sluice dump start`)",
        )
        missing.code = KEY_NOT_FOUND
        raise missing

    def _require_row(self, absent: statements.Absent) -> None:
        """Raise the error unless the row exists: an UPDATE also changes no row if the row already has the values."""
        self.cursor.execute(absent.query)
        if self.cursor.fetchone() is None:
            raise absent.error

    def _refuse_other_warnings(self, columns: Sequence[str], computed: Sequence[str]) -> None:
        """Refuse warnings except the expected ones: a session that is not strict cuts values to fit."""
        self.cursor.execute("SHOW COUNT(*) WARNINGS")
        count = int(self.cursor.fetchone()[0])
        self.cursor.execute("SHOW WARNINGS")
        warnings = self.cursor.fetchall()
        for level, code, text in warnings:
            if level == "Note" or (code == TRUNCATED and any(f"'{column}'" in text for column in columns)):
                continue
            if not _is_of_computed(code, text, computed):
                raise _would_change(level, code, text)
        if len(warnings) < count:
            raise _would_change("Warning", 0, f"it warns of {count} values, and shows {len(warnings)} of them")


def _is_of_computed(code: int, text: str, computed: Sequence[str]) -> bool:
    """Return True if a message is about a value that the server computed.

    One that names no column is about a part of an expression.
    """
    if code in INDEXED:
        return True
    if code not in CUT or not computed:
        return False
    named = _COLUMN.search(text)
    return named is None or (named[1] or named[2]).replace("``", "`").casefold() in map(str.casefold, computed)


_COLUMN = re.compile(r"\bcolumn (?:'(.*)'|(?:`(?:[^`]|``)*`\.)*`((?:[^`]|``)*)`) at row \d+$", re.S)
"""The end of such a message if it names a column: MySQL's, and one of the two of MariaDB's."""


def _would_change(level: str, code: int, text: str) -> LoadError:
    """Return the error for a warning of the server."""
    refused = LoadError(f"the target would have changed a value: {text} ({level.lower()} {code})")
    refused.code = int(code)
    return refused


kept: SessionPool[Session] = SessionPool()
"""The sessions of this process that wait for their next use."""
