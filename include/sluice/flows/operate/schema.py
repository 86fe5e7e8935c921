"""What a person asks of, and does to, the schema history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.errors import ConfigError, DecodeError, UnsupportedType
from sluice.flows.capture.schema_history import rereader, schema_at
from sluice.flows.operate.control import ActionPlan
from sluice.flows.runtime import Runtime, server_id_of
from sluice.model.definitions import TableDefinition
from sluice.model.tables import TableId
from sluice.mysql.ddl.apply import create_table
from sluice.mysql.ddl.ast import CreateTable
from sluice.mysql.ddl.catalog import SchemaState
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement
from sluice.segments.schemas import SchemaStore
from sluice.sources.mysql.server.connection import open_connection, server_info


def show(runtime: Runtime, table: str | None = None) -> dict[str, Any]:
    """The definitions as of the captured position, as JSON; of one table, or a line each.

    Raises:
        ConfigError: the pipeline has not begun, or the table is not known.
    """
    with runtime.state() as state:
        cursor = state.cursor()
    if cursor is None or not cursor.schema:
        raise ConfigError(
            f"{runtime.name} has no schema history yet",
            hint="it begins with the first drain: `sluice run`, or the DAG's next run",
        )
    known = SchemaStore(runtime.store).load(cursor.schema)
    head = {"pipeline": runtime.name, "position": str(cursor.position), "stored": cursor.schema}
    if table is not None:
        name = table_id(table)
        found, why = known.find(name), known.why_unknown(name)
        if found is None and why is None:
            raise ConfigError(f"the schema history of {runtime.name} never heard of {table}")
        return head | {"table": found.to_json() if found else None, "unknown": why.to_json() if why else None}
    tables = [
        {"table": str(name), "columns": len(found.columns), "key": list(found.row_key)}
        for name in sorted(known.tables)
        if (found := known.find(name))
    ]
    unknown = [{"table": str(name), **why.to_json()} for name, why in sorted(known.unknown.items())]
    return head | {"tables": tables, "unknown": unknown}


def set_table(runtime: Runtime, table: str, sql: str, *, by: str, dry_run: bool) -> ActionPlan:
    """Tell the history what a table was at the captured position, by a CREATE TABLE.

    Raises:
        ConfigError: the statement is none, or is not understood.
    """
    with runtime.state() as state, state.replicator() as lease:
        cursor = state.cursor()
        if cursor is None or not cursor.schema:
            raise ConfigError(f"{runtime.name} has no schema history yet", hint="it begins with the first drain")
        schemas = SchemaStore(runtime.store)
        known = schemas.load(cursor.schema)
        definition = _parsed(known, table_id(table), sql)
        plan = ActionPlan(
            "schema set",
            (
                f"{table} as of {cursor.position}: {len(definition.columns)} columns, key ({', '.join(definition.row_key)})",
            ),
        )
        if not dry_run:
            known.put(definition)
            path = schemas.save(known, cursor.position, lease.epoch, parent=cursor.schema)
            state.advance(lease, cursor, cursor.position, schema=path)
            state.audit(
                by=by, what="schema set", details={"table": table, "position": str(cursor.position), "sql": sql[:2000]}
            )
    return plan


def reload_tables(runtime: Runtime, tables: Sequence[str], *, by: str, dry_run: bool) -> ActionPlan:
    """Read definitions from the server, where they provably are those of the captured position; all tables, or the named ones.

    Raises:
        SchemaUnknown: a later statement changed a named table. ConfigError: the pipeline has not begun.
    """
    with runtime.state() as state, state.replicator() as lease:
        cursor = state.cursor()
        if cursor is None:
            raise ConfigError(f"{runtime.name} has not begun", hint="its history begins with the first drain")
        schemas = SchemaStore(runtime.store)
        server_id = server_id_of(runtime.pipeline)
        if tables:
            known = schemas.load(cursor.schema)
            read = rereader(runtime, server_id)
            for table in tables:
                known.put(read(table_id(table), cursor.position))
            steps = tuple(f"{table}: read from the server as of {cursor.position}" for table in tables)
        else:
            with open_connection(runtime.source) as connection:
                known = schema_at(
                    runtime, connection, server_info(connection), cursor.position, server_id=server_id, stored=False
                )
            steps = (f"{len(known.tables)} tables read as of {cursor.position}, {len(known.unknown)} not known there",)
        if not dry_run:
            parent = cursor.schema if tables else None
            path = schemas.save(known, cursor.position, lease.epoch, parent=parent)
            state.advance(lease, cursor, cursor.position, schema=path)
            state.audit(by=by, what="schema reload", details={"tables": list(tables), "position": str(cursor.position)})
    return ActionPlan("schema reload", steps)


def table_id(dotted: str) -> TableId:
    """``schema.table``. Raises ConfigError."""
    schema, dot, table = dotted.partition(".")
    if not dot or not schema or not table:
        raise ConfigError(f"{dotted!r} is not schema.table")
    return TableId(schema, table)


def _parsed(known: SchemaState, table: TableId, sql: str) -> TableDefinition:
    hint = "give the CREATE TABLE as SHOW CREATE TABLE printed it then"
    try:
        statement = parse_statement(sql, table.schema, Dialect(known.flavour.mariadb, known.flavour.version))
        if not isinstance(statement, CreateTable) or not statement.columns:
            raise ConfigError("the statement is not a CREATE TABLE with columns", where=str(table), hint=hint)
        from dataclasses import replace

        made = create_table(replace(statement, table=table), known.database(table.schema), known.flavour)
    except (DecodeError, UnsupportedType) as error:
        raise ConfigError(
            f"the CREATE TABLE is not understood: {error.message}", where=str(table), hint=hint
        ) from error
    return made
