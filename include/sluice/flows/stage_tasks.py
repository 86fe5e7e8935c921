"""The stages of a run as separate tasks, each a process: the same loop as in a thread, with a board in ZooKeeper.

The batches of a run and their state are in ZooKeeper anyway. A task adds its progress if no other node tells it, and
whether it ended or failed. The tasks of the run read this and are notified of changes by their watches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog

from sluice.coordination.run_progress import Progress, StageState
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, OutOfOrder, Paused, Restarted, SluiceError
from sluice.flows.cancellation import LOOK_S, CancellationGuard
from sluice.flows.capture.drain import drain
from sluice.flows.capture.kept_source import KeptSource
from sluice.flows.load.isolation import deliver
from sluice.flows.runtime import Runtime
from sluice.flows.stage_loop import Done, NeverReady, work
from sluice.flows.stage_notes import stage_notes
from sluice.flows.stage_sums import KEPT, SAY_EVERY_S, StageSums
from sluice.flows.stage_work import do
from sluice.flows.stages import Stage, StageKind, has_passed, limit_of_run, share_of_run, stages_of
from sluice.model.batches import Batch

_log = structlog.get_logger()

PATIENCE_S = 60.0
"""Seconds that a stage waits for a batch in its worker.

A run that captures has one more often; without one, its capture may have died.
"""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The outcome of one attempt of a stage: each batch, and for the capture the reason why there was no further
    one.
    """

    stage: str
    done: tuple[Done, ...] = ()
    ended_by: str = ""
    due: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        ended = {"ended_by": self.ended_by} if self.ended_by else {}
        return {"stage": self.stage, **StageSums.of(self.done).result(), **ended}


