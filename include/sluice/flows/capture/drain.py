"""drain: look at the source, read its log from the cursor, and make one batch of it."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import structlog

from sluice.coordination.leases import Lease
from sluice.coordination.state import Cursor, PipelineState
from sluice.errors import CaptureError
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.capture.schema_history import ensure_schema_history
from sluice.flows.checkpoints import require_no_checkpoints
from sluice.flows.dump.automatic import ready_or_moved, schedule_automatic_dumps
from sluice.flows.dump.interleaver import ChunkInterleaver, InterleavingSegmentWriter, held_tables, late_chunks
from sluice.flows.runtime import Runtime
from sluice.model.batches import Batch, DrainOutcome
from sluice.model.positions import BatchNumber, Position
from sluice.segments.manifest import SegmentManifest
from sluice.segments.schemas import SchemaStore
from sluice.segments.writer import SegmentWriter
from sluice.sources.base import SourceSession, StreamLimits
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()

ORPHAN_AGE_S = 60.0
"""An undelivered batch of this age, whose target nobody loads, is taken up by a drain that found nothing new."""

_CATCH_UP_BYTES_A_SECOND, _LONGEST_S = 40e6, 10.0
"""A drain reads a backlog faster than this, so it gets as far as the head, or works for so long, before the batch is closed by time."""

LEASE_WAIT_S = 0.5
"""How long a drain waits for the lease in its worker: for a drain that is just ending, not for one that died."""


def drain(runtime: Runtime, *, claim: str, idle_wait_s: float, until: Position | None = None) -> DrainOutcome:
    """Make (or find again) the batch that ``claim`` delivers.

    A claim that already has a batch gets it back, so a retry is a rollback to the same batch. With the window full, or when idle, a batch
    whose run is gone is taken up. Otherwise the log is read from the cursor: up to ``idle_wait_s`` for a first change, then until the
    pipeline's limits close the batch at the end of a transaction; ``until`` closes it at that position. Something in the log that cannot be
    read ends the batch in front of it, and is raised by the drain that finds it first.

    Raises:
        LeaseHeld: another installation works on this pipeline, or a drain that died still has the lease.
        Paused, Restarted: a person said so.
        CheckpointError: ZooKeeper knows nothing of the pipeline, and a target says that it holds batches of it.
        SluiceError: the position has not moved.
    """
    with runtime.state() as state:
        state.require_permit()
        if runtime.owner:
            state.turns.take(runtime.owner)
        known = state.claimed(claim)
        if known:
            return _deliver_again(known, "already drained by this run")
        with state.replicator(wait_s=LEASE_WAIT_S) as lease:
            undelivered = state.in_window()
            if len(undelivered) >= runtime.pipeline.window:
                taken = state.reclaim(undelivered[0], claim)
                if taken:
                    return _deliver_again(taken, "the window is full")
            with runtime.source.open(to_stream=True) as source:
                cursor = state.cursor()
                if cursor is None:
                    require_no_checkpoints(runtime, state)
                cursor = ready_or_moved(runtime, state, lease, source, cursor)
                due = schedule_automatic_dumps(runtime, state, source, cursor)
                if cursor is None:
                    cursor = begin(runtime, state, lease, source.resolve_start(runtime.pipeline.source.start))
                cursor = ensure_schema_history(runtime, state, lease, cursor, source)
                try:
                    outcome = _capture(runtime, state, lease, cursor, claim, idle_wait_s, until, source)
                except CaptureError as error:
                    if error.whole_until is None:
                        raise
                    # What cannot be read has to stand first, so that whoever goes round it (`sluice seek`) leaves nothing else out.
                    _log.warning("batch_ends_before_an_error", position=str(error.whole_until), error=str(error))
                    outcome = _capture(runtime, state, lease, cursor, claim, idle_wait_s, error.whole_until, source)
            outcome = replace(outcome, due=due)
            if outcome.batch is None:
                orphan = _orphan(state, claim)
                if orphan:
                    return _deliver_again(orphan, "its run is gone")
            return outcome


def begin(runtime: Runtime, state: PipelineState, lease: Lease, position: Position) -> Cursor:
    """First contact: write the cursor and every target's acknowledgement. Numbers go on after batches that an earlier state left in the store."""
    last = max(runtime.store.batches(), default=0)
    _log.info("pipeline_begins", pipeline=runtime.name, position=str(position), next_batch=last + 1)
    return state.begin(lease, position, last + 1, targets=[target.name for target in runtime.pipeline.targets])


