"""The commands that show and change the schema history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.errors import ConfigError
from sluice.flows.capture.schema_history import history_of, schema_at
from sluice.flows.runtime import Runtime
from sluice.model.definitions import Definitions
from sluice.model.tables import TableId
from sluice.operations.plan import ActionPlan
from sluice.segments.schemas import SchemaStore


def show(runtime: Runtime, table: str | None = None) -> dict[str, Any]:
    """Return the definitions as of the captured position as JSON: of one table, or a summary line per table.

    Raises:
        ConfigError: the pipeline has not begun, or the table is not known.
    """
    with runtime.state() as state:
        cursor = state.cursor()
    if cursor is None or not cursor.schema:
        raise ConfigError(
            f"{runtime.name} has no schema history yet",
            hint="it begins with the first capture: `sluice run`, or the DAG's next run",
        )
    known_definitions = SchemaStore(runtime.store).load(cursor.schema, runtime.source.stored_definitions)
    head = {"pipeline": runtime.name, "position": str(cursor.position), "stored": cursor.schema}
    if table is not None:
        name = table_id(table)
        definition, why = known_definitions.find(name), known_definitions.why_unknown(name)
        if definition is None and why is None:
            raise ConfigError(f"table {table} is not in the schema history of {runtime.name}")
        return head | {"table": definition.to_json() if definition else None, "unknown": why.to_json() if why else None}
    tables = [
        {"table": str(name), "columns": len(definition.columns), "key": list(definition.row_key)}
        for name in sorted(known_definitions.tables)
        if (definition := known_definitions.find(name))
    ]
    unknown = [{"table": str(name), **why.to_json()} for name, why in sorted(known_definitions.unknown.items())]
    return head | {"tables": tables, "unknown": unknown}


def set_table(runtime: Runtime, table: str, sql: str, *, by: str, dry_run: bool) -> ActionPlan:
    """Set the definition that a table had at the captured position, from a CREATE TABLE statement.

    Raises:
        ConfigError: it is no CREATE TABLE, or is not understood.
    """
    with runtime.state() as state, state.replicator() as lease:
        cursor = state.cursor()
        if cursor is None or not cursor.schema:
            raise ConfigError(f"{runtime.name} has no schema history yet", hint="it begins with the first capture")
        schemas = SchemaStore(runtime.store)
        known_definitions = schemas.load(cursor.schema, runtime.source.stored_definitions)
        with runtime.source.open() as source:
            definition = history_of(runtime.name, source).parse(known_definitions, table_id(table), sql)
        plan = ActionPlan(
            "schema set",
            (
                f"{table} as of {cursor.position}: {len(definition.columns)} columns, key "
                f"({', '.join(definition.row_key)})",
            ),
        )
        if not dry_run:
            known_definitions.put(definition)
            path = schemas.save(known_definitions, cursor.position, lease.epoch, parent=cursor.schema)
            state.advance(lease, cursor, cursor.position, schema=path)
            state.audit.note(
                by=by, what="schema set", details={"table": table, "position": str(cursor.position), "sql": sql[:2000]}
            )
    return plan


def reload_tables(runtime: Runtime, tables: Sequence[str], *, by: str, dry_run: bool) -> ActionPlan:
    """Read definitions from the server, where they provably are those of the captured position; all tables, or the
    named ones.

    Raises:
        SchemaUnknown: a later statement changed a named table. ConfigError: the pipeline has not begun.
    """
    with runtime.state() as state, state.replicator() as lease:
        cursor = state.cursor()
        if cursor is None:
            raise ConfigError(f"{runtime.name} has not begun", hint="its history begins with the first capture")
        schemas = SchemaStore(runtime.store)
        with runtime.source.open() as source:
            history = history_of(runtime.name, source)
            schema: Definitions = (
                schemas.load(cursor.schema, runtime.source.stored_definitions)
                if tables
                else schema_at(runtime, history, cursor.position, stored=False)
            )
            for table in tables:
                schema.put(history.definition(table_id(table), cursor.position))
        if tables:
            steps = tuple(f"{table}: read from the server as of {cursor.position}" for table in tables)
        else:
            steps = (
                f"{len(schema.tables)} tables read as of {cursor.position}, {len(schema.unknown)} not known there",
            )
        if not dry_run:
            parent = cursor.schema if tables else None
            path = schemas.save(schema, cursor.position, lease.epoch, parent=parent)
            state.advance(lease, cursor, cursor.position, schema=path)
            state.audit.note(
                by=by, what="schema reload", details={"tables": list(tables), "position": str(cursor.position)}
            )
    return ActionPlan("schema reload", steps)


def table_id(dotted: str) -> TableId:
    """Parse ``schema.table``. Raises ConfigError."""
    schema, dot, table = dotted.partition(".")
    if not dot or not schema or not table:
        raise ConfigError(f"{dotted!r} is not schema.table")
    return TableId(schema, table)
