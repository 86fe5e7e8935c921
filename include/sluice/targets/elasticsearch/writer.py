"""A batch on the driver, and the units that write it: first the documents that rows leave, then the rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.batches import Op
from sluice.model.fields import is_masked
from sluice.model.tables import one_chunk
from sluice.targets.elasticsearch.bulk import BulkSender, delete_lines, index_lines
from sluice.targets.elasticsearch.checkpoint import ElasticsearchCheckpoints, Record, guarded, let_in, read_record
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.documents import ID_BYTES, TableDocuments
from sluice.targets.elasticsearch.follow import follow, remove_all
from sluice.targets.elasticsearch.place import Place
from sluice.targets.elasticsearch.tables import held_indexes, require
from sluice.targets.messages.pieces import merged_parts
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.port import (
    BatchInput,
    Checkpoint,
    Fence,
    KeyRange,
    RejectedRows,
    Rejection,
    RowFile,
    RowReader,
    StoredRange,
    TableInput,
    WriteResult,
)

_ROWS = 20_000
"""Rows that become documents at a time."""
_TEXT = pa.large_string()


@dataclass(frozen=True)
class ElasticsearchWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    place: Place
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Follow the schema changes that precede the rows. Raises LoadError, Fenced."""
        self._follow(before_rows=True)

    def _follow(self, *, before_rows: bool) -> None:
        changes = [one for one in self.batch.schema_changes if one.before_rows is before_rows]
        if changes:
            with connected(self.place) as client:
                for change in changes:
                    follow(client, self.place, self.fence, change)

    def plan(self, parallelism: int) -> Sequence[Sequence[ElasticsearchUnit]]:
        """Return phases of units: what is cleared, documents that rows leave, rows. Raises MappingError, Fenced."""
        batch, place = self.batch, self.place
        plans = [*(table.plan for table in batch.tables), *(one.plan for one in batch.reconcile)]
        if not plans:
            return []
        with connected(place) as client:
            held = held_indexes(client, {place.index_of(plan.target) for plan in plans})
            for table in batch.tables:
                require(place, held, table.plan)
            let_in(client, place, self.fence, held)
        copied = batch.facts.being_copied() if any(table.partial for table in batch.tables) else frozenset()
        unit = ElasticsearchUnit(place, self.fence, batch.reader, replay=bool(batch.replay))
        clears = [replace(unit, clears=one) for one in batch.reconcile if place.index_of(one.plan.target) in held]
        leaves, puts = [], []
        for table in sorted(batch.tables, key=lambda one: one.weight):
            mine = replace(unit, table=table, copied=table.target in copied)
            files = [file for file in table.files if file.deletes or file.updates]
            leaves += [replace(mine, act="leave", files=(file,)) for file in files]
            puts += [replace(mine, act="put", files=(file,)) for file in table.files]
        return [phase for phase in (clears, leaves, puts) if phase]

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Follow later schema changes, then move the checkpoint. A repeat is harmless. Raises Fenced, LoadError."""
        batch, fence, place = self.batch, self.fence, self.place
        with connected(place) as client:
            held = read_record(client, place)
            again = held is not None and (held.checkpoint.epoch, held.checkpoint.batch) == (fence.epoch, batch.number)
            if not again:
                guarded(client, place, fence)
            if place.options.refresh:
                client.refresh(sorted({place.index_of(table.target) for table in batch.tables}))
        if batch.replay:
            return
        if not again:
            self._follow(before_rows=False)
        tables = [str(table.target) for table in batch.tables]
        ElasticsearchCheckpoints(place).advance(Checkpoint(fence.epoch, batch.number, batch.position), tables)

    def abort(self) -> None:
        """Do nothing: what was written is written again."""


@dataclass(frozen=True)
class ElasticsearchUnit:
    """See :class:`sluice.targets.port.WriteUnit`: files of one table, or a range that is cleared."""

    place: Place
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
        return (
            3 * self.reader.memory_of(sum(file.arrow_bytes for file in self.files), len(self.files))
            if self.files
            else 0
        )

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Check the fence, then write through the alias of its term."""
        started = time.monotonic()
        with connected(self.place) as client:
            record = guarded(client, self.place, self.fence)
            if self.clears is not None:
                result = self._clear(client, record, self.clears)
            else:
                assert self.table is not None
                work = _TableWork(self, client, record, self.table, rejected)
                result = work.leave() if self.act == "leave" else work.put()
            result = replace(result, retries=result.retries + client.web.retries)
        return replace(result, seconds=time.monotonic() - started)

    def sender(self, client: Client, record: Record, index: str, *, hidden: bool) -> BulkSender:
        """Return what writes to an index."""
        return BulkSender(
            client, self.fence, index, self.place.aliases(record.term, index), hidden=hidden, replay=self.replay
        )

    def _clear(self, client: Client, record: Record, stored: StoredRange) -> WriteResult:
        """Remove the rows of a table, or listed keys that the source does not have."""
        item, plan = self.reader.key_range(stored), stored.plan
        sender = self.sender(client, record, self.place.index_of(plan.target), hidden=True)
        version = record.version(self.fence.batch)
        if not item.names:
            return WriteResult(deleted=remove_all(client, sender, version), statements=sender.requests)
        ids, routings = self._listed(stored, item)
        if len(ids):
            sender.remove(delete_lines(ids, routings, version))
        return WriteResult(deleted=len(ids), statements=sender.requests)

    def _listed(self, stored: StoredRange, item: KeyRange) -> tuple[pa.Array, pa.Array | None]:
        if item.listed is None or item.kept is None:
            raise LoadError(
                f"a range of keys of {stored.plan.target} cannot be removed: ids are in no order",
                where=str(stored.plan.target),
            )
        rows = TableDocuments(self.place, stored.plan)
        keys = listed_keys(stored.plan, item.listed, item.kept.schema)
        kept = item.kept.select(keys.schema.names)
        (ids, routings), (stays, _) = (
            rows.places_of([one_chunk(one) for one in given.columns], list(keys.schema)) for given in (keys, kept)
        )
        gone = pc.invert(pc.is_in(ids, value_set=one_chunk(pa.chunked_array([stays]))))
        return ids.filter(gone), routings.filter(gone) if routings is not None else None


