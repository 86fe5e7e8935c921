"""run: the whole job, batch after batch, in the calling process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from sluice.coordination.state import PipelineState
from sluice.errors import Fenced, LeaseHeld, Paused, Restarted, SluiceError, SourceUnavailable
from sluice.flows.capture.ahead import wait_within_budget
from sluice.flows.capture.drain import drain, head_of
from sluice.flows.capture.kept_source import KeptSource
from sluice.flows.dump.background import BackgroundDumper
from sluice.flows.job import deliver_batch
from sluice.flows.load.isolation import TARGET_ERRORS, catch_up, commit_waiting
from sluice.flows.runtime import Runtime, attempt_id
from sluice.flows.snapshot.lost_batches import any_lacks_lost
from sluice.flows.stage_notes import stage_notes
from sluice.model.backoff import wait_after
from sluice.model.offset import Offset

_log = structlog.get_logger()

IDLE_WAIT_S = 5.0
STAND_BY_S = 0.5
KEPT_FOR_S = 15.0
"""Seconds after which a delivery leaves no connection to the source behind: the server may have ended it meanwhile."""
ATTEMPT_ENDS_S = 10.0
"""Seconds that the end of a run waits for attempts to reach quarantined targets."""


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a run.

    ``phase``: draining, merging, applying RULE, loading TARGET, acknowledged, or standing by (another installation
    leads).
    """

    phase: str
    batch: int | None = None
    changes: int = 0
    position: Offset | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the step as the command prints it."""
        return {
            "phase": self.phase,
            "batch": self.batch,
            "changes": self.changes,
            "position": self.position.to_json() if self.position else None,
            "seconds": round(self.seconds, 3),
        }


def run(runtime: Runtime, *, until_head: bool = False, batches: int | None = None) -> Iterator[Step]:
    """Deliver batches in order, oldest undelivered first; yields a Step at each phase.

    ``until_head``: end when the log as it stood at the call is acknowledged, by whomever. ``batches``: end after this
    number. While another installation works on the pipeline, this one stands by, and takes over when it has gone
    silent. A target that fails while others go on is quarantined and tried again; with ``until_head`` its error is
    raised at the end, and what waits for a target with ``commit_every`` is delivered then. With ``batches`` it goes on
    waiting: the next call goes on where this one ended, and a commit for each call would be one a batch.
    """
    owned = runtime.owner is None
    if owned:
        name = os.environ.get("SLUICE_INSTALLATION") or f"{socket.gethostname()}:{os.getpid()}"
        runtime.owner = f"cli:{name}"
    try:
        ends = until_head or batches is not None
        yield from _run(runtime, until_head, batches) if ends else _run_forever(runtime)
    finally:
        stage_notes.write(runtime)
        if owned:
            runtime.owner = None


def _run_forever(runtime: Runtime) -> Iterator[Step]:
    retry, failed, steps = runtime.pipeline.retry, 0, 0
    while True:
        try:
            for step in _run(runtime, False, None):
                steps += 1
                failed = 0 if step.phase == "acknowledged" else failed
                yield step
        except SluiceError as error:
            may_pass = error.retryable or isinstance(error, Fenced)
            if not may_pass or steps < 2:  # the first step announces the first capture
                raise
            failed += 1
            pause_s = wait_after(failed, retry.delay, retry.max_delay).total_seconds()
            _log.warning("run_attempt_failed", pipeline=runtime.name, error=str(error), retry_in_s=pause_s)
            wait_within_budget(runtime, pause_s)


def _run(runtime: Runtime, until_head: bool, batches: int | None) -> Iterator[Step]:
    target_position = head_of(runtime) if until_head else None
    batch_count = 0
    looked = False  # the source is checked once, even if nothing is new: a misconfigured source must show
    standing_by = False
    ends = until_head or batches is not None
    me = runtime.owner
    assert me is not None
    with (
        runtime.state(caches_reads=True) as state,
        _orderly(state, me),
        BackgroundDumper(runtime, state) as dumps,
        KeptSource() as source,
        HeldTargetRetry(runtime, aside=not ends) as again,
    ):
        while batches is None or batch_count < batches:
            target_position = _head_now(runtime, state, target_position)
            try:
                state.election.become_leader(me)
            except LeaseHeld as held:
                if target_position and _reached(state.cursor(), target_position) and not state.lacking():
                    return
                if not standing_by:
                    standing_by = True
                    yield Step("standing by")
                    _log.info("standby_started", pipeline=runtime.name, reason=held.message)
                time.sleep(STAND_BY_S)
                continue
            standing_by = False
            try:
                again.try_held(state)
                waiting = state.in_window() or state.due()
                dumping = False if waiting else dumps.look()
                if (
                    looked
                    and target_position
                    and _reached(state.cursor(), target_position)
                    and not waiting
                    and not dumping
                    and not any_lacks_lost(runtime, state)
                ):
                    _end(runtime, state)
                    return
                looked = True
                idle_wait_s = 0.5 if until_head else IDLE_WAIT_S
                started = time.monotonic()
                batch_count += yield from _one_batch(
                    runtime, state, source, waiting, idle_wait_s, None if dumping else target_position
                )
                if time.monotonic() - started > KEPT_FOR_S:
                    source.close()
            except LeaseHeld:  # the lease of a task that died, until its session expires
                source.close()
                time.sleep(STAND_BY_S)
            except Restarted as restart:
                source.close()
                _log.info("pipeline_restarted", pipeline=runtime.name, reason=restart.message)
            except Paused as pause:
                source.close()
                if until_head or batches is not None:
                    raise
                _log.info("pipeline_paused", pipeline=runtime.name, reason=pause.message)
                time.sleep(STAND_BY_S)


def _end(runtime: Runtime, state: PipelineState) -> None:
    """Deliver at the end of a run what waits on purpose and what quarantined targets lack.

    Raises what a target's last attempt raises.
    """
    for target in state.waiting():
        commit_waiting(runtime, target)
    for target in state.quarantine.all():
        while catch_up(runtime, target).quarantined:
            pass


def _one_batch(
    runtime: Runtime,
    state: PipelineState,
    source: KeptSource,
    waiting: list[int],
    idle_wait_s: float,
    until: Offset | None,
) -> Generator[Step, None, int]:
    """Deliver the oldest of ``waiting``, or drain a batch and deliver it; returns how many were delivered, 0 or 1."""
    started = time.monotonic()
    if waiting:
        number = waiting[0]
        record = state.batches.require(number)
        changes, position = record.changes, record.last
    else:
        yield Step("draining")
        claim = f"{runtime.owner}:{attempt_id()}"
        capture = partial(drain, runtime, claim=claim, idle_wait_s=idle_wait_s, until=until, kept=source)
        was_open = source.is_open
        try:
            outcome = capture()
        except SourceUnavailable:
            source.close()
            if not was_open:
                raise
            outcome = capture()  # the kept connection was broken: the server may be there all the same
        if outcome.batch is None:
            return 0
        number, changes, position = outcome.batch, outcome.changes, outcome.position
    for stage in deliver_batch(runtime, state, number):
        yield Step(stage.doing, number, changes, position)
    yield Step("acknowledged", number, changes, position, time.monotonic() - started)
    return 1


class HeldTargetRetry:
    """Retries quarantined targets, ever more slowly while they fail.

    ``aside``: each in a thread, in parallel with the batches of the others. An attempt takes as long as a target's own
    patience, minutes where a receiver does not answer, and the others must not wait for it.
    """

    def __init__(self, runtime: Runtime, *, aside: bool) -> None:
        self._runtime = runtime
        self._aside = aside
        self._not_before: dict[str, float] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._error: BaseException | None = None
        self._over = threading.Event()

    def __enter__(self) -> HeldTargetRetry:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait a moment for attempts under way.

        One that goes on after it is as one of a process that lost its leadership: leases and epochs stop it.
        """
        self._over.set()
        until = time.monotonic() + ATTEMPT_ENDS_S
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))

    def try_held(self, state: PipelineState) -> None:
        """Try the quarantined targets whose time for another attempt has come.

        Raises what an attempt met that is no fault of its target.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        for target, reason in state.quarantine.all().items():
            if time.monotonic() < self._not_before.get(target, 0.0):
                continue
            if not self._aside:
                self._try(self._runtime, target, reason.attempts)
            elif target not in self._threads or not self._threads[target].is_alive():
                own = replace(self._runtime, _state=None)
                attempt = partial(self._try_aside, own, target, reason.attempts)
                self._threads[target] = threading.Thread(target=attempt, name=f"held-{target}", daemon=True)
                self._threads[target].start()

    def _try(self, runtime: Runtime, target: str, attempts: int) -> bool:
        """Deliver some of what the target lacks. True: it took that, and lacks more."""
        retry = self._runtime.pipeline.retry
        try:
            return catch_up(runtime, target).quarantined
        except (*TARGET_ERRORS, LeaseHeld):
            pause = wait_after(attempts, retry.delay, retry.max_delay)
            self._not_before[target] = time.monotonic() + pause.total_seconds()
            return False

    def _try_aside(self, runtime: Runtime, target: str, attempts: int) -> None:
        try:
            while self._try(runtime, target, attempts) and not self._over.is_set():
                pass
        except BaseException as error:
            self._error = error


@contextmanager
def _orderly(state: PipelineState, me: str) -> Iterator[None]:
    """Give up leadership at the end of the block, so that another installation can lead at once."""
    try:
        yield
    finally:
        with suppress(SluiceError):
            state.election.resign(me)


def _head_now(runtime: Runtime, state: PipelineState, head: Offset | None) -> Offset | None:
    """Return ``head``, or the head of the other server's log after a failover: positions of two logs do not compare."""
    cursor = state.cursor() if head is not None else None
    if head is None or cursor is None or cursor.position.log_epoch == head.log_epoch:
        return head
    return head_of(runtime)


def _reached(cursor: Any, head: Offset) -> bool:
    if cursor is None or cursor.position.log_epoch != head.log_epoch:
        return False
    return bool(cursor.position.order >= head.order)
