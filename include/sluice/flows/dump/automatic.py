"""Dumps that nobody asked for: an initial copy, a table that is captured since today, a target that joined, a position that is lost.

The drain looks for them before it reads. A dump's node is written before the state that makes it due changes, and its id says what it is
for; so a drain that dies in between finds it again, and none is made twice.
"""

from __future__ import annotations

from typing import Any

import structlog

from sluice.config.pipeline import CaptureConfig
from sluice.coordination.leases import Lease
from sluice.coordination.state import Cursor, PipelineState
from sluice.errors import LostPosition
from sluice.flows.dump.start import captured_tables, new_dump
from sluice.flows.dump.table_list import remember_captured
from sluice.flows.runtime import Runtime
from sluice.model.dumps import MOVED, POSITION_LOST, DumpState
from sluice.sources.base import SourceSession
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()


def schedule_automatic_dumps(
    runtime: Runtime, state: PipelineState, source: SourceSession, cursor: Cursor | None
) -> tuple[str, ...]:
    """Record the dumps that are due now. Only pipelines that began with a copy (``start: dump``) get them by themselves.

    Returns the ids of those that nobody works on.
    """
    _record_due(runtime, state, source, cursor)
    remember_captured(runtime, source)
    mine = [d for d in state.dumps.active() if d.reason in REASONS and d.state is DumpState.RUNNING]
    return tuple(d.id for d in mine if not state.dumps.working(d.id) and not state.dumps.chunks(d.id))


REASONS = ("initial", "newly captured", "new target", POSITION_LOST, MOVED)
"""Why there are dumps that nobody asked for."""


def _record_due(runtime: Runtime, state: PipelineState, source: SourceSession, cursor: Cursor | None) -> None:
    pipeline = runtime.pipeline
    now: dict[str, Any] = {"include": list(pipeline.capture.include), "exclude": list(pipeline.capture.exclude)}
    if pipeline.capture.shadow_tables != "leave_out":
        now["shadow_tables"] = pipeline.capture.shadow_tables
    known = state.dumps.selection()
    initial = pipeline.source.start == "dump"
    if cursor is None:
        if initial:
            tables = captured_tables(runtime, source)
            new_dump(runtime, state, source, tables, id_="initial", reason="initial", from_nothing=True)
        state.dumps.set_selection(now)
        return
    if known is None or not initial:
        if known != now:
            state.dumps.set_selection(now)
        return
    if known != now:
        before = Selection.compile(CaptureConfig.model_validate(known))
        added = [t for t in captured_tables(runtime, source) if not before.wants(t)]
        if added:
            stamp = f"added-{cursor.next_batch:010d}"
            new_dump(runtime, state, source, added, id_=stamp, reason="newly captured", from_nothing=True)
        state.dumps.set_selection(now)
    joined = [t.name for t in pipeline.targets if state.process(t.name) is None]
    for name in joined:
        tables = captured_tables(runtime, source)
        new_dump(
            runtime,
            state,
            source,
            tables,
            id_=f"target-{name}-{cursor.next_batch:010d}",
            reason="new target",
            targets=(name,),
        )


def ready_or_moved(
    runtime: Runtime, state: PipelineState, lease: Lease, source: SourceSession, cursor: Cursor | None
) -> Cursor | None:
    """The pre-flight, and the comparison of the log with what was drained from it; the cursor from which to go on.

    With ``on_lost_position: dump``, a position that is lost moves to the head and all tables are dumped anew.

    Raises what the source's ``require_ready`` and ``confirm`` raise.
    """
    try:
        source.require_ready(cursor.position if cursor else None)
        if cursor is not None:
            source.confirm(cursor.position)
    except LostPosition as lost:
        if cursor is None or runtime.pipeline.capture.on_lost_position != "dump" or source.head is None:
            raise
        tables = captured_tables(runtime, source)
        id_ = f"lost-{cursor.next_batch:010d}-{cursor.position.order[0]}-{cursor.position.order[1]}"
        new_dump(runtime, state, source, tables, id_=id_, reason=POSITION_LOST, replace_rows=True)
        _log.warning(
            "position_lost",
            pipeline=runtime.name,
            position=str(cursor.position),
            moved_to=str(source.head),
            why=lost.message,
        )
        return state.advance(lease, cursor, source.head, schema="")  # the schema history begins anew there
    return cursor
