"""The memory target: the smallest complete form of the port. Options choose its capabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import LoadError, TargetUnavailable
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.memory.checkpoints import MemoryCheckpoints
from sluice.targets.memory.compare import MemoryComparer
from sluice.targets.memory.keys import MergedRow, is_in, keys_of, merged_rows
from sluice.targets.memory.schema import MemorySchema, follow, require
from sluice.targets.memory.store import Key, MemoryStore, Message, Owner, Row, Table, memory_store
from sluice.targets.options import options_of
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    Checkpoint,
    Consistency,
    Feature,
    Fence,
    Guarantee,
    Input,
    KeyRange,
    Ordering,
    OtherWriter,
    RejectedRows,
    Rejection,
    RowReader,
    Share,
    StoredRange,
    TableInput,
    WriteResult,
)
from sluice.targets.schema.policy import FOLLOWED_BY_NAME


class LateIndexes:
    """See :class:`sluice.targets.port.indexes.LeavesOutIndexes`."""

    def __init__(self, store: MemoryStore, owner: Owner) -> None:
        self._store, self._owner = store, owner

    def leave_out(self, fence: Fence, tables: Sequence[TableId]) -> tuple[TableId, ...]:
        """Note the indexes of tables that are new and empty, and drop them."""
        store = self._store
        with store.lock:
            MemoryCheckpoints(store, self._owner).guard(fence)
            new_tables, noted = store.made.get(self._owner, set()), store.left_out.setdefault(self._owner, {})
            for table in tables:
                held_table = store.tables[table]
                if table in new_tables and held_table.indexes and not held_table.all():
                    noted[table] = held_table.indexes
                    held_table.indexes = {}
                    new_tables.discard(table)
            return tuple(table for table in tables if table in noted)

    def noted(self) -> Mapping[TableId, tuple[str, ...]]:
        """Return what is left out."""
        indexes_by_table = self._store.left_out.get(self._owner, {})
        return {table: tuple(indexes.values()) for table, indexes in indexes_by_table.items()}

    def build(self, fence: Fence, tables: Sequence[TableId]) -> None:
        """Build what is left out."""
        store = self._store
        with store.lock:
            MemoryCheckpoints(store, self._owner).guard(fence)
            for table in tables:
                missing = store.left_out.get(self._owner, {}).pop(table, {})
                if table in store.tables:
                    store.tables[table].indexes |= missing


_FEATURES = frozenset(Feature) - {Feature.FOREIGN_KEYS, Feature.BUNDLES}


class MemoryOptions(BaseModel):
    """The ``options:`` of a target of type memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    store: str = Field("", description="Name of the store in this process; by default the host of the connection.")
    guarantee: Guarantee = Field(Guarantee.TRANSACTIONAL, description="What a repeat of a batch may do.")
    ordering: Ordering = Field(Ordering.KEY, description="Of changes: all.")
    consistency: frozenset[Consistency] = Field(frozenset(Consistency), description="Settings that it offers.")
    features: frozenset[Feature] = Field(_FEATURES, description="What it can do.")
    appends: bool = Field(False, description="Merged rows are received as messages, too, and not written to tables.")
    keeps_checkpoint: bool = Field(True, description="false: it keeps nothing, and ZooKeeper keeps its checkpoint.")


class MemoryTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = MemoryOptions
    CAPABILITIES: ClassVar[Capabilities] = Capabilities(
        frozenset(Input), ordering=frozenset(Ordering), consistency=frozenset(Consistency),
        schema_changes=FOLLOWED_BY_NAME, features=_FEATURES,
        compares=True, lists_keys=True, leaves_out_indexes=True,
    )  # fmt: skip
    """The abilities before options restrict them."""

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config, self.options = config, options_of(config, MemoryOptions)
        self._host = endpoint.host
        self.owner = (pipeline, config.name)
        self.prefix = f"{pipeline}.{config.name}"

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target, as the options say."""
        options = self.options
        single = options.ordering in {Ordering.GLOBAL, Ordering.TABLE}
        return Capabilities(
            inputs=frozenset(Input),
            guarantee=options.guarantee,
            ordering=frozenset({options.ordering}),
            consistency=options.consistency,
            schema_changes=FOLLOWED_BY_NAME,
            features=options.features,
            max_writers=1 if single else None,
            compares=True,
            lists_keys=True,
            leaves_out_indexes=True,
        )

    @property
    def store(self) -> MemoryStore:
        """The store that it writes to. Raises TargetUnavailable."""
        store = memory_store(self.options.store or self._host or "default")
        if store.away:
            raise TargetUnavailable(f"the memory target {self.config.name} cannot be reached", where=store.name)
        return store

    @property
    def appends(self) -> bool:
        """True if it receives messages."""
        return self.options.appends or self.config.changes == "all"

    @property
    def checkpoints(self) -> MemoryCheckpoints | None:
        """The checkpoint store, in the same memory."""
        return MemoryCheckpoints(self.store, self.owner) if self.options.keeps_checkpoint else None

    @contextmanager
    def open(self, epoch: int) -> Iterator[MemorySession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield MemorySession(self, epoch)

    def schema(self) -> MemorySchema | None:
        """Return what compares its tables; None if it appends."""
        return None if self.appends else MemorySchema(self.store, self.owner)

    def reconciler(self) -> MemoryReconciler | None:
        """Return what replaces whole tables and ranges of integer keys, if offered."""
        offered = Feature.RECONCILE in self.options.features and not self.appends
        return MemoryReconciler(self) if offered else None

    def comparer(self) -> MemoryComparer | None:
        """Return what compares rows of its tables; None if it appends."""
        return None if self.appends else MemoryComparer(self.store)

    def leave_out_indexes(self, fence: Fence, tables: Sequence[TableId]) -> tuple[TableId, ...]:
        """See :class:`sluice.targets.port.indexes.LeavesOutIndexes`."""
        return LateIndexes(self.store, self.owner).leave_out(fence, tables)

    def left_out_indexes(self) -> Mapping[TableId, tuple[str, ...]]:
        """See :class:`sluice.targets.port.indexes.LeavesOutIndexes`."""
        return LateIndexes(self.store, self.owner).noted()

    def build_indexes(self, fence: Fence, tables: Sequence[TableId]) -> None:
        """See :class:`sluice.targets.port.indexes.LeavesOutIndexes`."""
        LateIndexes(self.store, self.owner).build(fence, tables)

    def interrupt(self) -> None:
        """Do nothing, as nothing waits."""


class MemoryReconciler:
    """See :class:`sluice.targets.port.Reconciler`."""

    def __init__(self, target: MemoryTarget) -> None:
        self._target = target

    def refuses(self, table: PlannedTable) -> str:
        """Return "", as every range can be made equal."""
        return ""

    def others(self) -> tuple[OtherWriter, ...]:
        """Return the pipelines with a checkpoint in the same store."""
        own_pipeline, store = self._target.owner[0], self._target.store
        pipelines = sorted({pipeline for pipeline, _ in store.checkpoints if pipeline != own_pipeline})
        return tuple(OtherWriter(name, store.writes.get(name), forget=f"forget {name}") for name in pipelines)


class MemorySession:
    """See :class:`sluice.targets.port.TargetSession`."""

    def __init__(self, target: MemoryTarget, epoch: int) -> None:
        self._target, self._epoch = target, epoch

    def begin(self, batch: BatchInput) -> MemoryWriter:
        """See :meth:`sluice.targets.port.TargetSession.begin`."""
        return MemoryWriter(self._target, self._epoch, batch)


class MemoryWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    def __init__(self, target: MemoryTarget, epoch: int, batch: BatchInput) -> None:
        self._target, self._batch = target, batch
        self._fence = Fence(epoch, batch.held, batch.number)

    def prepare(self) -> None:
        """Follow the schema changes that precede the rows."""
        self._follow(before_rows=True)

    def _follow(self, *, before_rows: bool) -> None:
        store = self._target.store
        for change in self._batch.schema_changes:
            if change.before_rows is not before_rows:
                continue
            with store.lock:
                guard(self._target, self._fence)
                batch, followed_count = store.statements.get(self._target.owner, (0, 0))
                if batch == self._batch.number and followed_count > change.number:
                    continue
                follow(store, change)
                store.statements[self._target.owner] = (self._batch.number, change.number + 1)

    def plan(self, parallelism: int) -> list[list[MemoryUnit]]:
        """Return units that clear ranges, then units of rows: one per table or, for large tables, one per file."""
        batch, target = self._batch, self._target
        unit = MemoryUnit(target, batch.reader, self._fence, batch.replay)
        if batch.changes:
            of = 1 if target.capabilities.max_writers == 1 else max(parallelism, 1)
            return [[replace(unit, share=Share(number, of)) for number in range(of)]]
        if batch.tables and not batch.replay:
            written_tables = target.store.writes.get(target.owner[0]) or frozenset()
            target.store.writes[target.owner[0]] = written_tables | {str(table.target) for table in batch.tables}
        facts = batch.facts.being_copied() if any(table.partial for table in batch.tables) else frozenset()
        if not target.appends:
            for table in batch.tables:
                require(target.store, table.plan)
        clearing = [replace(unit, clears=(stored_range,)) for stored_range in batch.reconcile]
        phases = [clearing] if clearing else []
        for weight in sorted({table.weight for table in batch.tables}):
            group = [table for table in batch.tables if table.weight == weight]
            phases.append([
                replace(unit, table=part, copied=table.target in facts)
                for table in group
                for part in self._parts(table)
            ])
        return phases

    def _parts(self, table: TableInput) -> list[TableInput]:
        together = self._target.config.consistency != "row" or not table.plan.key or table.partial
        return [table] if together else [replace(table, files=(file,)) for file in table.files]

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Make the results visible, follow later schema changes, then move the checkpoint; all under the lock."""
        target, batch, store = self._target, self._batch, self._target.store
        with store.lock:
            held_checkpoint = target.checkpoints.read() if target.checkpoints is not None else None
            if (
                held_checkpoint is not None
                and (held_checkpoint.epoch, held_checkpoint.batch) == (self._fence.epoch, batch.number)
                and not batch.replay
            ):
                return  # a repeat
            guard(target, self._fence)
            for result in results:
                for work in result.message or ():
                    work.run(store)
            self._follow(before_rows=False)
            if target.checkpoints is not None and not batch.replay:
                target.checkpoints.advance(Checkpoint(self._fence.epoch, batch.number, batch.position))

    def abort(self) -> None:
        """Do nothing: nothing is kept outside of the results."""