class RunBoard:
    """A board in ZooKeeper for one stage of the run of ``claim``; see :class:`~sluice.flows.stage_loop.Board`.

    Args:
        state: of a session that keeps its reads.
        marked: stages whose task a person marked as a success: they count as done, and the stages after them do what
            they lack.
    """

    def __init__(
        self, state: PipelineState, stages: tuple[Stage, ...], claim: str, mine: Stage, marked: Collection[str] = ()
    ) -> None:
        self._state = state
        self._stages = {stage.name: stage for stage in stages}
        self._claim = claim
        self._mine = mine
        self._marked = frozenset(marked)
        self._told = threading.Event()
        self._watch = CancellationGuard(state, f"waiting for the next batch of {mine.name}")
        self._progress = Progress()
        self._sums = StageSums()
        self._said_at = time.monotonic()
        state.on_change(self._told.set)

    def begin(self) -> None:
        """Publish that this stage is working; batches of an earlier attempt still count."""
        self._progress = replace(self._said(self._mine.name) or Progress(), state=StageState.WORKING, why="")
        if self._progress.sums:
            self._sums = StageSums.from_json(self._progress.sums)
        self._say()

    def end(self, why: str = "") -> None:
        """Publish that this stage has done its batches."""
        self._progress = replace(self._progress, state=StageState.ENDED, why=why)
        self._say()

    def wait(self, until: Callable[[], bool]) -> bool:
        """Wait until ``until`` holds; False after :data:`PATIENCE_S`.

        Raises what a person's word or a lost session does.
        """
        end = time.monotonic() + PATIENCE_S
        while True:
            self._told.clear()
            if until():
                return True
            if time.monotonic() > end:
                return False
            self._watch()
            self._told.wait(LOOK_S)

    # -- what the loop asks --------------------------------------------------------------------------------------------

    def take(self, stage: Stage, after: int) -> int | None:
        """See :class:`~sluice.flows.stage_loop.Board`."""
        found: list[int | None] = []

        def look() -> bool:
            found[:] = self._ready(stage, after)
            return bool(found)

        if not self.wait(look):
            raise NeverReady(f"no batch came for {PATIENCE_S:.0f} s")
        return found[0]

    def _ready(self, stage: Stage, after: int) -> list[int | None]:
        """Return [batch] if one is ready, [None] if the run has no further one, [] if that is not known yet.

        Raises NeverReady.
        """
        state, capture = self._state, self._said(StageKind.CAPTURE)
        numbers = state.batches.claimed_numbers(self._claim)
        for number in (one for one in numbers if one > after):
            batch = state.batches.get(number)
            if batch is None or batch.claim != self._claim or self._is_over(stage, batch):
                continue
            missing = [name for name in stage.needs if not self._has_passed(self._stages[name], batch)]
            for said, name in ((self._said(name), name) for name in missing):
                if said is not None and said.state is StageState.GAVE_UP:
                    raise NeverReady(f"{name} failed at batch {number}: {said.why}")
            return [] if missing else [number]
        if StageKind.CAPTURE in self._marked:
            return [None]
        if capture is None or capture.state is StageState.WORKING:
            return []
        if capture.state is StageState.GAVE_UP:
            raise NeverReady(f"{StageKind.CAPTURE} failed: {capture.why}")
        return [None] if capture.batch <= max(numbers, default=0) else []

    def _is_over(self, stage: Stage, batch: Batch) -> bool:
        """Return True if the stage has nothing left to do or to check for the batch."""
        if stage.kind in {StageKind.LOAD, StageKind.ACKNOWLEDGE}:
            return self._acknowledged(stage.subject) >= batch.number
        return batch.number <= self._state.delivered() and has_passed(stage, tuple(self._stages.values()), batch)

    def _has_passed(self, stage: Stage, batch: Batch) -> bool:
        if stage.kind is StageKind.CAPTURE or stage.name in self._marked:
            return True
        if stage.kind is StageKind.LOAD:
            said = self._said(stage.name)
            held = max(said.batch if said is not None else 0, self._acknowledged(stage.subject))
            return held >= batch.number
        return has_passed(stage, tuple(self._stages.values()), batch)

    def _acknowledged(self, target: str) -> int:
        found = self._state.acks.get(target)
        return found.batch if found is not None else 0

    def left(self, stage: Stage, batch: int) -> str:
        """See :class:`~sluice.flows.stage_loop.Board`."""
        for said in map(self._said, stage.needs):
            if said is not None and said.later and said.since <= batch <= said.batch:
                return said.later
        return ""

    # -- what the loop says --------------------------------------------------------------------------------------------

    def done(self, stage: Stage, done: Done) -> None:
        """See :class:`~sluice.flows.stage_loop.Board`.

        Only what stands nowhere else is written for each batch; sums every few seconds.
        """
        before = self._progress
        since = 0 if not done.later else before.since if before.later == done.later else done.batch
        self._progress = replace(before, batch=done.batch, later=done.later, since=since)
        self._sums.add(done, KEPT)
        is_due = time.monotonic() - self._said_at >= SAY_EVERY_S
        if is_due or stage.kind in {StageKind.CAPTURE, StageKind.LOAD}:
            self._say(sums=is_due)

    def gave_up(self, stage: Stage, error: BaseException) -> None:
        """See :class:`~sluice.flows.stage_loop.Board`. What a person said, all stages hear."""
        if isinstance(error, Paused | Restarted) or not isinstance(error, Exception):
            return
        why = error.message if isinstance(error, SluiceError) else str(error)
        self._progress = replace(self._progress, state=StageState.GAVE_UP, why=why[:500])
        with suppress(SluiceError):  # ZooKeeper does not answer, which the others notice, too
            self._say()

    def _said(self, name: str) -> Progress | None:
        return self._state.runs.read(self._claim, name)

    def _say(self, *, sums: bool = True) -> None:
        if sums:
            self._said_at = time.monotonic()
            self._progress = replace(self._progress, sums=self._sums.to_json() if self._sums.batches else None)
        self._state.runs.write(self._claim, self._mine.name, self._progress)


def run_stage(
    runtime: Runtime,
    name: str,
    *,
    claim: str,
    on_done: Callable[[Done], None] = lambda done: None,
    marked: Collection[str] = (),
) -> StageOutcome:
    """Run a stage for every batch of the run of ``claim``, from the first one it has not done, until the run has no
    further batch.

    Args:
        on_done: called with the outcome of each batch.
        marked: see :class:`RunBoard`.

    Raises:
        NeverReady: an earlier stage failed, or no batch came for long.
        ConfigError: the pipeline no longer has this stage.
        What the stage raises; the batch stays.
    """
    told: list[Done] = []
    with runtime.state(caches_reads=True) as state:
        stages = stages_of(runtime.pipeline, runtime.rules_folder)
        stage = _stage(stages, name)
        board = RunBoard(state, stages, claim, stage, marked)
        board.begin()

        def one(stage: Stage, batch: int) -> Done:
            try:
                done = do(runtime, stage, batch)
            except OutOfOrder:
                if stage.kind is not StageKind.ACKNOWLEDGE or not marked:
                    raise
                _log.info("batch_loaded_by_ack", pipeline=runtime.name, batch=batch)
                deliver(runtime, stage.subject, batch)  # a person marked the load as a success
                done = do(runtime, stage, batch)
            told.append(done)
            on_done(done)
            return done

        try:
            work(stage, board, one)
        finally:
            stage_notes.write(runtime)
        board.end()
    return StageOutcome(name, tuple(told))


