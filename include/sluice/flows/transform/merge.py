"""merge: a batch becomes a changeset: one row per key, rules applied, columns mapped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from sluice.config.engine import OnError
from sluice.coordination.state import PipelineState
from sluice.errors import SegmentError
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.mapped_names import require_known_names, warn_of_options
from sluice.flows.runtime import Runtime, attempt_id
from sluice.flows.stage_log import log_batch
from sluice.flows.stored import definitions_at
from sluice.flows.tracing import stage_trace
from sluice.flows.transform.changeset_writer import MergeResult, write_changeset_manifest
from sluice.flows.transform.column_changes import plan_columns
from sluice.flows.transform.dead_letter_files import forget_attempts
from sluice.flows.transform.merge_units import plan_merge, plan_pieces, run_merge_unit
from sluice.flows.transform.read_back import plan_read_back
from sluice.flows.transform.repair import Repaired, note_repaired, plan_repair
from sluice.flows.transform.segment_rows import MergePart, cut, shares
from sluice.flows.transform.shuffle import LEVELS, can_shuffle, delete_shuffled, plan_shuffle, run_shuffle_unit
from sluice.flows.transform.stage_manifest import StageManifest, read_stage, stages_of, stored, tables_of, write_stage
from sluice.flows.transform.stage_rules import cleared_tables, rule_totals
from sluice.flows.transform.stage_units import log_files, log_totals
from sluice.model.batches import Batch
from sluice.model.definitions import Definitions
from sluice.model.packing import ROW_BYTES, most_bytes
from sluice.model.tables import KEY_BUCKETS, TableId
from sluice.rules import RuleSet
from sluice.segments.changeset import RuleTotal, changeset_damage, changeset_folder, damage, read_changeset
from sluice.segments.manifest import SegmentFile, SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.sources.table_filter import Selection
from sluice.spark.base import UnitRunner
from sluice.targets.registry import names_copies

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """The outcome of a merge: ``changes`` rows in, ``rows`` out, in ``units`` work units; ``already``: it was merged
    before.

    ``changeset`` is empty while rules with their own task have yet to run.
    """

    batch: int
    changeset: str
    changes: int = 0
    rows: int = 0
    units: int = 0
    seconds: float = 0.0
    already: bool = False
    rules: tuple[RuleTotal, ...] = ()
    """The total of each fused rule; a task's log has a line for each."""

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        return {
            "batch": self.batch,
            "changeset": self.changeset,
            "changes": self.changes,
            "rows": self.rows,
            "units": self.units,
            "seconds": round(self.seconds, 3),
            "already": self.already,
        }


def merge(runtime: Runtime, batch: int) -> MergeOutcome:
    """Merge batch number ``batch``.

    Two merges of one batch may run; the first to end is kept, the other's files are orphans.

    A changeset that is there is looked through; one that is damaged is made anew, with the rules as they are now.

    Raises:
        RuleError: a rule is broken; the batch stays. MappingError: the mapping names a column that there is not.
        SegmentError: a segment is damaged.
        Paused, Restarted: a person said so.
    """
    started = time.monotonic()
    with (
        runtime.state() as state,
        state.reporting("merge"),
        names_copies(runtime.pipeline),
        stage_trace(runtime, "merge") as trace,
    ):
        record = state.batches.require(batch)
        watch = CancellationGuard(state, f"merging batch {batch}")
        store = runtime.store
        if record.dropped or record.snapshot:  # rows of a snapshot are merged, and the load of their targets reads them
            return MergeOutcome(batch=batch, changeset="", already=True)
        if record.changeset or record.stages:
            lost = _damage(store, record) if batch > state.delivered() else ""
            if not lost:
                return MergeOutcome(batch=batch, changeset=record.changeset or "", already=True)
            _log.warning("changeset_damaged", pipeline=runtime.name, batch=batch, file=lost)
            state.batches.unmerge(batch, made=record)
        trace.on(record)
        manifest = store.read_manifest(record.manifest)
        require_known_names(runtime, state, manifest)
        warn_of_options(runtime, state)
        rules = RuleSet.of(runtime.rules_path)
        rules.validate()
        merged = _Merge(
            runtime=runtime, state=state, store=store, watch=watch, manifest=manifest, attempt=attempt_id(), rules=rules
        ).run()
        outcome = replace(merged, seconds=time.monotonic() - started)
        trace.passed(record, rules=outcome.rules, changes=outcome.changes, rows=outcome.rows, units=outcome.units)
        log_batch(_log, "batch_merged", pipeline=runtime.name, **outcome.to_json())
        return outcome


