"""Isolation of targets: one that fails is quarantined, the others continue, and it catches up by itself from the
segments.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from sluice.config.pipeline import SNAPSHOT
from sluice.coordination.bundles import WaitingBatches
from sluice.coordination.quarantine import Quarantined
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, LeaseHeld, LoadError, MappingError, SluiceError, TargetUnavailable
from sluice.flows.load.ack import AckOutcome, ack
from sluice.flows.load.bundles import ready, waits
from sluice.flows.load.load import LoadOutcome, Unprepared, load, prepare, write
from sluice.flows.runtime import Runtime

_log = structlog.get_logger()

TARGET_ERRORS = (TargetUnavailable, LoadError, MappingError, ConfigError)
"""Errors of one target if they occur while it is written to.

All others (a damaged segment, no Spark, no ZooKeeper) would stop any target.
"""

SLICE = 20
"""Batches that a catch-up delivers before it acknowledges and checks for a pause."""


def deliver(runtime: Runtime, target: str, batch: int) -> LoadOutcome | Quarantined | WaitingBatches:
    """Load as :func:`load` does, but quarantine a target that fails while others continue, and leave a quarantined one
    alone.

    A target with ``commit_every`` gets nothing before its waiting batches are due, and then all that are merged;
    batches after ``batch`` are acknowledged, too.

    Returns why it is quarantined if the batch stays in the segments for a later :func:`catch_up`, and the waiting
    batches if it is loaded by a later call.

    Raises:
        What :func:`load` raises, for the last target that is not quarantined.
    """
    if target not in runtime.commit_every:
        return _deliver(runtime, target, batch)
    with runtime.state() as state:
        waiting = waits(runtime.store, state, target, batch)
        return waiting or _together(runtime, target, batch, ready(state, target, batch))


def commit_waiting(runtime: Runtime, target: str) -> LoadOutcome | Quarantined | None:
    """Deliver to a target with ``commit_every`` all that there is, although its time has not come.

    None: it lacks nothing. Raises as :func:`load`.
    """
    with runtime.state() as state:
        waiting = state.waiting().get(target)
        return _together(runtime, target, waiting.first - 1, waiting.last) if waiting is not None else None


def _together(runtime: Runtime, target: str, batch: int, last: int) -> LoadOutcome | Quarantined:
    """Deliver up to ``last``, and acknowledge what no other caller does: what comes after ``batch``."""
    outcome = _deliver(runtime, target, last)
    if isinstance(outcome, LoadOutcome) and last > batch:
        ack(runtime, target, last)
    return outcome


def _deliver(runtime: Runtime, target: str, batch: int) -> LoadOutcome | Quarantined:
    """Load the batch now, whatever waits. See :func:`deliver`."""
    if len(runtime.pipeline.targets) == 1:
        return load(runtime, target, batch)
    with runtime.state() as state:
        reason = state.quarantine.reason(target)
        if reason is not None:
            return reason
        try:
            return _load(runtime, target, batch)
        except _OfTheTarget as wrapped:
            return _quarantined(runtime, state, target, batch, wrapped.error)


def acknowledge(runtime: Runtime, target: str, batch: int) -> AckOutcome | Quarantined:
    """Acknowledge a batch; a target that does not answer is quarantined, unless it is the only one that works.

    Raises:
        What :func:`sluice.flows.load.ack.ack` raises.
    """
    try:
        return ack(runtime, target, batch)
    except TargetUnavailable as error:
        with runtime.state() as state:
            return _quarantined(runtime, state, target, batch, error)


def _quarantined(runtime: Runtime, state: PipelineState, target: str, batch: int, error: SluiceError) -> Quarantined:
    """Quarantine a target, unless it is already. Raises its error if it is the only one that works."""
    reason = state.quarantine.reason(target) or state.quarantine.add(target, str(error))
    if reason is None:
        raise error from None
    _log.error("target_quarantined", pipeline=runtime.name, target=target, batch=batch, error=str(error))
    return reason


class _OfTheTarget(Exception):
    """Wraps one of :data:`TARGET_ERRORS` that occurred while the target was written to."""

    def __init__(self, error: SluiceError) -> None:
        super().__init__(str(error))
        self.error = error


def _load(runtime: Runtime, target: str, batch: int) -> LoadOutcome:
    """Load as :func:`load` does. Raises _OfTheTarget for an error of the target itself.

    A merge that has to run first is not the target's: a broken rule stops the pipeline, and never quarantines the
    target whose load met it.
    """
    if runtime.pipeline.target(target).snapshot_keys:
        _write_snapshot(runtime)
    while True:
        try:
            return write(runtime, target, batch)
        except Unprepared:
            pass
        except TARGET_ERRORS as error:
            raise _OfTheTarget(error) from error
        prepare(runtime, target, batch)


def _write_snapshot(runtime: Runtime) -> None:
    """Write what the snapshot lacks before a target loads that starts from it.

    If another process is writing it, the load waits for that.
    """
    with runtime.state() as state:
        waiting = state.waiting().get(SNAPSHOT)
        if waiting is None or waiting.asked < waiting.first:
            return
        with suppress(LeaseHeld):
            _together(runtime, SNAPSHOT, waiting.first - 1, waiting.asked)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The outcome of a catch-up: ``batches`` delivered, ``left`` to deliver, and whether the target is still
    quarantined.
    """

    target: str
    quarantined: bool
    batches: int = 0
    left: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        return {"target": self.target, "quarantined": self.quarantined, "batches": self.batches, "left": self.left}


def catch_up(runtime: Runtime, target: str, *, batches: int = SLICE) -> CatchUp:
    """Deliver the next ``batches`` of what a quarantined target lacks; release it when nothing is left.

    Does nothing for any other target.

    Raises:
        LeaseHeld: another installation works on this pipeline. What :func:`load` raises. The target stays quarantined.
    """
    with runtime.state() as state:
        if state.quarantine.reason(target) is None:
            return CatchUp(target, quarantined=False)
        if runtime.owner:
            state.election.become_leader(runtime.owner)
        cursor, process = state.cursor(), state.acks.get(target)
        if cursor is None or process is None:
            return CatchUp(target, quarantined=True)
        last = cursor.next_batch - 1
        until = min(last, process.following - 1 + batches)
        try:
            _deliver_up_to(runtime, target, process.batch, until)
        except _OfTheTarget as found:
            state.quarantine.add(target, str(found.error))
            raise found.error from None
        if until < last:
            return CatchUp(target, True, until - process.batch, last - until)
        state.quarantine.release(target)
        _log.info("target_released", pipeline=runtime.name, target=target, batch=until)
        now = state.cursor()
        assert now is not None
        if now.next_batch - 1 > until and isinstance(deliver(runtime, target, now.next_batch - 1), LoadOutcome):
            ack(
                runtime, target, now.next_batch - 1
            )  # batches of runs that checked just before the release and left them to this one
        return CatchUp(target, state.quarantine.reason(target) is not None, now.next_batch - 1 - process.batch)


def _deliver_up_to(runtime: Runtime, target: str, delivered: int, until: int) -> None:
    if until > delivered:
        _load(runtime, target, until)
        try:
            ack(runtime, target, until)
        except TARGET_ERRORS as error:
            raise _OfTheTarget(error) from error
