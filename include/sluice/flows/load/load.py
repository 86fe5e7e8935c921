"""load: deliver batches to a target, strictly in order, each exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import structlog

from sluice.config.pipeline import SNAPSHOT, TargetConfig
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import LoadError, MappingError, OutOfOrder, SegmentError, SluiceError
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.checkpoints import CheckpointCheck, require_own
from sluice.flows.dump.reconcile import plan_replaces, without_cleared
from sluice.flows.incomplete_tables import explain_absence
from sluice.flows.load.batch_changes import stored_changes
from sluice.flows.load.batch_rows import StoredRows
from sluice.flows.load.copies import request_copies
from sluice.flows.load.late_indexes import LateIndexes
from sluice.flows.load.redelivery import begin
from sluice.flows.load.schema_changes import plan_ddl
from sluice.flows.load.unique_keys import SourceKeys, changed_before_rows
from sluice.flows.load.units import batch_input, load_units, run_load_unit
from sluice.flows.log_digests import batch_digests, keeps_digests
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot.lost_batches import require_stored
from sluice.flows.snapshot.rows import note_columns, write_snapshot_rows
from sluice.flows.stage_log import log_batch
from sluice.flows.stored import definitions_at, tables_at
from sluice.flows.tracing import stage_trace
from sluice.flows.transform.stages import transform
from sluice.mapping import Mapping as Routes
from sluice.model.batches import Batch
from sluice.model.default_values import DefaultValue
from sluice.model.dialects import Dialect
from sluice.model.dumps import DumpState
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.rules import RuleSet
from sluice.segments.changeset import Changeset, read_changeset
from sluice.segments.manifest import SegmentManifest
from sluice.sources.table_filter import Selection
from sluice.sources.words import words_of
from sluice.spark.base import UnitRunner
from sluice.targets.accepted_losses import require_accepted
from sluice.targets.bundles import bundles, joined
from sluice.targets.feature_check import require_features
from sluice.targets.port import (
    BatchInput,
    BatchWriter,
    Checkpoint,
    CheckpointStore,
    ConvertsRows,
    CopiesAgain,
    Execution,
    SchemaChange,
    StoredRange,
    Target,
    TargetSession,
    WriteResult,
    marking,
)
from sluice.targets.port.digests import keeping_digests

_log = structlog.get_logger()

_YOUNG_S = 30.0
"""Seconds for which a changeset is loaded as it is at least: a merge of many batches takes its time."""


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The outcome of a load: ``batches`` delivered (including earlier ones that were missing), rows written,
    seconds.
    """

    target: str
    batch: int
    batches: int = 0
    upserts: int = 0
    deletes: int = 0
    seconds: float = 0.0
    already: bool = False
    dead_letters: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
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
    """A batch has no changeset: it was not merged, or it was rolled back. :func:`prepare` makes it, after the target is
    free again.
    """


def load(runtime: Runtime, target: str, batch: int) -> LoadOutcome:
    """Deliver to ``target`` up to ``batch``.

    Batches before it that the target lacks are delivered first; one it holds is not repeated.

    The target itself says which batch it holds; its answer and its data move together, under the epoch of this
    process's lease.

    Raises:
        What :func:`prepare` and :func:`write` raise.
    """
    while True:
        try:
            return write(runtime, target, batch)
        except Unprepared as error:
            _log.info("changeset_missing", pipeline=runtime.name, reason=error.message)
        prepare(runtime, target, batch)


def prepare(runtime: Runtime, target: str, batch: int) -> None:
    """Make the changesets that are missing: after a rollback, or where no task did it before.

    What goes wrong here is no fault of the target.

    Raises:
        ConfigError, RuleError: the rules are broken. SegmentError: a segment is damaged. Paused, Restarted: a person
            said so.
    """
    with runtime.state() as state:
        process = state.acks.get(target)
        if process is None:
            return
        for number in range(process.following, batch + 1):
            record = state.batches.get(number)
            if record is not None and record.is_for(target) and not record.changeset:
                transform(runtime, number)


