"""Kinds of targets for the contract suite: how each makes tables, reads rows from outside, and loses its
connections.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sluice.config.connections import parse_connection
from sluice.model.dialects import MYSQL
from sluice.model.tables import TableId, TableSchema, quoted
from sluice.targets.memory.store import MemoryStore, forget_store, memory_store
from sluice.targets.memory.target import MemoryTarget
from sluice.targets.mysql import session as mysql_session
from sluice.targets.mysql.target import MySQLTarget
from sluice.targets.port import Input, Target
from sluice.testing.targets import Bench, Received

_numbers = itertools.count()


class MemoryBench(Bench):
    """A memory target with these options; ``kind``: the class, for targets that are wrong on purpose."""

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        *,
        changes: str = "latest",
        consistency: str = "row",
        kind: Any = None,
    ) -> None:
        self.name = f"suite-{next(_numbers)}"
        self.options = {"store": self.name, **(options or {})}
        self.changes = Input(changes)
        self.consistency = consistency
        self.kind = kind or MemoryTarget
        self.appends = changes == "all" or bool(self.options.get("appends"))

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {**self.options, **config.pop("options", {})}
        made: Target = self.kind(
            self.config("memory", name=name, options=options, **config), self.endpoint("memory"), pipeline
        )
        return made

    @property
    def store(self) -> MemoryStore:
        return memory_store(self.name)

    def create_table(self, table: TableSchema) -> None:
        made = self.store.create(table.table, [column.name for column in table.columns], table.primary_key)
        made.refuses = lambda row: "email is too long" if len(str(row.get("email") or "")) > 80 else ""

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        with self.store.lock:
            return [tuple(row[c.name] for c in table.columns) for row in self.store.tables[table.table].all()]

    def columns(self, table: TableId) -> list[str] | None:
        found = self.store.tables.get(table)
        return found and list(found.columns)

    def indexes(self, table: TableId) -> list[str]:
        return list(self.store.tables[table].indexes)

    def received(self) -> list[Received]:
        with self.store.lock:
            return [Received(m.id, str(m.table), m.op, m.before, m.after) for m in self.store.messages]

    def close(self) -> None:
        forget_store(self.name)


class MySQLBench(Bench):
    """A MySQL or MariaDB server."""

    def __init__(self, server: Any, schema: str, consistency: str = "row") -> None:
        self.server, self.schema, self.consistency = server, schema, consistency
        self.dialect = MYSQL
        self.connection = parse_connection("target", server.connection_json())
        self.secret = self.connection.password or "no password"

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {"ack_schema": self.schema, **config.pop("options", {})}
        return MySQLTarget(self.config("mysql", name=name, options=options, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        place = f"{quoted(table.table.schema)}.{quoted(table.table.table)}"
        lines = [
            f"{quoted(column.name)} {column.sql_type}"
            f"{' CHARACTER SET utf8mb4 COLLATE utf8mb4_bin' if column.charset else ''}{'' if column.nullable else ' NOT NULL'}"
            for column in table.columns
        ]
        if table.primary_key:
            lines.append(f"PRIMARY KEY ({', '.join(map(quoted, table.primary_key))})")
        self.server.execute(f"DROP TABLE IF EXISTS {place}", f"CREATE TABLE {place} ({', '.join(lines)})")

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        names = ", ".join(quoted(column.name) for column in table.columns)
        place = f"{quoted(table.table.schema)}.{quoted(table.table.table)}"
        return [tuple(row) for row in self.server.execute(f"SELECT {names} FROM {place}")]

    def columns(self, table: TableId) -> list[str] | None:
        found = self.server.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = "
            f"'{table.schema}' AND table_name = '{table.table}' ORDER BY ordinal_position"
        )
        return [str(row[0]) for row in found] or None

    def indexes(self, table: TableId) -> list[str]:
        found = self.server.execute(
            f"SELECT DISTINCT index_name FROM information_schema.statistics WHERE non_unique AND table_schema = "
            f"'{table.schema}' AND table_name = '{table.table}'"
        )
        return [str(row[0]) for row in found]

    def kill(self) -> None:
        mysql_session.kept.end()


@contextmanager
def closing(bench: MemoryBench) -> Iterator[MemoryBench]:
    """The bench; its store is forgotten after it."""
    try:
        yield bench
    finally:
        bench.close()
