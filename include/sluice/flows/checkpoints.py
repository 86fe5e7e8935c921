"""The store of a target's checkpoint, and its comparison with the pipeline's state in ZooKeeper: do both describe the
same batches?

Each of them can be lost, restored, edited or replaced without the other. Batch numbers alone then prove nothing: batch
5 of a new state is not the batch 5 that the target holds, and confusing them would acknowledge rows that were never
written. So the state has a random identity, which the target stores with its checkpoint; and the target's batch must
end where ZooKeeper's batch of that number ends.

A checkpoint of an older version has no identity. It gets this state's if everything else matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import structlog

from sluice.coordination.acknowledgements import Acknowledgement
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.coordination.target_checkpoints import TargetRecord, TargetRecords
from sluice.errors import CheckpointError, OutOfOrder, SluiceError
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.runtime import Runtime
from sluice.flows.stored import known_again
from sluice.model.offset import Offset
from sluice.targets.port import Checkpoint, CheckpointStore, Target
from sluice.targets.port.record import Record, SwappedCheckpoints
from sluice.targets.registry import equal_again

_log = structlog.get_logger()

_LOOKS = 3
"""Attempts to read a target's checkpoint that disagrees while its acknowledgement moves: another process may be
loading.
"""


def checkpoints_of(target: Target, state: PipelineState) -> CheckpointStore:
    """Return the target's own checkpoint store, else one in ZooKeeper."""
    own = target.checkpoints
    return own if own is not None else ZooKeeperCheckpoints(state, target.config.name)


@dataclass(frozen=True)
class ZooKeeperNode:
    """The node with the checkpoint of a target that keeps none itself, and the two calls that change it."""

    pipeline: str
    owner: str
    records: TargetRecords

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"ZooKeeper, {self.records.path}"

    def read(self) -> tuple[Record | None, int]:
        """Return the record, and the version of the node."""
        stored, version = self.records.read()
        if stored is None:
            return None, version
        return Record(Checkpoint(stored.epoch, stored.batch, stored.position, stored.identity)), version

    def swap(self, record: Record | None, token: int) -> bool:
        """Change the node, unless it has another version by now."""
        checkpoint = record.checkpoint if record is not None else None
        stored = (
            TargetRecord(checkpoint.epoch, checkpoint.batch, checkpoint.position, checkpoint.identity)
            if checkpoint is not None
            else None
        )
        return self.records.swap(stored, token)


class ZooKeeperCheckpoints(SwappedCheckpoints[ZooKeeperNode, Record]):
    """The checkpoint store of a target that keeps nothing itself.

    It fences the checkpoint, not the target's rows: the guarantee is at least once, or idempotent."""

    def __init__(self, state: PipelineState, target: str) -> None:
        pipeline = state.layout.pipeline
        node = ZooKeeperNode(pipeline, f"{pipeline}.{target}", state.target_records(target))
        super().__init__(node, Record)

    def _opened(self) -> AbstractContextManager[ZooKeeperNode]:
        return nullcontext(self._place)


