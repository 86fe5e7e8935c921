"""Write documents as a batch needs it: see :mod:`sluice.targets.documents.writer`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from bson.datetime_ms import DatetimeMS

from sluice.model.fields import is_masked
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.documents.records import Record
from sluice.targets.documents.refusals import row_missing
from sluice.targets.documents.writer import DocumentStore, Refusals, TableWork, WorkOptions
from sluice.targets.mongodb.append import append
from sluice.targets.mongodb.bulk import BulkSender
from sluice.targets.mongodb.checkpoint import MongoCheckpoints, guarded, read_record
from sluice.targets.mongodb.client import Client, connected
from sluice.targets.mongodb.column_types import Unstorable
from sluice.targets.mongodb.documents import DELETED, Refused, TableDocuments, Write
from sluice.targets.mongodb.follow import follow, remove_all
from sluice.targets.mongodb.place import Place
from sluice.targets.mongodb.tables import definitions, require
from sluice.targets.port import ChangePiece, Fence, SchemaChange, WriteResult

_FORGOTTEN = 1_000
"""Removed rows that are forgotten at a time."""


@dataclass(frozen=True)
class MongoStore(DocumentStore[Client]):
    """See :class:`sluice.targets.documents.writer.DocumentStore`."""

    kind: ClassVar[str] = "mongodb"
    rows: ClassVar[int] = 10_000
    copies: ClassVar[int] = 4
    refusal: ClassVar[str] = "how its column is stored (options.types), or the collection's indexes and validator"
    place: Place

    @property
    def checkpoints(self) -> MongoCheckpoints:
        """The checkpoint store."""
        return MongoCheckpoints(self.place)

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
        """Check the fence and the definitions. Clearing a collection that is not there does nothing."""
        guarded(client, self.place, fence)
        held_definitions = definitions(client, self.place, [self.place.namespace(plan.target) for plan in tables])
        for plan in tables:
            require(self.place, held_definitions, plan)
        return {plan.target for plan in cleared}

    def work(self, client: Client, record: Record, fence: Fence, plan: PlannedTable, options: WorkOptions) -> TableWork:
        """Return what writes rows of a table."""
        return MongoWork(client, record.version(fence.batch), fence, TableDocuments(self.place, plan), options)

    def append(
        self, client: Client, record: Record, fence: Fence, plan: PlannedTable, piece: ChangePiece
    ) -> WriteResult:
        """Write each change of a piece as a document of the table's collection."""
        return append(client, record, fence, plan, piece)

    def committed(self, client: Client, tables: Sequence[TableId], *, moved: bool) -> None:
        """Remove what was kept of rows that were removed longer ago than the options say."""
        before = DatetimeMS(dt.datetime.now(dt.UTC) - self.place.options.keep_deleted)
        for table in tables if moved and not self.place.every else ():
            at, query = self.place.namespace(table), {DELETED: {"$lt": before}}
            while True:
                ids = [row["_id"] for row in client.find("forgetting removed rows", at, query, (), most=_FORGOTTEN)]
                if ids:
                    deletes = [{"q": {"_id": {"$in": ids}, **query}, "limit": 0}]
                    client.delete(f"forgetting removed rows of {at}", at, deletes)
                if len(ids) < _FORGOTTEN:
                    break


@dataclass
class MongoWork(TableWork):
    """See :class:`sluice.targets.documents.writer.TableWork`."""

    client: Client
    version: int
    fence: Fence
    keyed: TableDocuments
    options: WorkOptions

    def _sender(self, *, hidden: bool) -> BulkSender:
        return BulkSender(
            self.client, self.fence, self.keyed.at, self.version, hidden=hidden, replay=self.options.replay
        )

    def remove(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field], *, hidden: bool) -> WriteResult:
        sender = self._sender(hidden=hidden)
        ids = self.keyed.ids_of(columns, fields)
        sender.remove([key for key in ids if type(key) is not Unstorable])  # such a row was refused
        return WriteResult(statements=sender.requests, retries=sender.retries)

    def remove_all(self) -> WriteResult:
        sender = self._sender(hidden=True)
        count = remove_all(self.client, sender)
        return WriteResult(deleted=count, statements=sender.requests, retries=sender.retries)

    def put(self, rows: pa.Table, refused: Refusals) -> WriteResult:
        sender = self._sender(hidden=any(map(is_masked, rows.schema)))
        writes: list[Write] = []
        numbers: list[int] = []
        for number, write in enumerate(self.keyed.writes(rows, self.version, copied=self.options.copied)):
            if isinstance(write, Refused):
                refused.add(rows, number, write.id, write.why, write.where)
            else:
                writes.append(write)
                numbers.append(number)
        for place, (code, why) in sorted(sender.send(writes).items()):
            refused.add(rows, numbers[place], writes[place].id, why, code)
        for place in sender.missing:
            raise row_missing(self.keyed.plan, writes[place].id, hidden=sender.hidden)
        return WriteResult(statements=sender.requests, retries=sender.retries)


__all__ = ["MongoStore"]
