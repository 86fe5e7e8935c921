"""Write documents as a batch needs it: see :mod:`sluice.targets.documents.writer`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.fields import is_masked
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.documents.records import Record
from sluice.targets.documents.writer import DocumentStore, Refusals, TableWork, WorkOptions
from sluice.targets.elasticsearch.append import append
from sluice.targets.elasticsearch.bulk import BulkSender, delete_lines, index_lines
from sluice.targets.elasticsearch.checkpoint import ElasticsearchCheckpoints, guarded, let_in, read_record
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.documents import ID_BYTES, TableDocuments
from sluice.targets.elasticsearch.follow import follow, remove_all
from sluice.targets.elasticsearch.place import Place
from sluice.targets.elasticsearch.tables import held_indexes, require
from sluice.targets.port import ChangePiece, Fence, SchemaChange, WriteResult

_TEXT = pa.large_string()


@dataclass(frozen=True)
class ElasticsearchStore(DocumentStore[Client]):
    """See :class:`sluice.targets.documents.writer.DocumentStore`."""

    kind: ClassVar[str] = "elasticsearch"
    rows: ClassVar[int] = 20_000
    copies: ClassVar[int] = 3
    refusal: ClassVar[str] = "the field's mapping (options.mappings)"
    place: Place

    @property
    def checkpoints(self) -> ElasticsearchCheckpoints:
        """The checkpoint store."""
        return ElasticsearchCheckpoints(self.place)

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """Open a connection and close it."""
        with connected(self.place) as client:
            yield client

    def read(self, client: Client) -> Record | None:
        """Return the checkpoint's record."""
        return read_record(client, self.place)

    def guarded(self, client: Client, fence: Fence) -> Record:
        """Return the record, if it is what a unit was told."""
        return guarded(client, self.place, fence)

    def follow(self, client: Client, fence: Fence, change: SchemaChange) -> None:
        """Follow a schema change."""
        follow(client, self.place, fence, change)

    def admit(
        self, client: Client, fence: Fence, tables: Sequence[PlannedTable], cleared: Sequence[PlannedTable]
    ) -> set[TableId]:
        """Give the indexes their aliases. An index that is not there needs no clearing."""
        indexes = held_indexes(client, {self.place.index_of(plan.target) for plan in (*tables, *cleared)})
        for plan in tables:
            require(self.place, indexes, plan)
        let_in(client, self.place, fence, indexes)
        return {plan.target for plan in cleared if self.place.index_of(plan.target) in indexes}

    def work(self, client: Client, record: Record, fence: Fence, plan: PlannedTable, options: WorkOptions) -> TableWork:
        """Return what writes rows of a table."""
        return ElasticsearchWork(self.place, client, record, fence, TableDocuments(self.place, plan), options)

    def append(
        self, client: Client, record: Record, fence: Fence, plan: PlannedTable, piece: ChangePiece
    ) -> WriteResult:
        """Write each change of a piece as a document, in the indexes of their days."""
        return append(client, record, fence, plan, piece)

    def committed(self, client: Client, tables: Sequence[TableId], *, moved: bool) -> None:
        """Make rows visible to searches before the checkpoint moves, if the options say so."""
        if self.place.options.refresh and not moved:
            client.refresh(sorted({self.place.index_of(table) for table in tables}))


@dataclass
class ElasticsearchWork(TableWork):
    """See :class:`sluice.targets.documents.writer.TableWork`."""

    place: Place
    client: Client
    record: Record
    fence: Fence
    keyed: TableDocuments
    options: WorkOptions

    @property
    def version(self) -> int:
        """The version of the documents."""
        return self.record.version(self.fence.batch)

    def _sender(self, *, hidden: bool) -> BulkSender:
        index = self.keyed.index
        alias = self.place.aliases(self.record.term, index)
        return BulkSender(self.client, self.fence, index, alias, hidden=hidden, replay=self.options.replay)

    def _sent(self, sender: BulkSender) -> WriteResult:
        return WriteResult(statements=sender.requests, retries=sender.retries)

    def remove(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field], *, hidden: bool) -> WriteResult:
        ids, routings = self.keyed.places_of(columns, fields)
        lengths = pc.binary_length(ids)
        short = pc.and_(pc.greater(lengths, 0), pc.less_equal(lengths, ID_BYTES))  # others were refused
        sender = self._sender(hidden=hidden)
        lines = delete_lines(ids.filter(short), routings.filter(short) if routings is not None else None, self.version)
        if len(lines):
            sender.remove(lines)
        return self._sent(sender)

    def remove_all(self) -> WriteResult:
        sender = self._sender(hidden=True)
        count = remove_all(self.client, sender, self.version)
        return replace(self._sent(sender), deleted=count)

    def put(self, rows: pa.Table, refused: Refusals) -> WriteResult:
        ids, routings = self.keyed.places(rows)
        documents = self.keyed.documents(self.client, rows, copied=self.options.copied)
        limit = self.place.options.max_document_bytes
        sizes, lengths = (
            pc.binary_length(part.cast(_TEXT)).to_numpy(zero_copy_only=False) for part in (documents, ids)
        )
        for number in np.flatnonzero(sizes > limit).tolist():
            why = f"a document of {sizes[number]:,} bytes is larger than options.max_document_bytes, {limit:,}"
            refused.add(rows, number, ids[number], why, "row too large")
        for number in np.flatnonzero((lengths > ID_BYTES) & (sizes <= limit)).tolist():
            why = f"its key makes an id of {lengths[number]:,} bytes, and a document's has {ID_BYTES} at most"
            refused.add(rows, number, ids[number], why, "key too long")
        for number in np.flatnonzero((lengths == 0) & (sizes <= limit)).tolist():
            refused.add(rows, number, ids[number], "its key is empty, and a document's id is not", "empty key")
        accepted = np.flatnonzero((sizes <= limit) & (lengths > 0) & (lengths <= ID_BYTES))
        some = pa.array(accepted)
        sender = self._sender(hidden=any(map(is_masked, rows.schema)))
        lines = index_lines(
            ids.take(some), routings.take(some) if routings is not None else None, documents.take(some), self.version
        )
        for number, (status, why) in sorted(sender.send(lines).items()):
            place = int(accepted[number])
            refused.add(rows, place, ids[place], why or f"the server answers {status}", status)
        return self._sent(sender)


__all__ = ["ElasticsearchStore"]
