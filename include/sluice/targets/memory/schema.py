"""Tables of a memory store compared with planned ones, and changed as the source's were."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluice.errors import MappingError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.model.temporal import is_special
from sluice.targets.memory.column_types import own_type
from sluice.targets.memory.store import MemoryStore, Owner, Table
from sluice.targets.port import SchemaChange, TableFinding, about_values
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.names import lacking, require_names
from sluice.targets.schema.plan import (
    AddColumn,
    AlterTable,
    CreateTable,
    DropTable,
    EmptyTable,
    RenameTable,
    steps_of,
)
from sluice.targets.schema.policy import Answer, OnlyColumns, added_by_hand, has, not_filled, require_held


class MemorySchema:
    """See :class:`sluice.targets.port.TargetSchema`.

    A statement is JSON: {"create": [schema, table], "columns": […], "key": […], "indexes": […]}, or {"add": [schema,
    table], "columns": […]}.
    """

    def __init__(self, store: MemoryStore, owner: Owner) -> None:
        self._store, self._owner = store, owner

    def compare(self, tables: Sequence[PlannedTable]) -> list[TableFinding]:
        """Return tables and columns that are missing, and what the types of the store lose."""
        findings = []
        for plan in tables:
            held_table = self._store.tables.get(plan.target)
            new = lacking(plan, held_table.columns) if held_table is not None else []
            for name in new:
                statement = json.dumps({"add": [plan.target.schema, plan.target.table], "columns": [name]})
                why = f"it has no column {name!r}, which {plan.source} has"
                findings.append(TableFinding("error", plan.target, name, why, statement, absent=True))
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
                    "indexes": [index.name for index in plan.created.indexes] if plan.created else [],
                })
                findings.append(
                    TableFinding("error", plan.target, "", error.message, statement, absent=held_table is None)
                )
                continue
            findings += [
                about_values(plan.target, column.name, column.sql_type, loss)
                for column in plan.columns
                if (loss := own_type(column.value_type).loses)
            ]
        return findings

    def apply(self, statement: str) -> None:
        """Create a table, or add columns: rows that are there have no value in them."""
        command = json.loads(statement)
        if "add" in command:
            with self._store.lock:
                table = self._store.tables[TableId(*command["add"])]
                table.columns += command["columns"]
                for row in table.all():
                    row |= dict.fromkeys(command["columns"])
            return
        table_id = TableId(*command["create"])
        self._store.create(table_id, command["columns"], command["key"]).indexes = {
            name: name for name in command["indexes"]
        }
        self._store.made.setdefault(self._owner, set()).add(table_id)


def require(store: MemoryStore, plan: PlannedTable) -> None:
    """Raise MappingError unless the store has the table, its columns and its key."""
    table = store.tables.get(plan.target)
    if table is None:
        raise MappingError(
            f"the target has no table {plan.target} for {plan.source}",
            where=str(plan.target),
            hint=f"memory_store({store.name!r}).create({plan.target!r}, …)",
        )
    require_names(
        plan,
        table.columns,
        table.key,
        column_hint="add it, or leave it out: mapping.columns.exclude",
        key_hint="give it the same key",
    )


def follow(store: MemoryStore, change: SchemaChange) -> None:
    """Change the tables. Under the store's lock.

    Raises LoadError if the policy is to stop and the change is not there.
    """
    if change.check_only:
        require_held(change, MemoryHeld(store, change))
        return
    for step in steps_of(change, MemoryHeld(store, change), generated=True):
        match step:
            case DropTable(table):
                del store.tables[table]
            case EmptyTable(table):
                _empty(store.tables[table])
            case RenameTable(table, to):
                store.tables[to] = store.tables.pop(table)
            case CreateTable():
                store.create(step.table, [added.name for added in step.columns], step.key)
            case AlterTable():
                _alter(store.tables[step.table], change, step)


class MemoryHeld(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`."""

    def __init__(self, store: MemoryStore, change: SchemaChange) -> None:
        super().__init__(change)
        self.store = store

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of the stored table; None if the store has no such table."""
        rows = self.store.tables.get(table)
        return {name.casefold(): name for name in rows.columns} if rows is not None else None

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if the table's key has these columns in this order."""
        return has(tuple(self.store.tables[table].key) == names)


def _values(change: SchemaChange, table: TableId, adds: Sequence[AddColumn]) -> dict[str, Any]:
    """Return what rows that are there get in new columns.

    Raises LoadError for a value that is not known, or that no calendar has.
    """
    values: dict[str, Any] = {}
    for added in adds:
        if added.column.generated is not None:
            continue
        known_default_value = change.meaning.default_value(added.column)
        temporal = known_default_value.value is not None and (
            pa.types.is_timestamp(known_default_value.value.type) or pa.types.is_date32(known_default_value.value.type)
        )
        if known_default_value.value is None or (
            temporal and is_special(pa.repeat(known_default_value.value, 1)).any()
        ):
            why = known_default_value.why or "no calendar has its date"
            raise not_filled(change, table, added.name, why, added_by_hand())
        values[added.name] = known_default_value.value.as_py()
    return values


def _empty(table: Table) -> None:
    table.rows.clear()
    table.heap.clear()


def _alter(table: Table, change: SchemaChange, step: AlterTable) -> None:
    if step.copied:
        _empty(table)
    for effect in effects_on(change, step.source):
        raise not_converted(change, effect, step.table, "a target in memory converts no rows")
    values = _values(change, step.table, step.new) if table.rows or table.heap else {}
    renamed, dropped = step.renamed, set(step.drops)

    def altered(row: Mapping[str, Any]) -> dict[str, Any]:
        kept_values = {renamed.get(name, name): value for name, value in row.items() if name not in dropped}
        return {name: kept_values.get(name, values.get(name)) for name in table.columns}

    table.columns = list(step.columns_after(table.columns))
    table.key = step.key_after(table.key)
    table.rows = {key: altered(row) for key, row in table.rows.items()}
    table.heap = [altered(row) for row in table.heap]