def guard(target: MemoryTarget, fence: Fence) -> None:
    """Raise Fenced if a newer process writes. A target without a checkpoint cannot tell."""
    if target.checkpoints is not None:
        target.checkpoints.guard(fence)


@dataclass(frozen=True)
class Work:
    """The effect of a unit on the store, now or at the commit."""

    target: MemoryTarget
    fence: Fence
    table: TableInput | None = None
    puts: tuple[tuple[Key | None, Row], ...] = ()
    removes: tuple[tuple[Key | None, Row], ...] = ()
    messages: tuple[Message, ...] = ()
    clears: tuple[tuple[TableInput | None, PlannedTable, KeyRange], ...] = ()
    scope: str = ""

    def run(self, store: MemoryStore) -> None:
        """Do the work. Call it under the store's lock."""
        scope_key = (self.target.owner, self.scope)
        if self.scope and store.done.get(scope_key, 0) >= self.fence.batch:
            return
        if self.messages:
            known_ids = (
                set() if self.target.options.guarantee is Guarantee.AT_LEAST_ONCE else {m.id for m in store.messages}
            )
            store.messages += [message for message in self.messages if message.id not in known_ids]
        for _, plan, stretch in self.clears:
            _clear(store.tables[plan.target], stretch)
        if self.table is not None:
            self._write(store.tables[self.table.target])
        if self.scope:
            store.done[scope_key] = self.fence.batch

    def _write(self, table: Table) -> None:
        version = (self.fence.epoch, self.fence.batch)
        for key, row in self.removes:
            if key is None:
                if row in table.heap:
                    table.heap.remove(row)
            elif table.versions.get(key, version) <= version:
                table.rows.pop(key, None)
                table.versions[key] = version
        for key, row in self.puts:
            if key is None:
                table.heap.append(row)
            elif table.versions.get(key, version) <= version:
                table.rows[key] = row
                table.versions[key] = version


def _clear(table: Table, stretch: KeyRange) -> None:
    if not stretch.names:
        table.rows.clear()
        table.heap.clear()
        return
    kept_keys = set(keys_of(stretch.kept.select(stretch.names))) if stretch.kept is not None else set()
    inside = is_in(stretch)
    for key in [key for key in table.rows if key not in kept_keys and inside(key)]:
        del table.rows[key]


