"""Tables of a memory store compared with planned ones, and changed as the source's were."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError, MappingError
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.model.temporal import is_special
from sluice.targets.memory.column_types import own_type
from sluice.targets.memory.store import MemoryStore, Table
from sluice.targets.port import Finding, SchemaChange
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.policy import Answer, OnlyColumns, has, require_held

FOLLOWED = frozenset({
    ChangeKind.CREATE_TABLE, ChangeKind.DROP_TABLE, ChangeKind.RENAME_TABLE, ChangeKind.TRUNCATE_TABLE, ChangeKind.ADD_COLUMN,
    ChangeKind.DROP_COLUMN, ChangeKind.WIDEN_COLUMN, ChangeKind.CHANGE_COLUMN, ChangeKind.MOVE_COLUMN, ChangeKind.ALLOW_NULL,
    ChangeKind.REQUIRE_VALUE,
    ChangeKind.COLUMN_ATTRIBUTES, ChangeKind.INDEXES, ChangeKind.TABLE_OPTIONS, ChangeKind.PARTITIONS, ChangeKind.NOTHING,
})  # fmt: skip
"""Kinds that a memory target can follow."""


class MemorySchema:
    """See :class:`sluice.targets.port.TargetSchema`. A statement is JSON: {"create": [schema, table], "columns": […], "key": […]}, or
    {"add": [schema, table], "columns": […]}.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def compare(self, tables: Sequence[PlannedTable]) -> list[Finding]:
        """Tables and columns that are missing, and what the types of the store lose."""
        found = []
        for plan in tables:
            held = self._store.tables.get(plan.target)
            new = [one.name for one in plan.columns if held is not None and _lacks(held, one)]
            for name in new:
                statement = json.dumps({"add": [plan.target.schema, plan.target.table], "columns": [name]})
                why = f"it has no column {name!r}, which {plan.source} has"
                found.append(Finding("error", plan.target, name, why, statement, absent=True))
            if new:
                continue
            try:
                require(self._store, plan)
            except MappingError as error:
                statement = json.dumps({
                    "create": [plan.target.schema, plan.target.table],
                    "columns": [column.name for column in plan.columns],
                    "types": [own_type(column.value_type).python.__name__ for column in plan.columns],
                    "key": list(plan.key),
                })
                found.append(Finding("error", plan.target, "", error.message, statement, absent=held is None))
                continue
            found += [
                Finding("warning", plan.target, column.name, f"{column.sql_type}: {loses}")
                for column in plan.columns
                if (loses := own_type(column.value_type).loses)
            ]
        return found

    def apply(self, statement: str) -> None:
        """Create a table, or add columns: rows that are there have no value in them."""
        told = json.loads(statement)
        if "add" in told:
            with self._store.lock:
                table = self._store.tables[TableId(*told["add"])]
                table.columns += told["columns"]
                for row in table.all():
                    row |= dict.fromkeys(told["columns"])
            return
        self._store.create(TableId(*told["create"]), told["columns"], told["key"])


def _lacks(table: Table, column: PlannedColumn) -> bool:
    return column.name not in table.columns and not column.generated


def require(store: MemoryStore, plan: PlannedTable) -> None:
    """The store has the table, its columns and its key. Raises MappingError."""
    table = store.tables.get(plan.target)
    if table is None:
        raise MappingError(
            f"the target has no table {plan.target} for {plan.source}",
            where=str(plan.target),
            hint=f"memory_store({store.name!r}).create({plan.target!r}, …)",
        )
    missing = [column.name for column in plan.columns if _lacks(table, column)]
    if missing:
        raise MappingError(
            f"table {plan.target} at the target has no column {missing[0]!r}, which {plan.source} has",
            where=f"{plan.target}.{missing[0]}",
            hint="add it, or leave it out: mapping.columns.exclude",
        )
    if table.key != plan.key:
        raise MappingError(
            f"rows of {plan.source} are told apart by ({', '.join(plan.key)}), those of {plan.target} by ({', '.join(table.key)})",
            where=str(plan.target),
            hint="give it the same key",
        )


