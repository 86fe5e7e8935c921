"""load: deliver batches to a target, strictly in order, each exactly once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import OutOfOrder
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.checkpoints import Sides, require_own
from sluice.flows.dump.reconcile import ReplacePart, plan_replaces
from sluice.flows.load.schema_changes import BatchDdl, plan_ddl
from sluice.flows.load.unique_keys import SourceKeys
from sluice.flows.load.units import LoadResult, plan_load, run_load_unit
from sluice.flows.runtime import Runtime
from sluice.flows.transform.stages import transform
from sluice.mapping import Mapping as Routes
from sluice.model.batches import Batch
from sluice.model.dumps import DumpState
from sluice.model.tables import TableId
from sluice.segments.changeset import Changeset, read_changeset
from sluice.targets import DdlProgress, DdlStep, Fence, Target, TargetTable, open_target

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What a load did: ``batches`` delivered (earlier ones that were missing among them), rows written, seconds."""

    target: str
    batch: int
    batches: int = 0
    upserts: int = 0
    deletes: int = 0
    seconds: float = 0.0
    already: bool = False
    dead_letters: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "batch": self.batch,
            "batches": self.batches,
            "upserts": self.upserts,
            "deletes": self.deletes,
            "seconds": round(self.seconds, 3),
            "already": self.already,
            "dead_letters": self.dead_letters,
        }


class Unprepared(OutOfOrder):
    """A batch has no changeset: nobody merged it, or a person rolled it back. :func:`prepare` makes it, after the target is free again."""


def load(runtime: Runtime, target: str, batch: int) -> LoadOutcome:
    """Bring ``target`` up to ``batch``. Batches before it that the target lacks are delivered first; one it holds is not repeated.

    The target itself says which batch it holds; its answer and its data move together, under the epoch of this process's lease.

    Raises:
        What :func:`prepare` and :func:`write` raise.
    """
    while True:
        try:
            return write(runtime, target, batch)
        except Unprepared as error:
            _log.info("preparing", pipeline=runtime.name, because=error.message)
        prepare(runtime, target, batch)


def prepare(runtime: Runtime, target: str, batch: int) -> None:
    """Make the changesets that are missing: after a rollback, or where no task did it before. What goes wrong here is no fault of the target.

    Raises:
        ConfigError, RuleError: the rules are broken. SegmentError: a segment is damaged. Paused, Restarted: a person said so.
    """
    with runtime.state() as state:
        process = state.process(target)
        if process is None:
            return
        for number in range(process.batch + 1, batch + 1):
            record = state.batch(number)
            if record is not None and record.is_for(target) and not record.changeset:
                transform(runtime, number)


def write(runtime: Runtime, target: str, batch: int) -> LoadOutcome:
    """As :func:`load`, of batches whose changesets are there.

    Raises:
        MappingError: the target lacks a table or a column. LoadError: it refused a statement. The batch stays.
        CheckpointError: what the target says it holds does not fit ZooKeeper's state.
        Fenced: another process took over. Paused, Restarted: a person said so.
    """
    started = time.monotonic()
    with runtime.state() as state:
        watch = CancellationGuard(state, f"loading batch {batch} into {target}")
        process = state.process(target)
        if process is None:  # it joined after this batch; the next drain says where it begins
            return LoadOutcome(target, batch, already=True)
        if process.batch >= batch:
            require_own(runtime, state, target, process)
            return LoadOutcome(target, batch, already=True)
        with state.consumer(target) as lease:
            loader = open_target(runtime.pipeline.target(target), runtime.resolver, runtime.name)
            held = Sides(runtime, state, target, loader).begin(lease, watch)  # may wait for a dead one's lock
            done = upserts = deletes = letters = 0
            for number in range(held + 1, batch + 1):
                results = _deliver(runtime, state, lease, watch, loader, target, number)
                upserts += sum(r.upserts for r in results)
                deletes += sum(r.deletes for r in results)
                letters += sum(r.dead_letters for r in results)
                done += 1
    outcome = LoadOutcome(target, batch, done, upserts, deletes, time.monotonic() - started, done == 0, letters)
    figures = {
        k: v for k, v in outcome.to_json().items() if k != "target"
    }  # a name that Airflow's log reader takes for its own
    _log.info("loaded", pipeline=runtime.name, consumer=target, **figures)
    return outcome