class CheckpointCheck:
    """One target and ZooKeeper; ``loader``: the target, if it is open already.

    The acknowledgement is read first, then the target: a load or an ack in between cannot look like a fault.
    """

    def __init__(self, runtime: Runtime, state: PipelineState, target: str, loader: Target | None = None) -> None:
        self.runtime, self.state, self.target = runtime, state, target
        self.loader = loader or runtime.open_target(target)
        self.checkpoints = checkpoints_of(self.loader, state)
        self.process = state.acks.get(target)

    def read(self) -> Checkpoint | None:
        """Read the target's checkpoint and check it against ZooKeeper. Raises CheckpointError if they do not match."""
        for _ in range(_LOOKS - 1):
            checkpoint = self.checkpoints.read()
            if self.disagreement(checkpoint) is None:
                return checkpoint
            before, self.process = self.process, self.state.acks.get(self.target)
            if self.process == before:
                break
        checkpoint = self.checkpoints.read()
        self.require(checkpoint)
        return checkpoint

    def take_over(self, lease: Lease, watch: CancellationGuard | None = None) -> int:
        """Take the target over and return the batch it holds. Raises CheckpointError, Fenced; OutOfOrder if another
        server of its group is written by now.
        """
        written, own_connection = self.runtime.target_member(self.state, self.target), self.loader.config.connection
        if self.runtime.pipeline.target(self.target).connections and written != own_connection:
            raise OutOfOrder(
                f"target {self.target} was switched from {own_connection} to {written} meanwhile",
                where=f"pipeline {self.runtime.name}",
                hint="the next attempt writes there",
            )
        work = partial(
            self.checkpoints.take_over,
            lease.epoch,
            self.process.began if self.process else 0,
            identity=self.state.identity(),
            agrees=self.require,
        )
        return (watch.call(work, interrupt=self.loader.interrupt) if watch else work()).batch

    def require(self, checkpoint: Checkpoint | None) -> None:
        """Raise CheckpointError if the checkpoint does not match what ZooKeeper has."""
        disagreement = self.disagreement(checkpoint)
        if disagreement is not None:
            raise disagreement

    def disagreement(self, checkpoint: Checkpoint | None) -> CheckpointError | None:
        """Return why the target's checkpoint and ZooKeeper do not match, None if they do."""
        state, process = self.state, self.process
        cursor, identity = state.cursor(), state.identity()
        if cursor is None:
            if checkpoint is None and (process is None or not process.batch):
                return None
            return self._error(
                "other",
                f"{self.runtime.keeper} has no captured position of this pipeline: it was deleted, or "
                "coordination.root was changed",
                checkpoint,
            )
        own = _foreign(self.runtime, process, identity, cursor.next_batch)
        if own:
            return self._error("other", own, checkpoint)
        if process is None:
            return (
                None
                if checkpoint is None
                else self._error("other", f"{self.runtime.keeper} has no acknowledgement of the target", checkpoint)
            )
        if checkpoint is None:
            if process.batch == process.began:
                return None  # nothing was delivered so far
            return self._error(
                "gone",
                "the target has no checkpoint any more: its row was deleted, or the target was replaced",
                checkpoint,
            )
        if checkpoint.identity and checkpoint.identity != identity:
            return self._error("other", "another state of this pipeline delivered what the target holds", checkpoint)
        if checkpoint.edited:
            return self._error(
                "edited",
                "the target's checkpoint was edited: its batch and its position were not written together",
                checkpoint,
            )
        if checkpoint.batch >= cursor.next_batch:
            return self._error(
                "ahead", f"the target holds batch {checkpoint.batch}, which was not made yet", checkpoint
            )
        if checkpoint.batch < process.batch:
            why = (
                f"the target says it holds batch {checkpoint.batch}, but batch {process.batch} was acknowledged: it "
                "was restored or replaced"
            )
            error = self._error("behind", why, checkpoint)
            error.restored = self._was_true(checkpoint)
            return error
        if checkpoint.position is not None:
            ends: Offset | None = process.position
            if checkpoint.batch > process.batch:
                record = state.batches.get(checkpoint.batch)
                ends = record.last if record else None
            if ends is None or not ends.is_at(checkpoint.position):
                keeper = self.runtime.keeper
                stored_end = f"{keeper}'s ends at {ends}" if ends is not None else f"{keeper} does not know that batch"
                why = f"batch {checkpoint.batch} of the target ends at {checkpoint.position}, and {stored_end}"
                return self._error("position", why, checkpoint)
        highest = state.consumer_epoch(self.target)
        if checkpoint.epoch > highest:
            why = (
                f"epoch {checkpoint.epoch} wrote to the target, and {self.runtime.keeper} gave out {highest} at most: "
                "one of the two was restored or edited"
            )
            return self._error("epoch", why, checkpoint)
        return None

    def _was_true(self, checkpoint: Checkpoint) -> bool:
        """Return True if this state once delivered exactly what the checkpoint says.

        An edited batch number does not match its position.
        """
        state, end = self.state, checkpoint.position
        if end is None or not checkpoint.identity or checkpoint.epoch > state.consumer_epoch(self.target):
            return False
        try:
            batch = known_again(self.runtime.state, self.runtime.store, self.target, checkpoint.batch)
        except SluiceError:  # no longer stored: the next one begins where it ended, or later
            following = state.batches.get(checkpoint.batch + 1)
            first = following.first if following else None
            return first is not None and first.log_epoch == end.log_epoch and first.order >= end.order
        return batch.last.is_at(end)

    def _error(self, kind: str, why: str, checkpoint: Checkpoint | None) -> CheckpointError:
        name, target = self.runtime.name, self.target
        reset = f"`sluice adopt {name} {target} --reset`"
        reread = f"`sluice adopt {name} {target} --from-target`"
        again = f"`sluice redeliver {name} {target}` loads the missing batches again from the segments"
        if kind == "behind":
            hint = f"{again}; if they are no longer stored, {reread} reads the log again from where the target is"
        elif kind == "gone":
            copy = equal_again(self.runtime.pipeline, target)
            hint = (
                f"{again}; if its rows are all there: {reset}; else {reset} and then {copy}, which makes its "
                "tables equal"
            )
        elif checkpoint is None or checkpoint.position is None or kind == "edited":
            hint = f"{reset} goes on as {self.runtime.keeper} says; it shows first what that leaves out"
        else:
            hint = (
                f"{reread} reads the log again from where the target is; {reset} goes on as {self.runtime.keeper} "
                "says. Both show their plan first"
            )
        hint += f"; `sluice recover {name}` shows every choice with its cost"
        error = CheckpointError(
            f"target {target} and {self.runtime.keeper} do not agree on what was delivered: {why}; nothing was written "
            "or acknowledged",
            where=self.describe(checkpoint),
            hint=hint,
        )
        error.kind = kind
        return error

    def describe(self, checkpoint: Checkpoint | None) -> str:
        """Describe for an error message what the target and ZooKeeper have stored, and where."""
        state, process = self.state, self.process
        cursor = state.cursor()
        target_side = "no row"
        if checkpoint is not None:
            target_side = (
                f"batch {checkpoint.batch}, epoch {checkpoint.epoch}, identity {checkpoint.identity or 'none'}, "
                f"position {checkpoint.position or 'none'}"
            )
        acked = f"acknowledged batch {process.batch} ({process.position})" if process else "no acknowledged batch"
        following = (
            f"next batch {cursor.next_batch}, captured to {cursor.position}" if cursor else "no captured position"
        )
        return (
            f"target {self.target}, {self.checkpoints.place}, pipeline {self.runtime.name}: {target_side}; "
            f"{self.runtime.keeper}, {state.home}: {acked}, {following}, epoch {state.consumer_epoch(self.target)}, "
            f"identity {state.identity() or 'none'}"
        )


