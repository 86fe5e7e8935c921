"""A batch on the driver, and the units that write it: first the documents that rows leave, then the rows.

A kind says how documents are made and sent; what is the same for every store of documents is here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.batches import Op
from sluice.model.fields import is_masked
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, one_chunk
from sluice.targets.documents.records import Record
from sluice.targets.documents.refusals import refused_row
from sluice.targets.messages.keyed_rows import KeyedRows
from sluice.targets.messages.pieces import merged_parts
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.port import (
    BatchInput,
    ChangePiece,
    Checkpoint,
    Fence,
    KeyRange,
    RejectedRows,
    Rejection,
    RowFile,
    RowReader,
    SchemaChange,
    StoredRange,
    TableInput,
    WriteResult,
    WriteUnit,
)
from sluice.targets.port.record import RecordCheckpoints

C = TypeVar("C")
"""The kind's client: a connection that one thread uses."""


class DocumentStore(ABC, Generic[C]):
    """The calls by which a kind reads and writes. Picklable: it is sent with the units.

    Attributes:
        kind: its name. rows: rows that become documents at a time. copies: of the rows that are read, in memory.
        refusal: what a person can do about a row that is refused, beside correcting it.
    """

    kind: ClassVar[str]
    rows: ClassVar[int]
    copies: ClassVar[int]
    refusal: ClassVar[str]

    @property
    @abstractmethod
    def checkpoints(self) -> RecordCheckpoints[Any, Record]:
        """The checkpoint store."""

    @abstractmethod
    def connected(self) -> AbstractContextManager[C]:
        """Open a connection and close it."""

    @abstractmethod
    def read(self, client: C) -> Record | None:
        """Return the checkpoint's record."""

    @abstractmethod
    def guarded(self, client: C, fence: Fence) -> Record:
        """Return the record, if it is what a unit of ``fence`` was told. Raises Fenced, CheckpointError."""

    @abstractmethod
    def follow(self, client: C, fence: Fence, change: SchemaChange) -> None:
        """Follow a schema change, once over all repeats. Raises LoadError, Fenced."""

    @abstractmethod
    def admit(
        self, client: C, fence: Fence, tables: Sequence[PlannedTable], cleared: Sequence[PlannedTable]
    ) -> set[TableId]:
        """Require that rows of ``tables`` can be written, and let the units of ``fence`` write.

        Returns those of ``cleared`` that are there. Raises MappingError, Fenced.
        """

    @abstractmethod
    def work(self, client: C, record: Record, fence: Fence, plan: PlannedTable, options: WorkOptions) -> TableWork:
        """Return what writes rows of a table."""

    @abstractmethod
    def append(self, client: C, record: Record, fence: Fence, plan: PlannedTable, piece: ChangePiece) -> WriteResult:
        """Write each change of a piece as a document: see :mod:`sluice.targets.documents.changes`. Raises LoadError."""

    def committed(self, client: C, tables: Sequence[TableId], *, moved: bool) -> None:
        """Do what follows the rows of a batch; ``moved``: the checkpoint has moved."""


@dataclass(frozen=True)
class DocumentWriter(Generic[C]):
    """See :class:`sluice.targets.port.BatchWriter`."""

    store: DocumentStore[C]
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Follow the schema changes that precede the rows. Raises LoadError, Fenced."""
        self._follow(before_rows=True)

    def _follow(self, *, before_rows: bool) -> None:
        changes = [change for change in self.batch.schema_changes if change.before_rows is before_rows]
        if changes:
            with self.store.connected() as client:
                for change in changes:
                    self.store.follow(client, self.fence, change)

    def plan(self, parallelism: int) -> Sequence[Sequence[WriteUnit]]:
        """Return phases of units: what is cleared, documents that rows leave, rows. Raises MappingError, Fenced."""
        batch = self.batch
        if not batch.tables and not batch.reconcile:
            return []
        with self.store.connected() as client:
            plans = [table.plan for table in batch.tables]
            existing = self.store.admit(
                client, self.fence, plans, [stored_range.plan for stored_range in batch.reconcile]
            )
        copied = batch.facts.being_copied() if any(table.partial for table in batch.tables) else frozenset()
        unit = DocumentUnit(self.store, self.fence, batch.reader, replay=bool(batch.replay))
        clears = [
            replace(unit, clears=stored_range)
            for stored_range in batch.reconcile
            if stored_range.plan.target in existing
        ]
        leaves, puts = [], []
        for table in sorted(batch.tables, key=lambda table_input: table_input.weight):
            table_unit = replace(unit, table=table, copied=table.target in copied)
            leaves += [
                replace(table_unit, act="leave", files=(file,)) for file in table.files if file.deletes or file.updates
            ]
            puts += [replace(table_unit, act="put", files=(file,)) for file in table.files]
        return [phase for phase in (clears, leaves, puts) if phase]

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Follow later schema changes, then move the checkpoint. A repeat is harmless. Raises Fenced, LoadError."""
        batch, fence, store = self.batch, self.fence, self.store
        tables = list(dict.fromkeys([*(table.target for table in batch.tables), *_written(results)]))
        with store.connected() as client:
            record = store.read(client)
            again = record is not None and (record.checkpoint.epoch, record.checkpoint.batch) == (
                fence.epoch,
                batch.number,
            )
            if not again:
                store.guarded(client, fence)
            store.committed(client, tables, moved=False)
            if batch.replay:
                return
            if not again:
                self._follow(before_rows=False)
            store.checkpoints.advance(Checkpoint(fence.epoch, batch.number, batch.position), map(str, tables))
            store.committed(client, tables, moved=True)

    def abort(self) -> None:
        """Do nothing: what was written is written again."""


