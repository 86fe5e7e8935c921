"""Schema changes: mappings and rows are changed as the source's tables were, by the one policy of all targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.targets.elasticsearch.bulk import BulkSender, delete_lines, index_lines
from sluice.targets.elasticsearch.checkpoint import Record, change_record, guarded, let_in, require_record
from sluice.targets.elasticsearch.client import Client
from sluice.targets.elasticsearch.column_types import document_texts
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.elasticsearch.tables import Definition, HeldIndex, held_indexes, index_body, mapped
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.plan import (
    AddColumn,
    AlterTable,
    CreateTable,
    DropTable,
    EmptyTable,
    RenameTable,
    Step,
    steps_of,
    type_of,
)
from sluice.targets.schema.policy import (
    Answer,
    OnlyColumns,
    added_by_hand,
    has,
    not_filled,
    not_followed,
    require_held,
)

_MISSING, _BAD_REQUEST = 404, 400
_TEXT = pa.large_string()


class HeldTables(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`: what the mappings of indexes say."""

    def __init__(self, client: Client, place: Place, change: SchemaChange) -> None:
        super().__init__(change)
        self._client, self._place = client, place

    def definition(self, table: TableId) -> Definition | None:
        """Return the definition of a table as of now; None if it has no index, or an index of another table."""
        index = self._place.index_of(table)
        found = held_indexes(self._client, [index]).get(index)
        given = found.definition if found is not None else None
        return given if given is not None and given.table == str(table) else None

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of a table; None if it has no index."""
        found = self.definition(table)
        return {name.casefold(): name for name in found.columns} if found is not None else None

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if the table's key has these columns in this order."""
        found = self.definition(table)
        return has(found is not None and found.key == names)


def follow(client: Client, place: Place, fence: Fence, change: SchemaChange) -> None:
    """Follow a change once over all repeats. Raises LoadError, Fenced."""
    record = guarded(client, place, fence)
    batch, number = record.statements
    if batch == fence.batch and number > change.number:
        return
    held = HeldTables(client, place, change)
    if change.check_only:
        require_held(change, held)
        return
    follower = _Follower(client, place, fence, change, record)
    follower.end_renames(held)
    for step in list(steps_of(change, held, generated=True)):
        follower.step(step)

    def done(found: Record | None) -> Record:
        held = require_record(found, place, fence.epoch)
        return replace(held, statements=(fence.batch, change.number + 1))

    change_record(client, place, done)


