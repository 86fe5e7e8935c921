"""ack: the batch that the target holds becomes the acknowledged position of record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from sluice.errors import OutOfOrder
from sluice.flows.checkpoints import CheckpointCheck, require_own
from sluice.flows.released_log import release_delivered
from sluice.flows.runtime import Runtime
from sluice.flows.stage_log import log_batch
from sluice.flows.stage_notes import stage_notes
from sluice.flows.tracing import stage_trace
from sluice.model.offset import Offset

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AckOutcome:
    """The acknowledged batch and position of ``target`` afterwards."""

    target: str
    batch: int
    position: Offset

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        return {"target": self.target, "batch": self.batch, "position": self.position.to_json()}


def ack(runtime: Runtime, target: str, batch: int) -> AckOutcome:
    """Move the position of record of ``target`` up to ``batch``, one batch at a time; a repeat is harmless.

    The target's own acknowledgement row is asked first, so an ack can never run ahead of the data.

    Raises:
        OutOfOrder: the target does not hold the batch yet. CheckpointError: what it says does not fit ZooKeeper's
            state.
    """
    config = runtime.pipeline.target(target)  # raises if there is none
    with runtime.state() as state, stage_trace(runtime, f"ack.{target}") as trace:
        process = state.acks.get(target)
        if process is None and config.start == "snapshot":  # it waits for the snapshot and starts after this batch
            record, cursor = state.batches.get(batch), state.cursor()
            assert cursor is not None, "a batch was captured"
            return AckOutcome(target, batch, record.last if record is not None else cursor.position)
        if process is not None and process.batch >= batch:
            require_own(runtime, state, target, process)
            return AckOutcome(target, process.batch, process.position)
        check = CheckpointCheck(runtime, state, target)
        checkpoint = check.read()
        process, target_batch = check.process, checkpoint.batch if checkpoint else 0
        if target_batch < batch:
            raise OutOfOrder(
                f"target {target} holds batch {target_batch}; batch {batch} is not loaded yet",
                where=f"pipeline {runtime.name}",
                hint=f"clear the task load.{target} of this run",
            )
        while process is None or process.batch < batch:
            record = state.batches.require(process.following if process else batch)
            trace.on(record)
            process = state.acks.acknowledge(target, record, seen=process)
            lag_ms = record.age_ms()
            stage_notes.delivered(runtime, target, lag_ms or 0)
            trace.passed(record, lag_seconds=None if lag_ms is None else lag_ms / 1000)
        state.forget()
        release_delivered(runtime.source, runtime.pipeline.targets, state, budget=runtime.pipeline.source.slot_budget)
    log_batch(
        _log,
        "batch_acknowledged",
        pipeline=runtime.name,
        target=target,
        batch=process.batch,
        position=str(process.position),
    )
    return AckOutcome(target, process.batch, process.position)