def write(runtime: Runtime, target: str, batch: int) -> LoadOutcome:
    """Load as :func:`load` does, but only batches whose changesets exist.

    Raises:
        MappingError: the target lacks a table or a column.
        LoadError: the target refused a statement. The batch stays.
        LostBatches: what it lacks is no longer stored, and it starts again from the snapshot (``on_lost_batches``).
        CheckpointError: the target's checkpoint does not match ZooKeeper. If the target was restored and what it lacks
            is stored, that is loaded again.
        Fenced: another process took over.
        Paused, Restarted: a person asked for it.
    """
    started = time.monotonic()
    with runtime.state() as state, state.reporting(f"load-{target}"):
        watch = CancellationGuard(state, f"loading batch {batch} into {target}")
        process = state.acks.get(target)
        if process is None:  # it joined after this batch; the next capture decides where it starts
            return LoadOutcome(target, batch, already=True)
        if process.batch >= batch:
            require_own(runtime, state, target, process)
            return LoadOutcome(target, batch, already=True)
        with state.consumer(target) as lease, stage_trace(runtime, f"load.{target}") as trace:
            trace.on(state.batches.get(process.following) if trace.is_on else None)
            loader = runtime.open_target(target)
            check = CheckpointCheck(runtime, state, target, loader)
            target_batch = begin(runtime, state, lease, check, watch)  # may wait for the lock of a dead process
            first = require_stored(runtime, state, loader.config, target_batch, batch)
            count, total = 0, WriteResult()
            with loader.open(lease.epoch) as session:
                delivery = _Delivery(
                    runtime=runtime,
                    state=state,
                    lease=lease,
                    watch=watch,
                    target=loader,
                    session=session,
                    checkpoints=check.checkpoints,
                    held=target_batch,
                    first=first,
                    indexes=LateIndexes.of(runtime.name, loader, lease),
                )
                for bundle in delivery.bundles(batch):
                    records = [prepared.record for prepared in bundle]
                    trace.on(*records)
                    written = delivery.write(bundle)
                    trace.passed(
                        *records,
                        upserted=written.upserted,
                        appended=written.appended,
                        deleted=written.deleted,
                        rejected=written.rejected,
                    )
                    total += written
                    count += len(bundle)
    seconds = time.monotonic() - started
    outcome = LoadOutcome(
        target, batch, count, total.upserted + total.appended, total.deleted, seconds, count == 0, total.rejected
    )
    log_batch(_log, "batch_loaded", pipeline=runtime.name, **outcome.to_json())
    return outcome


