"""Batches that a capture delivers again: those of an earlier attempt, and those whose run is gone."""

from __future__ import annotations

import time

import structlog

from sluice.coordination.state import PipelineState
from sluice.model.batches import Batch, DrainOutcome

_log = structlog.get_logger()


def delivered_again(batch: Batch, why: str) -> DrainOutcome:
    """Return the outcome of a capture that found ``batch`` already captured."""
    _log.info("batch_adopted", batch=batch.number, reason=why)
    return DrainOutcome(batch.number, batch.last, batch.changes, closed_by=why, adopted=True)


def orphan_of(state: PipelineState, claim: str, grace_s: float) -> Batch | None:
    """Claim and return the oldest undelivered batch whose run is gone; None if there is none.

    A batch counts as orphaned if it belongs to another installation, if it is older than ``grace_s`` and no target is
    loading, or if it was postponed and is now due.
    """
    due = set(state.due())
    for number in sorted({*state.in_window(), *due}):
        batch = state.batches.get(number)
        if batch is None:
            continue
        free = number in due or batch.claim.split(":")[:2] != claim.split(":")[:2]
        if (free or is_old(batch, grace_s)) and not any(
            state.owner(target) for target in state.quarantine.active_targets()
        ):
            return state.batches.reclaim(number, claim)
    return None


def is_old(batch: Batch, grace_s: float) -> bool:
    """Return True if the batch is so old that a run which is still alive would have delivered it."""
    return time.time() - batch.created_ms / 1000 > grace_s