_Recorded = tuple[str, int, Sequence[RuleTotal]]
"""Path of the changeset ("": there is none yet), rows, and what each rule did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """One attempt to merge a batch."""

    runtime: Runtime
    state: PipelineState
    store: SegmentStore
    watch: CancellationGuard
    manifest: SegmentManifest
    attempt: str
    rules: RuleSet

    def run(self) -> MergeOutcome:
        """Merge, and record what came of it."""
        stages = stages_of(self.rules)
        units, results = self._results(stages)
        last = len(stages) == 1
        path, rows, totals = self._record_changeset(results) if last else self._record_stage(stages, results)
        log_totals(self.runtime.name, self.manifest.batch, totals)
        manifest = self.manifest
        return MergeOutcome(
            batch=manifest.batch, changeset=path, changes=manifest.changes, rows=rows, units=units, rules=tuple(totals)
        )

    def _results(self, stages: list[RuleSet]) -> tuple[int, list[MergeResult]]:
        """Run the merge; return the number of units and their results."""
        runtime, manifest = self.runtime, self.manifest
        runner = runtime.runner_for(manifest.changes)

        def definitions() -> Definitions | None:
            return definitions_at(self.store, runtime.source, self.state, manifest.first)

        repair = plan_repair(
            runtime.loads,
            runtime.pipeline.masked,
            self.store,
            self.state,
            manifest,
            merged=lambda number: merge(runtime, number),
            definitions=definitions,
        )
        # Shuffled rows no longer say who wrote them, or which columns each change changed.
        columns = plan_columns(runtime.pipeline, runtime.mark, manifest, definitions)
        levels = LEVELS if (repair is None or repair.loops_back) and not columns else 0
        pieces, shuffled = _small_enough(
            runtime, self.watch, runner, manifest, self.attempt, levels, shared=repair is None and not columns
        )
        repair = None if shuffled else repair
        units = plan_merge(
            self.store,
            manifest,
            runtime.pipeline,
            runtime.rules_path,
            self.attempt,
            resolver=runtime.resolver,
            rules=stages[0],
            last=len(stages) == 1,
            pieces=pieces,
            read_back=plan_read_back(runtime, self.state, manifest),
            repair=repair,
            columns=columns,
            clears=self._clears(definitions),
        )
        description, began = f"{runtime.name}: merge batch {manifest.batch}", time.monotonic()
        results: list[MergeResult] = self.watch.run(runner, run_merge_unit, units, description=description)
        delete_shuffled(self.store, shuffled)
        log_files(runtime.name, manifest.batch, results, self.store, time.monotonic() - began)
        if repair is not None:
            note_repaired(self.store, repair, manifest.batch, sum((result.repaired for result in results), Repaired()))
        if read := sum(result.read_back for result in results):
            _log.info("rows_reselected", pipeline=runtime.name, batch=manifest.batch, rows=read)
        return len(units), results

    def _clears(self, definitions: Callable[[], Definitions | None]) -> frozenset[TableId]:
        """See :func:`sluice.flows.transform.stage_rules.cleared_tables`; only tables that a dump read are looked at."""
        read = {file.table_id for file in self.manifest.files if file.reads}
        if not any(self.rules.matching(table).rules for table in read):
            return frozenset()
        known_definitions, selection = definitions(), Selection.compile(self.runtime.pipeline.capture)
        captured = read | {
            table
            for table in (known_definitions.tables if known_definitions is not None else ())
            if selection.wants(table)
        }
        in_channel = self.runtime.membership is not None
        return cleared_tables(self.runtime.pipeline, self.rules, read, captured, in_channel=in_channel)

    def _record_changeset(self, results: list[MergeResult]) -> _Recorded:
        """Record the finished changeset of a batch whose rules have no task of their own."""
        store, batch = self.store, self.manifest.batch
        changeset = write_changeset_manifest(store, self.manifest, self.attempt, results)
        kept_batch = self.state.batches.merged(batch, changeset.path, under=self.watch.pause_state)
        path = kept_batch.changeset or changeset.path
        rejects = any(
            files.on_missing == "dead_letter" for line in self.runtime.pipeline.mapping for files in line.files
        )
        if rejects or any(rule.config.on_error is OnError.DEAD_LETTER for rule in self.rules):
            forget_attempts(store, batch, read_changeset(store, path).manifest.dead_letters)
        return path, changeset.rows, changeset.manifest.rules

    def _record_stage(self, stages: list[RuleSet], results: list[MergeResult]) -> _Recorded:
        """Record the input of the first rule that has its own task."""
        store, batch = self.store, self.manifest.batch
        passed = _passed_on(self.attempt, batch, stages, self.rules, results)
        staged = write_stage(store, changeset_folder(store, batch, self.attempt), passed, results)
        self.state.batches.staged(batch, 0, staged, under=self.watch.pause_state)
        return "", sum(result.rows for result in results), passed.totals


def _damage(store: SegmentStore, record: Batch) -> str:
    """Return the path of a damaged or missing file of an earlier merge, "" if all are whole.

    A batch that every target has is not looked at: its files may have been removed.
    """
    if record.changeset:
        return changeset_damage(store, record.changeset)
    try:
        stage = read_stage(store, record.stages[-1])
    except SegmentError:
        return record.stages[-1]
    return damage(store, (file for table in stage.tables for file in table.files))


def _small_enough(
    runtime: Runtime,
    watch: CancellationGuard,
    runner: UnitRunner,
    manifest: SegmentManifest,
    attempt: str,
    levels: int,
    *,
    shared: bool,
) -> tuple[list[MergePart], list[SegmentFile]]:
    """Return the parts of the batch, and the files of parts too large for a process that were shuffled up to ``levels``
    times.

    ``shared``: parts that are a little too large are read by several units, each of which takes a share of the keys.
    """
    store, pipeline = runtime.store, runtime.pipeline
    most = most_bytes(pipeline.spark.memory)
    pieces, shuffled_files = plan_pieces(store, manifest, pipeline), list[SegmentFile]()
    if shared:
        pieces = [some for piece in pieces for some in shares(piece, most)]
    for level in range(levels):
        large = [piece for piece in pieces if piece.size_bytes > most and can_shuffle(piece)]
        if not large:
            break
        planned = plan_shuffle(store, manifest.batch, attempt, large, level)
        _log.info("batch_shuffle_started", pipeline=runtime.name, batch=manifest.batch, parts=len(large))
        description = f"{runtime.name}: spread large tables of batch {manifest.batch}"
        written = watch.run(
            runner, run_shuffle_unit, [unit for own_units in planned for unit in own_units], description=description
        )
        shuffled_files += [file for files in written for file in files]
        pieces = [piece for piece in pieces if piece not in large]
        for piece, own_units in zip(large, planned, strict=True):
            files = tuple(file for files in written[: len(own_units)] for file in files)
            del written[: len(own_units)]
            if not files:  # all changes were undone within the batch
                continue
            anew = MergePart(piece.source, files, (0, KEY_BUCKETS), (), piece.segments or piece.files)
            pieces += cut(anew, most // ROW_BYTES // 2)
    return pieces, shuffled_files


def _passed_on(
    attempt: str, batch: int, stages: list[RuleSet], rules: RuleSet, results: list[MergeResult]
) -> StageManifest:
    """Return what the merge leaves for the first rule that has its own task."""
    letters = [letter for result in results for letter in result.dead_letters]
    return StageManifest(
        batch=batch,
        attempt=attempt,
        plan=tuple(tuple(rule.name for rule in stage) for stage in stages),
        rules=stored(rules),
        tables=tables_of(results),
        totals=rule_totals((c for r in results for c in r.rules), letters),
        dead_letters=tuple(letter.path for letter in letters),
        dead_letter_rows=sum(letter.rows for letter in letters),
    )
