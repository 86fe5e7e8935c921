"""Schema changes: collections and documents change as the source's tables did, by the one policy of all targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnType
from sluice.model.tables import TableId
from sluice.targets.documents.definitions import Definition
from sluice.targets.documents.follow import Follower
from sluice.targets.documents.records import Record
from sluice.targets.mongodb.bulk import BulkSender
from sluice.targets.mongodb.checkpoint import CheckpointDocument, guarded
from sluice.targets.mongodb.client import Client
from sluice.targets.mongodb.column_types import Unstorable, document_values
from sluice.targets.mongodb.documents import NOT_DELETED
from sluice.targets.mongodb.place import Namespace, Place
from sluice.targets.mongodb.tables import define, definitions, make_collection
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.port.record import Decision, change_record
from sluice.targets.schema.plan import AlterTable, CreateTable
from sluice.targets.schema.policy import not_filled, not_followed

_AT_ONCE = 1_000
"""Documents that one command changes: it ends in time, whatever the collection's size."""


def follow(client: Client, place: Place, fence: Fence, change: SchemaChange) -> None:
    """Follow a change once over all repeats. Raises LoadError, Fenced."""
    record = guarded(client, place, fence)
    _Follower(change, record, client, place, fence).follow(place, fence)


@dataclass
class _Follower(Follower):
    """Changes documents by operators whose repeat changes nothing."""

    KIND: ClassVar[str] = "mongodb"
    client: Client
    place: Place
    fence: Fence

    def change_record(self, decide: Decision[Record]) -> None:
        change_record(CheckpointDocument(self.client, self.place), decide, self.place)

    def read(self, table: TableId) -> Definition | None:
        at = self.place.namespace(table)
        return definitions(self.client, self.place, [at]).get(str(at))

    def document_value(self, table: TableId, name: str, values: pa.Array, column_type: ColumnType) -> Any:
        [document_value] = document_values(values, column_type, self.place.form(table, name, column_type))
        if type(document_value) is Unstorable:
            raise not_filled(
                self.change, table, name, document_value.why, "options.types stores the column in another way"
            )
        return document_value

    def drop(self, table: TableId) -> None:
        at = self.place.namespace(table)
        drop_collection(self.client, at)
        define(self.client, self.place, at, None)

    def empty(self, table: TableId) -> None:
        at = self.place.namespace(table)
        remove_all(
            self.client, BulkSender(self.client, self.fence, at, self.record.version(self.fence.batch), hidden=True)
        )

    def create(self, step: CreateTable, definition: Definition) -> None:
        at, stored = self.place.namespace(step.table), self.read(step.table)
        if stored is not None and stored.table != definition.table:
            hint = "give each table a collection of its own: options.database, options.collection"
            raise not_followed(self.change, f"collection {at} has the rows of {stored.table}", hint)
        make_collection(self.client, at)
        define(self.client, self.place, at, replace(definition, ids=self.place.ids))

    def rename(self, table: TableId, to: TableId) -> None:
        """Rename the collection; a repeat finds that it has the new name already."""
        old, new, held_definition = self.place.namespace(table), self.place.namespace(to), self.read(table)
        assert held_definition is not None  # the plan saw it
        if old != new:
            define(self.client, self.place, old, replace(held_definition, moves_to=str(to)))
            if collection_exists(self.client, old) and not collection_exists(self.client, new):
                command = {"renameCollection": str(old), "to": str(new)}
                self.client.command(f"renaming collection {old} to {new}", "admin", command)
            elif collection_exists(self.client, old):
                why = f"there are collections {old} and {new}"
                raise not_followed(self.change, why, f"remove {new}, if nothing in it is needed")
        define(self.client, self.place, new, replace(held_definition, table=str(to), moves_to=""))
        if old != new:
            define(self.client, self.place, old, None)

    def make_anew(self, step: AlterTable, definition: Definition) -> None:
        self.empty(step.table)
        define(self.client, self.place, self.place.namespace(step.table), definition)

    def alter(self, step: AlterTable, definition: Definition, values: Mapping[str, Any]) -> None:
        at = self.place.namespace(step.table)
        given_values = {name: value for name, value in values.items() if value is not None}
        operators = {
            "$unset": dict.fromkeys(step.drops, ""), "$rename": dict(step.renames), "$set": given_values,
        }  # fmt: skip
        update = {name: parts for name, parts in operators.items() if parts}
        for ids in chunks(self.client, at) if update else ():
            query = {"_id": {"$in": ids}, **NOT_DELETED}
            reply = self.client.update(
                f"changing rows of {at}", at, [{"q": query, "u": update, "multi": True}], hidden=True
            )
            for write_error in reply.get("writeErrors", ()):
                raise LoadError(f"changing rows of {at}: the server answers {write_error.get('code')}", where=str(at))
        define(self.client, self.place, at, definition)


def drop_collection(client: Client, at: Namespace) -> None:
    """Remove a collection, if it is there."""
    if collection_exists(client, at):
        client.command(f"removing collection {at}", at.database, {"drop": at.collection})


def collection_exists(client: Client, at: Namespace) -> bool:
    """Return True if there is the collection."""
    command = {"listCollections": 1, "filter": {"name": at.collection}, "nameOnly": True}
    reply = client.command("looking for collections", at.database, command)
    return any(collection["name"] == at.collection for collection in reply["cursor"]["firstBatch"])


def chunks(client: Client, at: Namespace) -> Iterator[Sequence[Any]]:
    """Yield the ids of all rows of a collection, some at a time."""
    part: list[Any] = []
    for document in client.find("reading keys", at, NOT_DELETED, ()):
        part.append(document["_id"])
        if len(part) == _AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def remove_all(client: Client, sender: BulkSender) -> int:
    """Remove all rows of a collection; return how many there were."""
    count = 0
    for ids in chunks(client, sender.at):
        sender.remove(ids)
        count += len(ids)
    return count


__all__ = ["chunks", "follow", "remove_all"]
