"""recover: look at all four stores, plan, and carry it out.

Each measure ends in a state from which the next look continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from sluice.coordination.cursor import Cursor
from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.flows.runtime import Runtime
from sluice.model.batches import Batch, BatchNumber
from sluice.operations.recover.lost_source import look_at_source
from sluice.operations.recover.lost_state import RebuiltState, look_at_zookeeper
from sluice.operations.recover.lost_target import look_at_target
from sluice.operations.recover.plan import Measure, Question, RecoveryPlan, StoreFinding
from sluice.operations.recover.segments import look_at_segments

_log = structlog.get_logger()

_LOOKS = 20
"""Measures that are taken one after the other, at most; after each one fewer losses are found."""


def recover(runtime: Runtime, answers: Mapping[str, str], *, by: str, dry_run: bool) -> RecoveryPlan:
    """Return the recovery plan; without ``dry_run`` it is carried out.

    Args:
        answers: what a person chose (subject -> choice).
        by: who asks, for the audit.

    Raises:
        ConfigError: a question is open, or an answer is not one of its choices.
        LeaseHeld: another process works on the pipeline.
        What a measure raises; the measures before it stay done, and a second call does the rest.
    """
    with runtime.state() as state:
        plan = look(runtime, state, answers, by=by).answered(answers)
        if dry_run or plan.whole:
            return plan
        plan.require_answers()
        state.pause_switch.set(open_=None, by=by, reason="recover")  # processes at work start again
        measures: list[Measure] = []
        remaining_plan = plan
        for _ in range(_LOOKS):
            if not remaining_plan.measures or remaining_plan.measures[0] in measures:
                break
            _do(runtime.name, state, remaining_plan.measures[0], by)
            measures.append(remaining_plan.measures[0])
            remaining_plan = look(runtime, state, answers, by=by).answered(answers)
            remaining_plan.require_answers()
        return RecoveryPlan(plan.pipeline, plan.findings, tuple(measures))


def _do(name: str, state: PipelineState, measure: Measure, by: str) -> None:
    _log.info("recovery_started", pipeline=name, subject=measure.subject, steps=list(measure.steps))
    measure.act()
    details = {"subject": measure.subject, "plan": list(measure.steps), "lost": list(measure.lost)}
    state.audit.note(by=by, what="recover", details=details)


def look(runtime: Runtime, state: PipelineState, answers: Mapping[str, str], *, by: str) -> RecoveryPlan:
    """Look at each store and plan what would be done; writes nothing.

    ``answers``: some choices lead to questions about other stores, so they are needed here.
    """
    findings, measures, questions, rebuilt = look_at_zookeeper(runtime, state, answers)
    cursor = _cursor(state, rebuilt)
    for answer in (
        look_at_source(
            runtime, state, cursor.position if cursor and not questions else None, rebuilt.member if rebuilt else ""
        ),
        _segments(runtime, state, cursor, rebuilt) if not questions else ([], [], []),
    ):
        findings += answer[0]
        measures += answer[1]
        questions += answer[2]
    for target in runtime.pipeline.targets:
        if rebuilt is not None or (questions and cursor is None):
            continue  # the targets define where ZooKeeper's state starts, and match it afterwards
        own = look_at_target(runtime, state, target.name, by)
        findings += own[0]
        measures += own[1]
        questions += own[2]
    return RecoveryPlan(runtime.name, tuple(findings), tuple(measures), tuple(questions))


def _cursor(state: PipelineState, rebuilt: RebuiltState | None) -> Cursor | None:
    if rebuilt is not None:
        return Cursor(rebuilt.position, BatchNumber(rebuilt.next_batch))
    return state.cursor()


def _segments(
    runtime: Runtime, state: PipelineState, cursor: Cursor | None, rebuilt: RebuiltState | None
) -> tuple[Sequence[StoreFinding], Sequence[Measure], Sequence[Question]]:
    if cursor is None:
        return (), (), ()
    known_batches: Sequence[Batch] = [batch for batch in map(state.batches.get, state.undelivered()) if batch]
    records = known_batches if rebuilt is None else rebuilt.batches
    try:
        return *look_at_segments(runtime, state, cursor, records), ()
    except SluiceError as error:
        return (StoreFinding("segments", "warning", error.message),), (), ()