@dataclass(frozen=True, slots=True)
class _Given:
    """A batch as its target is given it. ``empty``: none of it is for this target."""

    record: Batch
    batch: BatchInput
    empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    """One target, taken over, which holds batch ``held``; batches from ``first`` on are written to it in order."""

    runtime: Runtime
    state: PipelineState
    lease: Lease
    watch: CancellationGuard
    target: Target
    session: TargetSession
    checkpoints: CheckpointStore
    held: int
    first: int
    indexes: LateIndexes

    @property
    def _config(self) -> TargetConfig:
        return self.target.config

    def bundles(self, last: int) -> Iterator[list[_Given]]:
        """Yield batches up to ``last`` in runs that are written as one: one batch each, unless the target has
        ``commit_every``. Raises Unprepared.
        """
        prepared = {}

        def read(number: int) -> BatchInput:
            prepared[number] = self._read(number)
            return prepared[number].batch

        numbers = range(self.first, last + 1)
        if self._config.commit_every is None:
            yield from ([self._read(number)] for number in numbers)
            return
        for run in bundles(map(read, numbers)):
            yield [prepared.pop(batch_input.number) for batch_input in run]

    def _read(self, number: int) -> _Given:
        """Read what a batch has for the target. Raises Unprepared, and what :func:`write` raises."""
        record = self.state.batches.require(number)
        if not record.is_for(self._config.name):  # a dump for other targets, or a batch that a person dropped
            store = self.runtime.store
            rows, apart = StoredRows(store.uri, store.pipeline), bool(record.snapshot)
            nothing = BatchInput(number, record.last, self._before(number), rows, apart=apart)
            return _Given(record, nothing, empty=True)
        if record.snapshot and not record.changeset:
            record = write_snapshot_rows(self.runtime, self.state, record, self.watch)
        if not record.changeset:
            raise Unprepared(
                f"batch {number} has no changeset: it was not merged, or rolled back",
                where=f"pipeline {self.runtime.name}",
                hint=f"clear the task merge of this run, or call `sluice run {self.runtime.name}`: the merge makes it",
            )
        changeset = read_changeset(self.runtime.store, record.changeset)
        self._require_young(record, changeset)
        if self._config.name == SNAPSHOT:
            note_columns(
                self.runtime.store, self.state, RuleSet.of(self.runtime.rules_path), changeset, self.lease.epoch
            )
        given_batch = replace(self._input(record, changeset), held=self._before(number))
        if self.target.capabilities.execution is Execution.FRAME and self.runtime.mode != "local":
            given_batch = replace(given_batch, spark=SparkStatements(self.runtime.runner, self._description(record)))
        require_features(self._config, self.target.capabilities, given_batch)
        return _Given(record, given_batch)

    def _before(self, number: int) -> int:
        """Return the batch that the target holds when it gets this one."""
        return self.held if number == self.first else number - 1

    def write(self, bundle: Sequence[_Given]) -> WriteResult:
        """Write batches as one; the target holds the one before the first. Raises what :func:`write` raises.

        What the target refuses is written again batch by batch: so what precedes it arrives, and the error, or the dead
        letter, is of its own batch.
        """
        if len(bundle) > 1:
            try:
                return self._written(bundle)
            except (LoadError, MappingError) as error:
                numbers = f"{bundle[0].batch.number} to {bundle[-1].batch.number}"
                _log.warning("bundle_refused", pipeline=self.runtime.name, batches=numbers, error=str(error))
        return sum((self._written([prepared]) for prepared in bundle), WriteResult())

    def _written(self, bundle: Sequence[_Given]) -> WriteResult:
        record = bundle[-1].record
        end = Checkpoint(self.lease.epoch, record.number, record.last)
        self._keep_digests(bundle)
        given_batch = joined([prepared.batch for prepared in bundle])
        if self.indexes.left:
            self._interruptible(given_batch, partial(self.indexes.build, given_batch, before=record))
        if all(prepared.empty for prepared in bundle):
            self.checkpoints.advance(end)
            return WriteResult()
        self._say_seen(record)
        writer = self.session.begin(given_batch)
        self.watch()
        try:
            self._call(given_batch, writer.prepare)
            self._require_known_losses(given_batch)
            results = self._units(bundle, writer, given_batch)
            self.watch()
            if self.indexes.left:
                self._interruptible(given_batch, partial(self.indexes.build, given_batch))
            self._call(given_batch, partial(writer.commit, results))
        except BaseException as error:
            with suppress(SluiceError):  # the first error is the one to show
                writer.abort()
            if isinstance(error, MappingError):
                plans = [table.plan for table in given_batch.tables]
                explain_absence(self.runtime, self.state, self.target, plans, record.last, error)
            raise
        if self.target.checkpoints is None:
            self.checkpoints.advance(end)
        return sum(results, WriteResult())

    def _require_known_losses(self, given_batch: BatchInput) -> None:
        """Raise MappingError for a column of the batch that would lose values without consent. Schema changes in front
        of its rows have been made.
        """
        plans = [table.plan for table in given_batch.tables]
        if plans and not given_batch.replay:
            dialect = self.runtime.source.dialect(given_batch.position)
            again = bool(given_batch.schema_changes)
            require_known_losses(self.runtime.name, self.target, plans, dialect, again=again)

    def _keep_digests(self, bundle: Sequence[_Given]) -> None:
        """Tell the target what the batch does to the digests that it keeps. It never gets several batches as one."""
        target = keeping_digests(self.target)
        if target is None or self._config.changes == "all" or not keeps_digests(self.runtime):
            return
        [prepared] = bundle
        try:
            manifest = self.runtime.store.read_manifest(prepared.record.manifest)
        except SegmentError:
            manifest = None
        target.digests = batch_digests(manifest, prepared.record, prepared.batch, empty=prepared.empty)

    def _say_seen(self, record: Batch) -> None:
        """Set in the target's origin marker which batches of the partner pipeline the source held at this batch."""
        target = marking(self.target)
        if target is not None and target.mark is not None and target.mark.numbered:
            seen_partner_batch = self.runtime.store.read_manifest(record.manifest).partner_batch
            target.mark = replace(target.mark, seen=seen_partner_batch)

    def _require_young(self, record: Batch, changeset: Changeset) -> None:
        """Discard a changeset older than ``read_back_after``, so that its rows are read from the source again.

        Raises Unprepared.
        """
        after, made_ms = self.runtime.read_back_after, changeset.manifest.made_ms
        if after is None or not made_ms or time.time() - made_ms / 1000 <= max(after.total_seconds(), _YOUNG_S):
            return
        self.state.batches.unmerge(record.number, made=record)
        raise Unprepared(
            f"batch {record.number} was merged longer ago than read_back_after: its rows may be others by now",
            where=f"pipeline {self.runtime.name}",
            hint=f"`sluice run {self.runtime.name}` merges it again",
        )

    def _call(self, given_batch: BatchInput, work: Callable[[], None]) -> None:
        """Run ``work`` so that a person can stop it if it may take long: it may wait for a lock to change definitions,
        or for Spark.
        """
        if given_batch.schema_changes or given_batch.spark is not None:
            self._interruptible(given_batch, work)
        else:
            work()

    def _interruptible(self, given_batch: BatchInput, work: Callable[[], None]) -> None:
        self.watch.call(work, interrupt=partial(self._interrupt, given_batch))

    def _interrupt(self, given_batch: BatchInput) -> None:
        if given_batch.spark is not None:
            self.runtime.runner.cancel()
        self.target.interrupt()

    def _units(self, bundle: Sequence[_Given], writer: BatchWriter, given_batch: BatchInput) -> list[WriteResult]:
        config, record = self._config, bundle[-1].record
        if len(bundle) > 1:  # a dead letter belongs to one batch
            config = config.model_copy(update={"on_error": "stop"})
        writers = min(config.parallelism, self.target.capabilities.max_writers or config.parallelism)
        results: list[WriteResult] = []
        store = self.runtime.store
        phases = writer.plan(writers)
        self.indexes.leave_out(record, given_batch)
        for phase in load_units(phases, store, config, record.number, record.manifest):
            self.watch()
            results += self.watch.run(
                self.runtime.runner_for(sum(prepared.record.changes for prepared in bundle)),
                run_load_unit,
                phase,
                parallelism=writers,
                description=self._description(record),
                interrupt=self.target.interrupt,
            )
        return results

    def _description(self, record: Batch) -> str:
        return f"{self.runtime.name}: load batch {record.number} into {self._config.name}"

    def _input(self, record: Batch, changeset: Changeset) -> BatchInput:
        counts = changeset.manifest.counts
        changes: Sequence[SchemaChange] = ()
        if self._config.changes == "all":
            return self._every_change(record)
        if counts.get("ddl"):
            manifest = self.runtime.store.read_manifest(record.manifest)
            changes = self._schema_changes(record, manifest)
        manifest_of_target = without_cleared(self.runtime, self.target, self._config.name, changeset.manifest)
        return batch_input(
            self.runtime.store,
            replace(changeset, manifest=manifest_of_target),
            schema_changes=changes,
            reconcile=self._ranges(record, changeset) if counts.get("replaces") else (),
            facts=_Facts(self.runtime, self.state, record, self._config.name),
            routes=Routes.of(self.runtime.pipeline),
        )

    def _schema_changes(self, record: Batch, manifest: SegmentManifest) -> tuple[SchemaChange, ...]:
        runtime = self.runtime
        dialect = runtime.source.dialect(record.last)
        effects = partial(runtime.source.row_effects, record.last)
        offered = self.target.capabilities
        again = cast(CopiesAgain, self.target).copied_again if offered.copies_again else None
        otherwise = cast(ConvertsRows, self.target).converted_otherwise if offered.converts_rows else None
        schema_changes = plan_ddl(
            manifest,
            runtime.pipeline,
            self._config,
            offered,
            dialect,
            effects,
            copied_again=again,
            converted_otherwise=otherwise,
        )
        request_copies(
            runtime, self.state, self._config.name, record.number, schema_changes, may_be_gone=again is not None
        )
        return schema_changes

    def _every_change(self, record: Batch) -> BatchInput:
        """Return the batch unmerged.

        What dumps found to be complete is about tables and not about a stream of changes, so it is left out.
        """
        manifest = self.runtime.store.read_manifest(record.manifest)
        return BatchInput(
            record.number,
            record.last,
            record.number - 1,
            stored_changes(self.runtime, self._config.name, manifest, record.manifest),
            schema_changes=self._schema_changes(record, manifest),
            changes=sum(file.rows for file in manifest.files),
            facts=_Facts(self.runtime, self.state, record, self._config.name),
        )

    def _ranges(self, record: Batch, changeset: Changeset) -> list[StoredRange]:
        """Return the ranges that the snapshot, or dumps placed in this batch, replace.

        An automatic dump that cannot be done is noted.
        """
        name, of_snapshot = self._config.name, changeset.manifest.replaces
        if self.target.reconciler() is None and not of_snapshot:
            return []
        records = of_snapshot or self.runtime.store.read_manifest(record.manifest).replaces
        ranges, left_out = plan_replaces(self.runtime, self.target, name, records)
        for dump, why in left_out.items():
            _log.warning("stale_rows_kept", pipeline=self.runtime.name, target=name, dump=dump, reason=why)
            self.state.dumps.add_note(dump, f"rows that the source no longer has may stay at {name}: {why}")
        return ranges


