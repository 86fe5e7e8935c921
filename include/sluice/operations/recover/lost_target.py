"""The targets: does each of them hold what ZooKeeper says was delivered? If not, how it gets there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.state import PipelineState
from sluice.errors import CheckpointError, SegmentError, SluiceError
from sluice.flows.checkpoints import CheckpointCheck
from sluice.flows.runtime import Runtime
from sluice.flows.stored import known_again, lost_segment
from sluice.model.batches import Batch
from sluice.operations import control
from sluice.operations.adopt import adopt
from sluice.operations.check import apply_missing
from sluice.operations.copy_plan import planned_copies
from sluice.operations.recover.copies import Replacement, copy, cost_of, replacement, rows_of
from sluice.operations.recover.plan import Measure, Question, StoreFinding


def look_at_target(
    runtime: Runtime, state: PipelineState, target: str, by: str
) -> tuple[list[StoreFinding], list[Measure], list[Question]]:
    """Compare a target with ZooKeeper. ``by``: who asks, for the audit."""
    try:
        check = CheckpointCheck(runtime, state, target)
        checkpoint = check.read()
    except CheckpointError as error:
        return _disagreeing(runtime, state, target, error, by)
    except SluiceError as error:
        return [StoreFinding(target, "warning", error.message)], [], []
    sentence = f"holds batch {checkpoint.batch}, up to {checkpoint.position}" if checkpoint else "holds nothing yet"
    return [StoreFinding(target, "ok", f"{sentence}; {check.checkpoints.place}")], [], []


def _disagreeing(
    runtime: Runtime, state: PipelineState, target: str, error: CheckpointError, by: str
) -> tuple[list[StoreFinding], list[Measure], list[Question]]:
    finding = StoreFinding(target, "loss", error.message)
    stored = _stored(runtime, state, target)
    if error.kind == "behind" and error.restored and stored:
        return [finding], [_redelivered(runtime, target, stored, by)], []
    choices: dict[str, Measure] = {}
    if error.kind in {"behind", "gone"} and stored:
        choices["redeliver"] = _redelivered(runtime, target, stored, by)
    choices["copy"] = _copied(runtime, state, target, by)
    verify = f"sluice verify {runtime.name} --target {target} --repair"
    choices["verify"] = Measure(
        target,
        (
            f"target {target} goes on as {runtime.keeper} says",
            f"afterwards, with the pipeline running, `{verify}` finds the rows that differ and makes them equal",
        ),
        partial(_adopt, runtime, target, by),
        cost="one comparison of all rows on both sides",
        lost=_stream(runtime.pipeline, target),
        after=verify,
    )
    plan = _from_target(runtime, target, by) if error.kind != "edited" else None
    if plan is not None:
        choices["from-target"] = plan
    why = f"{_WHY.get(error.kind, _WHY[''])}; what it holds is not guessed"
    return [finding], [], [Question(target, why, choices)]


_WHY = {
    "gone": "it says nothing of what it holds: its checkpoint was removed, or an empty target took its place",
    "behind": "it says that it holds less than was acknowledged, and the missing batches are not stored, or its "
    "checkpoint was edited",
    "edited": "its checkpoint was edited",
    "": "what it says does not fit the state of the pipeline: one of the two was restored, edited or replaced",
}


def _stored(runtime: Runtime, state: PipelineState, target: str) -> list[Batch]:
    """Return the batches from the one the target holds to the acknowledged one, if all of them are complete; otherwise
    none.
    """
    process = state.acks.get(target)
    if process is None:
        return []
    check = CheckpointCheck(runtime, state, target)
    checkpoint = check.checkpoints.read()
    held_batch = checkpoint.batch if checkpoint else process.began
    batches = []
    for number in range(held_batch + 1, process.batch + 1):
        try:
            batch = known_again(runtime.state, runtime.store, target, number)
        except SegmentError:
            return []
        if not batch.dropped and lost_segment(runtime.store, batch):
            return []
        batches.append(batch)
    return batches


def _redelivered(runtime: Runtime, target: str, batches: list[Batch], by: str) -> Measure:
    first, last = batches[0].number, batches[-1].number
    changes = sum(batch.changes for batch in batches)
    return Measure(
        target,
        (f"batches {first} to {last} are loaded into {target} again, in order, from the segments",),
        lambda: _done(control.redeliver(runtime, target, by=by, dry_run=False)),
        cost=f"{len(batches)} batches, {changes:,} changes are loaded",
    )


def _copied(runtime: Runtime, state: PipelineState, target: str, by: str) -> Measure:
    removal = Replacement(("rows that the source does not have are removed where the target can",))
    try:
        with runtime.source.open() as source:
            tables = rows_of(runtime.pipeline, source)
            cost, removal = cost_of(tables), replacement(runtime, source, tables, (target,))
    except SluiceError as error:
        cost = f"a copy of all tables (the source was not asked: {error.message})"
    return Measure(
        target,
        (
            f"tables that {target} lacks are made",
            f"target {target} goes on as {runtime.keeper} says, and every captured table is copied to it anew",
            *removal.steps,
        ),
        partial(_copy, runtime, state, target, by),
        cost=cost,
        lost=_stream(runtime.pipeline, target),
        after=removal.after,
        left=removal.left,
    )


def _copy(runtime: Runtime, state: PipelineState, target: str, by: str) -> None:
    """Create missing tables, record a copy and adopt the target.

    Until the sides agree nothing is loaded, so that a crash repeats it all.
    """
    copies = [planned_copy for planned_copy in planned_copies(runtime)[0] if planned_copy.target == target]
    statements = [r.statement for copy in copies for r in copy.remarks if r.severity == "error" and r.statement]
    apply_missing(runtime, [(target, statement) for statement in dict.fromkeys(statements)])
    cursor = state.cursor()
    number = cursor.next_batch if cursor else 0
    with runtime.source.open() as source:
        copy(runtime, state, source, None, f"recover-{target}-{number:010d}", targets=(target,))
    _adopt(runtime, target, by)


def _adopt(runtime: Runtime, target: str, by: str) -> None:
    adopt(runtime, target, from_target=False, by=by, reason="recover", dry_run=False)


def _from_target(runtime: Runtime, target: str, by: str) -> Measure | None:
    """Return the measure that reads the log again from the target's position; None if that is impossible."""
    try:
        plan = adopt(runtime, target, from_target=True, by=by, reason="recover", dry_run=True)
    except SluiceError:
        return None
    act: Callable[[], None] = lambda: _done(  # noqa: E731
        adopt(runtime, target, from_target=True, by=by, reason="recover", dry_run=False)
    )
    return Measure(target, plan.steps[1:], act, cost="the log from there is read again")


def _done(_: object) -> None:
    """Drop the result of a step, as a measure has none."""


def _stream(pipeline: PipelineConfig, target: str) -> tuple[str, ...]:
    if pipeline.target(target).changes != "all":
        return ()
    return (f"{target} (changes: all): the single changes that it lacks; a copy has only the rows as they are now",)
