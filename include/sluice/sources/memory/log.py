"""A store of rows and its log, in memory: what the in-memory source reads.

Tables hold whole rows under integer or text keys. Each :meth:`MemoryStore.commit` is one transaction of the log. A store is found again by its
name in this process, as a server is by its address.
"""

from __future__ import annotations

import threading
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.model.batches import Op
from sluice.model.positions import LastEvent, Position
from sluice.model.tables import TableId, TableSchema

Row = Mapping[str, Any]
FILE = "memory.000001"


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change of one row: ``before`` None for an insert, ``after`` None for a delete."""

    table: TableId
    before: Row | None
    after: Row | None

    @property
    def op(self) -> Op:
        """Insert, update or delete."""
        if self.before is None:
            return Op.INSERT
        return Op.DELETE if self.after is None else Op.UPDATE


@dataclass(frozen=True, slots=True)
class Transaction:
    """What was committed together; ``schemas``: the tables' definitions as of then. ``damage``: why it cannot be read, "" if it can.

    ``statement``: of a transaction that changed the definition of its only table; it has no changes.
    """

    changes: tuple[RowChange, ...]
    schemas: Mapping[TableId, TableSchema]
    commit_time_us: int
    statement: str = ""
    damage: str = ""

    @property
    def size_bytes(self) -> int:
        """Of the log."""
        return 16 + sum(len(repr(c.before)) + len(repr(c.after)) for c in self.changes) + len(self.statement)

    @property
    def checksum(self) -> int:
        """By which it is known again."""
        return zlib.crc32(repr((self.changes, self.statement, self.commit_time_us)).encode())


@dataclass
class MemoryStore:
    """Tables and a log. Any thread may use it."""

    name: str
    server: str = field(default_factory=lambda: f"memory:{uuid.uuid4().hex[:12]}")
    tables: dict[TableId, TableSchema] = field(default_factory=dict)
    log: list[Transaction] = field(default_factory=list)
    released: int = 0
    """Transactions from the beginning of the log that are no longer kept."""
    running: int = 1
    replica_lag_s: float | None = None

    def __post_init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._rows: dict[TableId, dict[tuple[Any, ...], Row]] = {}

    # -- writing -----------------------------------------------------------------------------------------------------------
    def define(self, schema: TableSchema) -> None:
        """Create a table, or change its definition; a statement of the log."""
        with self.changed:
            made = "CREATE" if schema.table not in self.tables else "ALTER"
            self.tables[schema.table] = schema
            self._rows.setdefault(schema.table, {})
            statement = f"{made} TABLE {schema.table} ({', '.join(f'{c.name} {c.sql_type}' for c in schema.columns)})"
            self._append(Transaction((), {schema.table: schema}, time.time_ns() // 1000, statement))

    def commit(self, *changes: RowChange, damage: str = "") -> None:
        """One transaction. ``damage``: it is not readable in the log."""
        with self.changed:
            for change in changes:
                rows, key = self._rows[change.table], self.tables[change.table].primary_key
                if change.before is not None:
                    rows.pop(_key(change.before, key), None)
                if change.after is not None:
                    rows[_key(change.after, key)] = dict(change.after)
            schemas = {change.table: self.tables[change.table] for change in changes}
            self._append(Transaction(changes, schemas, time.time_ns() // 1000, damage=damage))

    def insert(self, table: TableId, *rows: Row) -> None:
        """One transaction of inserts."""
        self.commit(*(RowChange(table, None, row) for row in rows))

    def update(self, table: TableId, key: tuple[Any, ...], **values: Any) -> None:
        """One transaction that changes a row."""
        with self.changed:
            before = self._rows[table][key]
            self.commit(RowChange(table, before, {**before, **values}))

    def delete(self, table: TableId, *keys: tuple[Any, ...]) -> None:
        """One transaction of deletes."""
        with self.changed:
            self.commit(*(RowChange(table, self._rows[table][key], None) for key in keys))

    def upsert(self, table: TableId, row: Row) -> None:
        """One transaction that leaves ``row`` under its key."""
        with self.changed:
            before = self._rows[table].get(_key(row, self.tables[table].primary_key))
            self.commit(RowChange(table, before, row))

    def release(self, transactions: int) -> None:
        """Forget the log up to there."""
        with self.changed:
            self.released = max(self.released, transactions)

    def begin_anew(self) -> None:
        """Another log in the place of this one, as after a restore: as many transactions, but others."""
        with self.changed:
            self.log = [
                Transaction(t.changes, t.schemas, t.commit_time_us + 1, t.statement, t.damage) for t in self.log
            ]

    def _append(self, transaction: Transaction) -> None:
        self.log.append(transaction)
        self.changed.notify_all()

    # -- reading -----------------------------------------------------------------------------------------------------------
    def rows(self, table: TableId) -> list[Row]:
        """All rows now, in key order; of a table without a key, in the order they were written."""
        with self.changed:
            found = self._rows[table]
            return [found[key] for key in (sorted(found) if self.tables[table].primary_key else found)]

    def position(self, transactions: int) -> Position:
        """The place after this number of transactions."""
        with self.changed:
            if not transactions:
                return Position(self.server, FILE, 0)
            last = self.log[transactions - 1]
            event = LastEvent(FILE, transactions - 1, 1, last.checksum, 0, last.commit_time_us // 1_000_000)
            return Position(self.server, FILE, transactions, commit_time_us=last.commit_time_us, last_event=event)


def _key(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    """Of a table without a key every row is one of its own."""
    return tuple(row[name] for name in names) if names else (repr(sorted(row.items())), uuid.uuid4().hex)


_STORES: dict[str, MemoryStore] = {}


def store_of(name: str) -> MemoryStore:
    """The store of that name in this process; made at the first call."""
    return _STORES.setdefault(name, MemoryStore(name))


def forget_store(name: str) -> None:
    """Its next user finds an empty one."""
    _STORES.pop(name, None)
