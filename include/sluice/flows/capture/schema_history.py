"""The schema history of a pipeline: built at its first capture, continued by each later one, and found again for any
position of the log.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from sluice.coordination.cursor import Cursor
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import CaptureError, ConfigError, LogPurged, LostPosition, WrongServer
from sluice.flows.runtime import Runtime
from sluice.model.definitions import Definitions
from sluice.model.offset import Offset
from sluice.segments.schemas import SchemaStore
from sluice.sources.port import SchemaHistory, SourceSession
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()


def ensure_schema_history(
    runtime: Runtime,
    state: PipelineState,
    lease: Lease,
    cursor: Cursor,
    source: SourceSession,
    *,
    progress: Callable[[], None] | None = None,
) -> Cursor:
    """Return the cursor with a schema history that belongs to its position.

    The history is built now if there is none: at the first capture, after a seek, or after an upgrade from an older
    installation.
    """
    history = source.history
    if cursor.schema or history is None:
        return cursor
    schemas = SchemaStore(runtime.store)
    schema = schema_at(runtime, history, cursor.position, progress=progress)
    path = schemas.save(schema, cursor.position, lease.epoch)
    return state.advance(lease, cursor, cursor.position, schema=path)


def schema_at(
    runtime: Runtime,
    history: SchemaHistory,
    position: Offset,
    *,
    progress: Callable[[], None] | None = None,
    stored: bool = True,
) -> Definitions:
    """Return the definitions as of ``position``: the nearest stored ones before it with later statements applied, else
    the server's own.

    Args:
        stored: False asks the server in any case.

    Raises:
        SourceUnavailable, LostPosition, StorageUnavailable.
    """
    schemas = SchemaStore(runtime.store)
    for earlier in schemas.before(position) if stored else []:
        origin = schemas.position(earlier.path)
        if not history.has(origin):
            break
        if not history.is_same_log(origin):
            continue  # definitions of a log that the server no longer has
        known_definitions = schemas.load(earlier.path, runtime.source.stored_definitions)
        try:
            history.fold(known_definitions, origin, position, progress)
        except CaptureError as error:  # of another log, too, which could not be known before reading it
            _log.info("schema_history_passed_over", stored=earlier.path, error=error.message)
            continue
        _log.info("schema_history_reused", position=str(position), stored=earlier.path)
        return known_definitions
    return history.snapshot(position, Selection.compile(runtime.pipeline.capture), progress)


def is_another_log(source: SourceSession, captured: Offset) -> bool:
    """Return True if the server has another log in the place of the one that was read up to ``captured``.

    A log that was purged is the same one. Raises SourceUnavailable, ConfigError.
    """
    kinds = [finding.kind for finding in source.preflight(captured) if finding.severity == "error"]
    if WrongServer in kinds or LostPosition in kinds:
        return True
    try:
        source.confirm(captured)
    except LogPurged:
        return False
    except LostPosition:
        return True
    return False


def history_of(name: str, source: SourceSession) -> SchemaHistory:
    """Return the source's schema history for a command that changes it.

    Raises ConfigError for a source that needs none.
    """
    history = source.history
    if history is None:
        raise ConfigError(
            f"the source of {name} sends each table's definition with its rows: there is no schema history to change"
        )
    return history
