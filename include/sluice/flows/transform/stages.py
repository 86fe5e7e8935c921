"""transform: the stages of rules that have their own task, after the merge."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from sluice.config.engine import RuleKind
from sluice.coordination.state import PipelineState
from sluice.errors import RuleError
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.runtime import Runtime, attempt_id
from sluice.flows.stage_log import log_batch
from sluice.flows.tracing import stage_trace
from sluice.flows.transform.changeset_writer import MergeResult, write_changeset_manifest
from sluice.flows.transform.dead_letter_files import Written, forget_attempts
from sluice.flows.transform.merge import merge
from sluice.flows.transform.named_files import connections_for_files
from sluice.flows.transform.spark_rules import run_frames
from sluice.flows.transform.stage_manifest import StageManifest, read_stage, rules_of_stage, tables_of, write_stage
from sluice.flows.transform.stage_rules import StageRules, rule_totals
from sluice.flows.transform.stage_units import log_files, log_totals, plan_stage, run_stage_unit
from sluice.rules import RuleCount, RuleSet
from sluice.segments.changeset import RuleTotal, changeset_folder, read_changeset
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """The outcome of a rule's task: rows in and out; ``already``: it was done before, or the rule does not apply to
    this batch.
    """

    batch: int
    rule: str
    rows_in: int = 0
    rows_out: int = 0
    errors: int = 0
    seconds: float = 0.0
    already: bool = False
    rules: tuple[RuleTotal, ...] = ()
    """The totals of the rule and of each fused rule after it."""

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        fields = asdict(replace(self, rules=())) | {"seconds": round(self.seconds, 3)}
        del fields["rules"]
        return fields


def apply_rule(runtime: Runtime, batch: int, rule: str) -> RuleOutcome:
    """Run the stage of ``batch`` that rule ``rule`` begins, and earlier stages that are not done.

    Raises:
        RuleError: the rule is broken; the batch stays.
    """
    started = time.monotonic()
    with runtime.state() as state:
        record = state.batches.require(batch)
        if record.dropped or record.snapshot:
            return RuleOutcome(batch=batch, rule=rule, already=True)
        if not record.stages and not record.changeset:
            merge(runtime, batch)
            record = state.batches.require(batch)
        if not record.stages:
            return RuleOutcome(batch=batch, rule=rule, already=True)
        plan = read_stage(runtime.store, record.stages[0]).plan
        own_stage = next((i for i, names in enumerate(plan) if i and names[0] == rule), 0)
        if record.changeset or own_stage < len(record.stages):
            return RuleOutcome(batch=batch, rule=rule, already=True)
        totals: dict[str, RuleTotal] = {}
        for stage in range(len(record.stages), own_stage + 1):
            totals = _run_stage(runtime, state, batch, stage)
        own_total = totals.get(rule) or RuleTotal(name=rule, rows_in=0, rows_out=0, seconds=0.0)
        seconds = time.monotonic() - started
        outcome = RuleOutcome(
            batch=batch,
            rule=rule,
            rows_in=own_total.rows_in,
            rows_out=own_total.rows_out,
            errors=own_total.errors,
            seconds=seconds,
            rules=tuple(totals.values()),
        )
        log_batch(_log, "batch_ruled", pipeline=runtime.name, **outcome.to_json())
        return outcome


def transform(runtime: Runtime, batch: int) -> str:
    """Merge ``batch`` and take it through all stages that are not done; the path of its changeset."""
    with runtime.state() as state:
        changeset = merge(runtime, batch).changeset
        while not changeset:
            record = state.batches.require(batch)
            if record.dropped or record.snapshot:
                return ""
            if not record.changeset:
                _run_stage(runtime, state, batch, len(record.stages))
            changeset = state.batches.require(batch).changeset or ""
        return changeset


def _run_stage(runtime: Runtime, state: PipelineState, batch: int, stage: int) -> dict[str, RuleTotal]:
    """Run one stage and return its totals by rule."""
    record = state.batches.require(batch)
    watch = CancellationGuard(state, f"applying rules to batch {batch}")
    if record.changeset or len(record.stages) != stage:
        return {}
    store = runtime.store
    before = read_stage(store, record.stages[-1])
    first = before.plan[stage][0]
    manifest = store.read_manifest(record.manifest)
    work = _Stage(
        runtime=runtime,
        state=state,
        store=store,
        watch=watch,
        before=before,
        manifest=manifest,
        stage=stage,
        attempt=attempt_id(),
    )
    with state.reporting(f"rule.{first}"), stage_trace(runtime, f"rule.{first}") as trace:
        trace.on(record)
        try:
            results, spark = work.results(anew=record.reread)
        except RuleError:
            state.batches.stage_failed(batch)
            if record.reread or not work.has_newer_rules:
                raise
            _log.info("batch_rules_changed", pipeline=runtime.name, batch=batch, rule=first)
            results, spark = work.results(anew=True)
        totals = work.record(results, spark)
        own_total = next((total for total in totals if total.name == first), None)
        trace.passed(
            record,
            rules=totals,
            rows_in=own_total and own_total.rows_in,
            rows_out=own_total and own_total.rows_out,
            errors=own_total and own_total.errors,
            dead_letters=own_total and own_total.dead_letters,
        )
    log_totals(runtime.name, batch, totals)
    return {total.name: total for total in totals}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One attempt at a stage: ``before`` is what the stage before it left."""

    runtime: Runtime
    state: PipelineState
    store: SegmentStore
    watch: CancellationGuard
    before: StageManifest
    manifest: SegmentManifest
    stage: int
    attempt: str

    @property
    def batch(self) -> int:
        return self.manifest.batch

    @property
    def is_last(self) -> bool:
        return self.stage == len(self.before.plan) - 1

    @property
    def has_newer_rules(self) -> bool:
        """True if the rule files are others than when the batch was merged: a batch that was merged ahead need not fail
        with what is fixed by now.
        """
        rules = (rules_of_stage(self.before, self.stage, self.runtime.rules_path, anew=anew) for anew in (False, True))
        stored, now = ([(rule.config, rule.text) for rule in rules] for rules in rules)
        return now != stored

    def results(self, *, anew: bool) -> tuple[list[MergeResult], RuleCount | None]:
        """Run the stage and return its results, and the count of its Spark rule if it begins with one.

        ``anew``: with the rule files as they are now. Raises RuleError.
        """
        runtime = self.runtime
        rules = rules_of_stage(self.before, self.stage, runtime.rules_path, anew=anew)
        ruling = replace(StageRules.of(rules, runtime.pipeline, runtime.rules_path, runtime.resolver), stage=self.stage)
        tables, framed = self.before.tables, None
        if rules.rules[0].kind is RuleKind.SPARK:
            rule = rules.rules[0]
            frames = run_frames(
                runtime.runner,
                self.store,
                self.before,
                self.attempt,
                rule,
                masking=ruling.masking,
                lookups=ruling.reader(rule),
            )
            ruling = replace(ruling, rules=RuleSet(rules.rules[1:]))
            tables, framed = frames.untouched, (rule, frames)
        mapping = runtime.pipeline.mapping if self.is_last else None
        units = plan_stage(
            self.store,
            self.batch,
            tables,
            self.attempt,
            ruling=ruling,
            mapping=mapping,
            segments=self.manifest.files,
            parallelism=max(target.parallelism for target in runtime.pipeline.targets),
            framed=framed,
            memory=runtime.pipeline.spark.memory,
            connections=connections_for_files(mapping, runtime.resolver),
        )
        began = time.monotonic()
        results: list[MergeResult] = self.watch.run(
            runtime.runner_for(self.manifest.changes),
            run_stage_unit,
            units,
            description=f"{runtime.name}: rule {self.before.plan[self.stage][0]} on batch {self.batch}",
        )
        log_files(runtime.name, self.batch, results, self.store, time.monotonic() - began)
        return results, framed[1].count if framed else None

    def record(self, results: list[MergeResult], spark: RuleCount | None) -> tuple[RuleTotal, ...]:
        """Write what the stage leaves, and say so in ZooKeeper. Returns what each of its rules did."""
        letters = [letter for result in results for letter in result.dead_letters]
        counts = [count for result in results for count in result.rules]
        if spark is not None:  # the unit's count of rows that do not match the rule belongs to it
            results = [replace(r, rules=tuple(c for c in r.rules if c.name != spark.name)) for r in results]
            own_counts = [count for count in counts if count.name == spark.name]
            counts = [spark, *own_counts, *(count for count in counts if count.name != spark.name)]
        totals = rule_totals(counts, letters)
        if self.is_last:
            self._record_changeset(results, totals[:1] if spark is not None else ())
        else:
            self._record_stage(results, totals, letters)
        return totals

    def _record_changeset(self, results: list[MergeResult], spark: Sequence[RuleTotal]) -> None:
        before = self.before
        letters_before = (before.dead_letters, before.dead_letter_rows)
        changeset_manifest = write_changeset_manifest(
            self.store, self.manifest, self.attempt, results, (*before.totals, *spark), letters_before
        )
        changeset_path = (
            self.state.batches.merged(self.batch, changeset_manifest.path, under=self.watch.pause_state).changeset
            or changeset_manifest.path
        )
        forget_attempts(self.store, self.batch, read_changeset(self.store, changeset_path).manifest.dead_letters)

    def _record_stage(
        self, results: list[MergeResult], totals: Sequence[RuleTotal], letters: Sequence[Written]
    ) -> None:
        before = self.before
        passed = StageManifest(
            batch=self.batch,
            attempt=self.attempt,
            plan=before.plan,
            rules=before.rules,
            tables=tables_of(results),
            totals=(*before.totals, *totals),
            dead_letters=(*before.dead_letters, *(letter.path for letter in letters)),
            dead_letter_rows=before.dead_letter_rows + sum(letter.rows for letter in letters),
        )
        staged = write_stage(self.store, changeset_folder(self.store, self.batch, self.attempt), passed, results)
        self.state.batches.staged(self.batch, self.stage, staged, under=self.watch.pause_state)