@dataclass
class _TableWork:
    """The rows of one unit on their way."""

    unit: ElasticsearchUnit
    client: Client
    record: Record
    table: TableInput
    rejected: RejectedRows | None
    refused: list[Rejection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = TableDocuments(self.unit.place, self.table.plan)
        self.version = self.record.version(self.unit.fence.batch)

    def pieces(self) -> Iterator[pa.Table]:
        for piece in merged_parts(self.unit.reader, self.unit.files, _ROWS):
            yield piece.combine_chunks()

    def _sender(self, rows: pa.Table) -> BulkSender:
        return self.unit.sender(self.client, self.record, self.rows.index, hidden=any(map(is_masked, rows.schema)))

    def leave(self) -> WriteResult:
        """Remove the documents of deleted rows, and those that rows leave which have another key by now."""
        removed, requests = 0, 0
        for piece in self.pieces():
            now = self.rows.keys_of(piece)
            left = now.gone | now.moved
            if not left.any():
                continue
            mask = pa.array(left)
            old = [one.filter(mask) for one in self.rows.old_columns(piece)]
            ids, routings = self.rows.places_of(old, self.rows.key_fields(piece.schema))
            short = pc.less_equal(pc.binary_length(ids), ID_BYTES)  # a longer one was refused
            sender = self._sender(piece)
            lines = delete_lines(
                ids.filter(short), routings.filter(short) if routings is not None else None, self.version
            )
            if len(lines):
                sender.remove(lines)
            removed += int(now.gone.sum())
            requests += sender.requests
        return WriteResult(deleted=removed, statements=requests)

    def put(self) -> WriteResult:
        """Write the rows that stay."""
        result = WriteResult()
        for piece in self.pieces():
            stays = piece.filter(pc.not_equal(one_chunk(piece["_op"]), Op.DELETE.value)).combine_chunks()
            if stays.num_rows:
                result += self._put(stays)
        if self.rejected is not None:
            [file] = self.unit.files
            self.rejected(f"elasticsearch-{file.path}", self.table.target, self.refused)
        return replace(result, rejected=len(self.refused))

    def _put(self, rows: pa.Table) -> WriteResult:
        ids, routings = self.rows.places(rows)
        documents = self.rows.documents(self.client, rows, copied=self.unit.copied)
        before = len(self.refused)
        limit = self.unit.place.options.max_document_bytes
        sizes, lengths = (pc.binary_length(one.cast(_TEXT)).to_numpy(zero_copy_only=False) for one in (documents, ids))
        for number in np.flatnonzero(sizes > limit).tolist():
            why = f"a document of {sizes[number]:,} bytes is larger than options.max_document_bytes, {limit:,}"
            self._refuse(rows, ids, number, why, "row too large")
        for number in np.flatnonzero((lengths > ID_BYTES) & (sizes <= limit)).tolist():
            why = f"its key makes an id of {lengths[number]:,} bytes, and a document's has {ID_BYTES} at most"
            self._refuse(rows, ids, number, why, "key too long")
        kept = np.flatnonzero((sizes <= limit) & (lengths <= ID_BYTES))
        some = pa.array(kept)
        sender = self._sender(rows)
        lines = index_lines(
            ids.take(some), routings.take(some) if routings is not None else None, documents.take(some), self.version
        )
        for number, (status, why) in sorted(sender.send(lines).items()):
            self._refuse(rows, ids, int(kept[number]), why or f"the server answers {status}", status)
        written = rows.num_rows - (len(self.refused) - before)
        return WriteResult(upserted=written, statements=sender.requests, retries=sender.retries)

    def _refuse(self, rows: pa.Table, ids: pa.Array, number: int, why: str, where: str) -> None:
        """Keep a row as rejected. Raises LoadError if none may be."""
        if self.rejected is None:
            shown = "(masked)" if any(map(is_masked, rows.schema)) else str(ids[number])[:300]
            raise LoadError(
                f"a row of {self.table.target} is refused, key {shown}: {why}",
                where=str(self.table.target),
                hint="correct the row, or the field's mapping (options.mappings); on_error: dead_letter leaves such "
                "rows out",
            )
        self.refused.append(Rejection(rows.slice(number, 1), why, where))


__all__ = ["ElasticsearchUnit", "ElasticsearchWriter"]