def require_own(runtime: Runtime, state: PipelineState, target: str, process: Acknowledgement) -> None:
    """Raise CheckpointError if the acknowledgement in ZooKeeper belongs to another state.

    Cheap: asks the target only if it does.
    """
    cursor = state.cursor()
    if cursor is None or _foreign(runtime, process, state.identity(), cursor.next_batch):
        check = CheckpointCheck(runtime, state, target)
        check.require(check.checkpoints.read())


def require_no_checkpoints(runtime: Runtime, state: PipelineState) -> None:
    """Raise CheckpointError if a target already has a checkpoint of a pipeline that is about to start.

    All targets are asked side by side. One that does not answer now is asked again by its first load.
    """

    @contextmanager
    def noting(target: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except SluiceError as error:
            _log.info("checkpoint_read_failed", pipeline=runtime.name, target=target, error=str(error))

    def read(check: CheckpointCheck) -> None:
        with noting(check.target):
            check.read()

    checks: list[CheckpointCheck] = []
    for config in runtime.pipeline.targets:  # opened by this thread: connections may come from one that serves no other
        with noting(config.name):
            checks.append(CheckpointCheck(runtime, state, config.name))
    with ThreadPoolExecutor(max(len(checks), 1), thread_name_prefix="checkpoints") as pool:
        for _ in pool.map(read, checks):
            pass


def _foreign(runtime: Runtime, process: Acknowledgement | None, identity: str, next_batch: int) -> str:
    """Return why the acknowledgement in ZooKeeper belongs to another state, "" if it belongs to this one."""
    if process is None:
        return ""
    if process.identity and process.identity != identity:
        return f"{runtime.keeper}'s acknowledgement of the target is of another state, which was deleted"
    if process.batch >= next_batch:
        return f"{runtime.keeper}'s acknowledgement of the target is of batch {process.batch}, which was not made yet"
    return ""
