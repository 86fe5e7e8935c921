"""A source in memory. It passes the contract suite of sources, and lets flows be tested without a server.

The connection's host is the name of a :class:`~sluice.sources.memory.log.MemoryStore`. Rows contain their definitions,
so there is no schema history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.pipeline import Event, PipelineConfig, StartPosition
from sluice.errors import ConfigError, DecodeError, DumpRefused, LogPurged, LostPosition, UnsupportedType, WrongServer
from sluice.model.batches import Op
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.completeness import Settled
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.dialects import MYSQL, Dialect
from sluice.model.dumps import Chunk, Mark, Marking, TablePlanned, TableRequest
from sluice.model.exact_values import literal, read_key, table_of_keys
from sluice.model.findings import Finding
from sluice.model.load_marks import MarkRules, PartnerLoads, Token
from sluice.model.offset import Offset
from sluice.model.row_effects import ColumnEffect, Ran
from sluice.model.schema_changes import SchemaStatement, TableChange
from sluice.model.tables import Column, TableId, TableSchema, stored_name
from sluice.sources.memory.log import MemoryStore, Row, RowChange, Transaction, store_of
from sluice.sources.memory.position import FILE, MemoryPosition, read_executed
from sluice.sources.port import (
    Asked,
    Blindness,
    ChangeSink,
    ChunkKey,
    SourceIdentity,
    SourceTable,
    StreamLimits,
    StreamResult,
    TableFilter,
    raise_first,
)
from sluice.sources.port.log import M
from sluice.sources.table_filter import Selection

_PROGRESS_EVERY_S = 0.25
_EVENTS = {Op.INSERT: Event.INSERT, Op.UPDATE: Event.UPDATE, Op.DELETE: Event.DELETE}
_BYTES = {ColumnKind.BINARY, ColumnKind.VARBINARY, ColumnKind.BLOB}


class MemoryKeyText:
    """Keys as :mod:`sluice.model.exact_values` writes them."""

    def literals(self, columns: Sequence[Column], keys: pa.Table) -> list[tuple[str, ...]]:
        """Write each value of each row by :func:`sluice.model.exact_values.literal`."""
        values = [column.to_pylist() for column in keys.columns]
        return [tuple(map(literal, row)) for row in zip(*values, strict=True)]

    def values(self, types: Mapping[str, ColumnType], keys: Sequence[tuple[str, ...]]) -> pa.Table:
        """Parse the JSON texts."""
        return table_of_keys(types, [read_key(key) for key in keys], _values)

    def typed(self, column: Column, text: str) -> str:
        """Cast the text to the column's Arrow type; binary columns take hexadecimal digits. Raises ConfigError."""
        try:
            value = (
                pa.scalar(text).cast(column.arrow_type).as_py() if column.kind not in _BYTES else bytes.fromhex(text)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            raise ConfigError(f"{text!r} is no value of {column.name}, which is {column.sql_type}") from None
        return literal(value)

    def shown(self, key: tuple[str, ...]) -> list[str]:
        """Return ``str()`` of each value of the key."""
        return [str(value) for value in read_key(key)]


def _values(column_type: ColumnType, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, column_type.arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UnsupportedType(f"a key of type {column_type.arrow_type} is not understood: {error}") from error


@dataclass(frozen=True)
class MemorySource:
    """See :class:`sluice.sources.port.Source`."""

    kind: ClassVar[str] = "memory"
    keeps_for_us: ClassVar[bool] = True
    pipeline: PipelineConfig
    resolver: ConnectionResolver
    loads: MarkRules | None = None

    @cached_property
    def endpoint(self) -> Endpoint:
        """The connection whose host is the store's name."""
        return self.resolver(self.pipeline.source.connection)

    @property
    def where(self) -> str:
        """The store's name after the word ``memory``."""
        return f"memory {self.endpoint.host}"

    @property
    def keys(self) -> MemoryKeyText:
        """The writer of keys: the same for every store."""
        return MemoryKeyText()

    def stored_definitions(self, base: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> Definitions:
        """Raise ConfigError: there is no schema history."""
        raise ConfigError("rows of a source in memory contain their definitions: nothing of them is stored")

    def stored_table(self, definition: TableDefinition) -> TableSchema:
        """Raise ConfigError: there is no schema history."""
        raise ConfigError("rows of a source in memory contain their definitions: nothing of them is stored")

    def dialect(self, at: Offset) -> Dialect:
        """Return MySQL's, in whose words a test writes the definitions, wherever ``at`` is."""
        return MYSQL

    def row_effects(self, at: Offset, change: TableChange, statement: Ran) -> tuple[ColumnEffect, ...]:
        """Return an unknown effect for each column that changed its type: a store does not convert its rows."""
        if change.before is None or change.after is None:
            return ()
        names = {column.name: column for column in change.after.columns}
        pairs = [(old, names[old.name]) for old in change.before.columns if old.name in names]
        why = "what becomes of values of another type is not known"
        return tuple(ColumnEffect(change.table, old, new, unknown=why) for old, new in pairs if old.type != new.type)

    @property
    def watermark_table(self) -> TableId:
        """The table ``_sluice_mark_<pipeline>`` in ``dump.marks_schema``, or in ``sluice``."""
        return TableId(self.pipeline.dump.marks_schema or "sluice", f"_sluice_mark_{self.pipeline.pipeline}")

    @property
    def watch_key(self) -> str:
        """The store's name. It holds no secret."""
        return self.endpoint.host

    def watch(self) -> MemoryWatch:
        """Return a watch of the store that counts its transactions."""
        return MemoryWatch(store_of(self.endpoint.host))

    @contextmanager
    def open(self, *, to_stream: bool = False) -> Iterator[MemorySession]:
        """Open a session. Nothing is connected, so ``to_stream`` makes no difference."""
        yield MemorySession(self, store_of(self.endpoint.host))

    @contextmanager
    def open_chunks(self, marking: Marking, owner: str) -> Iterator[MemoryChunkReader]:
        """Open a reader of the same store. Watermarks are rows of a table whatever ``marking`` says."""
        yield MemoryChunkReader(self, store_of(self.endpoint.host))

    @contextmanager
    def open_replica(self, connection: str) -> Iterator[MemoryLoad]:
        """Open another store as a replica; its lag is what a test set."""
        yield MemoryLoad(store_of(self.resolver(connection).host))

    def after_low(self, marking: Marking, low: str, rows: Mapping[str, Any] | pa.Table) -> np.ndarray[Any, Any]:
        """Raise ConfigError: every dump of a store is marked by rows of a table."""
        raise ConfigError(f"dumps of this source are marked by rows of a table, not by {marking.value}")

    def is_exact(self, marking: Marking, low: str) -> bool:
        """Return False: every dump of a store is marked by rows of a table."""
        return False


class MemoryWatch:
    """Every change may concern everybody."""

    fresh: set[TableId] | None = None
    end: ClassVar[None] = None

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._transactions = -1

    def look(self, since: Offset | None = None) -> bool:
        """Return True if transactions were added since the last look, and at the first one."""
        with self._store.changed:
            before, self._transactions = self._transactions, len(self._store.log)
        return before != self._transactions

    def may_concern(self, since: Offset, wants: Callable[[TableId], bool]) -> bool:
        """Return True if the last look saw transactions after ``since``, whatever their tables."""
        with self._store.changed:
            return self._store.position(self._transactions).order != since.order

    def close(self) -> None:
        """Do nothing: nothing is open."""


class MemorySession:
    """See :class:`sluice.sources.port.SourceSession`."""

    history: ClassVar[None] = None

    def __init__(self, source: MemorySource, store: MemoryStore) -> None:
        self.source = source
        self.store = store

    @property
    def identity(self) -> SourceIdentity:
        """The store as a server: dialect ``Memory``, version 1."""
        return SourceIdentity(self.store.server, Dialect("Memory"), "1")

    @cached_property
    def head(self) -> Offset:
        """The end of the log as of the first question, or of the last :meth:`look_again`."""
        with self.store.changed:
            return self.store.position(len(self.store.log))

    def lag_bytes(self, at: Offset) -> int | None:
        """Add up the sizes of the transactions from ``at`` to the head; None for another or a released log."""
        with self.store.changed:
            here, end = MemoryPosition.of(at), MemoryPosition.of(self.head)
            if here.server != self.store.server or here.transactions < self.store.released:
                return None
            return sum(t.size_bytes for t in self.store.log[here.transactions : end.transactions])

    # -- before reading ------------------------------------------------------------------------------------------------
    def preflight(self, at: Offset | None) -> list[Finding]:
        """Compare ``at`` with the log: no finding, or one error (WrongServer, LogPurged or LostPosition)."""
        with self.store.changed:
            if at is None:
                return []
            if at.server != self.store.server:
                why = "another store answers than the one that was read"
                return [Finding("error", "server", self.store.server, why, kind=WrongServer)]
            transactions = MemoryPosition.of(at).transactions
            if transactions < self.store.released:
                why = f"it was purged before it was captured: the log begins at {self.store.released}"
                fix = "`sluice recover PIPELINE` shows what is lost, and the ways on"
                return [Finding("error", "position", str(at), why, fix, kind=LogPurged)]
            if transactions > len(self.store.log):
                why = f"the log has {self.store.released} to {len(self.store.log)}"
                return [Finding("error", "position", str(at), why, kind=LostPosition)]
            return []

    def replication_findings(self) -> list[Finding]:
        """Return an error that names what a test set as left out of this store; no finding if it set nothing."""
        if not self.store.leaves_out:
            return []
        return [Finding("error", "leaves_out", self.store.leaves_out, "changes of its own source are missing here")]

    def require_ready(self, at: Offset | None) -> None:
        """Raise the error of :meth:`preflight`, with the connection's id and the store's name."""
        raise_first(self.preflight(at), f"source {self.source.pipeline.source.connection} ({self.source.where})")

    def goes_on(self, at: Offset) -> bool:
        """Return False: no log stays open between two calls of :meth:`stream`."""
        return False

    def look_again(self) -> None:
        """Forget the head, so that the next question reads it from the store."""
        self.__dict__.pop("head", None)

    def confirm(self, at: Offset) -> None:
        """Compare the checksum of the last transaction before ``at``. Raises LostPosition if it is another one."""
        with self.store.changed:
            read = MemoryPosition.of(at)
            if (
                read.checksum is not None
                and read.transactions <= len(self.store.log)
                and self.store.log[read.transactions - 1].checksum != read.checksum
            ):
                raise LostPosition(f"the log of this store is not the one that was captured up to {at}")

    def resolve_start(self, start: str | StartPosition) -> Offset:
        """Return the first kept offset for ``earliest``, the head for other words, else the position itself.

        Raises LostPosition for a position outside of the log.
        """
        with self.store.changed:
            if start == "earliest":
                return self.store.position(self.store.released)
            if isinstance(start, str):
                return self.head
            if start.file is None or not self.store.released <= start.offset <= len(self.store.log):
                raise LostPosition(f"{start} is not in the log", where=self.source.where)
            return self.store.position(start.offset)

    # -- the log -------------------------------------------------------------------------------------------------------
    def stream(
        self,
        start: Offset,
        limits: StreamLimits,
        table_filter: TableFilter,
        sink: Callable[[], ChangeSink[M]],
        *,
        definitions: Callable[[], Definitions] | None = None,
        one_reader: bool = False,
        progress: Callable[..., None] | None = None,
    ) -> StreamResult[M]:
        """Read transactions from the store until a limit is reached; the sink is aborted if anything is raised.

        Raises LostPosition if the log after ``start`` was released, DecodeError for a transaction that a test damaged.
        """
        if limits.stop_at is not None and not limits.stop_at.follows(start):
            return StreamResult(start, None, 0, 0, 0, True, "head")
        if MemoryPosition.of(start).transactions < self.store.released:
            raise LostPosition(f"the log up to {start} was released", where=self.source.where)
        reading = _Reading(self, start, limits, table_filter, sink, progress)
        try:
            return reading.run()
        except BaseException:
            if reading.sink is not None and not reading.finished:
                reading.sink.abort()
            raise

    def settled(self) -> Settled:
        """Return the store's clock, or the commit time of the oldest transaction that is not in the log yet."""
        with self.store.changed:
            time_us = min([self.store.clock(), *self.store.committing])
            return Settled(time_us, self.store.position(len(self.store.log)))

    def release(self, delivered: Offset) -> None:
        """Remove the transactions before ``delivered``, unless the store keeps all or is another one."""
        if delivered.server == self.store.server and not self.store.keeps_all:
            self.store.release(MemoryPosition.of(delivered).transactions)

    def relocate(self, at: Offset, *, patience_s: float = 0.0) -> Offset:
        """Return the first offset at which the store has executed every transaction that was before ``at``.

        Raises LostPosition if transactions are missing after ``patience_s`` seconds, or if the log from there was
        released.
        """
        target = read_executed(MemoryPosition.of(at).executed)

        def lacks(transactions: int) -> bool:
            has = read_executed(self.store.log[transactions - 1].executed) if transactions else {}
            return any(has.get(group, 0) < last for group, last in target.items())

        with self.store.changed:
            if not self.store.changed.wait_for(lambda: not lacks(len(self.store.log)), patience_s):
                raise LostPosition(f"this store lacks transactions of {MemoryPosition.of(at).executed}")
            here = next(number for number in range(len(self.store.log) + 1) if not lacks(number))
            if here < self.store.released:
                raise LostPosition(f"the log of this store after {MemoryPosition.of(at).executed} is no longer kept")
            return self.store.position(here)

    # -- tables --------------------------------------------------------------------------------------------------------
    def tables(self, wants: Callable[[TableId], bool]) -> list[SourceTable]:
        """Return the tables with their exact numbers of rows, by name; a store has no sizes (0 bytes)."""
        with self.store.changed:
            tables = sorted(table for table in self.store.tables if wants(table))
            selection = Selection.compile(self.source.pipeline.capture)
            return [SourceTable(self.store.tables[t], len(self.store.rows(t)), 0).kept(selection) for t in tables]

    def table_rows(self) -> dict[TableId, int]:
        """Return the exact number of rows of every table."""
        with self.store.changed:
            return {table: len(self.store.rows(table)) for table in self.store.tables}

    def estimates(self, tables: Sequence[TableId]) -> dict[TableId, int]:
        """Return the exact number of rows of those of ``tables`` that exist."""
        have = self.table_rows()
        return {table: have[table] for table in tables if table in have}

    def empty_tables(self, tables: Sequence[TableId]) -> list[TableId]:
        """Return those of ``tables`` that exist and have no row."""
        with self.store.changed:
            return [table for table in tables if table in self.store.tables and not self.store.rows(table)]

    def keyless(self) -> set[TableId]:
        """Return the tables without a primary key; a store has no other unique keys."""
        with self.store.changed:
            return {table for table, schema in self.store.tables.items() if not schema.primary_key}

    def create_statement(self, table: TableId, named: TableId) -> str:
        """Return "": no target has the dialect of a store."""
        return ""

    def blindness(self) -> Blindness | None:
        """Return None: a store hides no table."""
        return None

    def numbering(self) -> tuple[int, int] | None:
        """Return None: a store numbers no rows."""
        return None

    def same_keys(self, fields: Sequence[pa.Field], questions: Sequence[Asked]) -> Iterator[tuple[int, bool]]:
        """Yield True for each key that is in its ``others``: there is no collation, so only equal values are equal."""
        for number, key, others in questions:
            yield number, key in others

    # -- dumps ---------------------------------------------------------------------------------------------------------
    def choose_marking(self) -> Marking:
        """Create the watermark table if it is missing. Every dump is marked by its rows."""
        table = self.source.watermark_table
        with self.store.changed:
            if table not in self.store.tables:
                columns = (
                    Column("slot", ColumnKind.INT, "int", nullable=False),
                    Column("mark", ColumnKind.VARCHAR, "varchar(190)", nullable=False, charset="ascii"),
                )
                self.store.define(TableSchema(table, columns, ("slot",)))
        return Marking.TABLE

    def chunk_table(self, table: TableId) -> MemoryChunkTable:
        """Return the present table. Raises DumpRefused if there is none."""
        return MemoryChunkTable(
            Selection.compile(self.source.pipeline.capture).kept(_table(self.store, table)), self.store
        )


class _Reading:
    """One call of :meth:`MemorySession.stream`."""

    def __init__(
        self,
        session: MemorySession,
        start: Offset,
        limits: StreamLimits,
        table_filter: TableFilter,
        sink: Callable[[], ChangeSink[M]],
        progress: Callable[..., None] | None,
    ) -> None:
        self.store, self.start, self.limits, self.wanted = session.store, start, limits, table_filter
        self.marks = session.source.watermark_table
        self.loads = session.source.loads
        self.partner = PartnerLoads()
        self._make, self._progress = sink, progress
        self.sink: ChangeSink[Any] | None = None
        self.finished = False
        self.at = MemoryPosition.of(start).transactions
        self.stop = MemoryPosition.of(limits.stop_at).transactions if limits.stop_at is not None else None
        self.changes = self.transactions = self.log_bytes = self.statements = 0
        self.first_us = self.last_us = 0
        self.skipped = 0

    def run(self) -> StreamResult[Any]:
        began = reported_at = time.monotonic()
        first_change = 0.0
        reason = ""
        with self.store.changed:
            log_end = len(self.store.log)
        while not reason:
            now = time.monotonic()
            if self._progress is not None and now - reported_at >= _PROGRESS_EVERY_S:
                self._progress(changes=self.changes, position=str(self.store.position(self.at)))
                reported_at = now
            captured = bool(self.changes or self.statements)
            first_change = first_change or (now if captured else 0.0)
            deadline = first_change + self.limits.max_wait_s if captured else began + self.limits.idle_wait_s
            if self.stop is not None and self.at >= self.stop:
                reason = "head"
            elif captured and (now >= deadline or (self._is_at_end() and not self.store.waits_for_more())):
                reason = "time"
            elif not captured and now >= deadline and self.at >= log_end:  # what was there at the beginning is read
                reason = "idle"
            else:
                transaction = self._next(min(max(deadline - now, 0.0), _PROGRESS_EVERY_S))
                if transaction is not None:
                    reason = self._take(transaction)
        last = self.store.position(self.at)
        if self.sink is None:
            return StreamResult(
                last, None, 0, 0, self.log_bytes, reason in {"head", "idle"}, reason, partner=self.partner
            )
        manifest = self.sink.finish(
            self.start,
            last,
            changes=self.changes,
            transactions=self.transactions,
            log_bytes=self.log_bytes,
            first_commit_time_us=self.first_us,
            last_commit_time_us=self.last_us,
            skipped={"other tables": self.skipped} if self.skipped else {},
        )
        self.finished = True
        return StreamResult(
            last,
            manifest,
            self.changes,
            self.transactions,
            self.log_bytes,
            reason == "head",
            reason,
            partner=self.partner,
        )

    def _is_at_end(self) -> bool:
        with self.store.changed:
            return self.at >= len(self.store.log)

    def _next(self, wait_s: float) -> Transaction | None:
        with self.store.changed:
            if self.at >= len(self.store.log):
                self.store.changed.wait(wait_s)
            return self.store.log[self.at] if self.at < len(self.store.log) else None

    def _take(self, transaction: Transaction) -> str:
        """Hand a transaction to the sink; why the batch closes after it, "" if it does not."""
        if transaction.damage:
            error = DecodeError(f"the log cannot be read: {transaction.damage}", where=f"{FILE}:{self.at}")
            if self.transactions:
                error.whole_until = self.store.position(self.at)
            raise error
        selected = [
            (row, change)
            for row, change in enumerate(transaction.changes)
            if change.table == self.marks
            or (self.wanted.wants(change.table) and _EVENTS[change.op] in self.wanted.events)
        ]
        self.skipped += len(transaction.changes) - len(selected)
        token = self.loads.read(transaction.mark) if self.loads is not None and transaction.mark else None
        if token is not None and self.loads is not None:
            self.partner = self.partner.met(token, self.loads, captured=bool(self.changes))
            selected = [] if self.loads.drops(token) else selected
        known_definitions = tuple(
            definition for definition in transaction.definitions if any(map(self.wanted.wants, definition.tables))
        )
        noted = bool(known_definitions) and self.wanted.ddl
        if selected or noted:
            self.sink = self.sink or self._make()
            self.first_us = self.first_us or transaction.commit_time_us
            self.last_us = transaction.commit_time_us
            for name, rows in groupby(sorted(selected, key=lambda w: w[1].table), key=lambda w: w[1].table):
                self._add(transaction, transaction.schemas[name], list(rows), [row for row, _ in selected], token)
            self.changes += len(selected)
            self.transactions += 1
        if noted and self.sink is not None:
            table = next(table for table in known_definitions[0].tables if self.wanted.wants(table))
            self.sink.note_ddl(
                SchemaStatement(
                    position=self.store.position(self.at),
                    schema=table.schema,
                    table=table,
                    sql=transaction.statement,
                    seq=self.changes,
                    gtid=transaction.gtid,
                    commit_time_us=transaction.commit_time_us,
                    changes=known_definitions,
                )
            )
            self.statements += 1
        self.at += 1
        self.log_bytes += transaction.size_bytes
        if noted:
            return "ddl"
        if self.changes >= self.limits.max_changes:
            return "changes"
        return "bytes" if self.changes and self.log_bytes >= self.limits.max_bytes else ""

    def _add(
        self,
        transaction: Transaction,
        schema: TableSchema,
        rows: list[tuple[int, RowChange]],
        numbers: list[int],
        token: Token | None,
    ) -> None:
        """Add rows of one table, as segments have them; an update of a key also has a row under its old key."""
        assert self.sink is not None
        if schema.table != self.marks:
            schema = self.wanted.kept(schema)
        written: list[tuple[Op, int, Row | None, Row]] = []
        for row, change in rows:
            image = change.after if change.after is not None else change.before
            assert image is not None
            before = change.before if change.op is Op.UPDATE else None
            written.append((change.op, row, before, image))
            if before is not None and any(before[name] != image[name] for name in schema.primary_key):
                written.append((Op.KEY_MOVED, row, before, before))
        count, turns = len(written), {row: turn for turn, row in enumerate(numbers)}
        users = [pa.array([image.get(c.name) for *_, image in written], schema.field(c).type) for c in schema.columns]
        names = [c.name for c in schema.columns]
        buckets = self.sink.buckets(schema, [users[names.index(name)] for name in schema.primary_key], count)
        meta: dict[str, Any] = {
            "_op": [op.value for op, *_ in written],
            "_seq": [self.changes + turns[row] for _, row, *_ in written],
            "_file": [FILE] * count,
            "_offset": [self.at] * count,
            "_row": [row for _, row, *_ in written],
            "_commit_ts": [transaction.commit_time_us] * count,
            "_gtid": [transaction.gtid] * count,
            "_txn": [self.transactions] * count,
            "_origin": [token.number if token is not None else 0] * count,
            "_bucket": pa.array(np.asarray(buckets, np.uint8)),
            "_present": [None] * count,
            "_before": [
                None if before is None else {stored_name(c.name): before.get(c.name) for c in schema.columns}
                for _, _, before, _ in written
            ],
        }
        layout = schema.arrow_schema
        columns = [pa.array(meta[f.name], f.type) for f in list(layout)[len(users) :]]
        self.sink.add(schema, pa.Table.from_arrays([*users, *columns], schema=layout))


class MemoryLoad:
    """See :class:`sluice.sources.port.SourceLoad`; what the store says of itself is set by a test."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def running(self) -> int:
        """Return the number of statements that a test set."""
        return self.store.running

    def replica_lag_s(self) -> float | None:
        """Return the lag in seconds that a test set; None for a store that follows no other."""
        return self.store.replica_lag_s


@dataclass(frozen=True)
class MemoryChunkTable:
    """See :class:`sluice.sources.port.ChunkTable`."""

    schema: TableSchema
    store: MemoryStore
    whole_rows_logged: ClassVar[bool] = True

    def key(self, request: TableRequest) -> ChunkKey:
        """Return the primary key. Raises DumpRefused for a table without one and for a request that names an index."""
        return key_of(self.schema, request)

    def has_prefix_key(self, key: ChunkKey) -> bool:
        """Return False: keys of a store hold whole columns."""
        return False

    def condition(self, text: str) -> str:
        """Raise ConfigError: a store does not understand conditions."""
        raise ConfigError("rows of a store in memory cannot be asked for under a condition")

    def is_reversed(self, lower: tuple[str, ...], upper: tuple[str, ...]) -> bool:
        """Compare the values that both bounds have."""
        low, high = read_key(lower), read_key(upper)
        return bool(low and high and low[: len(high)] > high[: len(low)])

    def estimate(self, request: TableRequest, key: ChunkKey) -> int:
        """Count the rows in the range of the request."""
        return len(_within(self.store.rows(request.table), key.names, request, (), ()))

    def require_taken(self, request: TableRequest, key: ChunkKey, keys: Sequence[tuple[str, ...]]) -> None:
        """Do nothing: a store takes every value as a key."""
        return


class MemoryWatermarks:
    """Rows of the watermark table."""

    def __init__(self, store: MemoryStore, table: TableId) -> None:
        self._store, self._table = store, table

    def low(self, chunk: Chunk) -> str:
        """Write the low mark. The chunk has nothing to remember."""
        self._store.upsert(self._table, {"slot": 1, "mark": Mark(chunk.id, chunk.attempt, high=False).text})
        return ""

    @contextmanager
    def reading(self, chunk: Chunk) -> Iterator[str | None]:
        """Yield None: the marks are rows of the log, before and after the select."""
        yield None

    def high(self, chunk: Chunk) -> None:
        """Write the high mark."""
        self._store.upsert(self._table, {"slot": 1, "mark": Mark(chunk.id, chunk.attempt, high=True).text})


class MemoryChunkReader(MemoryLoad):
    """See :class:`sluice.sources.port.ChunkReader`."""

    def __init__(self, source: MemorySource, store: MemoryStore) -> None:
        super().__init__(store)
        self._selection = Selection.compile(source.pipeline.capture)
        self.watermarks = MemoryWatermarks(store, source.watermark_table)

    def end_of_log(self) -> str:
        """Return the place after the last transaction."""
        with self.store.changed:
            return self.store.position(len(self.store.log)).place

    def schema(self, table: TableId) -> TableSchema:
        """Return the present definition. Raises DumpRefused if there is no such table."""
        return self._selection.kept(_table(self.store, table))

    def next_border(self, request: TableRequest, planned: TablePlanned, rows: int) -> tuple[tuple[str, ...], bool]:
        """Return the key of row number ``rows`` after the planned ones; a table without a key is one chunk."""
        schema = self.schema(request.table)
        key = key_of(schema, request)
        if not key.columns:
            return (), True
        remaining = _within(self.store.rows(request.table), key.names, request, planned.upto, ())
        if len(remaining) < rows:
            return (), True
        return tuple(literal(remaining[rows - 1][name]) for name in key.names), False

    def rows(
        self, request: TableRequest, chunk: Chunk, keys: Iterable[Sequence[tuple[str, ...]]] = ()
    ) -> Iterator[pa.Table]:
        """Yield the rows of the chunk, in the order of its key, as one table."""
        with self.store.changed:
            schema, found = self.schema(request.table), self.store.rows(request.table)
        names = request.identity or key_of(schema, request).names
        if request.key_file:
            listed = {read_key(key) for some in keys for key in some}
            found = [row for row in found if tuple(row[name] for name in names) in listed]
        elif names:
            found = _within(found, names, request, chunk.after, chunk.upto)
        columns = [pa.array([row.get(c.name) for row in found], schema.field(c).type) for c in schema.columns]
        yield pa.Table.from_arrays(columns, schema=pa.schema([schema.field(c) for c in schema.columns]))


def _table(store: MemoryStore, table: TableId) -> TableSchema:
    """Return a table as it is now. Raises DumpRefused."""
    with store.changed:
        if table not in store.tables:
            raise DumpRefused(f"there is no table {table}")
        return store.tables[table]


def key_of(schema: TableSchema, request: TableRequest) -> ChunkKey:
    """Return the key that cuts a table: its primary key. Raises DumpRefused."""
    if request.index:
        raise DumpRefused(f"{schema.table} has no index {request.index!r}", hint="it is cut by its primary key")
    if request.keyless:
        return ChunkKey((), "")
    if not schema.primary_key and not request.identity:
        raise DumpRefused(f"{schema.table} has no primary key: its rows cannot be told apart")
    by_name = {column.name: column for column in schema.columns}
    return ChunkKey(tuple(by_name[name] for name in schema.primary_key), "PRIMARY" if schema.primary_key else "")


def _within(
    rows: Sequence[Row], names: Sequence[str], request: TableRequest, after: Sequence[str], upto: Sequence[str]
) -> list[Row]:
    """Return the rows of ``lower <= key <= upper`` and ``after < key <= upto``; a bound may have first columns only."""
    lower, upper, low, high = read_key(request.lower), read_key(request.upper), read_key(after), read_key(upto)
    rows_within = []
    for row in rows:
        key = tuple(row[name] for name in names)
        in_range = key[: len(lower)] >= lower and (not upper or key[: len(upper)] <= upper)
        if in_range and (not low or key[: len(low)] > low) and (not high or key[: len(high)] <= high):
            rows_within.append(row)
    return sorted(rows_within, key=lambda row: tuple(row[name] for name in names))
