"""adopt: a person decides which side counts if a target and ZooKeeper do not match (see
:mod:`sluice.flows.checkpoints`).

``from-target``: the target is right about its rows. The log is read again from its position, and batch numbers continue
from ZooKeeper's. ``reset``: ZooKeeper is right, or the target gets a new copy. The target's checkpoint is overwritten;
what that leaves out is said before.

The order of the steps makes a half-done adoption an error again, not a loss: the captured position moves first, the
target's row last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.cursor import Cursor
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError
from sluice.flows.checkpoints import CheckpointCheck
from sluice.flows.runtime import Runtime
from sluice.model.batches import BatchNumber
from sluice.model.offset import Offset
from sluice.operations.plan import ActionPlan
from sluice.targets.port import Checkpoint
from sluice.targets.registry import equal_again


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The state to set: the target holds ``batch``, which ends at ``position``; captured to ``captured`` (None:
    unchanged).
    """

    batch: int
    position: Offset
    captured: Offset | None
    steps: tuple[str, ...]


def adopt(runtime: Runtime, target: str, *, from_target: bool, by: str, reason: str, dry_run: bool) -> ActionPlan:
    """Make ZooKeeper and ``target`` agree: as the target says (``from_target``), or as ZooKeeper says.

    Raises:
        ConfigError: the target says no position to read on from. LostPosition, WrongServer: the source does not have
            that position any more.
    """
    runtime.pipeline.target(target)  # raises if there is none
    with runtime.state() as state:
        check = CheckpointCheck(runtime, state, target)
        checkpoint, cursor = check.checkpoints.read(), state.cursor()
        agree = check.disagreement(checkpoint) is None
        versioned = check.loader.capabilities.keeps_versions  # a table may be set back, which no checkpoint tells
        if agree and (from_target or not versioned or checkpoint is None):
            return ActionPlan(
                "adopt",
                (f"target {target} and {runtime.keeper} agree: there is nothing to do ({check.describe(checkpoint)})",),
            )
        before = check.describe(checkpoint)
        if from_target:
            goal: _Wanted | None = _as_the_target_says(runtime, state, check, checkpoint, cursor)
        else:
            goal = _as_zookeeper_says(state, check, checkpoint, cursor)
        if goal is None:
            steps: tuple[str, ...] = (
                f"what target {target} says about {runtime.name} is removed; its rows stay",
                f"the next capture begins at source.start ({_start(runtime.pipeline)}): changes between "
                f"{(checkpoint and checkpoint.position) or 'what it holds'} and there are NOT delivered, unless that "
                "is a dump",
            )
        else:
            steps = goal.steps
            if agree:
                steps += ("a table that was set back goes on as it is: what its commits noted no longer counts",)
        plan = ActionPlan("adopt", (f"now: {before}", *steps))
        if dry_run:
            return plan
        state.pause_switch.set(open_=None, by=by, reason="adopt")  # processes at work start again
        if goal is None:
            state.acks.forget(target)
            state.forget_batches()
            check.checkpoints.forget()
        else:
            _write(runtime.pipeline, state, check, checkpoint, goal)
        how = "from-target" if from_target else "reset"
        state.audit.note(
            by=by,
            what="adopt",
            details={"target": target, "how": how, "reason": reason, "before": before, "plan": list(steps)},
        )
    return plan


def _start(pipeline: PipelineConfig) -> str:
    start: Any = pipeline.source.start
    return start if isinstance(start, str) else str(start)


