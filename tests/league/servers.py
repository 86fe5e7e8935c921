"""The two ends of a case: a server that is written to, and one that tools may write to. What each answers is the truth."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from psycopg import sql

from devstack.mariadb import MariaDBServer
from devstack.mysql import MySQLServer
from devstack.postgresql import PostgreSQLServer
from tests.support.servers.fixtures import UNSAFE

MARK = "league_mark"
"""The table that a case's last row is written to: a tool that has it has all before."""
COPY = "copy"
"""The database of PostgreSQL's other end, on the same server."""


@dataclass(frozen=True, slots=True)
class Table:
    """A server's answer for a table: names and types of the columns, the key, the rows as texts."""

    types: dict[str, str]
    key: tuple[str, ...]
    generated: frozenset[str]
    rows: list[dict[str, Any]]


class MySQLEnds:
    """Two servers of MySQL."""

    kind = "mysql"

    def __init__(self, source: Any, target: Any) -> None:
        self.source, self.target = source, target

    @property
    def version(self) -> str:
        """The source's version."""
        return str(self.source.execute("SELECT VERSION()")[0][0])

    def session(self, schema: str) -> Any:
        """Open a session of an application in the schema."""
        return self.source.connect(schema)

    def make(self, schema: str, statements: tuple[str, ...], *, target: bool) -> None:
        """Make a schema with these tables, at the target as well or only there gone."""
        options = "CHARACTER SET utf8mb4" + (" COLLATE utf8mb4_0900_ai_ci" if self.kind == "mysql" else "")
        self.target.execute(f"DROP DATABASE IF EXISTS `{schema}`")
        for server in (self.source, self.target) if target else (self.source,):
            there = [one for one in statements if server is self.source or not one.startswith("CREATE TRIGGER")]
            server.execute(f"CREATE DATABASE `{schema}` {options}")
            server.execute(
                f"CREATE TABLE {MARK} (id INT PRIMARY KEY)",
                *(one.replace("{db}", schema) for one in there),
                database=schema,
            )

    def fill(self, schema: str, statements: tuple[str, ...], *, target: bool) -> None:
        """Write the rows that are there before."""
        for server in (self.source, self.target) if target else (self.source,):
            if statements:
                server.execute(*statements, database=schema)

    def drop(self, schema: str) -> None:
        """Remove the schema from both sides."""
        for server in (self.source, self.target):
            with contextlib.suppress(Exception):
                server.execute("SET SESSION foreign_key_checks = 0", f"DROP DATABASE IF EXISTS `{schema}`")

    @contextlib.contextmanager
    def settings(self, values: tuple[tuple[str, Any], ...]) -> Iterator[None]:
        """Set global variables of the source for the block."""
        before = [(name, self.source.execute(f"SELECT @@GLOBAL.{name}")[0][0]) for name, _ in values]
        try:
            self.source.execute(*(f"SET GLOBAL {name} = {value!r}" for name, value in values), "DO 0")
            yield
        finally:
            self.source.execute(*(f"SET GLOBAL {name} = {value!r}" for name, value in before), "DO 0")

    def parts(self, schema: str) -> set[str]:
        """Return no table: partitions have no names of tables here."""
        return set()

    def position(self) -> tuple[str, int]:
        """Return file and offset of the end of the log."""
        word = "BINARY LOG" if self.kind == "mysql" else "MASTER"
        [row] = self.source.execute(f"SHOW {word} STATUS")
        return str(row[0]), int(row[1])

    def purge(self, schema: str) -> None:
        """Remove every file of the log but a new one."""
        for _ in range(20):  # a file that the engine still needs to recover stays for a moment
            self.source.execute("FLUSH BINARY LOGS")
            self.source.execute(f"PURGE BINARY LOGS TO '{self.position()[0]}'")
            if len(self.source.execute("SHOW BINARY LOGS")) == 1:
                return
            time.sleep(0.1)

    def reset(self) -> None:
        """Begin the log anew."""
        self.source.execute("RESET BINARY LOGS AND GTIDS" if self.kind == "mysql" else "RESET MASTER")

    def mark(self, schema: str, number: int) -> None:
        """Write the mark."""
        self.source.execute(f"REPLACE INTO {MARK} VALUES ({number})", database=schema)

    def marked(self, schema: str) -> int:
        """Return the newest mark at the target."""
        with contextlib.suppress(pymysql.err.ProgrammingError):  # the schema is gone for a moment in one case
            return int(self.target.execute(f"SELECT COALESCE(MAX(id), 0) FROM `{schema}`.{MARK}")[0][0])
        return 0

    def answer(self, schema: str, *, target: bool = False) -> dict[str, Table]:
        """Return every table of the schema but the mark, as the server's SELECT answers."""
        server = self.target if target else self.source
        columns: dict[str, list[tuple[Any, ...]]] = {}
        for table, *rest in server.execute(
            "SELECT c.table_name, column_name, column_type, column_key, extra FROM information_schema.columns c JOIN "
            f"information_schema.tables t USING (table_schema, table_name) WHERE table_schema = '{schema}' AND table_type IN "
            f"('BASE TABLE', 'SYSTEM VERSIONED') AND c.table_name <> '{MARK}' ORDER BY ordinal_position"
        ):
            columns.setdefault(str(table), []).append(tuple(rest))
        with (
            contextlib.closing(server.connect(schema, conv={}, use_unicode=False)) as connection,
            connection.cursor() as cursor,
        ):
            return {name: self._table(cursor, schema, name, found) for name, found in columns.items()}

    def _table(self, cursor: Any, schema: str, name: str, columns: list[tuple[Any, ...]]) -> Table:
        types = {column: _text(kind) for column, kind, _, _ in columns}
        wanted = ", ".join(
            f"CAST({_name(column)} AS DOUBLE)" if kind.startswith("float") else _name(column)
            for column, kind in types.items()
        )
        cursor.execute(f"SELECT {wanted} FROM {_name(name)}")
        rows = [dict(zip(types, row, strict=True)) for row in cursor.fetchall()]
        cursor.execute(
            "SELECT column_name FROM information_schema.key_column_usage WHERE constraint_name = 'PRIMARY' AND table_schema = "
            f"{cursor.connection.escape(schema)} AND table_name = {cursor.connection.escape(name)} ORDER BY ordinal_position"
        )
        key = tuple(_text(row[0]) for row in cursor.fetchall())
        generated = frozenset(
            column for column, _, _, extra in columns if "GENERATED" in extra and "DEFAULT" not in extra
        )
        return Table(types, key, generated, rows)