@dataclass
class _Follower:
    """Changes fields and rows first and the definition last, so that a repeat begins with the same definition."""

    client: Client
    place: Place
    fence: Fence
    change: SchemaChange
    record: Record
    made: set[str] = field(default_factory=set)

    def end_renames(self, held: HeldTables) -> None:
        """Remove the index of each table whose rename was done but for that."""
        for one in self.change.changes:
            old = held.definition(held.table(one.table)) if one.renamed_to is not None else None
            if old is not None and old.moves_to and held.definition(TableId(*old.moves_to.split(".", 1))) is not None:
                self._drop(held.table(one.table))

    def step(self, step: Step) -> None:
        """Do one step. Raises LoadError, Fenced."""
        match step:
            case DropTable(table):
                self._drop(table)
            case EmptyTable(table):
                self._empty(self.place.index_of(table))
            case RenameTable(table, to):
                self._rename(table, to)
            case CreateTable():
                names = tuple(added.name for added in step.columns)
                self._create(
                    Definition(str(step.table), names, step.key), step.table, self._fields(step.table, step.columns)
                )
            case AlterTable():
                self._alter(step)

    # -- indexes -------------------------------------------------------------------------------------------------------
    def _create(self, definition: Definition | None, table: TableId, fields: Mapping[str, Any]) -> None:
        index = self.place.index_of(table)
        body = index_body(self.place, definition, fields)
        done = self.client.acknowledged(f"making index {index}", "PUT", path_of(index), body, allow={_BAD_REQUEST})
        if done.status != _BAD_REQUEST:
            return
        error = done.document["error"]
        if error["type"] != "resource_already_exists_exception":
            raise LoadError(f"making index {index}: {error.get('reason')}", where=index)
        there = self._held(index)
        if there.definition is not None and there.definition.table != str(table):
            why = f"index {index} has the rows of {there.definition.table}"
            raise not_followed(self.change, why, "give each table an index of its own: options.index")
        if definition is not None:
            self._put_mapping(
                index, {name: one for name, one in fields.items() if name not in there.fields}, definition
            )

    def _held(self, index: str) -> HeldIndex:
        return held_indexes(self.client, [index])[index]

    def _drop(self, table: TableId) -> None:
        index = self.place.index_of(table)
        self.client.acknowledged(f"removing index {index}", "DELETE", path_of(index), allow={_MISSING})
        self.made.discard(index)

    def _put_mapping(self, index: str, fields: Mapping[str, Any], definition: Definition | None = None) -> None:
        body: dict[str, Any] = {"properties": dict(fields)}
        if definition is not None:
            body["_meta"] = self._held(index).meta_with(definition)
        try:
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

    def _empty(self, index: str) -> None:
        remove_all(self.client, self._sender(index), self.record.version(self.fence.batch))

    def _rewritten(self, index: str, into: str, made: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Write the documents of an index, changed, to one."""
        sender = self._sender(into)
        for hits in self.client.scan(index):
            documents = [json.dumps(made(one["_source"]), ensure_ascii=False, separators=(",", ":")) for one in hits]
            version = self.record.version(self.fence.batch)
            lines = index_lines(*places_of(hits), pa.array(documents, _TEXT), version)
            for status, why in sender.send(lines).values():
                raise not_followed(self.change, f"a row of index {into} is refused: {status}: {why}")

    def _rename(self, table: TableId, to: TableId) -> None:
        """Move the rows: an index has its name for ever. The new one gets its definition when it has all rows."""
        old, new = self.place.index_of(table), self.place.index_of(to)
        held = self._held(old)
        assert held.definition is not None  # the plan saw it
        if old != new:
            self._create(None, to, held.fields)
            self._rewritten(old, new, dict)
            self._put_mapping(old, {}, replace(held.definition, moves_to=str(to)))
        self._put_mapping(new, {}, replace(held.definition, table=str(to), moves_to=""))
        if old != new:
            self._drop(table)

    def _alter(self, step: AlterTable) -> None:
        index = self.place.index_of(step.table)
        held = self._held(index)
        assert held.definition is not None  # the plan saw it
        for effect in effects_on(self.change, step.source):
            raise not_converted(self.change, effect, step.table, "a target of type elasticsearch converts no rows")
        given = held.definition
        definition = replace(given, columns=step.columns_after(given.columns), key=step.key_after(given.key))
        if step.copied:
            self._make_anew(step, definition, held)
            return
        renamed = dict(step.renames)
        if renamed and set(renamed.values()) & (set(renamed) | set(step.drops)):
            why = "a column takes the name of another one, which a load that is repeated would do twice"
            raise not_followed(self.change, why)
        values = self._values(step)
        fields = {new: held.fields[old] for old, new in renamed.items() if old in held.fields}
        fields |= self._fields(step.table, step.new)
        self._put_mapping(index, {name: one for name, one in fields.items() if held.fields.get(name) != one})
        if step.drops or renamed or any(value is not None for value in values.values()):
            gone = set(step.drops)

            def changed(row: dict[str, Any]) -> dict[str, Any]:
                kept = {renamed.get(name, name): value for name, value in row.items() if name not in gone}
                return {**kept, **values}

            self._rewritten(index, index, changed)
        self._put_mapping(index, {}, definition)

    def _make_anew(self, step: AlterTable, definition: Definition, held: HeldIndex) -> None:
        """Make an index with the mappings of the new definition: its rows are copied again."""
        renamed = dict(step.renames)
        fields = {renamed.get(name, name): one for name, one in held.fields.items() if name not in step.drops}
        columns = [AddColumn(one.name, one.new) for one in step.changes]
        fields |= self._fields(step.table, [*columns, *step.new])
        self._drop(step.table)
        self._create(definition, step.table, {name: one for name, one in fields.items() if name in definition.columns})

    def _values(self, step: AlterTable) -> dict[str, Any]:
        """Return what rows that are there get in new columns. Raises LoadError for a value that is not known."""
        found: dict[str, Any] = {}
        for added in step.new:
            if added.column.generated is not None:
                continue
            known = self.change.meaning.default_value(added.column)
            if known.value is None:
                raise not_filled(self.change, step.table, added.name, known.why, added_by_hand())
            text = document_texts(pa.repeat(known.value, 1), type_of(self.change, added.column))[0].as_py()
            found[added.name] = None if text is None else json.loads(text)
        return found


def places_of(hits: Sequence[Mapping[str, Any]]) -> tuple[pa.Array, pa.Array | None]:
    """Return ids and routing of documents that were found; all of an index have a routing, or none."""
    routed = bool(hits) and "_routing" in hits[0]
    ids = pa.array([one["_id"] for one in hits], _TEXT)
    return ids, pa.array([one["_routing"] for one in hits], _TEXT) if routed else None


def remove_all(client: Client, sender: BulkSender, version: int) -> int:
    """Remove all documents of an index; return how many there were."""
    count = 0
    for hits in client.scan(sender.index, columns=()):
        sender.remove(delete_lines(*places_of(hits), version))
        count += len(hits)
    return count


__all__ = ["follow", "places_of", "remove_all"]
