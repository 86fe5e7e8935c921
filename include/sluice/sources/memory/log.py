"""A store of rows and its log, in memory: what the in-memory source reads.

Tables hold whole rows, under keys of any type or none. Each :meth:`MemoryStore.commit` is one transaction of the log,
and so is each change of definitions. A store is found again by its name in this process, as a server is by its address.
"""

from __future__ import annotations

import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.model.batches import Op
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.offset import Offset
from sluice.model.schema_changes import ChangeKind, TableChange, column_changes
from sluice.model.tables import TableId, TableSchema
from sluice.sources.memory.position import MemoryPosition, read_executed

Row = Mapping[str, Any]


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
    """Changes that were committed together.

    Attributes:
        changes: of rows. schemas: the tables' definitions as of then.
        statement: the text of one that changed definitions, and has no changes of rows; definitions: what it did.
        damage: why it cannot be read, "" if it can.
        gtid: its name at every member of a group; executed: all names up to it, as a position has them.
        mark: the token of the load that wrote it (:mod:`sluice.model.load_marks`), "" for what applications write.
    """

    changes: tuple[RowChange, ...]
    schemas: Mapping[TableId, TableSchema]
    commit_time_us: int
    statement: str = ""
    definitions: tuple[TableChange, ...] = ()
    damage: str = ""
    gtid: str = ""
    executed: str = ""
    mark: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of the log."""
        return 16 + sum(len(repr(c.before)) + len(repr(c.after)) for c in self.changes) + len(self.statement)

    @property
    def checksum(self) -> int:
        """The number by which it is known again."""
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
    keeps_all: bool = False
    """What a pipeline was delivered stays in the log, as in that of a server that purges by itself."""
    waits_for_more: Callable[[], bool] = lambda: True
    """Whether a batch with changes stays open for its ``max_wait`` at the end of the log: not where nobody can write
    while it is read.
    """
    leaves_out: str = ""
    """The filter of a store that replicates from another one."""
    running: int = 1
    replica_lag_s: float | None = None
    clock: Callable[[], int] = lambda: time.time_ns() // 1000
    """Microseconds since 1970."""
    committing: list[int] = field(default_factory=list)
    """Commit times of transactions that are not in the log yet."""

    def __post_init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._rows: dict[TableId, dict[tuple[Any, ...], Row]] = {}
        self._group = uuid.uuid4().hex[:12]
        self._turn = 0

    # -- writing -------------------------------------------------------------------------------------------------------
    def define(self, schema: TableSchema) -> None:
        """Create a table, or change its definition; a statement of the log."""
        with self.changed:
            old, new = self.tables.get(schema.table), definition_of(schema)
            verb = "CREATE" if old is None else "ALTER"
            statement = f"{verb} TABLE {schema.table} ({', '.join(f'{c.name} {c.sql_type}' for c in schema.columns)})"
            if old is None:
                change = TableChange(schema.table, (ChangeKind.CREATE_TABLE,), None, new)
            else:
                before = definition_of(old)
                columns = column_changes(before, new)
                kinds = [column.kind for column in columns]
                kinds += [ChangeKind.PRIMARY_KEY] if old.primary_key != schema.primary_key else []
                change = TableChange(
                    schema.table, tuple(dict.fromkeys(kinds)) or (ChangeKind.NOTHING,), before, new, columns
                )
            self.change(statement, (change,), (schema,))

    def drop(self, table: TableId) -> None:
        """Remove a table; a statement of the log."""
        self._alone(f"DROP TABLE {table}", table, ChangeKind.DROP_TABLE)

    def truncate(self, table: TableId) -> None:
        """Remove all rows of a table by a statement that does not name them."""
        self._alone(f"TRUNCATE TABLE {table}", table, ChangeKind.TRUNCATE_TABLE)

    def rename(self, table: TableId, to: TableId) -> None:
        """Give a table another name; a statement of the log."""
        self._alone(f"RENAME TABLE {table} TO {to}", table, ChangeKind.RENAME_TABLE, to)

    def _alone(self, statement: str, table: TableId, kind: ChangeKind, to: TableId | None = None) -> None:
        with self.changed:
            old = self.tables[table]
            before, after = definition_of(old), None
            new = replace(old, table=to or table) if kind is not ChangeKind.DROP_TABLE else None
            if new is not None:
                after = definition_of(new)
            change = TableChange(table, (kind,), before, after, (), to)
            self.change(statement, (change,), (new,) if new is not None else ())

    def change(
        self,
        statement: str,
        changes: Sequence[TableChange],
        schemas: Sequence[TableSchema] = (),
        *,
        filled: Mapping[str, Any] | None = None,
    ) -> None:
        """Run one statement that changes definitions.

        ``schemas``: of all tables after it; ``filled``: values of new columns.
        """
        with self.changed:
            now = {schema.table: schema for schema in schemas}
            for change in changes:
                rows = self._rows.pop(change.table, {})
                old = self.tables.pop(change.table, None)
                place = change.renamed_to or change.table
                if place not in now:
                    continue
                removed_kinds = {ChangeKind.TRUNCATE_TABLE, ChangeKind.CREATE_TABLE} & set(change.kinds)
                if change.columns and not removed_kinds:
                    rows = _carried(rows, change, now[place], filled or {})
                if old is not None and old.primary_key != now[place].primary_key:
                    rows = {self._new_key(now[place], row): row for row in rows.values()}
                self.tables[place], self._rows[place] = now[place], {} if removed_kinds else rows
            known_tables = {change.table: self.tables.get(change.table) for change in changes} | now
            self._append(
                Transaction(
                    (),
                    {table: schema for table, schema in known_tables.items() if schema is not None},
                    self.clock(),
                    statement,
                    tuple(changes),
                )
            )

    def commit(self, *changes: RowChange, damage: str = "", mark: str = "") -> None:
        """Commit one transaction.

        ``damage``: why it is not readable in the log; ``mark``: the token of the load that wrote it.
        """
        with self.changed:
            for change in changes:
                self._write(change)
            schemas = {change.table: self.tables[change.table] for change in changes}
            self._append(Transaction(changes, schemas, self.clock(), damage=damage, mark=mark))

    def committing_later(self, *changes: RowChange) -> Callable[[], None]:
        """Begin to commit a transaction now, whose time is taken; what is returned puts it into the log, as a server
        does a moment later.
        """
        with self.changed:
            at = self.clock()
            self.committing.append(at)

        def finish() -> None:
            with self.changed:
                self.committing.remove(at)
                for change in changes:
                    self._write(change)
                schemas = {change.table: self.tables[change.table] for change in changes}
                self._append(Transaction(changes, schemas, at))

        return finish

    def insert(self, table: TableId, *rows: Row) -> None:
        """Commit one transaction of inserts."""
        self.commit(*(RowChange(table, None, row) for row in rows))

    def update(self, table: TableId, key: tuple[Any, ...], **values: Any) -> None:
        """Commit one transaction that changes a row."""
        with self.changed:
            before = self._rows[table][key]
            self.commit(RowChange(table, before, {**before, **values}))

    def delete(self, table: TableId, *keys: tuple[Any, ...]) -> None:
        """Commit one transaction of deletes."""
        with self.changed:
            self.commit(*(RowChange(table, self._rows[table][key], None) for key in keys))

    def upsert(self, table: TableId, row: Row) -> None:
        """Commit one transaction that leaves ``row`` under its key."""
        with self.changed:
            place = _place(self._rows[table], self.tables[table], row)
            before = self._rows[table].get(place) if place is not None else None
            self.commit(RowChange(table, before, row))

    def release(self, transactions: int) -> None:
        """Forget the log up to there."""
        with self.changed:
            self.released = max(self.released, transactions)

    def begin_anew(self) -> None:
        """Replace the log by another one, as after a restore: as many transactions, but others."""
        with self.changed:
            self.log = [replace(t, commit_time_us=t.commit_time_us + 1) for t in self.log]

    def replica(self, name: str) -> MemoryStore:
        """Return another member of this store's group, ``name``: what was committed here has the same names there."""
        with self.changed:
            replica = _STORES[name] = MemoryStore(name)
            replica.tables, replica.log = dict(self.tables), list(self.log)
            replica._rows = {table: dict(rows) for table, rows in self._rows.items()}
            return replica

    def follow(self, member: MemoryStore) -> None:
        """Take the transactions that a member of the group has and this store lacks."""
        with member.changed:
            log = list(member.log)
        with self.changed:
            known_gtids = {transaction.gtid for transaction in self.log}
            for transaction in log:
                if transaction.gtid in known_gtids:
                    continue
                for change in transaction.changes:
                    self._write(change)
                self._append(transaction)

    def _write(self, change: RowChange) -> None:
        rows, schema = self._rows[change.table], self.tables[change.table]
        place = _place(rows, schema, change.before) if change.before is not None else None
        if place is not None:
            rows.pop(place, None)
        if change.after is not None:
            rows[self._new_key(schema, change.after)] = dict(change.after)

    def _append(self, transaction: Transaction) -> None:
        """Name it, unless another member did."""
        executed = read_executed(self.log[-1].executed if self.log else "")
        group, _, number = transaction.gtid.rpartition(":")
        if not group:
            group, number = self._group, str(executed.get(self._group, 0) + 1)
        executed[group] = int(number)
        text = ",".join(f"{name}:1-{last}" for name, last in sorted(executed.items()))
        self.log.append(replace(transaction, gtid=f"{group}:{number}", executed=text))
        self.changed.notify_all()

    def _new_key(self, schema: TableSchema, row: Row) -> tuple[Any, ...]:
        """Return the key of a row; in a table without a key, a new number."""
        if schema.primary_key:
            return tuple(row[name] for name in schema.primary_key)
        self._turn += 1
        return (self._turn,)

    # -- reading -------------------------------------------------------------------------------------------------------
    def rows(self, table: TableId) -> list[Row]:
        """Return all rows now, in key order; for a table without a key, in the order they were written."""
        with self.changed:
            row = self._rows[table]
            return [row[key] for key in (sorted(row) if self.tables[table].primary_key else row)]

    def position(self, transactions: int) -> Offset:
        """Return the offset after this number of transactions."""
        with self.changed:
            if not transactions:
                return MemoryPosition(self.server, 0).as_offset()
            last = self.log[transactions - 1]
            return MemoryPosition(
                self.server, transactions, last.executed, last.commit_time_us, last.checksum
            ).as_offset()


