"""Capture ahead of the targets: a source that retains its log for this pipeline keeps no more of it than its budget."""

from __future__ import annotations

import time
import uuid

import structlog

from sluice.errors import LeaseHeld, SluiceError
from sluice.flows.capture.drain import AHEAD, drain
from sluice.flows.capture.kept_source import KeptSource
from sluice.flows.released_log import release_delivered
from sluice.flows.runtime import Runtime
from sluice.sources.port import RetainsForUs, SourceSession

_log = structlog.get_logger()

LOOK_S = 2.0
"""How often the source is asked how much log it keeps, by a run that waits for a target."""
LONGEST_S = 60.0
"""How long one call captures: whoever made it has to try its target again."""
_IDLE_S = 1.0


def keep_within_budget(runtime: Runtime) -> int:
    """Move log into segments until the source keeps less than ``source.slot_budget`` for the pipeline.

    The batches wait for the targets, as many as the segment store takes. Return how many were captured; 0 without a
    budget, with nothing new, or where another process captures.

    Raises:
        What :func:`sluice.flows.capture.drain.drain` raises.
    """
    budget = runtime.pipeline.source.slot_budget
    if budget is None:
        return 0
    batches, until = 0, time.monotonic() + LONGEST_S
    claim = f"{AHEAD}{runtime.owner or 'run'}:{uuid.uuid4().hex[:8]}"
    with runtime.state() as state, KeptSource() as kept_source, runtime.source.open() as session:
        while _is_over(session) and time.monotonic() < until:
            try:
                outcome = drain(runtime, claim=claim, idle_wait_s=_IDLE_S, ahead=True, kept=kept_source)
            except LeaseHeld:
                return batches
            release_delivered(runtime.source, runtime.pipeline.targets, state, session, budget=budget)
            if outcome.batch is None:
                return batches
            batches += 1
            _log.info("captured_ahead", pipeline=runtime.name, batch=outcome.batch, changes=outcome.changes)
    return batches


def wait_within_budget(runtime: Runtime, pause_s: float) -> None:
    """Sleep, and keep the source within its budget meanwhile. An error of that is logged: the next attempt meets it."""
    if runtime.pipeline.source.slot_budget is None:
        time.sleep(pause_s)
        return
    until = time.monotonic() + pause_s
    while time.monotonic() < until:
        try_within_budget(runtime)
        time.sleep(max(min(LOOK_S, until - time.monotonic()), 0.0))


def try_within_budget(runtime: Runtime) -> None:
    """Do as :func:`keep_within_budget`, and log an error: a target that failed is what the caller has to tell."""
    try:
        keep_within_budget(runtime)
    except SluiceError as error:
        _log.warning("capture_ahead_failed", pipeline=runtime.name, error=str(error))


def _is_over(session: SourceSession) -> bool:
    retained = session.retained() if isinstance(session, RetainsForUs) else None
    return retained is not None and retained.is_over


__all__ = ["keep_within_budget", "try_within_budget", "wait_within_budget"]
