"""Stand-ins for the servers of a test: a source, a target and a ZooKeeper in memory, with the methods of ``devstack``'s
servers.

A test of a flow asks for ``twin_source``, ``twin_target`` and ``twin_zookeeper`` where another one asks for
``mysql_source`` and so on, and writes the same statements. They are as fast as the flow itself. Statements about
definitions are understood by :mod:`sluice.mysql.ddl`, the others by SQLite (:mod:`tests.support.twins.sql`): what one
of them does not know fails.
"""

from __future__ import annotations

import itertools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import pytest

from sluice.config.connections import Endpoint
from sluice.coordination import zookeeper
from sluice.coordination.memory import MemoryTree, MemoryZnodes
from sluice.coordination.port import Znode
from sluice.errors import CoordinationUnavailable
from sluice.model.definitions import TableDefinition
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import Column, TableId
from sluice.mysql.ddl.catalog import SchemaState, Session
from sluice.mysql.ddl.collations import Collations
from sluice.mysql.ddl.types import Flavour
from sluice.sources.memory.log import MemoryStore, RowChange, forget_store, store_of
from sluice.sources.memory.position import FILE
from sluice.sources.mysql.catalog.stored_table import schema_of
from sluice.targets.memory import store as targets
from tests.support.running.waiting import others_may_act
from tests.support.twins import sql

