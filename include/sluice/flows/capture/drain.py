"""drain: look at the source, read its log from the cursor, and capture one batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import structlog

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.cursor import Cursor
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import CaptureError, SourceUnavailable
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.capture import failover
from sluice.flows.capture.adoption import delivered_again, orphan_of
from sluice.flows.capture.kept_source import KeptSource
from sluice.flows.capture.schema_history import ensure_schema_history
from sluice.flows.checkpoints import require_no_checkpoints
from sluice.flows.dump.automatic import due_dumps, ready_or_moved, record_due, unread_dumps
from sluice.flows.dump.interleaver import ChunkInterleaver, held_tables, late_chunks
from sluice.flows.dump.start import captured_tables
from sluice.flows.dump.table_list import remember_captured
from sluice.flows.incomplete_tables import note_filled
from sluice.flows.log_digests import log_digester
from sluice.flows.released_log import release_delivered
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot.lost_batches import BY_ITSELF, SnapshotStarts, snapshot_starts
from sluice.flows.stage_log import log_batch
from sluice.flows.stage_notes import stage_notes
from sluice.flows.stored import record_of
from sluice.flows.tracing import StageTrace, stage_trace
from sluice.model.batches import Batch, BatchNumber, DrainOutcome
from sluice.model.dumps import Chunk
from sluice.model.load_marks import LoadMark, PartnerLoads
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.segments.manifest import SegmentManifest
from sluice.segments.schemas import SchemaStore
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
from sluice.sources.port import SourceSession, StreamLimits
from sluice.sources.table_filter import Selection
from sluice.targets.registry import names_copies

_log = structlog.get_logger()

_CATCH_UP_BYTES_A_SECOND, _LONGEST_S = 40e6, 10.0
"""The speed at which a capture reads a backlog at least, and the longest it works: it gets to the head, or works so
long, before time closes the batch.
"""

AHEAD = "ahead:"
"""The beginning of the claim of batches that were captured for no run: the next one delivers them."""

LEASE_WAIT_S = 0.5
"""Seconds that a capture waits for the lease in its worker: for a capture that is just ending, not for one that
died.
"""


def drain(
    runtime: Runtime,
    *,
    claim: str,
    idle_wait_s: float,
    until: Offset | None = None,
    another: bool = False,
    ahead: bool = False,
    kept: KeptSource | None = None,
    stays_open: Callable[[], bool] | None = None,
    is_over: Callable[[str], bool] = lambda claim: False,
) -> DrainOutcome:
    """Make (or find again) the batch that ``claim`` delivers.

    A claim that already has a batch gets it back, so a retry is a rollback to the same batch. Batches whose run ended
    without them (``is_over``) are taken up first; with the window full, or when idle, so is one whose run seems to be
    gone.

    Otherwise the log is read from the cursor: up to ``idle_wait_s`` for a first change, then until the
    pipeline's limits close the batch at the end of a transaction; ``until``, a position of the log that is read, closes
    it there. Something in the log that cannot be read ends the batch in front of it, and is raised by the capture that
    finds it first.

    ``another``: the claim has a batch and wants the one after it. Nothing is taken up then: with the window full there
    is no batch. ``ahead``: the same, whatever the window holds: the claim is that of :mod:`sluice.flows.capture.ahead`.
    ``kept``: holds the source's connections from one capture to the next one. ``stays_open``: see
    :class:`sluice.sources.port.StreamLimits`.

    Raises:
        LeaseHeld: another installation works on this pipeline, or a capture that died still has the lease.
        Paused, Restarted: a person said so.
        CheckpointError: ZooKeeper knows nothing of the pipeline, and a target says that it holds batches of it.
        SluiceError: the position has not moved.
    """
    with (
        runtime.state() as state,
        state.reporting("drain"),
        names_copies(runtime.pipeline),
        stage_trace(runtime, "drain") as trace,
        ExitStack() as opened,
    ):
        own = kept or KeptSource()
        context = DrainContext(
            runtime=runtime,
            state=state,
            opened=opened,
            claim=claim,
            idle_wait_s=idle_wait_s,
            until=until,
            kept=own,
            stays_open=stays_open,
            is_over=is_over,
        )
        try:
            for step in STEPS_AHEAD if ahead else STEPS_OF_ANOTHER if another else STEPS:
                outcome = step(context)
                if outcome is not None:
                    if trace.is_on:
                        _trace_captured(trace, state, outcome)
                    return outcome
        except BaseException:
            own.close()  # in whatever state it is
            raise
        finally:
            if kept is None:  # before the lease is given back
                own.close()
    raise AssertionError("the last step ends a capture")


def _trace_captured(trace: StageTrace, state: PipelineState, outcome: DrainOutcome) -> None:
    """Tell of a batch that this capture made, and of none that it found."""
    batch = None if outcome.batch is None or outcome.adopted else state.batches.get(outcome.batch)
    if batch is not None:
        trace.captured(batch, closed_by=outcome.closed_by)


@dataclass(kw_only=True)
class DrainContext:
    """The values that the steps of a capture share.

    A step that opens a resource registers it in ``opened`` and sets its field for later steps.
    """

    runtime: Runtime
    state: PipelineState
    opened: ExitStack
    claim: str
    idle_wait_s: float
    until: Offset | None
    kept: KeptSource
    stays_open: Callable[[], bool] | None = None
    is_over: Callable[[str], bool] = lambda claim: False
    due: tuple[str, ...] = ()
    cursor: Cursor | None = None
    _idle: DrainOutcome | None = None
    _lease: Lease | None = None
    _source: SourceSession | None = None

    @property
    def lease(self) -> Lease:
        """The lease of the capture; ``take_lease`` sets it."""
        assert self._lease is not None
        return self._lease

    @property
    def idle(self) -> DrainOutcome:
        """The outcome of ``read_log`` if it found no batch."""
        assert self._idle is not None
        return self._idle

    @property
    def source(self) -> SourceSession:
        """The session with the source; ``open_source`` sets it."""
        assert self._source is not None
        return self._source


def take_turn(context: DrainContext) -> None:
    """Make this installation the leader of the pipeline. Raises Paused, or LeaseHeld if another installation leads."""
    context.state.pause_switch.require()
    if context.runtime.owner:
        context.state.election.become_leader(context.runtime.owner)


def find_claimed(context: DrainContext) -> DrainOutcome | None:
    """Return the batch that the first attempt of this run captured, so that a retry delivers the same one."""
    known_batch = context.state.batches.claimed(context.claim)
    return delivered_again(known_batch, "already captured by this run") if known_batch else None


def take_lease(context: DrainContext) -> None:
    """Take the lease of the only process that may capture. Raises LeaseHeld."""
    context._lease = context.opened.enter_context(context.state.replicator(wait_s=LEASE_WAIT_S))


def take_up_when_full(context: DrainContext) -> DrainOutcome | None:
    """Deliver the oldest undelivered batch instead of capturing another one if the window is full."""
    undelivered = context.state.in_window()
    if len(undelivered) < context.runtime.pipeline.window:
        return None
    taken_batch = context.state.batches.reclaim(undelivered[0], context.claim)
    return delivered_again(taken_batch, "the window is full") if taken_batch else None


def take_up_ended(context: DrainContext) -> DrainOutcome | None:
    """Deliver the oldest undelivered batches whose runs ended without them, e.g. because a person marked the run or one
    of its tasks.
    """
    state, reclaimed, over = context.state, None, {}
    for number in state.in_window():
        batch = state.batches.get(number)
        if batch is None:
            continue
        if batch.claim not in over:
            over[batch.claim] = batch.claim.startswith(AHEAD) or context.is_over(batch.claim)
        if not over[batch.claim]:
            break
        reclaimed = state.batches.reclaim(number, context.claim) or reclaimed
    return delivered_again(reclaimed, "its run is over") if reclaimed else None


def stop_when_full(context: DrainContext) -> DrainOutcome | None:
    """End the capture without a batch if the window is full, because another process captured a batch meanwhile."""
    if len(context.state.in_window()) < context.runtime.pipeline.window:
        return None
    cursor = context.state.cursor()
    assert cursor is not None
    return DrainOutcome(None, cursor.position, closed_by="the window is full")


def open_source(context: DrainContext) -> None:
    """Open the connections for queries and for the log; for a group of servers, fail over to another one if that is
    due.

    Raises SourceUnavailable, ConfigError, LostPosition.
    """
    runtime, state = context.runtime, context.state
    context._source = context.kept.of(runtime.member(state))
    if context._source is not None:
        return
    if state.cursor() is None:
        state.begin_mark_keys()
    try:
        context._source = context.kept.open(runtime.source, runtime.member(state))
    except SourceUnavailable as error:
        failover.replaced(runtime, state, context.lease, error)
        context._source = context.kept.open(runtime.source, runtime.member(state))
    failover.answered(runtime.pipeline, state)


def check_source(context: DrainContext) -> None:
    """Run the pre-flight and check that the log is the one that was captured so far.

    Raises PreflightError, LostPosition, WrongServer, CheckpointError.
    """
    context.cursor = context.state.cursor()
    if context.cursor is None:
        require_no_checkpoints(context.runtime, context.state)
    elif context.kept.is_checked and context.source.goes_on(context.cursor.position):
        return
    if context.cursor is not None:
        context.state.require_channel()
    context.source.look_again()
    context.cursor = failover.follow(context.runtime, context.state, context.lease, context.source, context.cursor)
    context.cursor = ready_or_moved(context.runtime, context.state, context.lease, context.source, context.cursor)
    context.kept.checked()


def record_dumps(context: DrainContext) -> None:
    """Record the dumps that have become due, before the state that makes them due changes."""
    due = due_dumps(context.runtime, context.state, context.source, context.cursor)
    record_due(context.runtime.pipeline, context.runtime.rules_path, context.state, context.source, due)
    remember_captured(context.runtime.store, lambda: captured_tables(context.runtime.pipeline, context.source))
    context.due = unread_dumps(context.state)


def begin_pipeline(context: DrainContext) -> None:
    """Write the cursor at the first capture of a pipeline.

    Raises LostPosition or ConfigError if the source does not have the start.
    """
    if context.cursor is None:
        start = context.source.resolve_start(context.runtime.pipeline.source.start)
        context.cursor = begin(context.runtime.pipeline, context.runtime.store, context.state, context.lease, start)


def carry_history(context: DrainContext) -> None:
    """Make sure that the cursor has a schema history that belongs to its position."""
    assert context.cursor is not None
    context.cursor = ensure_schema_history(
        context.runtime, context.state, context.lease, context.cursor, context.source
    )


def read_log(context: DrainContext) -> DrainOutcome | None:
    """Make a batch of what is new.

    What cannot be read has to stand first in its batch; what stands before it is a batch now.
    """
    assert context.cursor is not None
    try:
        outcome = _capture(context, context.cursor, context.until)
    except CaptureError as error:
        if error.whole_until is None:
            raise
        # A `sluice seek` past it leaves out nothing else.
        _log.warning("batch_closed_before_error", position=str(error.whole_until), error=str(error))
        outcome = _capture(context, context.cursor, error.whole_until)
    context._idle = replace(outcome, due=context.due)
    return None if outcome.batch is None else context._idle


def take_up_orphan(context: DrainContext) -> DrainOutcome:
    """Deliver a batch whose run is gone if the log has nothing new; otherwise return the idle outcome."""
    orphan = orphan_of(context.state, context.claim, context.runtime.pipeline.coordination.worker_grace.total_seconds())
    return delivered_again(orphan, "its run is gone") if orphan else context.idle


def find_nothing(context: DrainContext) -> DrainOutcome:
    """Return the outcome of a capture that found nothing new."""
    return context.idle


_READ = (open_source, check_source, record_dumps, begin_pipeline, carry_history, read_log)

STEPS: tuple[Callable[[DrainContext], DrainOutcome | None], ...] = (
    take_turn,
    find_claimed,
    take_lease,
    take_up_ended,
    take_up_when_full,
    *_READ,
    take_up_orphan,
)
"""The steps of a capture, in order.

