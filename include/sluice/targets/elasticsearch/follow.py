"""Schema changes: mappings and rows are changed as the source's tables were, by the one policy of all targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnType
from sluice.model.tables import TableId
from sluice.targets.documents.definitions import Definition
from sluice.targets.documents.follow import Follower
from sluice.targets.documents.records import Record
from sluice.targets.elasticsearch.bulk import BulkSender, delete_lines, index_lines
from sluice.targets.elasticsearch.checkpoint import CheckpointDocument, guarded, let_in
from sluice.targets.elasticsearch.client import Client
from sluice.targets.elasticsearch.column_types import document_texts
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.elasticsearch.tables import HeldIndex, held_indexes, index_body, make_room, mapped
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.port.record import Decision, change_record
from sluice.targets.schema.plan import AddColumn, AlterTable, CreateTable, type_of
from sluice.targets.schema.policy import not_followed

_MISSING, _BAD_REQUEST = 404, 400
_TEXT = pa.large_string()


def follow(client: Client, place: Place, fence: Fence, change: SchemaChange) -> None:
    """Follow a change once over all repeats. Raises LoadError, Fenced."""
    record = guarded(client, place, fence)
    _Follower(change, record, client, place, fence).follow(place, fence)


@dataclass
class _Follower(Follower):
    """Changes fields and rows first and the definition last."""

    KIND: ClassVar[str] = "elasticsearch"
    client: Client
    place: Place
    fence: Fence
    made: set[str] = field(default_factory=set)

    def change_record(self, decide: Decision[Record]) -> None:
        change_record(CheckpointDocument(self.client, self.place), decide, self.place)

    def read(self, table: TableId) -> Definition | None:
        index = self.place.index_of(table)
        index_state = held_indexes(self.client, [index]).get(index)
        return index_state.definition if index_state is not None else None

    def document_value(self, table: TableId, name: str, values: pa.Array, column_type: ColumnType) -> Any:
        text = document_texts(values, column_type)[0].as_py()
        return None if text is None else json.loads(text)

    # -- indexes -------------------------------------------------------------------------------------------------------
    def create(self, step: CreateTable, definition: Definition) -> None:
        self._create(definition, step.table, self._fields(step.table, step.columns))

    def _create(self, definition: Definition | None, table: TableId, fields: Mapping[str, Any]) -> None:
        index = self.place.index_of(table)
        body = index_body(self.place, definition, fields)
        reply = self.client.acknowledged(f"making index {index}", "PUT", path_of(index), body, allow={_BAD_REQUEST})
        if reply.status != _BAD_REQUEST:
            return
        error = reply.document["error"]
        if error["type"] != "resource_already_exists_exception":
            raise LoadError(f"making index {index}: {error.get('reason')}", where=index)
        index_state = self._held(index)
        if index_state.definition is not None and index_state.definition.table != str(table):
            why = f"index {index} has the rows of {index_state.definition.table}"
            raise not_followed(self.change, why, "give each table an index of its own: options.index")
        if definition is not None:
            self._put_mapping(
                index, {name: field for name, field in fields.items() if name not in index_state.fields}, definition
            )

    def _held(self, index: str) -> HeldIndex:
        return held_indexes(self.client, [index])[index]

    def drop(self, table: TableId) -> None:
        index = self.place.index_of(table)
        self.client.acknowledged(f"removing index {index}", "DELETE", path_of(index), allow={_MISSING})
        self.made.discard(index)

    def _put_mapping(self, index: str, fields: Mapping[str, Any], definition: Definition | None = None) -> None:
        body: dict[str, Any] = {"properties": dict(fields)}
        if definition is not None:
            body["_meta"] = self._held(index).meta_with(definition)
        try:
            make_room(self.client, index, fields)
            self.client.acknowledged(f"changing the mapping of index {index}", "PUT", path_of(index, "_mapping"), body)
        except LoadError as error:
            hint = (
                "the index keeps the fields of columns that went: on_conversion: copy makes it anew; or delete it "
                "and copy the table anew"
            )
            raise not_followed(self.change, error.message, hint) from error

    def _fields(self, table: TableId, columns: Iterable[AddColumn]) -> dict[str, Any]:
        return {
            added.name: mapped(self.place, table, added.name, type_of(self.change, added.column)) for added in columns
        }

    # -- rows ----------------------------------------------------------------------------------------------------------
    def _sender(self, index: str) -> BulkSender:
        if index not in self.made:
            let_in(self.client, self.place, self.fence, [index])
            self.made.add(index)
        return BulkSender(self.client, self.fence, index, self.place.aliases(self.record.term, index), hidden=True)

    def empty(self, table: TableId) -> None:
        sender = self._sender(self.place.index_of(table))
        remove_all(self.client, sender, self.record.version(self.fence.batch))

    def _rewritten(self, index: str, into: str, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Write the documents of an index, changed, to one."""
        sender = self._sender(into)
        for hits in self.client.scan(index):
            documents = [json.dumps(changed(hit["_source"]), ensure_ascii=False, separators=(",", ":")) for hit in hits]
            version = self.record.version(self.fence.batch)
            lines = index_lines(*places_of(hits), pa.array(documents, _TEXT), version)
            for status, why in sender.send(lines).values():
                raise not_followed(self.change, f"a row of index {into} is refused: {status}: {why}")

    def rename(self, table: TableId, to: TableId) -> None:
        """Move the rows: an index has its name for ever. The new one gets its definition when it has all rows."""
        old, new = self.place.index_of(table), self.place.index_of(to)
        held_index = self._held(old)
        assert held_index.definition is not None  # the plan saw it
        if old != new:
            self._create(None, to, held_index.fields)
            self._rewritten(old, new, dict)
            self._put_mapping(old, {}, replace(held_index.definition, moves_to=str(to)))
        self._put_mapping(new, {}, replace(held_index.definition, table=str(to), moves_to=""))
        if old != new:
            self.drop(table)

    def alter(self, step: AlterTable, definition: Definition, values: Mapping[str, Any]) -> None:
        index = self.place.index_of(step.table)
        held_index, renamed = self._held(index), step.renamed
        fields = {new: held_index.fields[old] for old, new in renamed.items() if old in held_index.fields}
        fields |= self._fields(step.table, step.new)
        self._put_mapping(
            index, {name: field for name, field in fields.items() if held_index.fields.get(name) != field}
        )
        if step.drops or renamed or any(value is not None for value in values.values()):
            dropped = set(step.drops)

            def changed(row: dict[str, Any]) -> dict[str, Any]:
                kept_values = {renamed.get(name, name): value for name, value in row.items() if name not in dropped}
                return {**kept_values, **values}

            self._rewritten(index, index, changed)
        self._put_mapping(index, {}, definition)

    def make_anew(self, step: AlterTable, definition: Definition) -> None:
        """Make an index with the mappings of the new definition: its rows are copied again."""
        held_index, renamed = self._held(self.place.index_of(step.table)), step.renamed
        fields = {renamed.get(name, name): field for name, field in held_index.fields.items() if name not in step.drops}
        columns = [AddColumn(change.name, change.new) for change in step.changes]
        fields |= self._fields(step.table, [*columns, *step.new])
        self.drop(step.table)
        self._create(
            definition, step.table, {name: field for name, field in fields.items() if name in definition.columns}
        )


def places_of(hits: Sequence[Mapping[str, Any]]) -> tuple[pa.Array, pa.Array | None]:
    """Return ids and routing of documents that were found; all of an index have a routing, or none."""
    routed = bool(hits) and "_routing" in hits[0]
    ids = pa.array([hit["_id"] for hit in hits], _TEXT)
    return ids, pa.array([hit["_routing"] for hit in hits], _TEXT) if routed else None


def remove_all(client: Client, sender: BulkSender, version: int) -> int:
    """Remove all documents of an index; return how many there were."""
    count = 0
    for hits in client.scan(sender.index, columns=()):
        sender.remove(delete_lines(*places_of(hits), version))
        count += len(hits)
    return count


__all__ = ["follow", "places_of", "remove_all"]
