"""Definitions as of a position, read from a server that goes on working: proven, without a lock that would hold anybody
up.

Tables of schemas that are not captured are left out. One that comes from there later, by ``RENAME`` or ``LIKE``, is
read from the server at that statement.

The argument. H1 is read; then each captured table is opened once; then the definitions are read; then H2 is read.

* A statement that stands in the log before H1 may not be visible in the dictionary yet: the log is written first. But
  it holds its exclusive metadata lock until it is, so that opening the table after H1 waits for it. What is read
  afterwards has it.
* A statement that stands after H1 may be visible already. The log from the wanted position to H2 is read, and a table
  that any statement there may concern is not taken over: it counts as unknown (or, when the position is H1 itself, all
  is read again).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pymysql
import structlog

from sluice.config.connections import Endpoint
from sluice.errors import DecodeError, SchemaUnknown, SourceUnavailable
from sluice.model.definitions import TableDefinition, Unknown
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId, quoted_table
from sluice.mysql.ddl.catalog import SchemaState, Session
from sluice.sources.mysql.catalog.information_schema import flavour_of, read_names, read_state, read_tables
from sluice.sources.mysql.decoder.scanner import LoggedStatement
from sluice.sources.mysql.events.query_status import parse_status
from sluice.sources.mysql.events.statement_effects import named_tables
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader.statement_scan import statements_between
from sluice.sources.mysql.server.connection import ServerInfo, log_end, rows_of
from sluice.sources.mysql.server.table_list import captured_schemas
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()

_OPENED_AT_MOST = 5_000
_LOCK_WAIT_S = 15
_GONE = {1142, 1143, 1146, 1356, 1049, 1044}
_SAME_COLUMNS = {
    ChangeKind.NOTHING, ChangeKind.TRUNCATE_TABLE, ChangeKind.PARTITIONS, ChangeKind.ROWS_REMOVED,
    ChangeKind.ROWS_REPLACED,
}  # fmt: skip


def snapshot_at(
    endpoint: Endpoint,
    connection: Any,
    info: ServerInfo,
    position: Position,
    *,
    server_id: int,
    selection: Selection,
    progress: Callable[[], None] | None = None,
) -> SchemaState:
    """Return the definitions of the captured schemas as of ``position`` (not after the head).

    Tables that a statement changed since then are unknown in it.

    Raises:
        SourceUnavailable, LostPosition: the log since ``position`` cannot be read.
    """
    schemas = captured_schemas(connection, selection)
    named = read_names(connection, schemas)
    _open_tables(connection, [t for t in named if selection.wants(t)], [t for t in named if not selection.wants(t)])
    state = read_state(connection, info, schemas)
    file, offset = log_end(connection)
    head = position.at(file=file, offset=offset)
    later = _statements(endpoint, server_id, position, head, progress)
    _take_back(state, later)
    state.touched.clear()
    _log.info(
        "schema_snapshot_taken",
        position=str(position),
        tables=len(state.tables),
        unknown=len(state.unknown),
        later=len(later),
    )
    return state


def reread_table(
    endpoint: Endpoint, connection: Any, info: ServerInfo, table: TableId, position: Position, *, server_id: int
) -> TableDefinition:
    """Return today's definition of a table, if it was the same at ``position``.

    Raises SchemaUnknown with the statement that says it was not.
    """
    _open_tables(connection, [table], [])
    broken: dict[TableId, str] = {}
    tables = read_tables(connection, flavour_of(connection, info), [table], broken=broken)
    if broken:
        raise SchemaUnknown(
            f"the definition of {table} cannot be read: {broken[table]}",
            where=str(position),
            hint=f"`sluice schema set PIPELINE {table} --file create.sql` with the CREATE TABLE as of {position}",
        )
    file, offset = log_end(connection)
    later = _statements(endpoint, server_id, position, position.at(file=file, offset=offset), None)
    state = SchemaState(flavour_of(connection, info))
    for definition in tables:
        state.put(definition)
    if tables:
        _take_back(state, later)
    again = state.find(table)
    if again is not None:
        _log.info("definition_reread", table=str(table), position=str(position))
        return again
    why = state.why_unknown(table)
    raise SchemaUnknown(
        f"the definition of {table} at this place is not known, and today's is another: "
        + (
            f"{why.reason} ({why.sql[:200]})"
            if why
            else "the table does not exist any more, or the pipeline's user may not see it"
        ),
        where=why.where if why else str(position),
        hint=f"`sluice schema set PIPELINE {table} --file create.sql` with the CREATE TABLE as of {position}",
    )


def _open_tables(connection: Any, wanted_tables: Sequence[TableId], others: Sequence[TableId]) -> None:
    """Open each table once, which waits for a statement that is about to become visible."""
    rows_of(connection, f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
    for table in [*wanted_tables, *others[: max(_OPENED_AT_MOST - len(wanted_tables), 0)]]:
        try:
            rows_of(connection, f"SELECT 1 FROM {quoted_table(table)} WHERE FALSE")  # noqa: S608 - quoted
        except pymysql.err.MySQLError as error:
            code = error.args[0] if error.args else 0
            if code == 1205 and table in wanted_tables:
                raise SourceUnavailable(
                    f"reading the definition of {table}: another session has locked the table for more than "
                    f"{_LOCK_WAIT_S} s",
                    where=str(table),
                    hint="SHOW PROCESSLIST names the session; the next attempt goes on by itself",
                ) from error
            if code not in _GONE and code != 1205:
                _log.debug("table_open_failed", table=str(table), code=code)


def _statements(
    endpoint: Endpoint, server_id: int, start: Position, stop: Position, progress: Callable[[], None] | None
) -> list[LoggedStatement]:
    statements: list[LoggedStatement] = []
    statements_between(
        endpoint, server_id=server_id, start=start, stop=stop, statement=statements.append, progress=progress
    )
    return statements


def _take_back(state: SchemaState, later: Sequence[LoggedStatement]) -> None:
    """Make tables unknown that a later statement may have changed: today's definition is not the one of then."""
    for statement in later:
        query = statement.query
        for table in _concerned(state, query.sql, query.schema, parse_status(query.status).sql_mode):
            state.lose(
                table,
                Unknown(
                    "a statement after this position changed it, and only its later definition can be read",
                    str(statement.position),
                    query.sql[:2000],
                ),
            )


def _concerned(state: SchemaState, sql: str, schema: str, sql_mode: int) -> list[TableId]:
    scratch = SchemaState(state.flavour, state.timestamps_explicit, state.server_collation, dict(state.databases))
    try:
        changes: list[TableChange] = scratch.fold(sql, schema, Session(sql_mode))
    except DecodeError:
        return [t for t in named_tables(sql, schema) if state.find(t) is not None or state.why_unknown(t) is not None]
    tables: list[TableId] = []
    for change in changes:
        if change.table.table == "":
            if ChangeKind.DROP_DATABASE in change.kinds:
                tables += [t for t in state.tables if t.schema == change.table.schema]
            elif ChangeKind.ALTER_DATABASE not in change.kinds and ChangeKind.CREATE_DATABASE not in change.kinds:
                continue
        elif not set(change.kinds) <= _SAME_COLUMNS:
            tables += change.tables
    return tables