def _capture(
    runtime: Runtime,
    state: PipelineState,
    lease: Lease,
    cursor: Cursor,
    claim: str,
    idle_wait_s: float,
    until: Position | None,
    source: SourceSession,
) -> DrainOutcome:
    pipeline, who = runtime.pipeline, source.identity
    limits = pipeline.capture.batch
    max_wait_s = patience_s(limits.max_wait.total_seconds(), source.lag_bytes(cursor.position) or 0)
    if pipeline.schedule != "continuous":  # a clock starts the runs: each takes all there is, as far as one batch goes
        until, max_wait_s = until or source.head, math.inf
    number = cursor.next_batch
    for target in pipeline.targets:  # a target that was added later starts where the log is captured to
        state.begin_process(target.name, BatchNumber(number - 1), cursor.position)

    late = dict(late_chunks(state, cursor.position))
    for targets, chunks in late.items():
        if targets:  # a dump for some targets has batches of its own
            placer = ChunkInterleaver(
                state, runtime.store, runtime.source, None, who.origin, chunks, *held_tables(state), who.dialect
            )
            return _place_alone(runtime, state, lease, cursor, claim, placer, targets, cursor.position)
    marks = runtime.source.watermark_table
    held, watched = held_tables(state)
    placer = ChunkInterleaver(
        state, runtime.store, runtime.source, marks, who.origin, late.get((), []), held, watched, who.dialect
    )

    def writer() -> SegmentWriter:
        return InterleavingSegmentWriter(runtime.store, number, lease.epoch, placer=placer)

    schemas = SchemaStore(runtime.store)
    started = time.monotonic()
    result = source.stream(
        cursor.position,
        StreamLimits(
            max_changes=limits.max_changes,
            max_bytes=limits.max_bytes,
            max_wait_s=max_wait_s,
            idle_wait_s=idle_wait_s,
            max_event_bytes=pipeline.capture.max_event,
            stop_at=until,
        ),
        Selection.compile(pipeline.capture),
        writer,
        definitions=(lambda: schemas.load(cursor.schema)) if source.history is not None else None,
        one_reader=bool(held or watched),
        progress=CancellationGuard(state, f"draining batch {number}"),
    )
    schema = None
    if result.schema is not None:
        schema = schemas.save(result.schema, result.last, lease.epoch, parent=cursor.schema)
    if result.manifest is None and placer.late:
        return _place_alone(runtime, state, lease, cursor, claim, placer, (), result.last, schema)
    if result.manifest is None:
        if result.last != cursor.position:
            state.advance(lease, cursor, result.last, schema=schema)
        return DrainOutcome(None, result.last, closed_by=result.closed_by)
    batch = _record(runtime, state, lease, cursor, claim, result.manifest, placer, schema)
    _log.info(
        "drained",
        pipeline=runtime.name,
        batch=number,
        changes=batch.changes,
        transactions=result.transactions,
        log_bytes=result.log_bytes,
        closed_by=result.closed_by,
        first=str(batch.first),
        last=str(batch.last),
        seconds=round(time.monotonic() - started, 3),
    )
    return DrainOutcome(number, result.last, batch.changes, result.closed_by)


def patience_s(max_wait_s: float, behind_bytes: int) -> float:
    """How long a batch stays open: ``max_wait`` near the head of the log, longer the further behind, so that batches grow with a backlog."""
    return max(max_wait_s, min(behind_bytes / _CATCH_UP_BYTES_A_SECOND, _LONGEST_S))


