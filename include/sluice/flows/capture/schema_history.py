"""The schema history of a pipeline: made at its first drain, carried on by each, found again for any position of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from sluice.coordination.leases import Lease
from sluice.coordination.state import Cursor, PipelineState
from sluice.flows.runtime import Runtime
from sluice.model.definitions import TableDefinition
from sluice.model.positions import Position
from sluice.model.tables import TableId
from sluice.mysql.ddl.catalog import SchemaState
from sluice.segments.schemas import SchemaStore
from sluice.sources.mysql.catalog.history_tracker import SchemaTracker
from sluice.sources.mysql.decoder.scanner import LoggedStatement
from sluice.sources.mysql.history.schema_snapshot import reread_table, snapshot_at
from sluice.sources.mysql.reader.event_reread import same_log
from sluice.sources.mysql.reader.start_position import dump_start
from sluice.sources.mysql.reader.statement_scan import statements_between
from sluice.sources.mysql.server.connection import ServerInfo, open_connection, server_info
from sluice.sources.mysql.server.server_ids import lookahead_id
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()


def ensure_schema_history(
    runtime: Runtime,
    state: PipelineState,
    lease: Lease,
    cursor: Cursor,
    connection: Any,
    info: ServerInfo,
    *,
    server_id: int,
    progress: Callable[[], None] | None = None,
) -> Cursor:
    """The cursor with a history that belongs to its position; made now where there is none (first drain, after a seek, an older installation)."""
    if cursor.schema:
        return cursor
    schemas = SchemaStore(runtime.store)
    found = schema_at(runtime, connection, info, cursor.position, server_id=server_id, progress=progress)
    path = schemas.save(found, cursor.position, lease.epoch)
    return state.advance(lease, cursor, cursor.position, schema=path)


def schema_at(
    runtime: Runtime,
    connection: Any,
    info: ServerInfo,
    position: Position,
    *,
    server_id: int,
    progress: Callable[[], None] | None = None,
    stored: bool = True,
) -> SchemaState:
    """Definitions as of ``position``: the nearest stored ones before it, with the statements in between folded in; else from the server.

    ``stored`` False: from the server in any case.

    Raises:
        SourceUnavailable, LostPosition, StorageUnavailable.
    """
    schemas = SchemaStore(runtime.store)
    have = {name for name, _ in info.binary_logs}
    start = dump_start(info, position)
    for earlier in schemas.before(position) if stored else []:
        origin = schemas.position(earlier.path)
        if origin.file not in have:
            break
        if not same_log(runtime.source, origin, server_id=lookahead_id(server_id), mariadb=info.is_mariadb):
            continue  # definitions of a log that the server does not have any more
        state = schemas.load(earlier.path)
        fold_between(
            runtime, connection, state, dump_start(info, origin), start, server_id=server_id, progress=progress
        )
        _log.info("schema_found", position=str(position), stored=earlier.path)
        return state
    return snapshot_at(
        runtime.source,
        connection,
        info,
        start,
        server_id=server_id,
        selection=Selection.compile(runtime.pipeline.capture),
        progress=progress,
    )


def fold_between(
    runtime: Runtime,
    connection: Any,
    state: SchemaState,
    start: Position,
    stop: Position,
    *,
    server_id: int,
    progress: Callable[[], None] | None = None,
) -> None:
    """Fold the statements between two positions into ``state``."""
    from sluice.sources.mysql.server.connection import collations

    names = collations(connection)
    tracker = SchemaTracker(lambda: state, lambda: names)

    def fold(statement: LoggedStatement) -> None:
        tracker.statement(statement)

    statements_between(runtime.source, server_id=server_id, start=start, stop=stop, statement=fold, progress=progress)


def rereader(runtime: Runtime, server_id: int) -> Callable[[TableId, Position], TableDefinition]:
    """Reads a definition again on a connection of its own; see :func:`sluice.sources.mysql.history.schema_snapshot.reread_table`."""

    def reread(table: TableId, position: Position) -> TableDefinition:
        with open_connection(runtime.source) as connection:
            info = server_info(connection)
            return reread_table(
                runtime.source, connection, info, table, dump_start(info, position), server_id=server_id
            )

    return reread
