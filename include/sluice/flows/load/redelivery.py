"""Redelivery to a target that was restored from a backup: it gets the batches that it lacks from the stored segments,
without a person.
"""

from __future__ import annotations

import structlog

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import CheckpointError, SegmentError
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.checkpoints import CheckpointCheck
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot.lost_batches import BY_ITSELF
from sluice.flows.stored import known_again
from sluice.targets.port import Checkpoint

_log = structlog.get_logger()


def begin(
    runtime: Runtime, state: PipelineState, lease: Lease, check: CheckpointCheck, watch: CancellationGuard
) -> int:
    """Take the target over and return the batch it holds.

    If it was restored, the later acknowledgements are withdrawn first.

    If batches that it lacks are no longer stored, that is done only for a target that then starts again from the
    snapshot (``on_lost_batches``).

    Raises:
        CheckpointError: the target's checkpoint does not match, or the batches it lacks are no longer stored.
        Fenced: another process took over.
    """
    try:
        return check.take_over(lease, watch)
    except CheckpointError as error:
        if not (error.restored and _taken_back(runtime, state, lease, check)) and not _given_up(
            runtime.pipeline, state, lease, check, error
        ):
            raise
    check.process = state.acks.get(check.target)
    return check.take_over(lease, watch)


def _given_up(
    pipeline: PipelineConfig, state: PipelineState, lease: Lease, check: CheckpointCheck, error: CheckpointError
) -> bool:
    """Withdraw the acknowledgement of batches that the target lacks, so that the capture finds that they are gone.

    Return True if done.
    """
    checkpoint, target = check.checkpoints.read(), check.target
    if error.kind != "behind" or pipeline.target(target).on_lost_batches != "snapshot":
        return False
    if checkpoint is None or checkpoint.position is None:
        return False
    now = Checkpoint(lease.epoch, checkpoint.batch, checkpoint.position, state.identity())
    check.checkpoints.rewind(now)
    state.acks.take_back(lease, target, checkpoint.batch, checkpoint.position)
    details = {"target": target, "holds": checkpoint.batch, "reason": "the target was restored"}
    state.audit.note(by=BY_ITSELF, what="start again", details=details)
    _log.warning("target_restored", pipeline=pipeline.pipeline, target=target, batch=checkpoint.batch)
    return True


def _taken_back(runtime: Runtime, state: PipelineState, lease: Lease, check: CheckpointCheck) -> bool:
    checkpoint, process, target = check.checkpoints.read(), check.process, check.target
    if checkpoint is None or process is None:
        return False
    try:
        missing = range(checkpoint.batch + 1, process.batch + 1)
        batches = [known_again(runtime.state, runtime.store, target, number) for number in missing]
    except SegmentError:
        return False
    first = batches[0]
    check.checkpoints.rewind(Checkpoint(lease.epoch, checkpoint.batch, first.first, state.identity()))
    state.redeliver(lease, target, first.first, batches)
    details = {"target": target, "first": first.number, "last": process.batch, "reason": "the target was restored"}
    state.audit.note(by=BY_ITSELF, what="redeliver", details=details)
    _log.warning(
        "target_restored", pipeline=runtime.name, target=target, first_batch=first.number, last_batch=process.batch
    )
    return True