def _record(
    runtime: Runtime,
    state: PipelineState,
    lease: Lease,
    cursor: Cursor,
    claim: str,
    manifest: SegmentManifest,
    placer: ChunkInterleaver,
    schema: str | None,
) -> Batch:
    """Phase one ends: the batch is known, and the chunks of dumps in it are placed."""
    batch = Batch(
        number=cursor.next_batch,
        epoch=lease.epoch,
        claim=claim,
        manifest=runtime.store.manifest_path(cursor.next_batch, lease.epoch),
        first=cursor.position,
        last=manifest.last.position,
        changes=manifest.changes,
        size_bytes=manifest.size_bytes,
        created_ms=int(time.time() * 1000),
        first_commit_time_us=manifest.first_commit_time_us,
        targets=manifest.targets,
    )
    state.commit(lease, cursor, batch, placer.steps(), schema=schema)
    placer.forget_files()
    return batch


def _place_alone(
    runtime: Runtime,
    state: PipelineState,
    lease: Lease,
    cursor: Cursor,
    claim: str,
    placer: ChunkInterleaver,
    targets: tuple[str, ...],
    last: Position,
    schema: str | None = None,
) -> DrainOutcome:
    """A batch of dumped rows only: nothing is in the log, or the rows are not for every target."""
    writer = InterleavingSegmentWriter(runtime.store, cursor.next_batch, lease.epoch, placer=placer)
    writer.targets = targets
    now_us = time.time_ns() // 1000
    try:
        manifest = writer.finish(
            cursor.position, last, changes=0, first_commit_time_us=now_us, last_commit_time_us=now_us
        )
    except BaseException:
        writer.abort()
        raise
    batch = _record(runtime, state, lease, cursor, claim, manifest, placer, schema)
    _log.info("placed", pipeline=runtime.name, batch=batch.number, changes=batch.changes, chunks=len(placer.placed))
    return DrainOutcome(batch.number, batch.last, batch.changes, "dump")


def _deliver_again(batch: Batch, why: str) -> DrainOutcome:
    _log.info("batch_again", batch=batch.number, why=why)
    return DrainOutcome(batch.number, batch.last, batch.changes, closed_by=why, adopted=True)


def _orphan(state: PipelineState, claim: str) -> Batch | None:
    """The oldest undelivered batch whose run is gone: of another installation, or old and loaded by nobody."""
    for number in state.in_window():
        batch = state.batch(number)
        if batch is None:
            continue
        foreign = batch.claim.split(":")[:2] != claim.split(":")[:2]
        if (foreign or _is_old(batch)) and not any(state.owner(target) for target in state.holds.going()):
            return state.reclaim(number, claim)
    return None


def may_drain(runtime: Runtime) -> bool:
    """Would a drain get its turn and the lease now? For the trigger of an installation that stands by."""
    with runtime.state() as state:
        mine = runtime.owner is None or state.turns.is_mine(runtime.owner)
        return mine and state.owner() is None


def head_of(runtime: Runtime) -> Position:
    """Where the source's log ends now. Raises LostPosition if it keeps none."""
    with runtime.source.open() as source:
        return source.resolve_start("latest")


def has_news(runtime: Runtime) -> bool:
    """Has the source's log moved past the cursor (or was nothing drained yet)? Cheap: a login, a query and a few reads; for the trigger."""
    with runtime.state() as state:
        if not state.permit().open:
            return False
        cursor = state.cursor()
        if cursor is None:
            return True
        with runtime.source.open() as source:
            if source.has_news(cursor.position):
                return True
        if late_chunks(state, cursor.position):
            return True
        return any(batch is not None and _is_old(batch) for batch in map(state.batch, state.in_window()))


def _is_old(batch: Batch) -> bool:
    return time.time() - batch.created_ms / 1000 > ORPHAN_AGE_S