@dataclass(frozen=True)
class MemoryUnit:
    """See :class:`sluice.targets.port.WriteUnit`."""

    target: MemoryTarget
    reader: RowReader
    fence: Fence
    replay: str = ""
    table: TableInput | None = None
    share: Share | None = None
    clears: tuple[StoredRange, ...] = ()
    copied: bool = False

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.table.rows if self.table is not None else 1

    @property
    def memory_bytes(self) -> int:
        """The bytes of its rows."""
        return sum(file.arrow_bytes for file in self.table.files) if self.table is not None else 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Write at once; with consistency schema or batch, leave it to the commit."""
        store = self.target.store
        with store.lock:
            guard(self.target, self.fence)
            work, result = self._work(store, rejected)
            if self.target.config.consistency in {"schema", "batch"}:
                return replace(result, message=(work,))
            work.run(store)
            return result

    def _work(self, store: MemoryStore, rejected: RejectedRows | None) -> tuple[Work, WriteResult]:
        nothing = Work(self.target, self.fence)
        if self.clears:
            ranges = tuple((None, clear.plan, self.reader.key_range(clear)) for clear in self.clears)
            return replace(nothing, clears=ranges), WriteResult()
        if self.share is not None:
            messages = tuple(self._changes(self.share))
            return replace(nothing, messages=messages), WriteResult(appended=len(messages))
        assert self.table is not None
        if self.target.appends:
            messages = tuple(self._messages(self.table))
            return replace(nothing, messages=messages), WriteResult(appended=len(messages))
        return self._rows(store, self.table, rejected)

    def _changes(self, share: Share) -> Iterator[Message]:
        for row in self.reader.changes(share):
            envelope = {
                "file": row.file, "offset": row.offset, "gtid": row.gtid, "txn": row.txn, "txn_row": row.txn_row,
                "commit_time_us": row.commit_time_us, "origin": row.origin, "seq": row.seq,
            }  # fmt: skip
            name = f"{self.target.prefix}/{self.fence.batch}/{row.table}/{row.seq}/{row.row}/{row.part}"
            yield Message(name, row.table, row.op, row.before, row.after, envelope)

    def _messages(self, table: TableInput) -> Iterator[Message]:
        numbers: dict[tuple[int, str], int] = {}
        for piece in self.reader.pieces(table.files):
            for row in merged_rows(piece):
                number = numbers[row.seq, row.op] = numbers.get((row.seq, row.op), -1) + 1
                name = f"{self.target.prefix}/{self.fence.batch}/{table.target}/{row.seq}/{row.op}/{number}"
                after = None if row.op == "d" else row.values
                yield Message(name, table.target, row.op, row.before, after, {"seq": row.seq})

    def _rows(
        self, store: MemoryStore, table_input: TableInput, rejected: RejectedRows | None
    ) -> tuple[Work, WriteResult]:
        table, key = store.tables[table_input.target], table_input.plan.key
        puts: list[tuple[Key | None, Row]] = []
        removes: list[tuple[Key | None, Row]] = []
        refused: list[Rejection] = []
        for piece in self.reader.pieces(table_input.files):
            for row in merged_rows(piece):
                full = self._full(table, row, key)
                why = table.refuses(full) if row.op != "d" else ""
                if why and rejected is None:
                    raise LoadError(
                        f"the target refused a row of {table_input.target}: {why}", where=str(table_input.target)
                    )
                if why:
                    refused.append(Rejection(piece.slice(row.number, 1), why, "refuses"))
                    continue
                (removes if row.op == "d" else puts).append((tuple(full[name] for name in key) if key else None, full))
        if rejected is not None:
            rejected(
                "-".join(file.path.replace("/", "_") for file in table_input.files)[-60:], table_input.target, refused
            )
        scope = self.replay or ("" if key and not table_input.partial else str(table_input.target))
        work = Work(self.target, self.fence, table_input, tuple(puts), tuple(removes), scope=scope)
        return work, WriteResult(len(puts), len(removes), rejected=len(refused))

    def _full(self, table: Table, row: MergedRow, key: tuple[str, ...]) -> Row:
        """Return all columns: those that the log lacks are the target's."""
        if row.known is None:
            return {name: row.values.get(name) for name in table.columns}
        where = {**row.values, **{n: v for n, v in (row.before or {}).items() if n in key and v is not None}}
        held_row = table.rows.get(tuple(where[name] for name in key))
        if held_row is None and row.op == "u" and not self.copied:
            raise LoadError(
                f"the target has no row with { ({n: where[n] for n in key}) }, but the log only contains the changed "
                "columns of this row",
                where=str(self.fence.batch),
                hint="`sluice dump start PIPELINE --table SCHEMA.TABLE` copies the table anew",
            )
        held_row = held_row or {}
        return {name: row.values.get(name) if name in row.known else held_row.get(name) for name in table.columns}