The first step that has an outcome ends it; what was opened is closed after the last one.
"""

STEPS_OF_ANOTHER: tuple[Callable[[DrainContext], DrainOutcome | None], ...] = (
    take_turn,
    take_lease,
    stop_when_full,
    *_READ,
    find_nothing,
)
"""The steps of a capture of one more batch for a claim that already has some."""

STEPS_AHEAD: tuple[Callable[[DrainContext], DrainOutcome | None], ...] = (take_turn, take_lease, *_READ, find_nothing)
"""The steps of a capture that moves log into segments, whatever the targets lack."""


def begin(
    pipeline: PipelineConfig, store: SegmentStore, state: PipelineState, lease: Lease, position: Offset
) -> Cursor:
    """Write the first cursor and every target's acknowledgement.

    Numbering continues after batches that an earlier state left in the store.
    """
    last = max(store.batches(), default=0)
    _log.info("pipeline_started", pipeline=pipeline.pipeline, position=str(position), next_batch=last + 1)
    return state.begin(lease, position, last + 1, targets=[target.name for target in pipeline.targets])


def _capture(context: DrainContext, cursor: Cursor, until: Offset | None) -> DrainOutcome:
    runtime, state, lease, claim, source = context.runtime, context.state, context.lease, context.claim, context.source
    pipeline, who = runtime.pipeline, source.identity
    limits = pipeline.capture.batch
    max_wait_s = patience_s(limits.max_wait.total_seconds(), source.lag_bytes(cursor.position) or 0)
    if until is not None and until.log_epoch != cursor.position.log_epoch:
        until = None  # a position of the server before a failover means nothing in this log
    # If a clock starts the runs, each captures all there is, up to the limits of one batch.
    if pipeline.schedule != "continuous":
        until, max_wait_s = until or source.head, math.inf
    number = cursor.next_batch
    starts = snapshot_starts(runtime, state, cursor)
    for target in pipeline.targets:  # a target that was added later starts at the captured position
        if target.name not in (*starts.now, *starts.waiting):
            state.acks.begin(target.name, BatchNumber(number - 1), cursor.position)
    if starts.now or starts.again:
        return _place_snapshot(runtime, state, lease, cursor, claim, starts)

    late = dict(late_chunks(state, cursor.position))
    deferred_tables, watched = held_tables(state)
    small_files = pipeline.capture.segments.small_files
    digester = log_digester(runtime)
    place_alone = partial(_place_alone, runtime.name, runtime.store, state, lease, cursor, claim)

    def interleaver(marks: TableId | None, chunks: list[Chunk]) -> ChunkInterleaver:
        parts = (state, runtime.store, runtime.source)
        of_log = (digester, cursor.stretch)
        return ChunkInterleaver(
            *parts, marks, who.origin, chunks, deferred_tables, watched, who.dialect, small_files, *of_log
        )

    for targets, chunks in late.items():
        if targets:  # a dump for some targets has separate batches
            return place_alone(placer=interleaver(None, chunks), targets=targets, last=cursor.position)
    placer = interleaver(runtime.source.watermark_table, late.get((), []))

    schemas = SchemaStore(runtime.store)
    started = time.monotonic()
    result = source.stream(
        cursor.position,
        StreamLimits(
            max_changes=limits.max_changes,
            max_bytes=limits.max_bytes,
            max_wait_s=max_wait_s,
            idle_wait_s=context.idle_wait_s,
            max_event_bytes=pipeline.capture.max_event,
            stop_at=until,
            stays_open=context.stays_open,
        ),
        Selection.compile(pipeline.capture),
        lambda: placer.writer(number, lease.epoch),
        definitions=(lambda: schemas.load(cursor.schema, runtime.source.stored_definitions))
        if source.history is not None
        else None,
        one_reader=bool(deferred_tables or watched) or _is_numbered(runtime.mark),
        progress=CancellationGuard(state, f"draining batch {number}"),
    )
    if result.filled:  # before the position moves: nothing says it again
        note_filled(state, [target.name for target in pipeline.targets], result.filled)
    schema = None
    if result.schema is not None:
        schema = schemas.save(result.schema, result.last, lease.epoch, parent=cursor.schema)
    if result.manifest is None and placer.late:
        return place_alone(placer=placer, targets=(), last=result.last, schema=schema, partner=result.partner)
    if result.manifest is None:
        if result.last != cursor.position:
            after = _partner_batch(cursor, result.partner)
            state.advance(lease, cursor, result.last, schema=schema, partner_batch=after)
            release_delivered(runtime.source, pipeline.targets, state, source, budget=pipeline.source.slot_budget)
        return DrainOutcome(None, result.last, closed_by=result.closed_by)
    _note_partner(result.manifest, cursor, result.partner)
    manifest = placer.interleave(result.manifest)
    batch = _record(
        runtime.store,
        state,
        lease,
        cursor,
        claim,
        manifest=manifest,
        placer=placer,
        schema=schema,
        partner=result.partner,
    )
    log_batch(
        _log,
        "batch_captured",
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
    stage_notes.captured(
        runtime,
        batch=number,
        claim=claim,
        changes=batch.changes,
        size_bytes=batch.size_bytes,
        seconds=time.monotonic() - started,
    )
    return DrainOutcome(number, result.last, batch.changes, result.closed_by)


def patience_s(max_wait_s: float, behind_bytes: int) -> float:
    """Return how many seconds a batch stays open: ``max_wait`` near the head of the log, longer with a backlog, so that
    batches grow with it.
    """
    return max(max_wait_s, min(behind_bytes / _CATCH_UP_BYTES_A_SECOND, _LONGEST_S))


def _record(
    store: SegmentStore,
    state: PipelineState,
    lease: Lease,
    cursor: Cursor,
    claim: str,
    *,
    manifest: SegmentManifest,
    placer: ChunkInterleaver,
    schema: str | None,
    partner: PartnerLoads,
) -> Batch:
    """Commit the batch and the places of the dump chunks in it. This ends phase one of a batch."""
    batch = Batch(
        number=cursor.next_batch,
        epoch=lease.epoch,
        claim=claim,
        manifest=store.manifest_path(cursor.next_batch, lease.epoch),
        first=cursor.position,
        last=manifest.last,
        changes=manifest.changes,
        size_bytes=manifest.size_bytes,
        created_ms=int(time.time() * 1000),
        first_commit_time_us=manifest.first_commit_time_us,
        targets=manifest.targets,
    )
    after = _partner_batch(cursor, partner)
    state.commit(lease, cursor, batch, placer.steps(batch.number), schema=schema, partner_batch=after)
    placer.ask_again()
    placer.forget_files()
    return batch


def _place_alone(
    name: str,
    store: SegmentStore,
    state: PipelineState,
    lease: Lease,
    cursor: Cursor,
    claim: str,
    *,
    placer: ChunkInterleaver,
    targets: tuple[str, ...],
    last: Offset,
    schema: str | None = None,
    partner: PartnerLoads | None = None,
) -> DrainOutcome:
    """Record a batch of dumped rows only, because the log has nothing new or the rows are not for every target."""
    writer = placer.writer(cursor.next_batch, lease.epoch)
    writer.targets = targets
    partner = partner or PartnerLoads()
    _note_partner(writer, cursor, PartnerLoads())  # the rows may have been read before the log's marks of the partner
    now_us = time.time_ns() // 1000
    writer.finish(cursor.position, last, changes=0, first_commit_time_us=now_us, last_commit_time_us=now_us)
    manifest = placer.interleave(writer)
    batch = _record(
        store, state, lease, cursor, claim, manifest=manifest, placer=placer, schema=schema, partner=partner
    )
    _log.info(
        "chunks_placed",
        pipeline=name,
        batch=batch.number,
        changes=batch.changes,
        chunks=len(placer.plan.placements),
    )
    return DrainOutcome(batch.number, batch.last, batch.changes, "dump")


def _place_snapshot(
    runtime: Runtime, state: PipelineState, lease: Lease, cursor: Cursor, claim: str, starts: SnapshotStarts
) -> DrainOutcome:
    """Record a batch that stands for all rows of the snapshot as of the batch before it, for targets that join or else
    for those that start again.
    """
    number, targets, again = cursor.next_batch, starts.now or starts.again, not starts.now
    writer = SegmentWriter(runtime.store, number, lease.epoch)
    writer.targets, writer.snapshot, writer.snapshot_replaces = targets, number - 1, again
    _note_partner(writer, cursor, PartnerLoads())
    now_us = time.time_ns() // 1000
    manifest = writer.finish(cursor.position, cursor.position, first_commit_time_us=now_us, last_commit_time_us=now_us)
    batch = replace(record_of(runtime.store, manifest, claim), created_ms=now_us // 1000)
    begun = [
        state.acks.restarting(target, number)
        if again
        else state.beginning(target, BatchNumber(number - 1), cursor.position)
        for target in targets
    ]
    state.commit(lease, cursor, batch, begun, partner_batch=cursor.partner_batch)
    _log.info(
        "targets_started_from_snapshot", pipeline=runtime.name, batch=number, targets=", ".join(targets), again=again
    )
    if again:
        state.audit.note(by=BY_ITSELF, what="start again", details={"targets": list(targets), "batch": number})
    return DrainOutcome(number, batch.last, 0, "snapshot")


def _is_numbered(mark: LoadMark | None) -> bool:
    """Return True if loads write numbered origin markers.

    They say how far the two sites have each other's changes, so order in the log matters.
    """
    return mark is not None and mark.numbered


def _partner_batch(cursor: Cursor, partner: PartnerLoads) -> int:
    """Return the number of the partner pipeline's batch that the source held at the end of what was read."""
    return cursor.partner_batch if partner.after is None else partner.after


def _note_partner(writer: SegmentWriter, cursor: Cursor, partner: PartnerLoads) -> None:
    """Write into the batch which loads of the partner pipeline the source held at its first change, and which ones
    those loads had seen.
    """
    writer.partner_batch = cursor.partner_batch if partner.before is None else partner.before
    writer.loads_saw = partner.saw


def may_drain(runtime: Runtime) -> bool:
    """Return True if a capture would become the leader and get the lease now.

    The trigger of a standby installation polls this.
    """
    with runtime.state() as state:
        may_lead = runtime.owner is None or state.election.may_lead(runtime.owner)
        return may_lead and state.owner() is None


def head_of(runtime: Runtime) -> Offset:
    """Return the current end of the source's log. Raises LostPosition if the source keeps no log."""
    with runtime.source.open() as source:
        return source.resolve_start("latest")
