"""A session that controls a MySQL server: who may write, and what of it is no row.

MySQL keeps ``read_only`` over a restart (SET PERSIST). One that does not load what was persisted forgets it, so that
accounts are locked there, too: a locked account keeps its sessions, which ``read_only`` stops, and gets no new one,
whatever is restarted.
"""

# ruff: noqa: S608 - names are quoted

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from sluice.config.connections import Endpoint
from sluice.errors import SourceUnavailable
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.client import MySQLConnection
from sluice.mysql.literals import text_literal
from sluice.sources.mysql.server.connection import connected, rows_of, source_errors
from sluice.sources.mysql.server.table_list import in_schemas
from sluice.sources.port.handover import Access, ServerObject

_OWN_ACCOUNTS = ("mysql.sys", "mysql.session", "mysql.infoschema")
_DEFINER = re.compile(r"\sDEFINER=(`(?:[^`]|``)*`@`(?:[^`]|``)*`)")
_LOOK_S = 0.02

_ROUTINES = "SELECT ROUTINE_SCHEMA, ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_TYPE"
_OBJECTS = {
    "view": ("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.VIEWS WHERE TABLE_SCHEMA", 1),
    "trigger": ("SELECT TRIGGER_SCHEMA, TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA", 2),
    "function": (f"{_ROUTINES} = 'FUNCTION' AND ROUTINE_SCHEMA", 2),
    "procedure": (f"{_ROUTINES} = 'PROCEDURE' AND ROUTINE_SCHEMA", 2),
    "event": ("SELECT EVENT_SCHEMA, EVENT_NAME FROM information_schema.EVENTS WHERE EVENT_SCHEMA", 3),
}
"""Kind of object -> the query of its schemas and names up to the list of schemas, and the column of SHOW CREATE that
has the statement.
"""


@contextmanager
def control(endpoint: Endpoint, name: str, *, within_s: float) -> Iterator[MySQLControl]:
    """See :class:`sluice.sources.port.handover.HandsOver`."""
    with connected(endpoint) as connection:
        connection.wait_for(max(int(within_s), 1))
        with source_errors(endpoint, "taking control of the server"):
            rows_of(connection, "SET SESSION lock_wait_timeout = %s", (max(int(within_s), 1),))
            rows_of(connection, "SET SESSION information_schema_stats_expiry = 0")
            if name:
                _take(connection, f"sluice migrate {name}"[:64], within_s)
        yield MySQLControl(endpoint, connection)


def _take(connection: MySQLConnection, lock: str, within_s: float) -> None:
    """Get the named lock of the server, and end the session that has it. Raises SourceUnavailable."""
    end = time.monotonic() + within_s
    while True:
        [(holder,)] = rows_of(connection, "SELECT IS_USED_LOCK(%s)", (lock,))
        if holder is not None:
            with suppress(pymysql.err.MySQLError):  # it ended just now
                rows_of(connection, f"KILL {int(holder)}")
        if rows_of(connection, "SELECT GET_LOCK(%s, 0)", (lock,)) == [(1,)]:
            return
        if time.monotonic() > end:
            raise SourceUnavailable(f"another session that controls the server did not end within {within_s:g} s")
        time.sleep(_LOOK_S)