class _Facts:
    """See :class:`sluice.targets.port.SourceFacts`."""

    def __init__(self, runtime: Runtime, state: PipelineState, batch: Batch, target: str) -> None:
        self._runtime, self._state, self._batch, self._target = runtime, state, batch, target
        self.unique_keys = SourceKeys(
            runtime.pipeline.mapping,
            lambda: definitions_at(runtime.store, runtime.source, state, batch.first),
            lambda: changed_before_rows(runtime.store.read_manifest(batch.manifest)),
        )

    def being_copied(self) -> frozenset[TableId]:
        """Return the target's tables that are filled by a dump which was not over when the batch was captured."""
        routes = Routes.of(self._runtime.pipeline)
        tables: set[TableId] = set()
        for dump in self._state.dumps.under_way_since(self._batch.created_ms):
            if dump.state is not DumpState.CANCELLED and (not dump.targets or self._target in dump.targets):
                tables |= {routes.route(request.table).target for request in dump.tables}
        return frozenset(tables)

    def captured_tables(self) -> Mapping[TableId, TableId]:
        """Return the captured tables, by the definitions at the start of the batch, and their target tables, by the
        current mapping.
        """
        pipeline = self._runtime.pipeline
        routes, selection = Routes.of(pipeline), Selection.compile(pipeline.capture)
        known_tables = tables_at(self._runtime.store, self._runtime.source, self._state, self._batch.first)
        return {table: routes.route(table).target for table in known_tables if selection.wants(table)}

    def document_name(self, pipeline: str) -> str:
        """Return the name that the runtime gives the source."""
        return self._runtime.document_name

    def column_defaults(self) -> Mapping[TableId, Mapping[str, DefaultValue]]:
        """Return the defaults of columns, by the definitions at the start of the batch and its statements."""
        runtime, batch = self._runtime, self._batch
        manifest = runtime.store.read_manifest(batch.manifest)
        words, routes = words_of(runtime.source.dialect(batch.last)), Routes.compile(runtime.pipeline.mapping)
        known_definitions = definitions_at(runtime.store, runtime.source, self._state, batch.first)
        changed = changed_before_rows(manifest, after=True)
        column_defaults: dict[TableId, dict[str, DefaultValue]] = {}
        for table in dict.fromkeys(TableId(file.schema_, file.table) for file in manifest.files):
            definition = changed.get(table) or (
                known_definitions.find(table) if known_definitions is not None else None
            )
            route = routes.route(table)
            for column in definition.columns if definition is not None else ():
                name = route.target_name(column.name)
                if column.default is not None and name is not None:
                    column_defaults.setdefault(route.target, {})[name] = words.default_value(column)
        return column_defaults