class MariaDBEnds(MySQLEnds):
    """Two servers of MariaDB."""

    kind = "mariadb"


class PostgreSQLEnds:
    """One PostgreSQL: the database that is written to, and another for what is delivered."""

    kind = "postgresql"

    def __init__(self, server: PostgreSQLServer) -> None:
        self.source = self.target = server

    @property
    def version(self) -> str:
        """The server's version."""
        return str(self.source.execute("SHOW server_version")[0][0])

    def session(self, schema: str) -> Any:
        """Open a session of an application in the schema."""
        return self.source.connect(options=f"-c search_path={schema}")

    def make(self, schema: str, statements: tuple[str, ...], *, target: bool) -> None:
        """Make a schema with these tables, at the target as well or only there gone."""
        self._on(COPY, "", f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        for database in ("postgres", COPY) if target else ("postgres",):
            there = [one for one in statements if database != COPY or not one.startswith("CREATE TRIGGER")]
            made = (f"CREATE TABLE {MARK} (id int PRIMARY KEY)", *(one.replace("{db}", schema) for one in there))
            self._on(database, "", f"CREATE SCHEMA {schema}")
            self._on(database, schema, *made)

    def fill(self, schema: str, statements: tuple[str, ...], *, target: bool) -> None:
        """Write the rows that are there before."""
        for database in ("postgres", COPY) if target else ("postgres",):
            self._on(database, schema, *statements)

    def drop(self, schema: str) -> None:
        """Remove the schema from both sides, and what a tool left of its place in the log."""
        for database in ("postgres", COPY):
            with contextlib.suppress(Exception):
                self._on(database, "", f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        self.drop_slots(schema)

    def drop_slots(self, schema: str) -> None:
        """Remove the slots of a case's tools, and end who reads them."""
        where = f"slot_name LIKE '%{schema}%'"
        self.source.execute(
            f"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE {where} AND active_pid IS NOT NULL",
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE {where} AND active_pid IS NULL",
        )

    @contextlib.contextmanager
    def settings(self, values: tuple[tuple[str, Any], ...]) -> Iterator[None]:
        """Set variables of the server for the block."""
        try:
            for name, value in values:
                self.source.execute(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")
            yield
        finally:
            for name, _ in values:
                self.source.execute(f"ALTER SYSTEM RESET {name}", "SELECT pg_reload_conf()")

    def parts(self, schema: str) -> set[str]:
        """Return the tables that are partitions of others by now, and may be tables of their own at the other end."""
        place = f"relispartition AND relnamespace = '{schema}'::regnamespace"
        return {row[0] for row in self.source.execute(f"SELECT relname FROM pg_class WHERE {place}")}

    def purge(self, schema: str) -> None:
        """Let the server remove the log that a slot still needs."""
        with self.settings((("max_slot_wal_keep_size", "1MB"),)):
            for _ in range(3):
                self.source.execute("SELECT pg_switch_wal()", "SELECT pg_logical_emit_message(false, 'x', 'y')")
            self.source.execute("CHECKPOINT")

    def mark(self, schema: str, number: int) -> None:
        """Write the mark."""
        self._on("postgres", schema, f"INSERT INTO {MARK} VALUES ({number}) ON CONFLICT (id) DO NOTHING")

    def marked(self, schema: str) -> int:
        """Return the newest mark at the target."""
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            return int(self.target.execute(f"SELECT coalesce(max(id), 0) FROM {schema}.{MARK}", database=COPY)[0][0])
        return 0

    def answer(self, schema: str, *, target: bool = False) -> dict[str, Table]:
        """Return every table of the schema but the mark, as the server's SELECT answers."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        with self.source.connect(COPY if target else "postgres", options="-c intervalstyle=iso_8601") as connection:
            for table, *rest in connection.execute(
                "SELECT c.relname, a.attname, format_type(atttypid, atttypmod), attgenerated <> '', coalesce(i.at, 0) FROM "
                "pg_class c JOIN pg_attribute a ON attrelid = c.oid LEFT JOIN LATERAL (SELECT array_position(indkey::int[], "
                "a.attnum::int) + 1 FROM pg_index WHERE indrelid = c.oid AND indisprimary AND indimmediate) i (at) ON true WHERE attnum > 0 AND NOT "
                "attisdropped AND relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = %s::regnamespace AND c.relname "
                "<> %s ORDER BY attnum", (schema, MARK),
            ):  # fmt: skip
                found.setdefault(table, []).append(tuple(rest))
            return {name: self._table(connection, schema, name, columns) for name, columns in found.items()}

    def _table(self, connection: Any, schema: str, name: str, columns: list[tuple[Any, ...]]) -> Table:
        names = [column for column, *_ in columns]
        quoted = sql.SQL(", ").join(map(sql.Identifier, names))
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("SELECT {} FROM {}").format(quoted, sql.Identifier(schema, name)))
            answer, width = cursor.pgresult, range(len(names))
            rows = [[_text_or_null(answer.get_value(at, column)) for column in width] for at in range(answer.ntuples)]
        key = tuple(column for _, column in sorted((at, column) for column, _, _, at in columns if at))
        generated = frozenset(column for column, _, computed, _ in columns if computed)
        types = {column: kind.removeprefix(f"{schema}.") for column, kind, _, _ in columns}
        return Table(types, key, generated, [dict(zip(names, row, strict=True)) for row in rows])

    def _on(self, database: str, schema: str, *statements: str) -> None:
        options = {"options": f"-c search_path={schema}"} if schema else {}
        with self.source.connect(database, **options) as connection:
            for statement in statements:
                connection.execute(statement)


@contextlib.contextmanager
def ends(kind: str, folder: Path) -> Iterator[Any]:
    """Start the servers of one kind."""
    if kind == "postgresql":
        options = {"wal_level": "logical", "max_replication_slots": 60, "max_wal_senders": 40, "max_prepared_transactions": 20,
                   "max_logical_replication_workers": 20, "max_worker_processes": 40, "track_commit_timestamp": "on",
                   "min_wal_size": "32MB", "wal_retrieve_retry_interval": "200ms", "wal_keep_size": 0}  # fmt: skip
        with PostgreSQLServer(folder / "postgresql", options=options) as server:
            server.execute(f"CREATE DATABASE {COPY}")
            yield PostgreSQLEnds(server)
        return
    maker, made, options = (
        (MySQLServer, MySQLEnds, dict(UNSAFE))
        if kind == "mysql"
        else (MariaDBServer, MariaDBEnds, {"debug_no_sync": 1})
    )
    with (
        maker(folder / "source", name=f"{kind}-source", server_id=201, options=options) as source,
        maker(folder / "target", name=f"{kind}-target", server_id=202, options={**options, **_REPLICA[kind]}) as target,
    ):
        yield made(source, target)


_REPLICA: dict[str, dict[str, Any]] = {"mysql": {"relay_log_recovery": "ON"}, "mariadb": {"gtid_domain_id": 2}}
"""The settings that the manuals advise for a replica; a writer of another kind does not notice them."""


def _name(identifier: str) -> str:
    return "`" + identifier.replace("`", "``") + "`"


def _text_or_null(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
