"""Dumps that start automatically: an initial copy, a newly captured table, a target that joined, a lost position.

The capture looks for them before it reads. A dump's node is written before the state that makes it due changes, and its
id says what it is for; so a capture that dies in between finds it again, and none is made twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from sluice.config.pipeline import CaptureConfig, PipelineConfig
from sluice.coordination.cursor import Cursor
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import LogPurged, LostPosition
from sluice.flows.dump.start import DumpOrder, captured_tables, dump_tables
from sluice.flows.runtime import Runtime
from sluice.flows.stored import move_to_another_log
from sluice.model.dumps import POSITION_LOST, REASONS, DumpState
from sluice.model.tables import TableId
from sluice.sources.port import SourceSession
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DueDump:
    """A dump that starts automatically: of which tables (with the source's guess of their rows), why, and for which
    targets (empty: all).
    """

    id: str
    reason: str
    tables: Mapping[TableId, int]
    targets: tuple[str, ...] = ()
    from_nothing: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    """``dumps`` to record, and then the ``selection`` to remember, from which the next capture tells what is new (None:
    unchanged).
    """

    dumps: tuple[DueDump, ...] = ()
    selection: Mapping[str, Any] | None = None


def due_dumps(runtime: Runtime, state: PipelineState, source: SourceSession, cursor: Cursor | None) -> Due:
    """Return the dumps that are due now; writes nothing.

    Only pipelines that began with ``start: dump`` get automatic dumps.
    """
    pipeline = runtime.pipeline
    now: dict[str, Any] = {"include": list(pipeline.capture.include), "exclude": list(pipeline.capture.exclude)}
    if pipeline.capture.shadow_tables != "leave_out":
        now["shadow_tables"] = pipeline.capture.shadow_tables
    known_selection = state.dumps.selection()
    initial = pipeline.source.start == "dump"
    now["began"] = str(pipeline.source.start) if cursor is None else (known_selection or {}).get("began", "")
    if cursor is None:
        first = (
            (DueDump("initial", "initial", captured_tables(runtime.pipeline, source), from_nothing=True),)
            if initial
            else ()
        )
        return Due(first, now)
    changed = now if known_selection != now else None
    if missing := missed_copy(runtime.pipeline, state):
        _log.warning("initial_dump_skipped", pipeline=runtime.name, reason=missing)
    if known_selection is None or not initial:
        return Due((), changed)
    dumps = []
    if changed:
        fields = {name: value for name, value in known_selection.items() if name in CaptureConfig.model_fields}
        before = Selection.compile(CaptureConfig.model_validate(fields))
        added = {t: rows for t, rows in captured_tables(runtime.pipeline, source).items() if not before.wants(t)}
        if added:
            dumps.append(DueDump(f"added-{cursor.next_batch:010d}", "newly captured", added, from_nothing=True))
    joined = [t.name for t in pipeline.targets if t.start != "snapshot" and state.acks.get(t.name) is None]
    for name in joined:
        id_ = f"target-{name}-{cursor.next_batch:010d}"
        dumps.append(DueDump(id_, "new target", captured_tables(runtime.pipeline, source), (name,)))
    return Due(tuple(dumps), changed)


def missed_copy(pipeline: PipelineConfig, state: PipelineState) -> str:
    """Return a warning if ``start: dump`` was added after the pipeline had begun without a copy; "" if not."""
    if pipeline.source.start != "dump" or state.cursor() is None:
        return ""
    known_selection = state.dumps.selection() or {}
    began = known_selection.get("began", "")
    if began == "dump" or (not began and "initial" in state.dumps.ids()):
        return ""
    if not began and known_selection:  # an older version started it, and its dump may have been removed
        return ""
    return (
        "the pipeline began without a copy, and `start` counts for its first run only: rows from before it are not "
        "copied"
    )


def record_due(
    pipeline: PipelineConfig, rules_path: Path | None, state: PipelineState, source: SourceSession, due: Due
) -> None:
    """Record the dumps, then what makes them due no more."""
    for dump in due.dumps:
        order = DumpOrder(dump.reason, dump.id, dump.targets)
        dump_tables(pipeline, rules_path, state, source, dump.tables, order, from_nothing=dump.from_nothing)
    if due.selection is not None:
        state.dumps.set_selection(dict(due.selection))


def unread_dumps(state: PipelineState) -> tuple[str, ...]:
    """Return the ids of running automatic dumps that no process reads yet."""
    own_dumps = [d for d in state.dumps.active() if d.reason in REASONS and d.state is DumpState.RUNNING]
    return tuple(d.id for d in own_dumps if not state.dumps.working(d.id) and not state.dumps.chunks(d.id))


def ready_or_moved(
    runtime: Runtime,
    state: PipelineState,
    lease: Lease,
    source: SourceSession,
    cursor: Cursor | None,
) -> Cursor | None:
    """Run the pre-flight, compare the log with what was captured from it unless it is still open, and return the cursor
    to continue from.

    With ``on_lost_position: dump``, a lost position moves to the head of the log and all tables are dumped anew.

    Raises what the source's ``require_ready`` and ``confirm`` raise.
    """
    try:
        source.require_ready(cursor.position if cursor else None)
        if cursor is not None and not source.goes_on(cursor.position):
            source.confirm(cursor.position)
    except LostPosition as lost:
        if cursor is None or runtime.pipeline.capture.on_lost_position != "dump" or source.head is None:
            raise
        head = source.resolve_start("dump")  # raises if the source does not keep its log from there on
        tables = captured_tables(runtime.pipeline, source)
        id_ = f"lost-{cursor.next_batch:010d}-{'-'.join(map(str, cursor.position.order))}"
        dump_tables(
            runtime.pipeline,
            runtime.rules_path,
            state,
            source,
            tables,
            DumpOrder(POSITION_LOST, id_),
            replace_rows=True,
        )
        _log.warning(
            "position_lost",
            pipeline=runtime.name,
            position=str(cursor.position),
            moved_to=str(head),
            error=lost.message,
        )
        if isinstance(lost, LogPurged):
            return state.advance(lease, cursor, head, schema="", jumps=True)  # the schema history starts anew there
        return move_to_another_log(runtime.store, state, lease, cursor, head)
    return cursor
