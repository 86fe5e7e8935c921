"""A target that was restored from a backup gets the batches that it lacks again, from the stored segments, without a person."""

from __future__ import annotations

import structlog

from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import CheckpointError, SegmentError
from sluice.flows.batches import known_again
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.checkpoints import Sides
from sluice.flows.runtime import Runtime
from sluice.targets.base import Checkpoint

_log = structlog.get_logger()

BY = "sluice"
"""In the audit: no person did it."""


def begin(runtime: Runtime, state: PipelineState, lease: Lease, sides: Sides, watch: CancellationGuard) -> int:
    """Take the target over and return the batch it holds; if it was restored, acknowledgements after that are taken back first.

    Raises:
        CheckpointError: what the target says does not fit, or the batches it lacks are no longer stored. Fenced.
    """
    try:
        return sides.begin(lease, watch)
    except CheckpointError as error:
        if not error.restored or not _taken_back(runtime, state, lease, sides):
            raise
    sides.process = state.process(sides.target)
    return sides.begin(lease, watch)


def _taken_back(runtime: Runtime, state: PipelineState, lease: Lease, sides: Sides) -> bool:
    checkpoint, process, target = sides.checkpoints.read(), sides.process, sides.target
    if checkpoint is None or process is None:
        return False
    try:
        missing = range(checkpoint.batch + 1, process.batch + 1)
        batches = [known_again(runtime, runtime.store, target, number) for number in missing]
    except SegmentError:
        return False
    first = batches[0]
    sides.checkpoints.rewind(Checkpoint(lease.epoch, checkpoint.batch, first.first, state.identity()))
    state.redeliver(lease, target, first.first, batches)
    details = {"target": target, "first": first.number, "last": process.batch, "reason": "the target was restored"}
    state.audit(by=BY, what="redeliver", details=details)
    _log.warning("target_was_restored", pipeline=runtime.name, consumer=target, first=first.number, last=process.batch)
    return True