def _as_the_target_says(
    runtime: Runtime, state: PipelineState, check: CheckpointCheck, checkpoint: Checkpoint | None, cursor: Cursor | None
) -> _Wanted:
    name, target = runtime.name, check.target
    if checkpoint is None or checkpoint.position is None:
        raise ConfigError(
            f"target {target} has no stored position to continue from",
            where=check.describe(checkpoint),
            hint=f"`sluice adopt {name} {target} --reset` goes on as {runtime.keeper} says",
        )
    position = checkpoint.position
    with runtime.source.open() as source:
        source.require_ready(position)
    if cursor is None:
        last = max([checkpoint.batch, *runtime.store.batches(), *state.batches.numbers()])
        return _Wanted(
            last,
            position,
            position,
            (
                f"the pipeline goes on: captured to {position}, where target {target} is; the next batch is {last + 1}",
                f"target {target} counts as holding batch {last}; nothing of the log is left out",
                *_of_others(runtime.pipeline, target),
            ),
        )
    alone = len(runtime.pipeline.targets) == 1
    same = cursor.position.log_epoch == position.log_epoch
    captured = position if alone or (same and position.order < cursor.position.order) else None
    last = cursor.next_batch - 1
    steps = [
        f"captured position: {cursor.position} -> {captured}: the log is read again from where target {target} is"
        if captured is not None
        else f"captured position: {cursor.position}, as it is: that is no later than {position}, where target "
        f"{target} is"
    ]
    if captured is None or position.order < cursor.position.order:
        steps.append(
            "changes that a target has already come again, and leave it as it is; in a table without a key rows may "
            "come twice"
        )
    waiting = [number for number in state.undelivered() if check.process is None or number > _own_batch(state, check)]
    if waiting:
        steps.append(
            f"batches {waiting[0]} to {waiting[-1]} are not loaded into {target}: their changes are read again from "
            f"the log; rows of dumps in them are not (`sluice dump list {name}`): start those anew"
        )
    steps.append(f"target {target} counts as holding batch {last}, and goes on with batch {last + 1}")
    return _Wanted(last, position, captured, tuple(steps))


def _as_zookeeper_says(
    state: PipelineState, check: CheckpointCheck, checkpoint: Checkpoint | None, cursor: Cursor | None
) -> _Wanted | None:
    if cursor is None:
        return None
    target, batch = check.target, _own_batch(state, check)
    process = check.process
    if process is not None and batch == process.batch:
        position = process.position
    else:
        following = state.batches.get(batch + 1)
        position = following.first if following else cursor.position
    steps = [f"target {target} counts as holding batch {batch}, up to {position}; it goes on with batch {batch + 1}"]
    other_offset, copy = checkpoint.position if checkpoint else None, equal_again(check.runtime.pipeline, target)
    if other_offset is None or other_offset.log_epoch != position.log_epoch:
        steps.append(f"changes before {position} that its tables lack are NOT delivered: {copy} copies its tables anew")
    elif other_offset.order < position.order:
        steps.append(
            f"changes between {other_offset}, where it says it is, and {position} are NOT delivered: {copy} "
            "copies its tables anew"
        )
    elif other_offset.order > position.order:
        steps.append(
            f"changes between {position} and {other_offset}, where it says it is, are delivered again; in a table "
            "without a key rows may come twice"
        )
    return _Wanted(batch, position, None, tuple(steps))


def _own_batch(state: PipelineState, check: CheckpointCheck) -> int:
    """Return the last batch of this state that the target has acknowledged; if there is none, the one before the first
    known batch.
    """
    process, cursor, identity = check.process, state.cursor(), state.identity()
    last = cursor.next_batch - 1 if cursor else 0
    if process is not None and process.identity in {"", identity} and process.batch <= last:
        return process.batch
    others = [p.batch for p in map(state.acks.get, state.targets) if p and p.identity == identity and p.batch <= last]
    numbers = [number for number in state.batches.numbers() if number <= last]
    return min(others) if others else numbers[0] - 1 if numbers else last


def _of_others(pipeline: PipelineConfig, target: str) -> tuple[str, ...]:
    names = [config.name for config in pipeline.targets if config.name != target]
    if not names:
        return ()
    return (
        f"{', '.join(names)}: `sluice check {pipeline.pipeline}` says then whether they agree, and their own `sluice "
        "adopt` lets them join",
    )


def _write(
    pipeline: PipelineConfig,
    state: PipelineState,
    check: CheckpointCheck,
    checkpoint: Checkpoint | None,
    goal: _Wanted,
) -> None:
    target = check.target
    if goal.captured is not None:
        with state.replicator() as lease:
            cursor = state.cursor()
            if cursor is None:
                for config in pipeline.targets:
                    state.acks.forget(config.name)  # it belongs to the deleted state
                state.begin(lease, goal.captured, goal.batch + 1)
            else:
                state.advance(lease, cursor, goal.captured, schema="", jumps=True)
    with state.consumer(target, above=checkpoint.epoch if checkpoint else 0) as lease:
        began = goal.batch if check.process is None else min(check.process.began, goal.batch)
        held_checkpoint = Checkpoint(lease.epoch, goal.batch, goal.position, state.identity())
        check.checkpoints.rewind(held_checkpoint, anew=True)
        state.acks.adopt(lease, target, BatchNumber(goal.batch), goal.position, began)
