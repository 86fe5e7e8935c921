"""Switch: write a target at another server of its group from now on.

The other server is a copy of the first one, by replication or from a backup, and its checkpoint says what it holds. It
is written only if it holds everything that was acknowledged; what it lacks is named, and delivered again from the
segments if the caller wants that (``rewind``). The order of the steps: the lease of the target, so that no process of
this state loads; the fence at the first server, so that a paused process cannot write there later; the fence at the
other server, which proves that it can be written; then one transaction in ZooKeeper.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from sluice.coordination.acknowledgements import Acknowledgement
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import CheckpointError, ConfigError, Fenced, SegmentError, SluiceError
from sluice.flows.checkpoints import CheckpointCheck
from sluice.flows.runtime import Runtime
from sluice.flows.stored import known_again
from sluice.model.batches import Batch
from sluice.operations.plan import ActionPlan
from sluice.targets.port import Checkpoint
from sluice.targets.registry import equal_again

_log = structlog.get_logger()

PATIENCE_S = 10.0
"""Seconds that a switch waits for a replica to apply what the first server has."""
_LOOK_S = 0.2

_KINDS_BEHIND = {"behind", "gone"}


@dataclass(frozen=True, slots=True)
class _Other:
    """The server that takes over: its checkpoint, and the batches that it lacks and gets again."""

    connection: str
    check: CheckpointCheck
    checkpoint: Checkpoint | None
    lacks: tuple[Batch, ...] = ()

    @property
    def held(self) -> int:
        """The last batch that it holds."""
        return self.checkpoint.batch if self.checkpoint else 0


def switch(
    runtime: Runtime, target: str, to: str, *, by: str, reason: str, dry_run: bool, rewind: bool = False
) -> ActionPlan:
    """Write ``target`` at the server ``to`` from now on, or "" for the first other one that has everything.

    Args:
        rewind: batches that the other server lacks are delivered to it again, if they are still stored.

    Raises:
        ConfigError: the target is no group, keeps no checkpoint of its own, or has not begun.
        CheckpointError: the other server lacks what was acknowledged, or holds something else.
        SegmentError: ``rewind``, and a batch is no longer stored. LeaseHeld: the target is being loaded, and does not
            stop.
    """
    config = runtime.pipeline.target(target)
    with runtime.state() as state:
        now = runtime.target_member(state, target)
        if to and to == now:
            return ActionPlan("switch", (f"target {target}: {to} is written already",))
        process = _begun(runtime, state, target)
        candidates = _candidates(config.servers, now, to, target)
        server = _first_fit(runtime, state, candidates, target, process, rewind=rewind)
        plan = ActionPlan("switch", tuple(_steps(runtime.name, target, now, server, process)))
        if dry_run:
            return plan
        state.pause_switch.set(open_=None, by=by, reason="switch")  # processes at work stop, and begin again
        with state.consumer(target) as lease:
            process = _begun(runtime, state, target)
            least, silent = _fenced(runtime, state, lease, target, now, process)
            server = _fit(runtime, state, server.connection, target, process, rewind=rewind, least=least)
            _take_over(state, lease, target, server, process)
        details = {"target": target, "from": now, "to": server.connection, "reason": reason}
        if server.lacks:
            details["delivered_again"] = f"{server.lacks[0].number} to {server.lacks[-1].number}"
        state.audit.note(by=by, what="switch target", details=details)
    _log.warning(
        "target_switched",
        pipeline=runtime.name, target=target, previous=now, connection=server.connection, batch=server.held,
    )  # fmt: skip
    return ActionPlan("switch", (*plan.steps, *silent))


def can_take_over(runtime: Runtime, state: PipelineState, target: str, connection: str) -> None:
    """Raise if a server of a target's group could not take over now."""
    _fit(runtime, state, connection, target, _begun(runtime, state, target), rewind=False, patience_s=0)


def _begun(runtime: Runtime, state: PipelineState, target: str) -> Acknowledgement:
    process = state.acks.get(target)
    if process is None or state.cursor() is None:
        raise ConfigError(
            f"nothing was delivered to target {target} of {runtime.name} so far: there is nothing to compare",
            hint=f"put the server to begin with first in the connections of target {target}",
        )
    return process


def _candidates(servers: Sequence[str], now: str, to: str, target: str) -> list[str]:
    if to and to not in servers:
        raise ConfigError(f"{to} is not a server of target {target}", hint=f"its connections are: {', '.join(servers)}")
    others = [to] if to else [name for name in servers if name != now]
    if not others:
        raise ConfigError(
            f"target {target} is one server, {now}",
            hint=f"name all servers that replicate each other: targets: [{{name: {target}, connections: [{now}, "
            "OTHER]}]",
        )
    return others


def _first_fit(
    runtime: Runtime,
    state: PipelineState,
    candidates: Sequence[str],
    target: str,
    process: Acknowledgement,
    *,
    rewind: bool,
) -> _Other:
    errors: list[SluiceError] = []
    for name in candidates:
        try:
            return _fit(runtime, state, name, target, process, rewind=rewind)
        except SluiceError as error:
            errors.append(error)
    if len(errors) > 1:
        errors[0].message = "; ".join(error.message for error in errors)
    raise errors[0]


