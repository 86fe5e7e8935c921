"""A session that controls a MySQL or MariaDB server: who may write, and what of it is no row.

MySQL keeps ``read_only`` over a restart (SET PERSIST). MariaDB forgets it, so that accounts are locked there, too: a
locked account keeps its sessions, which ``read_only`` stops, and gets no new one, whatever is restarted.
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
from sluice.errors import PreflightError, SourceUnavailable
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.client import MySQLConnection
from sluice.mysql.literals import text_literal
from sluice.sources.mysql.server.connection import connected, rows_of, source_errors
from sluice.sources.port.handover import Access, ForeignKey, ServerObject

_BYPASS = {False: ("CONNECTION_ADMIN", "SUPER"), True: ("READ_ONLY ADMIN", "READ ONLY ADMIN")}
"""Whether it is MariaDB -> the privileges with which an account writes although ``read_only`` is on."""
_OWN_ACCOUNTS = ("mysql.sys", "mysql.session", "mysql.infoschema", "mariadb.sys")
_DEFINER = re.compile(r"\sDEFINER=(`(?:[^`]|``)*`@`(?:[^`]|``)*`)")
_LOOK_S = 0.02

_ROUTINES = "SELECT ROUTINE_SCHEMA, ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_TYPE"
_OBJECTS = {
    "view": ("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.VIEWS WHERE TABLE_SCHEMA", 1),
    "trigger": ("SELECT TRIGGER_SCHEMA, TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA", 2),
    "function": (f"{_ROUTINES} = 'FUNCTION' AND ROUTINE_SCHEMA", 2),
    "procedure": (f"{_ROUTINES} = 'PROCEDURE' AND ROUTINE_SCHEMA", 2),
    "event": ("SELECT EVENT_SCHEMA, EVENT_NAME FROM information_schema.EVENTS WHERE EVENT_SCHEMA", 3),
    "sequence": (
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'SEQUENCE' AND TABLE_SCHEMA",
        1,
    ),
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
            is_mariadb = "mariadb" in str(rows_of(connection, "SELECT @@version")[0][0]).lower()
            if not is_mariadb:
                rows_of(connection, "SET SESSION information_schema_stats_expiry = 0")
            if name:
                _take(connection, f"sluice migrate {name}"[:64], within_s)
        yield MySQLControl(endpoint, connection, is_mariadb)


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

    def __init__(self, endpoint: Endpoint, connection: MySQLConnection, mariadb: bool) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self._mariadb = mariadb

    # -- who may write -------------------------------------------------------------------------------------------------
    def access(self, accounts: Collection[str]) -> Access:
        """Read the server's settings; at MariaDB, locked accounts keep a server closed that was restarted."""
        query = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only')"
        variables = {str(name): str(value) for name, value in self._ask(query)}
        if variables.get("super_read_only", "OFF") == "ON":
            return Access.SEALED
        if variables.get("read_only", "OFF") != "OFF" or (accounts and set(accounts) <= self._locked()):
            return Access.CLOSED
        return Access.OPEN

    def lockable(self) -> Sequence[str]:
        """Return the accounts that are not locked, without those that nothing keeps from writing, if the server is a
        MariaDB, or does not load what SET PERSIST wrote.
        """
        if not self._mariadb and self._ask("SELECT @@persisted_globals_load") == [(1,)]:
            return ()
        rows = self._ask("SELECT User, Host FROM mysql.user" + " WHERE is_role = 'N'" * self._mariadb)
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
            if not self._mariadb:
                self._run(f"SET PERSIST {name} = {value}")
            elif name == "read_only":
                self._run(f"SET GLOBAL read_only = {value}")

    def bypassing(self) -> Sequence[str]:
        """Return the accounts that have the privilege to write at a server that is read-only."""
        names = ", ".join(text_literal(name) for name in _BYPASS[self._mariadb])
        rows = self._ask(
            f"SELECT DISTINCT GRANTEE FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE IN ({names})"
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
        rows = self._ask(
            "SELECT User, Host FROM mysql.global_priv WHERE JSON_VALUE(Priv, '$.account_locked') = 1"
            if self._mariadb
            else "SELECT User, Host FROM mysql.user WHERE account_locked = 'Y'"
        )
        return {_account(user, host) for user, host in rows}

    # -- what is no row ------------------------------------------------------------------------------------------------
    def objects(self, schemas: Collection[str]) -> Sequence[ServerObject]:
        """Read views, triggers, routines, events, sequences and logins."""
        objects: list[ServerObject] = []
        for kind, (query, column) in _OBJECTS.items():
            for schema, name in self._ask(f"{query} IN %s ORDER BY 1, 2", (sorted(schemas),)):
                [row] = self._ask(f"SHOW CREATE {kind.upper()} {quoted(str(schema))}.{quoted(str(name))}")
                objects.append(ServerObject(kind, f"{schema}.{name}", str(row[column] or "")))
        return [*objects, *self._logins()]

    def _logins(self) -> Iterator[ServerObject]:
        """Yield the accounts with their grants, without the hashes of their passwords."""
        rows = self._ask("SELECT User, Host FROM mysql.user ORDER BY 1, 2")
        for user, host in rows:
            account = _account(user, host)
            if user in {"root", *_OWN_ACCOUNTS} or account == self._own():
                continue
            try:
                grants = [str(row[0]) for row in self._ask(f"SHOW GRANTS FOR {account}")]
            except (PreflightError, SourceUnavailable):  # a role of MariaDB has no host
                continue
            lines = [re.sub(r" IDENTIFIED (?:BY PASSWORD|VIA|WITH) .*?(?= WITH |$)", "", line) for line in grants]
            yield ServerObject("login", account, ";\n".join((f"CREATE USER {account}", *lines)))

    def counters(self, tables: Collection[TableId]) -> Mapping[TableId, int]:
        """Read AUTO_INCREMENT of each table."""
        schemas = sorted({table.schema for table in tables}) or [""]
        rows = self._ask(
            "SELECT TABLE_SCHEMA, TABLE_NAME, AUTO_INCREMENT FROM information_schema.TABLES WHERE AUTO_INCREMENT IS "
            "NOT NULL AND TABLE_SCHEMA IN %s",
            (schemas,),
        )
        numbers = {TableId(str(schema), str(table)): int(number) for schema, table, number in rows}
        return {table: numbers[table] for table in tables if table in numbers}

    def raise_counters(self, numbers: Mapping[TableId, int]) -> None:
        """Set AUTO_INCREMENT of the tables whose number is lower."""
        present = self.counters(numbers)
        for table, number in numbers.items():
            if table in present and present[table] < number:
                self._run(f"ALTER TABLE {quoted_table(table)} AUTO_INCREMENT = {int(number)}")

    def foreign_keys(self, tables: Collection[TableId]) -> Sequence[ForeignKey]:
        """Read the foreign keys of tables."""
        schemas = sorted({table.schema for table in tables}) or [""]
        rules = {
            (str(schema), str(name)): (str(deletes), str(updates))
            for schema, name, deletes, updates in self._ask(
                "SELECT CONSTRAINT_SCHEMA, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM "
                "information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA IN %s",
                (schemas,),
            )
        }
        parts: dict[tuple[str, str, str], list[tuple[str, ...]]] = {}
        for schema, name, table, *columns in self._ask(
            "SELECT CONSTRAINT_SCHEMA, CONSTRAINT_NAME, TABLE_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, "
            "REFERENCED_TABLE_NAME, REFERENCED_COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE WHERE "
            "REFERENCED_TABLE_NAME IS NOT NULL AND CONSTRAINT_SCHEMA IN %s ORDER BY 1, 3, 2, ORDINAL_POSITION",
            (schemas,),
        ):
            parts.setdefault((str(schema), str(name), str(table)), []).append(tuple(map(str, columns)))
        return [
            ForeignKey(
                name,
                TableId(schema, table),
                tuple(column[0] for column in columns),
                TableId(columns[0][1], columns[0][2]),
                tuple(column[3] for column in columns),
                *rules[schema, name],
            )
            for (schema, name, table), columns in parts.items()
            if TableId(schema, table) in tables
        ]

    def unmovable(self, tables: Collection[TableId]) -> Mapping[str, str]:
        """Name tables of other engines than InnoDB, and those that keep their history."""
        schemas = sorted({table.schema for table in tables}) or [""]
        unmovable: dict[str, str] = {}
        for schema, name, engine, kind in self._ask(
            "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA IN "
            "%s ORDER BY 1, 2",
            (schemas,),
        ):
            table = TableId(str(schema), str(name))
            if table not in tables:
                continue
            if kind == "SYSTEM VERSIONED":
                unmovable[str(table)] = "it is system-versioned: its history would not move"
            elif engine != "InnoDB":
                unmovable[str(table)] = f"its engine {engine} has no transactions: a write may be stopped half done"
        return unmovable

    def unknown_definers(self, objects: Collection[ServerObject]) -> Sequence[str]:
        """Look for the accounts that the statements name."""
        accounts = {_account(user, host) for user, host in self._ask("SELECT User, Host FROM mysql.user")}
        definers = {entry.name: _DEFINER.search(entry.sql) for entry in objects}
        return [name for name, match in definers.items() if match and match[1].replace("`", "'") not in accounts]

    def run(self, statement: str) -> None:
        """Run a statement."""
        self._run(statement)

    # -- inside --------------------------------------------------------------------------------------------------------
    def _ask(self, query: str, args: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
        with source_errors(self._endpoint, "controlling the server"):
            return rows_of(self._connection, query, args)

    def _run(self, statement: str) -> None:
        with source_errors(self._endpoint, f"running {statement[:200]}"):
            rows_of(self._connection, statement)


def _account(user: object, host: object) -> str:
    """Return an account as GRANTEE of information_schema shows it, which is how statements write it."""
    return f"{text_literal(str(user))}@{text_literal(str(host))}"


def foreign_key_sql(key: ForeignKey) -> str:
    """Return the ALTER TABLE that adds a foreign key."""
    columns, referred = (", ".join(map(quoted, names)) for names in (key.columns, key.referred_columns))
    return (
        f"ALTER TABLE {quoted_table(key.table)} ADD CONSTRAINT {quoted(key.name)} FOREIGN KEY ({columns}) REFERENCES "
        f"{quoted_table(key.refers)} ({referred}) ON DELETE {key.on_delete} ON UPDATE {key.on_update}"
    )