def follow(store: MemoryStore, change: SchemaChange) -> None:
    """Change the tables. Under the store's lock. Raises LoadError if the policy is to stop and the change is not there."""
    if change.check_only:
        require_held(change, MemoryHeld(store, change))
        return
    for one in change.tables:
        kinds = set(one.kinds) if change.kinds is None else set(one.kinds) & change.kinds
        _follow(store, change, one, kinds)


def _columns(change: SchemaChange, one: TableChange) -> list[str]:
    """The columns after the change, under the target's names."""
    assert one.after is not None
    renamed = {source: name for table, source, name in change.columns if table == one.table}
    excluded = {name for table, name in change.excluded if table == one.table}
    return [renamed.get(c.name, c.name) for c in one.after.columns if c.name not in excluded]


class MemoryHeld(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`."""

    def __init__(self, store: MemoryStore, change: SchemaChange) -> None:
        super().__init__(change)
        self.store = store

    def columns(self, table: TableId) -> Collection[str] | None:
        found = self.store.tables.get(table)
        return {name.casefold() for name in found.columns} if found is not None else None

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        return has(tuple(self.store.tables[table].key) == names)


def _values(change: SchemaChange, one: TableChange, new: Sequence[str]) -> dict[str, Any]:
    """What rows that are there get in new columns. Raises LoadError for a value that is not known, or no calendar has."""
    assert one.after is not None
    found: dict[str, Any] = {}
    columns = [c for c in one.after.columns if (one.table, c.name) not in change.excluded]
    for column, name in zip(columns, _columns(change, one), strict=True):
        if name not in new or column.generated is not None:
            continue
        known = change.meaning.default_value(column)
        temporal = known.value is not None and (
            pa.types.is_timestamp(known.value.type) or pa.types.is_date32(known.value.type)
        )
        if known.value is None or (temporal and is_special(pa.repeat(known.value, 1)).any()):
            raise LoadError(
                f"rows that are there would get other values in the new column {name} than at the source: {known.why or 'no calendar has its date'}: "
                f"{change.statement.text[:300]}",
                where=change.where,
                hint="set add_column to ignore in the target's ddl, and make the table anew",
            )
        found[name] = known.value.as_py()
    return found


def _with(row: Mapping[str, Any], columns: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row.get(name, values.get(name)) for name in columns}


def _follow(store: MemoryStore, change: SchemaChange, one: TableChange, kinds: set[ChangeKind]) -> None:
    place = change.target(one.table)
    if one.table in change.copies and place in store.tables:
        store.tables[place].rows.clear()
        store.tables[place].heap.clear()
    for effect in effects_on(change, one.table):
        if place in store.tables:
            raise not_converted(change, effect, place, "a target in memory converts no rows")
    if ChangeKind.DROP_TABLE in kinds:
        store.tables.pop(place, None)
        return
    if ChangeKind.CREATE_TABLE in kinds and place not in store.tables and one.after is not None:
        store.create(place, _columns(change, one), one.after.primary_key)
    table = store.tables.get(place)
    if table is None:
        return
    if ChangeKind.TRUNCATE_TABLE in kinds:
        table.rows.clear()
        table.heap.clear()
    if kinds & {ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN} and one.after is not None:
        columns = _columns(change, one)
        kept = [name for name in table.columns if name in columns or ChangeKind.DROP_COLUMN not in kinds]
        new = [name for name in columns if name not in kept and ChangeKind.ADD_COLUMN in kinds]
        table.columns = [*kept, *new]
        values = _values(change, one, new) if table.rows or table.heap else {}
        table.rows = {key: _with(row, table.columns, values) for key, row in table.rows.items()}
        table.heap = [_with(row, table.columns, values) for row in table.heap]
    if ChangeKind.RENAME_TABLE in kinds and one.renamed_to is not None:
        store.tables[change.target(one.renamed_to)] = store.tables.pop(place)