def _fit(
    runtime: Runtime,
    state: PipelineState,
    name: str,
    target: str,
    process: Acknowledgement,
    *,
    rewind: bool,
    least: int = 0,
    patience_s: float | None = None,
) -> _Other:
    """Return the server with what it lacks. Wait for a replica that is behind ``process``, or behind ``least``.

    Raises CheckpointError, SegmentError, ConfigError, TargetUnavailable.
    """
    loader = runtime.open_target(target, name)
    if loader.checkpoints is None:
        raise ConfigError(
            f"target {target} is of type {loader.config.type}, which keeps no checkpoint of its own: nothing at {name} "
            "says what it holds",
            hint=f"put {name} first in the connections of target {target}, then "
            f"{equal_again(runtime.pipeline, target)} makes its tables equal",
        )
    check = CheckpointCheck(runtime, state, target, loader)
    check.process = process
    deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while True:
        checkpoint = check.checkpoints.read()
        wrong = check.disagreement(checkpoint)
        behind = wrong.kind in _KINDS_BEHIND if wrong is not None else checkpoint is None or checkpoint.batch < least
        if not behind or time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_S)
    if wrong is None:
        return _Other(name, check, checkpoint)
    if wrong.kind not in _KINDS_BEHIND:
        wrong.message = f"{name}: {wrong.message}"
        raise wrong
    held_batch = checkpoint.batch if checkpoint else process.began
    if not rewind:
        raise _refused(runtime, state, name, check, checkpoint, wrong)
    if wrong.kind == "behind" and not wrong.restored:
        wrong.message = f"{name}: {wrong.message}; it never held exactly that, so that nothing can be added to it"
        raise wrong
    numbers = range(held_batch + 1, process.batch + 1)
    return _Other(name, check, checkpoint, tuple(known_again(runtime.state, runtime.store, target, n) for n in numbers))


def _refused(
    runtime: Runtime,
    state: PipelineState,
    name: str,
    check: CheckpointCheck,
    checkpoint: Checkpoint | None,
    wrong: CheckpointError,
) -> CheckpointError:
    """Return the error that says how much the server lacks, and what to run."""
    process, target = check.process, check.target
    assert process is not None, "it has begun"
    held_batch = checkpoint.batch if checkpoint else process.began
    known_batches = [
        batch for batch in map(state.batches.get, range(held_batch + 1, process.batch + 1)) if batch is not None
    ]
    changes = (
        f", {sum(batch.changes for batch in known_batches):,} changes"
        if len(known_batches) == process.batch - held_batch
        else ""
    )
    count = process.batch - held_batch
    has = f"it holds batch {held_batch}" if checkpoint else "it has no checkpoint of the pipeline"
    again = (
        f"`sluice targets switch {runtime.name} {target} --to {name} --rewind` delivers them again from the segments"
    )
    try:
        for number in range(held_batch + 1, process.batch + 1):
            known_again(runtime.state, runtime.store, target, number)
    except SegmentError:
        again = "they are no longer all stored, so that they cannot be delivered again"
    error = CheckpointError(
        f"{name} lacks {count} {'batch' if count == 1 else 'batches'}{changes} that were acknowledged for target "
        f"{target}: {has}, and batch {process.batch} was acknowledged; nothing was switched",
        where=check.describe(checkpoint),
        hint=f"wait until its replication has caught up, and call it again; or {again}",
    )
    error.kind, error.restored = wrong.kind, wrong.restored
    return error


def _steps(name: str, target: str, now: str, server: _Other, process: Acknowledgement) -> Iterator[str]:
    to = server.connection
    yield f"target {target} is written at {to} from now on ({server.check.checkpoints.place}), instead of {now}"
    if server.lacks:
        first, last = server.lacks[0].number, server.lacks[-1].number
        yield f"{to} lacks batches {first} to {last}: they are delivered again, in order"
    else:
        yield f"{to} holds batch {server.held}, batch {process.batch} was acknowledged: nothing is lacking"
    yield (
        f"loads under way stop, and begin again at {to}; {now} refuses what they still write. "
        f"Replication from {now} to {to} has to be ended: both would write"
    )
    yield f"`sluice verify run {name} --target {target}` afterwards compares all rows"


def _fenced(
    runtime: Runtime, state: PipelineState, lease: Lease, target: str, connection: str, process: Acknowledgement
) -> tuple[int, tuple[str, ...]]:
    """Refuse older writers at the server that was written so far.

    Return the batch that it holds (0: not known), and what to say of a server that does not answer.
    """
    try:
        checkpoints = runtime.open_target(target, connection).checkpoints
        assert checkpoints is not None, "kinds that keep none are refused before"
        return checkpoints.take_over(lease.epoch, process.began, identity=state.identity()).batch, ()
    except Fenced:
        raise
    except SluiceError as error:
        warning = (
            f"{connection} could not be told ({error.message}): a process that still reaches it may write the rest of "
            "its batch there, which is not acknowledged"
        )
        return 0, (warning,)


def _take_over(state: PipelineState, lease: Lease, target: str, server: _Other, process: Acknowledgement) -> None:
    """Fence the other server, and write there from now on. Raises CheckpointError, Fenced, LoadError."""
    check = server.check
    if server.lacks:
        first = server.lacks[0]
        held_checkpoint = Checkpoint(lease.epoch, first.number - 1, first.first, state.identity())
        check.checkpoints.rewind(held_checkpoint)
        state.redeliver(lease, target, first.first, server.lacks)
    else:
        check.checkpoints.take_over(lease.epoch, process.began, identity=state.identity(), agrees=check.require)
    state.switch_target(lease, target, server.connection, int(time.time() * 1000))


def server_lines(runtime: Runtime, state: PipelineState, target: str) -> Iterator[tuple[str, SluiceError | None]]:
    """Yield each other server of a target's group, and why it could not take over now; None: it could."""
    now = runtime.target_member(state, target)
    for name in runtime.pipeline.target(target).servers:
        if name == now:
            continue
        error: Any = None
        try:
            can_take_over(runtime, state, target, name)
        except SluiceError as why:
            error = why
        yield name, error