def run_capture(
    runtime: Runtime,
    *,
    claim: str,
    idle_wait_s: float,
    on_done: Callable[[Done], None] = lambda done: None,
    stop: Callable[[], str] = lambda: "",
    gone: Callable[[], Sequence[str]] = tuple,
) -> StageOutcome:
    """Make batch after batch for a run that has its first one, while the other tasks of the run merge and deliver them.

    It ends as a run does: within ``run.max_time``, at ``run.max_batches``, when the source is idle, when a dump comes
    due, for the reason that ``stop`` gives, and when a stage gave up. A run that has ended, and one after which another
    run made batches, gets no further batch.

    Args:
        gone: other tasks of the run that have ended although this one goes on: a person marked them. It is asked once a
            minute.

    Raises:
        What :func:`sluice.flows.capture.drain.drain` raises.
    """
    began, share, pipeline, told = time.monotonic(), share_of_run(), runtime.pipeline, list[Done]()
    with runtime.state(caches_reads=True) as state, KeptSource() as source:
        stages = stages_of(pipeline, runtime.rules_folder)
        capture = stages[0]
        board = RunBoard(state, stages, claim, capture)
        said = state.runs.read(claim, capture.name)
        if said is not None and said.state is StageState.ENDED:
            return StageOutcome(capture.name, ended_by="the run has ended before")
        board.begin()
        due: tuple[str, ...] = ()

        def failed() -> str:
            """Return the first stage that failed, "" if none did."""
            found = ((stage.name, state.runs.read(claim, stage.name)) for stage in stages[1:])
            return next((name for name, one in found if one is not None and one.state is StageState.GAVE_UP), "")

        asked, marked_by_hand = time.monotonic(), ""

        def marked() -> str:
            """Return a task of the run that a person marked, "" if there is none.

            Asked every ``PATIENCE_S`` at most.
            """
            nonlocal asked, marked_by_hand
            if not marked_by_hand and time.monotonic() - asked > PATIENCE_S:
                asked, marked_by_hand = time.monotonic(), next(iter(gone()), "")
            return marked_by_hand

        def is_busy() -> bool:
            if failed() or marked():  # this run delivers nothing further
                return False
            waiting = [state.batches.get(number) for number in state.in_window()]
            return len(waiting) > 1 or any(batch is not None and batch.needs_merge for batch in waiting)

        def made_enough() -> str:
            known, cursor = state.batches.claimed_numbers(claim), state.cursor()
            if cursor is not None and cursor.next_batch - 1 > max(known, default=0):
                return "another run has made batches since"
            limit = limit_of_run(pipeline.run, len(known), time.monotonic() - began, share)
            return limit or ("a dump is due" if due else stop())

        try:
            while not (ended_by := made_enough()):
                while not board.wait(lambda: bool(failed() or marked()) or len(state.in_window()) < pipeline.window):
                    pass
                if name := failed():
                    ended_by = f"{name} failed"
                    break
                if name := marked():
                    ended_by = f"the task {name} was marked by a person, and nothing is delivered without it"
                    break
                at = time.monotonic()
                made = drain(
                    runtime, claim=claim, idle_wait_s=idle_wait_s, another=True, kept=source, stays_open=is_busy
                )
                due = made.due
                if made.batch is None:
                    ended_by = made.closed_by
                    break
                done = Done(made.batch, time.monotonic() - at, made.changes)
                told.append(done)
                board.done(capture, done)
                on_done(done)
        except BaseException as error:
            board.gave_up(capture, error)
            raise
        finally:
            stage_notes.write(runtime)
        board.end(ended_by)
    return StageOutcome(capture.name, tuple(told), ended_by, due)


def _stage(stages: tuple[Stage, ...], name: str) -> Stage:
    for stage in stages:
        if stage.name == name:
            return stage
    raise ConfigError(
        f"the pipeline has no stage {name} any more",
        hint="its stages follow the pipeline file and engine.yaml; mark this task as a success, the run goes on "
        "without it",
    )


__all__ = ["NeverReady", "RunBoard", "StageOutcome", "run_capture", "run_stage"]
