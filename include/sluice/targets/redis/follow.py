"""Schema changes: rows and definitions are changed as the source's tables were, by the one policy of all targets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sluice.model.tables import TableId
from sluice.targets.messages.row_texts import json_texts, texts
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.redis.checkpoint import STATEMENTS, guarded
from sluice.targets.redis.client import Client
from sluice.targets.redis.place import Place
from sluice.targets.redis.scripts import FIELDS, NOTE, RENAME, REPLACE
from sluice.targets.redis.sender import RowSender, parts_of
from sluice.targets.redis.tables import Definition, definitions, index_spec
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.plan import AlterTable, CreateTable, DropTable, EmptyTable, RenameTable, steps_of, type_of
from sluice.targets.schema.policy import (
    Answer,
    OnlyColumns,
    added_by_hand,
    has,
    not_filled,
    not_followed,
    require_held,
)


class HeldTables(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`: what definitions say."""

    def __init__(self, definitions: Mapping[str, Definition], change: SchemaChange) -> None:
        super().__init__(change)
        self._held = definitions

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        definition = self._held.get(str(table))
        return {name.casefold(): name for name in definition.columns} if definition is not None else None

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        return has(self._held[str(table)].key == names)


def follow(client: Client, place: Place, fence: Fence, change: SchemaChange) -> None:
    """Follow a change once over all repeats. Raises LoadError, Fenced."""
    guarded(client, place, fence)
    progress = client.ask("reading the checkpoint", "HGET", place.checkpoint_key, STATEMENTS)
    batch, number = map(int, progress.split(b" ")) if progress else (0, 0)
    if batch == fence.batch and number > change.number:
        return
    stored = definitions(client, place)
    if change.check_only:
        require_held(change, HeldTables(stored, change))
        return
    follower = _Follower(client, place, fence, change, stored)
    for step in list(steps_of(change, HeldTables(stored, change), generated=True)):
        follower.step(step)
    follower.note(place.checkpoint_key, STATEMENTS, f"{fence.batch} {change.number + 1}")


@dataclass
class _Follower:
    """Changes rows first and the definition last, so that a repeat begins with the same definition."""

    client: Client
    place: Place
    fence: Fence
    change: SchemaChange
    held: dict[str, Definition]
    sender: RowSender = field(init=False)

    def __post_init__(self) -> None:
        self.sender = RowSender(self.client, self.place, self.fence)

    def note(self, key: str, name: str, value: str) -> None:
        """Store a field; "" removes it."""
        self.sender.run(NOTE, [key], [name, value])

    def step(self, step: Any) -> None:
        """Do one step. Raises LoadError, Fenced."""
        match step:
            case DropTable(table):
                self._empty(table)
                self._define(table, None)
            case EmptyTable(table):
                self._empty(table)
            case RenameTable(table, to):
                self._rename(table, to)
                self._define(to, self.held[str(table)])
                self._define(table, None)
            case CreateTable():
                self._define(step.table, Definition(tuple(added.name for added in step.columns), step.key))
            case AlterTable():
                self._alter(step)

    def _define(self, table: TableId, definition: Definition | None) -> None:
        self.note(self.place.tables_key, str(table), definition.to_text() if definition else "")
        if definition is None:
            self.held.pop(str(table), None)
        else:
            self.held[str(table)] = definition

    def _keys(self, table: TableId) -> Iterator[Sequence[bytes]]:
        for page in self.client.scan(*self.place.row_affixes(table)):
            yield from parts_of(page)

    def _spec(self, table: TableId) -> str:
        return index_spec(self.place.indexes_of(table))

    def _empty(self, table: TableId) -> None:
        sender = RowSender(self.client, self.place, self.fence, self._spec(table))
        for keys in self._keys(table):
            sender.remove(keys)

    def _rename(self, table: TableId, to: TableId) -> None:
        (head, tail), (new_head, new_tail) = self.place.row_affixes(table), self.place.row_affixes(to)
        for keys in self._keys(table):
            middles = [key[len(head.encode()) : len(key) - len(tail.encode())] for key in keys]
            news = [new_head.encode() + middle + new_tail.encode() for middle in middles]
            pairs = [key for pair in zip(keys, news, strict=True) for key in pair]
            self.sender.run(RENAME, pairs, [self._spec(table), self._spec(to)])

    def _alter(self, step: AlterTable) -> None:
        if step.copied:
            self._empty(step.table)
        for effect in effects_on(self.change, step.source):
            why = effect.unknown or "a target of type redis converts no rows"
            raise not_converted(self.change, effect, step.table, why)
        renamed = step.renamed
        if set(renamed) & set(renamed.values()):
            raise not_followed(
                self.change, "columns take each other's names, which a load that is repeated would do twice"
            )
        definition = self.held[str(step.table)]
        if self.place.options.form != "string" and (step.drops or renamed or step.new):
            for keys in self._keys(step.table):
                values = self._values(step)
                if self.place.options.form == "hash":
                    self._fields(keys, step, values)
                else:
                    self._documents(keys, step, values)
        self._define(step.table, Definition(step.columns_after(definition.columns), step.key_after(definition.key)))

    def _values(self, step: AlterTable) -> dict[str, pa.Array]:
        """Return the defaults that stored rows get in new columns. Raises LoadError for a value that is not known."""
        defaults: dict[str, pa.Array] = {}
        for added in step.new:
            if added.column.generated is not None:
                continue
            default = self.change.meaning.default_value(added.column)
            if default.value is None:
                raise not_filled(self.change, step.table, added.name, default.why, added_by_hand())
            to_texts = json_texts if self.place.options.form == "json" else texts
            defaults[added.name] = to_texts(pa.repeat(default.value, 1), type_of(self.change, added.column))
        return defaults

    def _fields(self, keys: Sequence[bytes], step: AlterTable, values: Mapping[str, pa.Array]) -> None:
        defaults = {name: array[0].as_py() for name, array in values.items() if array[0].is_valid}
        changes = {"drops": list(step.drops), "renames": [list(pair) for pair in step.renames], "adds": list(defaults)}
        self.sender.run(FIELDS, keys, [json.dumps(changes, ensure_ascii=False), *defaults.values()])

    def _documents(self, keys: Sequence[bytes], step: AlterTable, values: Mapping[str, pa.Array]) -> None:
        added = {name: json.loads(array[0].as_py()) if array[0].is_valid else None for name, array in values.items()}
        renamed, dropped = step.renamed, set(step.drops)
        changed: dict[bytes, str] = {}
        for key, text in zip(keys, self.client.ask("reading rows", "MGET", *keys), strict=True):
            if text is not None:
                row = {
                    renamed.get(name, name): value for name, value in json.loads(text).items() if name not in dropped
                }
                changed[key] = json.dumps({**row, **added}, ensure_ascii=False, separators=(",", ":"))
        self.sender.run(REPLACE, list(changed), list(changed.values()))


__all__ = ["follow"]
