"""Schema changes: tables are changed as the source's were, by the one policy of all targets."""

# ruff: noqa: S608 - identifiers and texts are quoted

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange
from sluice.model.tables import TableId
from sluice.targets.clickhouse.checkpoint import CheckpointRows, Record, guarded, shut_out
from sluice.targets.clickhouse.client import UNKNOWN_TABLE, Client
from sluice.targets.clickhouse.column_types import HeldType, enum_type, held_type, takes
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.sql import literal, name, names, table_name
from sluice.targets.clickhouse.tables import (
    CHANGE_KEY,
    OWN,
    VERSION,
    HeldTable,
    add_columns,
    column_name,
    create_table,
    create_view,
    declared_type,
    held_tables,
)
from sluice.targets.clickhouse.values import ALL_YEARS, default_sql, sent
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.port.record import change_record, require_record
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.plan import (
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
    FOLLOWED_BY_NAME,
    Answer,
    Followed,
    OnlyColumns,
    added_by_hand,
    followed,
    has,
    not_filled,
    not_followed,
    require_held,
)

K = ChangeKind
FOLLOWED_MERGED = FOLLOWED_BY_NAME
FOLLOWED_CHANGES = frozenset(ChangeKind) - {K.TRUNCATE_TABLE, K.ROWS_REMOVED, K.ROWS_REPLACED, K.UNKNOWN}
"""The kinds that are followed with every change: old columns stay, as the changes that have them do."""
_OF_COLUMNS = frozenset({
    K.ADD_COLUMN,
    K.DROP_COLUMN,
    K.RENAME_COLUMN,
    K.WIDEN_COLUMN,
    K.CHANGE_COLUMN,
    K.CREATE_TABLE,
    K.RENAME_TABLE,
})
_OF_TYPES = frozenset({K.WIDEN_COLUMN, K.CHANGE_COLUMN, K.ALLOW_NULL})
_BY_HAND = "change the table at the target by hand"