def _deliver(
    runtime: Runtime,
    state: PipelineState,
    lease: Lease,
    watch: CancellationGuard,
    loader: Target,
    target: str,
    number: int,
) -> list[LoadResult]:
    record = state.require(number)
    if not record.is_for(target):  # a dump for other targets, or a batch that a person dropped
        loader.finish_load(lease.epoch, number, record.last)
        return []
    if not record.changeset:
        raise Unprepared(
            f"batch {number} has no changeset: it was not merged, or rolled back",
            where=f"pipeline {runtime.name}",
            hint=f"clear the task merge of this run, or call `sluice run {runtime.name}`: the merge makes it",
        )
    config = runtime.pipeline.target(target)
    changeset = read_changeset(runtime.store, record.changeset)
    ddl = BatchDdl()
    if changeset.manifest.counts.get("ddl"):
        ddl = plan_ddl(runtime.store.read_manifest(record.manifest), runtime.pipeline, config)
    fence = Fence(lease.epoch, number - 1, number)
    progress = loader.ddl_progress(number) if ddl else DdlProgress()
    watch()
    _follow(watch, loader, fence, ddl.before, progress)
    results = (
        []
        if progress.rows
        else _load_rows(runtime, state, watch, lease, loader, target, record, changeset, followed=bool(ddl))
    )
    if ddl and not progress.rows:
        loader.rows_loaded(fence)
    watch()
    _follow(watch, loader, fence, ddl.behind, progress)
    loader.finish_load(lease.epoch, number, record.last)
    return results


def _follow(
    watch: CancellationGuard, loader: Target, fence: Fence, steps: Sequence[DdlStep], progress: DdlProgress
) -> None:
    """The barrier: definitions change when no row is on its way, and rows of the next batch come behind it."""
    for step in steps:
        if step.number >= progress.steps:
            watch.call(partial(loader.apply_ddl, fence, step), interrupt=loader.interrupt)


def _load_rows(
    runtime: Runtime,
    state: PipelineState,
    watch: CancellationGuard,
    lease: Lease,
    loader: Target,
    target: str,
    record: Batch,
    changeset: Changeset,
    *,
    followed: bool,
) -> list[LoadResult]:
    """Write the rows of a batch. ``followed``: by DDL, so that the acknowledgement does not go with them."""
    config, number = runtime.pipeline.target(target), record.number
    replaces = _replaces(runtime, state, loader, record, changeset, target)
    phases = plan_load(
        runtime.store,
        changeset,
        config,
        loader,
        runtime.name,
        lease.epoch,
        runtime.resolver,
        acknowledge=not followed,
        segments=record.manifest,
        copying=lambda: _copied_since(runtime, state, record, target),
        replaces=replaces,
        check=SourceKeys(runtime, state, record).check,
    )
    results: list[LoadResult] = []
    for phase in phases:
        watch()
        results += watch.run(
            runtime.runner_for(record.changes),
            run_load_unit,
            phase,
            parallelism=config.parallelism,
            description=f"{runtime.name}: load batch {number} into {target}",
            interrupt=loader.interrupt,
        )
    return results


def _replaces(
    runtime: Runtime, state: PipelineState, loader: Target, record: Batch, changeset: Changeset, target: str
) -> dict[TableId, tuple[TargetTable, tuple[ReplacePart, ...]]]:
    """What dumps that were placed in this batch found to be all there is. One that nobody asked for and that cannot be done is noted."""
    if not changeset.manifest.counts.get("replaces"):
        return {}
    records = runtime.store.read_manifest(record.manifest).replaces
    if not loader.capabilities.replaces:
        return {}
    found, left_out = plan_replaces(runtime, loader, target, records)
    for dump, why in left_out.items():
        _log.warning("dump_replaces_not", pipeline=runtime.name, consumer=target, dump=dump, because=why)
        state.dumps.add_note(dump, f"rows that the source no longer has may stay at {target}: {why}")
    return found


def _copied_since(runtime: Runtime, state: PipelineState, batch: Batch, target: str) -> frozenset[TableId]:
    """Tables of ``target`` that a dump fills which was not over when the batch was drained."""
    routes = Routes.compile(runtime.pipeline.mapping)
    found: set[TableId] = set()
    for dump in state.dumps.under_way_since(batch.created_ms):
        if dump.state is not DumpState.CANCELLED and (not dump.targets or target in dump.targets):
            found |= {routes.route(request.table).target for request in dump.tables}
    return frozenset(found)