def definition_of(schema: TableSchema) -> TableDefinition:
    """Return a table as statements that change definitions describe it."""
    columns = tuple(
        ColumnDefinition(c.name, c.sql_type, c.nullable, c.charset, c.collation, c.labels) for c in schema.columns
    )
    key = IndexDefinition("PRIMARY", tuple((name, 0) for name in schema.primary_key), unique=True)
    return TableDefinition(schema.table, columns, (key,) if schema.primary_key else ())


def _place(rows: Mapping[tuple[Any, ...], Row], schema: TableSchema, row: Row) -> tuple[Any, ...] | None:
    """Return where a row is stored; None if it is not."""
    if schema.primary_key:
        return tuple(row[name] for name in schema.primary_key)
    return next((place for place, stored_row in rows.items() if stored_row == row), None)


def _carried(
    rows: Mapping[tuple[Any, ...], Row], change: TableChange, schema: TableSchema, filled: Mapping[str, Any]
) -> dict[tuple[Any, ...], Row]:
    """Return the rows under the columns of ``schema``; new columns have the values of ``filled``."""
    olds = {
        column.new.name: column.old.name
        for column in change.columns
        if column.new is not None and column.old is not None
    }
    new = {column.new.name for column in change.columns if column.new is not None and column.old is None}
    names = [column.name for column in schema.columns]
    return {
        place: {name: filled.get(name) if name in new else row.get(olds.get(name, name)) for name in names}
        for place, row in rows.items()
    }


_STORES: dict[str, MemoryStore] = {}


def store_of(name: str) -> MemoryStore:
    """Return the store of that name in this process, created at the first call."""
    return _STORES.setdefault(name, MemoryStore(name))


def forget_store(name: str) -> None:
    """Forget a store: the next user of its name finds an empty one."""
    _STORES.pop(name, None)