class HeldTables(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`: what the server says of tables."""

    def __init__(self, client: Client, place: Place, change: SchemaChange) -> None:
        super().__init__(change)
        self._client, self._place = client, place

    def held(self, table: TableId) -> HeldTable | None:
        """Return a table as of now."""
        return held_tables(self._client, [table], every=self._place.every).get(table)

    def column(self, table_change: TableChange, name: str) -> str | None:
        """Return the name by the mapping; in a table of changes another one for a name that Sluice has."""
        column = super().column(table_change, name)
        return column_name(self._place, column) if column is not None else None

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of a table; None if it is missing."""
        held_table = self.held(table)
        return {column.casefold(): column for column in held_table.columns} if held_table is not None else None

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Return HAS if the column takes the values of the new type; UNSEEN if its rows were converted."""
        held_table, new = self.held(table), part.new
        column_type = self.change.meaning.types.get(new) if new is not None else None
        if held_table is None or column_type is None or name not in held_table.columns:
            return Answer.UNSEEN
        fits = takes(column_type, held_table.columns[name].type)
        return has(fits) if effect is None or not fits else Answer.UNSEEN

    def nullable(self, table: TableId, name: str) -> bool | None:
        """Return whether the column takes NULL. One that does suits a column that needs a value, too."""
        held_table = self.held(table)
        column = held_table.columns.get(name) if held_table is not None else None
        return None if column is None or column.type.nullable else False

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if the table's key has these columns in this order."""
        held_table = self.held(table)
        return has(self._place.every or (held_table is not None and held_table.key == names))


def follow(client: Client, place: Place, fence: Fence, change: SchemaChange) -> None:
    """Follow a change once over all repeats. Raises LoadError, Fenced."""
    record = guarded(client, place, fence)
    batch, number = record.statements
    if batch == fence.batch and number > change.number:
        return
    held_tables = HeldTables(client, place, change)
    if change.check_only:
        require_held(change, held_tables)
        return
    follower = _Follower(client, place, fence, change, record, held_tables)
    if place.every:
        for part in followed(change):
            follower.extend(part)
    else:
        for step in list(steps_of(change, held_tables)):
            follower.step(step)

    def done(record: Record | None) -> Record:
        return replace(require_record(record, place, fence.epoch), statements=(fence.batch, change.number + 1))

    change_record(CheckpointRows(client, place), done, place)


def remove_older(client: Client, place: Place, fence: Fence, held_table: HeldTable) -> None:
    """Remove the rows of a table that are older than the batch, and let it refuse those of older writers.

    A process that stood still removes no rows of newer ones: TRUNCATE would.
    """
    record = guarded(client, place, fence)
    shut_out(client, place, record, [held_table])
    older = f"{VERSION} < {record.version(fence.batch, stays=False)}"
    client.ask(f"removing rows of {held_table.table}", f"DELETE FROM {table_name(held_table.table)} WHERE {older}")


@dataclass
class _Follower:
    """Makes the steps of one change; a repeat finds what is done."""

    client: Client
    place: Place
    fence: Fence
    change: SchemaChange
    record: Record
    held: HeldTables

    def step(self, step: Step) -> None:
        """Do one step. Raises LoadError, Fenced."""
        match step:
            case DropTable(table):
                self._drop(table)
            case EmptyTable(table):
                if (held_table := self.held.held(table)) is not None:
                    remove_older(self.client, self.place, self.fence, held_table)
            case RenameTable(table, to):
                self._rename(table, to)
            case CreateTable():
                self._create(
                    step.table,
                    self._types(step.table, step.one, [column.column for column in step.columns], step.key),
                    step.key,
                )
            case AlterTable():
                self._alter(step)

    def extend(self, part: Followed) -> None:
        """Extend a table of changes: it keeps its name and all columns; a table or column with a new name is another
        one.
        """
        change, after = part.one, part.one.after
        called = change.renamed_to if K.RENAME_TABLE in part.kinds and change.renamed_to is not None else change.table
        if after is None or called in self.change.not_captured or K.DROP_TABLE in part.kinds:
            return
        target = self.change.target(called)
        held_table = self.held.held(target)
        wanted_types = self._types(target, change, after.columns, ())
        if held_table is None:
            if called != change.table or part.cut_over or K.CREATE_TABLE in part.kinds:
                self._create(target, wanted_types, CHANGE_KEY)
            return
        if part.kinds & _OF_COLUMNS:
            new = {
                given_column: declared
                for given_column, declared in wanted_types.items()
                if given_column not in held_table.columns
            }
            if new:
                self._run(f"adding columns of {target}", add_columns(target, new))
            for column in after.columns:
                given_column = self.held.column(change, column.name)
                if given_column is not None and given_column in held_table.columns:
                    self._widen(
                        target,
                        given_column,
                        held_table.columns[given_column].type,
                        type_of(self.change, column),
                        wanted_types[given_column],
                    )

    # -- tables --------------------------------------------------------------------------------------------------------
    def _run(self, doing: str, statement: str) -> None:
        self.client.ask(doing, statement)

    def _create(self, table: TableId, columns: Mapping[str, str], key: Iterable[str]) -> None:
        self._run(f"making database {table.schema}", f"CREATE DATABASE IF NOT EXISTS {name(table.schema)}")
        self._run(f"making table {table}", create_table(self.place, table, columns, tuple(key)))
        self._see(table)

    def _see(self, table: TableId) -> None:
        """Make the view of a table anew: it has the columns that the table had."""
        view = self.place.view_of(table)
        if view is not None:
            self._run(f"making view {view}", create_view(view, table))

    def _drop(self, table: TableId) -> None:
        view = self.place.view_of(table)
        if view is not None:
            self._run(f"removing view {view}", f"DROP VIEW IF EXISTS {table_name(view)}")
        self._run(f"removing table {table}", f"DROP TABLE IF EXISTS {table_name(table)} SYNC")

    def _rename(self, table: TableId, to: TableId) -> None:
        self._run(f"making database {to.schema}", f"CREATE DATABASE IF NOT EXISTS {name(to.schema)}")
        self._run(f"renaming table {table}", f"RENAME TABLE {table_name(table)} TO {table_name(to)}")
        view = self.place.view_of(table)
        if view is not None:
            self._run(f"removing view {view}", f"DROP VIEW IF EXISTS {table_name(view)}")
        self._see(to)

    # -- columns -------------------------------------------------------------------------------------------------------
    def _types(
        self, table: TableId, change: TableChange, columns: Iterable[ColumnDefinition], key: Iterable[str]
    ) -> dict[str, str]:
        """Return the columns of a table that is made: name -> type."""
        types, keys = {}, set(key)
        for column in columns:
            given_column = self.held.column(change, column.name)
            if given_column is not None and column.generated is None:
                nullable = self.place.every or (column.nullable and given_column not in keys)
                types[given_column] = declared_type(
                    self.place, table, given_column.removeprefix("$"), type_of(self.change, column), nullable=nullable
                )
        return types

    def _alter(self, step: AlterTable) -> None:
        table, held_table = step.table, self.held.held(step.table)
        assert held_table is not None  # the plan saw it
        for effect in effects_on(self.change, step.source):
            given_column = self.held.column(step.one, effect.new.name)
            if given_column is not None:
                raise not_converted(self.change, effect, table, "a target of type clickhouse converts no rows")
        key, renamed = held_table.key or (), step.renamed
        dropped_keys = [drop for drop in step.drops if drop in key]
        if dropped_keys:
            raise not_followed(self.change, f"column {dropped_keys[0]} is part of the key of {table}", _BY_HAND)
        if step.takes_names:
            why = "a column takes the name of another one, which a load that is repeated would do twice"
            raise not_followed(self.change, why, _BY_HAND)
        types = self._types(table, step.one, step.after.columns, key)
        wider = self._wider(step, held_table, types)
        if step.copied:
            remove_older(self.client, self.place, self.fence, held_table)
        parts = [f"DROP COLUMN IF EXISTS {name(drop)}" for drop in step.drops]
        parts += [
            f"RENAME COLUMN IF EXISTS {name(old)} TO {name(new)}" for old, new in renamed.items() if old not in key
        ]
        parts += [
            self._added(step, added.name, added.column, types[added.name]) for added in step.new if added.name in types
        ]
        keys = {old: new for old, new in renamed.items() if old in key}
        if not (parts or wider or keys):
            return
        if parts:
            self._run(
                f"changing table {table}",
                f"ALTER TABLE {table_name(table)} {', '.join(parts)} SETTINGS mutations_sync = 2",
            )
        if wider or keys:
            self._modify(step, wider, keys)
        self._see(table)

    def _added(self, step: AlterTable, added_name: str, column: ColumnDefinition, declared: str) -> str:
        """Return the clause that adds a column: rows that are there have the source's own default."""
        known_default_value = self.change.meaning.default_value(column)
        if known_default_value.value is None:
            raise not_filled(self.change, step.table, added_name, known_default_value.why, added_by_hand())
        target_type, column_type = held_type(declared), type_of(self.change, column)
        values, odd = sent(pa.repeat(known_default_value.value, 1), column_type, target_type, ALL_YEARS)
        if odd is not None and (self.place.options.unfit_dates == "refuse" or not target_type.nullable):
            why = f"no {declared} holds its default {column.default}"
            raise not_filled(self.change, step.table, added_name, why, added_by_hand())
        text = default_sql(values, column_type, target_type)
        return f"ADD COLUMN IF NOT EXISTS {name(added_name)} {declared}{f' DEFAULT {text}' if text != 'NULL' else ''}"

    def _wider(self, step: AlterTable, held_table: HeldTable, types: Mapping[str, str]) -> dict[str, str]:
        """Return the types of columns that need another one, by their names after the change. Raises LoadError."""
        wider: dict[str, str] = {}
        for change in step.changes:
            held_column = held_table.columns.get(change.was)
            if change.kind in _OF_TYPES and held_column is not None and change.name in types:
                column_type = type_of(self.change, change.new)
                if needed_type := self._wanted(
                    held_column.type, column_type, types[change.name], change.name, copied=step.copied
                ):
                    wider[change.name] = needed_type
        return wider

    def _wanted(
        self, target_type: HeldType, column_type: ColumnType, declared: str, column: str, *, copied: bool = False
    ) -> str:
        """Return the type that a column needs, "" if the one that it has is enough. Raises LoadError."""
        needed_type = held_type(declared)
        nullable = target_type.nullable or needed_type.nullable
        if takes(column_type, target_type):
            return target_type.as_nullable(nullable) if nullable is not target_type.nullable else ""
        if target_type.word.startswith("Enum") and needed_type.word.startswith("Enum"):
            longer = enum_type(column_type.labels, target_type.labels)
            if longer:
                return held_type(longer).as_nullable(nullable)
        if copied or _widens(target_type, needed_type):
            return needed_type.as_nullable(nullable)
        why = f"column {column} is {target_type.declared}, which cannot hold values of the new type"
        raise not_followed(self.change, why, _BY_HAND)

    def _widen(self, table: TableId, column: str, held_type: HeldType, column_type: ColumnType, declared: str) -> None:
        if needed := self._wanted(held_type, column_type, declared, column):
            self._run(
                f"changing table {table}",
                f"ALTER TABLE {table_name(table)} MODIFY COLUMN {name(column)} {needed} SETTINGS mutations_sync = 2",
            )

    def _modify(self, step: AlterTable, wider: Mapping[str, str], keys: Mapping[str, str]) -> None:
        """Give columns other types.

        Those of the key cannot be changed in place: the table is written anew, and takes the other's place.
        """
        table, held_table = step.table, self.held.held(step.table)
        assert held_table is not None
        key = held_table.key or ()
        if not set(key) & (wider.keys() | keys.keys()):
            parts = ", ".join(f"MODIFY COLUMN {name(column)} {declared}" for column, declared in wider.items())
            self._run(f"changing table {table}", f"ALTER TABLE {table_name(table)} {parts} SETTINGS mutations_sync = 2")
            return
        own = f"{table.table}~sluice~"
        own_table = TableId(table.schema, f"{own}{self.record.term}")
        statement = (
            f"SELECT name FROM system.tables WHERE database = {literal(table.schema)} "
            f"AND startsWith(name, {literal(own)}) FORMAT JSONCompactEachRow"
        )
        for [stale] in self.client.ask(
            "looking for tables", statement
        ).rows:  # also of a process that stood still: it cannot exchange it any more
            self._run(
                f"removing table {stale}", f"DROP TABLE IF EXISTS {table_name(TableId(table.schema, stale))} SYNC"
            )
        columns = {
            keys.get(old_name, old_name): wider.get(keys.get(old_name, old_name), column.type.declared)
            for old_name, column in held_table.columns.items()
        }
        self._run(
            f"making table {own_table}",
            create_table(self.place, own_table, columns, [keys.get(key_column, key_column) for key_column in key]),
        )
        shut_out(
            self.client,
            self.place,
            guarded(self.client, self.place, self.fence),
            held_tables(self.client, [own_table], every=False).values(),
        )
        self._run(
            f"writing {table} anew",
            f"INSERT INTO {table_name(own_table)} ({names([*columns, *OWN])}) "
            f"SELECT {names([*held_table.columns, *OWN])} FROM {table_name(table)}",
        )
        guarded(self.client, self.place, self.fence)
        self.client.ask(f"exchanging {table}", f"EXCHANGE TABLES {table_name(table)} AND {table_name(own_table)}")
        self.client.ask(
            f"removing table {own_table}", f"DROP TABLE IF EXISTS {table_name(own_table)} SYNC", allow=(UNKNOWN_TABLE,)
        )


def _widens(held_type: HeldType, needed_type: HeldType) -> bool:
    """Return True if the server's conversion keeps every value."""
    for kind in ("Int", "UInt"):
        if held_type.word.startswith(kind) and needed_type.word.startswith("Int" if kind == "Int" else ("UInt", "Int")):
            bits, more = (int(int_type.word.rpartition("nt")[2]) for int_type in (held_type, needed_type))
            return more > bits or (more == bits and held_type.word == needed_type.word)
    if held_type.word == needed_type.word == "Decimal":
        (precision, scale), (more, fraction) = held_type.numbers, needed_type.numbers
        return fraction >= scale and more - fraction >= precision - scale
    if held_type.word == needed_type.word == "DateTime64":
        return needed_type.numbers[0] >= held_type.numbers[0]
    moves = {
        ("Float32", "Float64"),
        ("Date", "Date32"),
        ("DateTime", "DateTime64"),
        ("Enum8", "String"),
        ("Enum16", "String"),
        ("UUID", "String"),
    }
    return (held_type.word, needed_type.word) in moves or held_type.word == needed_type.word == "String"


__all__ = ["FOLLOWED_CHANGES", "FOLLOWED_MERGED", "follow", "remove_older"]