@dataclass(frozen=True, slots=True)
class SparkStatements:
    """See :class:`sluice.targets.port.StatementRunner`. ``description``: for errors."""

    runner: UnitRunner
    description: str

    def run(self, statement: str, settings: Mapping[str, str], required: Mapping[str, str]) -> None:
        """See :meth:`sluice.spark.base.UnitRunner.statement`."""
        self.runner.statement(statement, settings, required, description=self.description)


_MOST = 20_000
_accepted: Final[dict[Hashable, None]] = {}
"""The definitions that this process has found to lose nothing without consent; the oldest are forgotten first."""


def require_known_losses(
    pipeline: str, target: Target, plans: Sequence[PlannedTable], dialect: Dialect, *, again: bool
) -> None:
    """Raise MappingError for a column that would lose values without the pipeline file's accepting it.

    The target is asked once for each definition of a table, and ``again`` after it followed a schema change.
    """
    keys = {_definition(pipeline, target, plan): plan for plan in plans}
    new = {key: plan for key, plan in keys.items() if again or key not in _accepted}
    schema = target.schema() if new else None
    if schema is not None:
        wanted_plans = [replace(plan, dialect=dialect) for plan in new.values()]
        require_accepted(target.config, wanted_plans, schema.compare(wanted_plans))
    _accepted.update(dict.fromkeys(new))
    while len(_accepted) > _MOST:
        del _accepted[next(iter(_accepted))]


def _definition(pipeline: str, target: Target, plan: PlannedTable) -> Hashable:
    config = target.config
    options = repr(sorted(config.options.items()))
    columns = tuple((column.name, column.sql_type, column.type, column.key, column.nullable) for column in plan.columns)
    return pipeline, config.name, config.servers, config.accept_loss, options, plan.source, plan.target, columns