class MySQLControl:
    """See :class:`sluice.sources.port.handover.ServerControl`."""

    def __init__(self, endpoint: Endpoint, connection: MySQLConnection) -> None:
        self._endpoint = endpoint
        self._connection = connection

    # -- who may write -------------------------------------------------------------------------------------------------
    def access(self, accounts: Collection[str]) -> Access:
        """Read the server's settings; locked accounts keep a server closed that forgot them in a restart."""
        query = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only')"
        variables = {str(name): str(value) for name, value in self._ask(query)}
        if variables.get("super_read_only", "OFF") == "ON":
            return Access.SEALED
        if variables.get("read_only", "OFF") != "OFF" or (accounts and set(accounts) <= self._locked()):
            return Access.CLOSED
        return Access.OPEN

    def lockable(self) -> Sequence[str]:
        """Return the accounts that are not locked, without those that nothing keeps from writing, if the server does
        not load what SET PERSIST wrote.
        """
        if self._ask("SELECT @@persisted_globals_load") == [(1,)]:
            return ()
        rows = self._ask("SELECT User, Host FROM mysql.user")
        accounts = {_account(user, host) for user, host in rows if user not in _OWN_ACCOUNTS}
        # with skip_name_resolve the server does not load accounts of a host's name
        accounts &= {str(row[0]) for row in self._ask("SELECT GRANTEE FROM information_schema.USER_PRIVILEGES")}
        return sorted(accounts - self._locked() - set(self.bypassing()) - {self._own()})

    def allow(self, access: Access, accounts: Collection[str]) -> None:
        """Set ``read_only``, and lock or unlock accounts. A step that was cut short leaves the server closed."""
        if access is Access.OPEN:
            self._set(super_read_only="OFF", read_only="OFF")
            for account in accounts:
                self._run(f"ALTER USER IF EXISTS {account} ACCOUNT UNLOCK")
            return
        for account in accounts:
            self._run(f"ALTER USER IF EXISTS {account} ACCOUNT LOCK")
        if access is Access.SEALED:
            self._set(read_only="ON", super_read_only="ON")
        else:
            self._set(read_only="ON", super_read_only="OFF")

    def _set(self, **settings: str) -> None:
        for name, value in settings.items():
            self._run(f"SET PERSIST {name} = {value}")

    def bypassing(self) -> Sequence[str]:
        """Return the accounts that have the privilege to write at a server that is read-only."""
        rows = self._ask(
            "SELECT DISTINCT GRANTEE FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE IN "
            "('CONNECTION_ADMIN', 'SUPER')"
        )
        accounts = {
            str(row[0]) for row in rows if not any(str(row[0]).startswith(f"'{own}'@") for own in _OWN_ACCOUNTS)
        }
        return sorted(accounts - {self._own()})

    def _own(self) -> str:
        [(account,)] = self._ask("SELECT CURRENT_USER()")
        user, _, host = str(account).rpartition("@")
        return _account(user, host)

    def _locked(self) -> set[str]:
        rows = self._ask("SELECT User, Host FROM mysql.user WHERE account_locked = 'Y'")
        return {_account(user, host) for user, host in rows}

    # -- what is no row ------------------------------------------------------------------------------------------------
    def objects(self, schemas: Collection[str]) -> Sequence[ServerObject]:
        """Read views, triggers, routines, events and logins."""
        objects: list[ServerObject] = []
        for kind, (query, column) in _OBJECTS.items():
            for schema, name in self._ask(f"{query} IN %s ORDER BY 1, 2", (sorted(schemas),)):
                [row] = self._ask(f"SHOW CREATE {kind.upper()} {quoted(str(schema))}.{quoted(str(name))}")
                objects.append(ServerObject(kind, f"{schema}.{name}", str(row[column] or "")))
        return [*objects, *self._logins()]

    def _logins(self) -> Iterator[ServerObject]:
        """Yield the accounts with their grants, which have no passwords."""
        rows = self._ask("SELECT User, Host FROM mysql.user ORDER BY 1, 2")
        for user, host in rows:
            account = _account(user, host)
            if user in {"root", *_OWN_ACCOUNTS} or account == self._own():
                continue
            grants = (str(row[0]) for row in self._ask(f"SHOW GRANTS FOR {account}"))
            yield ServerObject("login", account, ";\n".join((f"CREATE USER {account}", *grants)))

    def counters(self, tables: Collection[TableId]) -> Mapping[TableId, int]:
        """Read AUTO_INCREMENT of each table."""
        rows = self._of_tables("AUTO_INCREMENT", tables)
        return {table: int(number) for table, number in rows if number is not None}

    def raise_counters(self, numbers: Mapping[TableId, int]) -> None:
        """Set AUTO_INCREMENT of the tables whose number is lower."""
        present = self.counters(numbers)
        for table, number in numbers.items():
            if table in present and present[table] < number:
                self._run(f"ALTER TABLE {quoted_table(table)} AUTO_INCREMENT = {int(number)}")

    def unmovable(self, tables: Collection[TableId]) -> Mapping[str, str]:
        """Name tables of other engines than InnoDB."""
        return {
            str(table): f"its engine {engine} has no transactions: a write may be stopped half done"
            for table, engine in self._of_tables("ENGINE", tables)
            if engine != "InnoDB"
        }

    def unknown_definers(self, objects: Collection[ServerObject]) -> Sequence[str]:
        """Look for the accounts that the statements name."""
        accounts = {_account(user, host) for user, host in self._ask("SELECT User, Host FROM mysql.user")}
        definers = {entry.name: _DEFINER.search(entry.sql) for entry in objects}
        return [name for name, match in definers.items() if match and match[1].replace("`", "'") not in accounts]

    def run(self, statement: str) -> None:
        """Run a statement."""
        self._run(statement)

    # -- inside --------------------------------------------------------------------------------------------------------
    def _of_tables(self, column: str, tables: Collection[TableId]) -> Iterator[tuple[TableId, Any]]:
        """Yield tables with a column of information_schema.TABLES."""
        schemas = sorted({table.schema for table in tables})
        rows = self._ask(
            f"SELECT TABLE_SCHEMA, TABLE_NAME, {column} FROM information_schema.TABLES WHERE {in_schemas(schemas)} "
            "ORDER BY 1, 2",
            tuple(schemas),
        )
        for schema, name, value in rows:
            if (table := TableId(str(schema), str(name))) in tables:
                yield table, value

    def _ask(self, query: str, args: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
        with source_errors(self._endpoint, "controlling the server"):
            return rows_of(self._connection, query, args)

    def _run(self, statement: str) -> None:
        with source_errors(self._endpoint, f"running {statement[:200]}"):
            rows_of(self._connection, statement)


def _account(user: object, host: object) -> str:
    """Return an account as GRANTEE of information_schema shows it, which is how statements write it."""
    return f"{text_literal(str(user))}@{text_literal(str(host))}"