_DEFAULT_COLLATIONS = {
    "utf8mb4": "utf8mb4_0900_ai_ci",
    "latin1": "latin1_swedish_ci",
    "ascii": "ascii_general_ci",
    "binary": "binary",
}
COLLATIONS = Collations(
    {
        "utf8mb4_bin": "utf8mb4",
        "utf8mb4_general_ci": "utf8mb4",
        **{name: charset for charset, name in _DEFAULT_COLLATIONS.items()},
    },
    _DEFAULT_COLLATIONS,
    {"utf8mb4": 4, "latin1": 1, "ascii": 1, "binary": 1},
)
_DEFINES = re.compile(r"\s*(CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE)
_USES = re.compile(r"\s*USE\s+`?([^`;]+)`?\s*;?\s*$", re.IGNORECASE)
_SHOWS = re.compile(r"SHOW TABLES(?: LIKE '(\w+)')?", re.IGNORECASE)
_BEGINS = re.compile(r"\s*(BEGIN|START TRANSACTION)\b", re.IGNORECASE)
_numbers = itertools.count(1)


class Twin(ABC):
    """A server that answers statements about rows in memory."""

    kind: ClassVar[str] = "memory"
    running = True

    def __init__(self, name: str = "") -> None:
        self.name = name or f"twin-{next(_numbers)}"
        self.catalog = SchemaState(Flavour(False, 90000, COLLATIONS), server_collation="utf8mb4_0900_ai_ci")

    @property
    @abstractmethod
    def lock(self) -> AbstractContextManager[Any]:
        """Held while a statement reads and writes."""

    @abstractmethod
    def read(self) -> Mapping[TableId, Sequence[sql.Row]]:
        """All tables with their rows."""

    @abstractmethod
    def write(self, changes: Sequence[sql.Change]) -> None:
        """One transaction."""

    @abstractmethod
    def defined(self, statement: str, changes: Sequence[TableChange]) -> None:
        """Follow a statement that changed definitions."""

    def told(self, statement: str, schema: str) -> list[tuple[Any, ...]] | None:
        """The answer to a statement about the server itself; None if it is about rows."""
        if found := _SHOWS.fullmatch(statement):
            names = [table.table for table in sorted(self.read()) if table.schema == schema]
            return [(name,) for name in names if found[1] in {None, name}]
        return [] if statement == "SET time_zone = '+00:00'" else None

    def columns(self, table: TableId) -> dict[str, Column]:
        """The columns of a table by name, as far as its definition is known."""
        found = self.catalog.find(table)
        return {column.name: column for column in schema_of(found).columns} if found is not None else {}

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements, a transaction each; the rows of the last one."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    @contextmanager
    def connect(self, database: str | None = None, *, autocommit: bool = True, **_: Any) -> Iterator[TwinConnection]:
        """A connection; it commits each statement unless a transaction was begun."""
        made = TwinConnection(self, database or "")
        if not autocommit:
            made.execute("BEGIN")
        yield made

    def connection_json(self, **_: Any) -> str:
        """The value for ``AIRFLOW_CONN_<ID>``."""
        return json.dumps({"conn_type": "memory", "host": self.name})

    def run(
        self, statement: str, values: Sequence[Any], schema: str, over: Sequence[sql.Change] = ()
    ) -> tuple[list[Any], list[sql.Change]]:
        """What a statement returns and changes. ``over``: changes of the same transaction before it."""
        tables, columns = {}, {}
        for table, rows in self.read().items():
            columns[table] = self.columns(table)
            seen = list(rows)
            for _, before, after in (one for one in over if one[0] == table):
                if before is not None:
                    seen.remove(before)
                seen += [after] if after is not None else []
            tables[table] = self._for_statement(table, seen, columns[table])

        def typed(table: TableId, name: str, value: Any) -> Any:
            column = columns[table].get(name)
            return sql.typed_as(column, value) if column is not None else value

        return sql.run(statement, values, tables, schema, typed)

    def _for_statement(self, table: TableId, rows: Sequence[sql.Row], columns: Mapping[str, Column]) -> sql.Rows:
        found = self.catalog.find(table)
        if found is None:
            return sql.Rows({name: "" for row in rows[:1] for name in row}, (), rows)
        words = {name: sql.words_of(column, found.column(name).default) for name, column in columns.items()}
        unique = [
            [name for name, _ in one.columns]
            for one in found.indexes
            if one.unique and not one.primary and all(not prefix for _, prefix in one.columns)
        ]
        return sql.Rows(words, found.primary_key, rows, unique)

    def fold(self, statement: str, schema: str) -> list[TableChange]:
        """What a statement does to definitions. Raises ValueError if it is not understood."""
        changes = self.catalog.fold(statement, schema, Session())
        odd = [change.reason for change in changes if ChangeKind.UNKNOWN in change.kinds]
        if odd or self.catalog.unknown:
            raise ValueError(f"the twin does not understand {statement}: {odd or self.catalog.unknown}")
        return changes


class TwinConnection:
    """What a test uses of a PyMySQL connection and its cursor."""

    def __init__(self, twin: Twin, schema: str) -> None:
        self._twin, self._schema = twin, schema
        self._pending: list[sql.Change] | None = None
        self._rows: list[tuple[Any, ...]] = []

    def __enter__(self) -> TwinConnection:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""

    def cursor(self) -> TwinConnection:
        return self

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """One statement; the number of rows that it returned or changed."""
        self._rows = []
        told = self._twin.told(statement.strip(), self._schema)
        if told is not None:
            self._rows = told
        elif used := _USES.match(statement):
            self._schema = used[1]
        elif _BEGINS.match(statement):
            self._pending = []
        elif statement.strip().upper() in {"COMMIT", "ROLLBACK"}:
            self.commit() if statement.strip().upper() == "COMMIT" else self.rollback()
        elif _DEFINES.match(statement):
            self.commit()
            self._twin.defined(statement, self._twin.fold(statement, self._schema))
        else:
            return self._change(statement, values)
        return 0

    def executemany(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        """The rows of an INSERT together, as PyMySQL does it."""
        head, _, marks = statement.partition("VALUES")
        self._change(f"{head} VALUES {', '.join([marks] * len(values))}", [one for row in values for one in row])

    def _change(self, statement: str, values: Sequence[Any]) -> int:
        with self._twin.lock:
            return self._changed(statement, values)

    def _changed(self, statement: str, values: Sequence[Any]) -> int:
        self._rows, changes = self._twin.run(statement, values, self._schema, self._pending or ())
        if self._pending is not None:
            self._pending += changes
        elif changes:
            self._twin.write(changes)
        return len(changes) or len(self._rows)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    def commit(self) -> None:
        if self._pending:
            self._twin.write(self._pending)
        self._pending = None

    def rollback(self) -> None:
        self._pending = None


class TwinSource(Twin):
    """A :class:`sluice.sources.memory.log.MemoryStore` that is written by SQL."""

    flushed = 0

    @property
    def store(self) -> MemoryStore:
        """Its rows and its log."""
        return store_of(self.name)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self.store.changed

    def told(self, statement: str, schema: str) -> list[tuple[Any, ...]] | None:
        """Files of the log, too: FLUSH begins a new one, and what PURGE removes is released."""
        match statement.upper().split():
            case ["SHOW", "BINARY", "LOG", "STATUS"]:
                return [(FILE, len(self.store.log))]
            case ["FLUSH", "BINARY", "LOGS"]:
                self.flushed = len(self.store.log)
                return []
            case ["SHOW", "BINARY", "LOGS"]:
                return [(FILE, len(self.store.log))]
            case ["PURGE", "BINARY", "LOGS", *_]:
                self.store.release(self.flushed)
                return []
        return super().told(statement, schema)

    def read(self) -> Mapping[TableId, Sequence[sql.Row]]:
        return {table: self.store.rows(table) for table in self.store.tables if self.catalog.find(table) is not None}

    def write(self, changes: Sequence[sql.Change]) -> None:
        self.store.commit(*(RowChange(*change) for change in changes))

    def defined(self, statement: str, changes: Sequence[TableChange]) -> None:
        if not changes or not any(change.table.table for change in changes):
            return
        names = dict.fromkeys(change.renamed_to or change.table for change in changes)
        known = [found for name in names if (found := self.catalog.find(name)) is not None]
        filled = {
            one.new.name: _default(found, one.new.name)
            for found in known
            for change in changes
            for one in change.columns
            if one.new is not None and one.old is None
        }
        self.store.change(statement, changes, [schema_of(found) for found in known], filled=filled)

    def forget(self) -> None:
        """Its store is removed."""
        forget_store(self.name)


class TwinTarget(Twin):
    """A :class:`sluice.targets.memory.store.MemoryStore` that is read and changed by SQL.

    Its columns refuse what is too long or lacks a value.
    """

    @property
    def store(self) -> targets.MemoryStore:
        """Its tables and checkpoints."""
        return targets.memory_store(self.name)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self.store.lock

    def read(self) -> Mapping[TableId, Sequence[sql.Row]]:
        return {table: there.all() for table, there in self.store.tables.items()}

    def write(self, changes: Sequence[sql.Change]) -> None:
        with self.store.lock:
            for table, before, after in changes:
                there = self.store.tables[table]
                if not there.key:
                    if before is not None:
                        there.heap.remove(dict(before))
                    there.heap += [dict(after)] if after is not None else []
                    continue
                for row in (before, after):
                    if row is not None:  # by hand: no batch wrote it
                        there.versions.pop(tuple(row[name] for name in there.key), None)
                if before is not None:
                    there.rows.pop(tuple(before[name] for name in there.key), None)
                if after is not None:
                    there.rows[tuple(after[name] for name in there.key)] = dict(after)

    def defined(self, statement: str, changes: Sequence[TableChange]) -> None:
        for change in changes:
            there = self.store.tables.pop(change.table, None)
            place = change.renamed_to or change.table
            found = self.catalog.find(place)
            if found is None:
                continue
            names = [column.name for column in found.columns]
            table = self.store.create(place, names, found.row_key)
            table.refuses = _constraints(found)
            if there is not None and not {ChangeKind.TRUNCATE_TABLE, ChangeKind.CREATE_TABLE} & set(change.kinds):
                old = {one.new.name: one.old.name for one in change.columns if one.new and one.old}
                table.rows = {
                    key: {name: row.get(old.get(name, name)) for name in names} for key, row in there.rows.items()
                }
                table.heap = [{name: row.get(old.get(name, name)) for name in names} for row in there.heap]

    def columns(self, table: TableId) -> dict[str, Column]:
        there, known = self.store.tables.get(table), super().columns(table)
        return {name: known[name] for name in there.columns if name in known} if there is not None else known

    def _for_statement(self, table: TableId, rows: Sequence[sql.Row], columns: Mapping[str, Column]) -> sql.Rows:
        there = self.store.tables[table]
        words = {name: sql.words_of(columns[name]) if name in columns else "" for name in there.columns}
        return sql.Rows(words, there.key, rows)

    def forget(self) -> None:
        """Its store is removed."""
        targets.forget_store(self.name)


def _default(found: TableDefinition, name: str) -> Any:
    """The value that a new column has in the rows that are there."""
    text, [column] = found.column(name).default, [one for one in schema_of(found).columns if one.name == name]
    if text is None or text.upper().startswith("CURRENT_TIMESTAMP"):
        return None  # no test asks for the time of an ALTER
    return sql.typed_as(column, text.strip("'"))


def _constraints(found: TableDefinition) -> Any:
    """Why a row is not taken by a table with this definition."""
    columns = schema_of(found).columns

    def refuses(row: sql.Row) -> str:
        for column in columns:
            value = row.get(column.name)
            if isinstance(value, str) and 0 < column.length < len(value):
                return f"Data too long for column '{column.name}'"
            if value is None and not column.nullable:
                return f"Column '{column.name}' cannot be null"
        return ""

    return refuses


class TwinZooKeeper:
    """A :class:`sluice.coordination.memory.MemoryTree` under an address. ``down``: it does not answer."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.hosts = f"memory-{next(_numbers)}"
        self.down = False

    def connection_json(self, **_: Any) -> str:
        """The value for ``AIRFLOW_CONN_<ID>``."""
        return json.dumps({"conn_type": "zookeeper", "host": self.hosts})

    def below(self, path: str) -> dict[str, tuple[Znode, int | None]]:
        """A node and all under it."""
        return {name: node for name, node in self.tree.nodes.items() if name == path or name.startswith(f"{path}/")}

    def remove(self, path: str) -> None:
        """Delete a node and all under it."""
        with self.tree.lock:
            for name in self.below(path):
                del self.tree.nodes[name]
        self.tree.moved()

    @contextmanager
    def session(self) -> Iterator[MemoryZnodes]:
        """A session that ends with the block. Raises CoordinationUnavailable."""
        if self.down:
            raise CoordinationUnavailable("ZooKeeper did not answer", where=self.hosts)
        made = self.tree.session()
        try:
            yield made
        finally:
            made.expire()


ZOOKEEPERS: dict[str, TwinZooKeeper] = {}
"""Those of the test that runs, by address."""
_real = zookeeper.connect


@contextmanager
def _connect(endpoint: Endpoint, **named: Any) -> Iterator[Any]:
    twin = ZOOKEEPERS.get(endpoint.host)
    with twin.session() if twin is not None else _real(endpoint, **named) as session:
        yield session


@pytest.fixture
def twin_source() -> Iterator[TwinSource]:
    """A source in memory, whose log is kept until a test purges it."""
    made = TwinSource()
    made.store.keeps_all = True
    made.store.waits_for_more = others_may_act()
    yield made
    made.forget()


@pytest.fixture
def twin_target() -> Iterator[TwinTarget]:
    """A target in memory."""
    made = TwinTarget()
    yield made
    made.forget()


@pytest.fixture
def twin_zookeeper() -> Iterator[TwinZooKeeper]:
    """A ZooKeeper in memory."""
    made = TwinZooKeeper()
    ZOOKEEPERS[made.hosts] = made
    with pytest.MonkeyPatch.context() as patch:  # not that of the test, which may undo it
        for module in ("sluice.coordination.zookeeper", "sluice.coordination.shared_session"):
            patch.setattr(f"{module}.connect", _connect)
        yield made
    del ZOOKEEPERS[made.hosts]


__all__ = ["Twin", "TwinSource", "TwinTarget", "TwinZooKeeper", "twin_source", "twin_target", "twin_zookeeper"]