def _written(results: Sequence[WriteResult]) -> Iterator[TableId]:
    """Yield the tables that units say they wrote."""
    for result in results:
        yield from result.message or ()


@dataclass(frozen=True)
class DocumentUnit(Generic[C]):
    """See :class:`sluice.targets.port.WriteUnit`: files of one table, or a range that is cleared."""

    store: DocumentStore[C]
    fence: Fence
    reader: RowReader
    table: TableInput | None = None
    files: tuple[RowFile, ...] = ()
    act: str = "clear"
    clears: StoredRange | None = None
    copied: bool = False
    replay: bool = False

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return sum(file.rows for file in self.files) or 1

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes: the rows that are read at a time, their documents and a request."""
        read = self.reader.memory_of(sum(file.arrow_bytes for file in self.files), len(self.files))
        return self.store.copies * read if self.files else 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Check the fence, then write in the version of its term and batch."""
        started = time.monotonic()
        with self.store.connected() as client:
            record = self.store.guarded(client, self.fence)
            if self.clears is not None:
                result = self._clear(self._work(client, record, self.clears.plan), self.clears)
            else:
                assert self.table is not None
                work = self._work(client, record, self.table.plan)
                result = self._leave(work) if self.act == "leave" else self._put(work, self.table, rejected)
        return replace(result, seconds=time.monotonic() - started)

    def _work(self, client: C, record: Record, plan: PlannedTable) -> TableWork:
        return self.store.work(client, record, self.fence, plan, WorkOptions(self.copied, self.replay))

    def _clear(self, work: TableWork, stored: StoredRange) -> WriteResult:
        """Remove the rows of a table, or listed keys that the source does not have."""
        item = self.reader.key_range(stored)
        if not item.names:
            return work.remove_all()
        columns, fields = _listed(work.keyed, stored, item)
        return replace(work.remove(columns, fields, hidden=True), deleted=len(columns[0]))

    def _pieces(self) -> Iterator[pa.Table]:
        for piece in merged_parts(self.reader, self.files, self.store.rows):
            yield piece.combine_chunks()

    def _leave(self, work: TableWork) -> WriteResult:
        """Remove the documents of deleted rows, and those that rows leave which have another key by now."""
        result = WriteResult()
        for piece in self._pieces():
            now = work.keyed.keys_of(piece)
            removable = now.gone | now.moved
            if removable.any():
                old = [column.filter(pa.array(removable)) for column in work.keyed.old_columns(piece)]
                removal = work.remove(
                    old, work.keyed.key_fields(piece.schema), hidden=any(map(is_masked, piece.schema))
                )
                result += replace(removal, deleted=int(now.gone.sum()))
        return result

    def _put(self, work: TableWork, table: TableInput, rejected: RejectedRows | None) -> WriteResult:
        """Write the rows that stay."""
        result, refused = WriteResult(), Refusals(table.plan, self.store.refusal, allowed=rejected is not None)
        for piece in self._pieces():
            stays = piece.filter(pc.not_equal(one_chunk(piece["_op"]), Op.DELETE.value)).combine_chunks()
            if stays.num_rows:
                before = len(refused.rows)
                write = work.put(stays, refused)
                result += replace(write, upserted=stays.num_rows - (len(refused.rows) - before))
        if rejected is not None:
            [file] = self.files
            rejected(f"{self.store.kind}-{file.path}", table.target, refused.rows)
        return replace(result, rejected=len(refused.rows))


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """The state of a table's rows. ``copied``: a dump fills the table;

    ``replay``: they may be older than what is there.
    """

    copied: bool = False
    replay: bool = False


@dataclass
class Refusals:
    """The rows of a unit that the target refuses. ``allowed``: they may be left out; ``hint``: what a person can do."""

    plan: PlannedTable
    hint: str
    allowed: bool
    rows: list[Rejection] = field(default_factory=list)

    def add(self, rows: pa.Table, number: int, key: Any, why: str, where: str) -> None:
        """Keep a row. Raises LoadError if none may be left out."""
        if not self.allowed:
            raise refused_row(self.plan, key, why, self.hint, hidden=any(map(is_masked, rows.schema)))
        self.rows.append(Rejection(rows.slice(number, 1), why, where))


class TableWork(ABC):
    """The rows of one table on their way to its documents. ``keyed``: makes their keys."""

    keyed: KeyedRows

    @abstractmethod
    def remove(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field], *, hidden: bool) -> WriteResult:
        """Remove documents, by the key's columns in key order. ``hidden``: errors do not show values."""

    @abstractmethod
    def remove_all(self) -> WriteResult:
        """Remove all documents of the table, and count them."""

    @abstractmethod
    def put(self, rows: pa.Table, refused: Refusals) -> WriteResult:
        """Write rows, of which none is deleted."""


def _listed(keyed: KeyedRows, stored: StoredRange, item: KeyRange) -> tuple[list[pa.Array], list[pa.Field]]:
    """Return the key's columns of listed keys that do not stay."""
    if item.listed is None or item.kept is None:
        raise LoadError(
            f"a range of keys of {stored.plan.target} cannot be removed: ids are not in the source's order",
            where=str(stored.plan.target),
        )
    keys = listed_keys(stored.plan, item.listed, item.kept.schema)
    fields, columns = list(keys.schema), [one_chunk(column) for column in keys.columns]
    source_columns = [one_chunk(column) for column in item.kept.select(keys.schema.names).columns]
    absent = pc.invert(pc.is_in(keyed.keys(columns, fields), value_set=keyed.keys(source_columns, fields)))
    return [column.filter(absent) for column in columns], fields


__all__ = ["DocumentStore", "DocumentUnit", "DocumentWriter", "Refusals", "TableWork", "WorkOptions"]
