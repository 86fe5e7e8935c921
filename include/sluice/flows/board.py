"""The board of a run, and the one loop of every stage over it.

The state of a batch is in ZooKeeper and at the targets, and each stage records there what it did. So the nodes of the
run's batches are the board: a loop takes the first batch that has not passed its stage, and waits until a node changes.
A stage adds its own progress where no other node has it, and whether it ended or failed.

A stage has one worker at a time (:class:`~sluice.coordination.run_progress.Worker`): its own task, or a thread of the
process that captures. A process that does all stages itself (``is_alone``) is asked by nobody: it believes what it did
itself, and writes nothing to the board.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from sluice.coordination.run_progress import Progress, StageState, Worker
from sluice.coordination.state import PipelineState
from sluice.errors import Fenced, LeaseHeld, Paused, Restarted, SluiceError
from sluice.flows.cancellation import LOOK_S, CancellationGuard
from sluice.flows.runtime import Runtime
from sluice.flows.stage_sums import KEPT, SAY_EVERY_S, Done, StageSums
from sluice.flows.stages import Stage, StageKind, has_passed, stages_of

PATIENCE_S = 10.0
"""Seconds that a task waits for a batch in its worker before it gives the worker back."""

_MERGES_EARLY = 1.5
"""How early a batch is closed before a load is expected to end, in times of the last merge: it may be a larger one."""


class NeverReady(Exception):
    """No further batch will come: an earlier stage failed, or the process is about to end.

    Attributes:
        behind: the stage that failed, at ``batch``; "" if none did.
    """

    def __init__(self, why: str, *, behind: str = "", batch: int = 0) -> None:
        super().__init__(why)
        self.behind = behind
        self.batch = batch


class GivenBack(NeverReady):
    """The worker of a stage is given back although nothing failed; the message says why."""


class RunView:
    """The progress of the batches and stages of one run.

    Args:
        marked: stages whose task a person marked as a success: they count as done, and the stages after them do what
            they lack.
        is_alone: this process does all stages of the run, and no other one takes part.

    Attributes:
        of_drain: *drain*, and the stages that its process may do: those whose tasks, and all before them, run at the
            same place as it does. A worker at another place may reach other servers, and another pool spares them.
        boards: the boards of this process, by stage.
        captured, through: of a run that is alone: its batches, and the last one that has passed all stages.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: PipelineState,
        claim: str,
        marked: Collection[str] = (),
        *,
        is_alone: bool = False,
    ) -> None:
        stages, workers = stages_of(runtime.pipeline, runtime.rules_folder), runtime.pipeline.workers
        self.runtime = runtime
        self.state = state
        self.stages = {stage.name: stage for stage in stages}
        self.claim = claim
        self.is_alone = is_alone
        self.boards: dict[str, Board] = {}
        self.captured: list[int] = []
        self.through = 0
        place = workers.place(StageKind.CAPTURE)
        self.of_drain: set[str] = set()
        for stage in stages:
            if is_alone or (
                self.of_drain.issuperset(stage.needs) and workers.place(stage.kind, stage.subject) == place
            ):
                self.of_drain.add(stage.name)
        self._marked = frozenset(marked)
        self._transforms = [stage.name for stage in stages if stage.transforms]

    def wake(self) -> None:
        """Have all loops of this process look again."""
        for board in list(self.boards.values()):
            board.wake()

    # -- stages --------------------------------------------------------------------------------------------------------

    def progress(self, name: str) -> Progress | None:
        """Return the progress of a stage; None: it has not begun."""
        board = self.boards.get(name)
        return board.progress if board is not None and board.is_at_work else self.state.runs.read(self.claim, name)

    def has_failed(self, name: str) -> bool:
        """Return True if a stage failed and has not begun again."""
        progress = self.progress(name)
        return progress is not None and progress.state is StageState.GAVE_UP

    @property
    def failed_stage(self) -> str:
        """The first stage after the capture that failed, "" if none did."""
        return next((name for name in self.stages if name != StageKind.CAPTURE and self.has_failed(name)), "")

    def worker(self, name: str) -> Worker | None:
        """Return which process works on a stage."""
        return self.state.runs.worker(self.claim, name)

    @property
    def has_drain(self) -> bool:
        """True while a process captures, and does the stages that have no worker."""
        return self.worker(StageKind.CAPTURE) is not None

    def has_ended(self, stage: Stage) -> bool:
        """Return True if the stage has done every batch of a run that gets no further one. Raises as :meth:`ready`."""
        progress = self.progress(stage.name)
        return (progress is not None and progress.state is StageState.ENDED) or self.ready(stage, 0) == [None]

    # -- batches -------------------------------------------------------------------------------------------------------

    @property
    def numbers(self) -> list[int]:
        """The batches of the run, ascending; another run may have resumed some since."""
        return self.captured if self.is_alone else self.state.batches.claimed_numbers(self.claim)

    @property
    def under_way(self) -> list[int]:
        """The captured batches that have not passed all stages, of whichever run, ascending."""
        if self.is_alone:
            return [number for number in self.captured if number > self.through]
        return self.state.in_window()

    def ready(self, stage: Stage, after: int) -> list[int | None]:
        """Return [batch] if one is ready, [None] if the run has no further one, [] if that is not known yet.

        Raises NeverReady if a stage before it failed.
        """
        capture, numbers = self.progress(StageKind.CAPTURE), self.numbers
        for number in numbers:
            if number <= after or self._is_over(stage, number):
                continue
            missing = [name for name in stage.needs if not self.has_passed(name, number)]
            for name in self._before(missing, number) if missing else ():
                progress = self.progress(name)
                if progress is not None and progress.state is StageState.GAVE_UP:
                    raise NeverReady(f"{name} failed at batch {number}: {progress.why}", behind=name, batch=number)
            return [] if missing else [number]
        if StageKind.CAPTURE in self._marked:
            return [None]
        if capture is None or capture.state is StageState.WORKING:
            return []
        if capture.state is StageState.GAVE_UP:
            raise NeverReady(f"{StageKind.CAPTURE} failed: {capture.why}", behind=StageKind.CAPTURE)
        return [None] if capture.batch <= max(numbers, default=0) else []

    def _before(self, names: Sequence[str], batch: int) -> Iterator[str]:
        """Yield these stages and all before them that the batch has not passed."""
        for name in names:
            yield name
            yield from self._before([n for n in self.stages[name].needs if not self.has_passed(n, batch)], batch)

    def _is_over(self, stage: Stage, number: int) -> bool:
        """Return True if the stage has nothing to do or to check for a batch, or if another run delivers it now."""
        if self.is_alone:
            return False
        batch = self.state.batches.get(number)
        if batch is None or batch.claim != self.claim:
            return True
        if stage.kind in {StageKind.LOAD, StageKind.ACKNOWLEDGE}:
            return self._acknowledged(stage.subject) >= number
        return number <= self.state.delivered() and self.has_passed(stage.name, number)

    def has_passed(self, name: str, number: int) -> bool:
        """Return True if a batch has passed the stage of that name, or is not known any more."""
        stage = self.stages[name]
        if stage.kind is StageKind.CAPTURE or name in self._marked:
            return True
        if self.is_alone or not stage.type.is_in_nodes:
            progress = self.progress(name)
            done_here = progress is not None and progress.batch >= number
            if self.is_alone or done_here:
                return done_here
        if stage.kind in {StageKind.LOAD, StageKind.ACKNOWLEDGE}:
            return self._acknowledged(stage.subject) >= number
        batch = self.state.batches.get(number)
        return batch is None or (stage.type.is_in_nodes and has_passed(stage, tuple(self.stages.values()), batch))

    def _acknowledged(self, target: str) -> int:
        acknowledgement = self.state.acks.get(target)
        return acknowledgement.batch if acknowledgement is not None else 0

    def goes_on(self, stage: Stage, behind: str, batch: int, *, for_backlog: bool = True) -> bool:
        """Return True if a task of ``stage`` that gave its worker back should have one again.

        That is when the stage before it that had failed has done its batch, when the run is over, and when the process
        of *drain* is gone or has more batches under way than it can do.

        Args:
            behind: the stage that failed, at ``batch``; "" if none did.
            for_backlog: False: not for what the process of *drain* can do, as workers were short.
        """
        if behind == StageKind.CAPTURE:
            return not self.has_failed(behind)
        if behind in self.stages and not self.has_passed(behind, batch):
            return False
        try:
            ready = self.ready(stage, 0)
        except NeverReady:
            return False
        if behind or ready == [None]:
            return True
        if stage.name in self.of_drain and self.has_drain:
            return bool(ready) and for_backlog and len(self.under_way) > 1
        return bool(ready)

    # -- for the capture -----------------------------------------------------------------------------------------------

    def is_busy(self, now: float) -> bool:
        """Return True if a batch that is captured now would wait: for the merge of the one before it, for the load of
        the one before that, or merged for a load that lasts longer than its merge.

        Changes that come meanwhile are in it then, and not in the batch after it, a whole load later. How long a load
        lasts is known of the last one that this process did. ``now``: by the clock of the boards.
        """
        waiting = self.under_way
        if len(waiting) > 1 or any(not self.has_passed(self._transforms[-1], number) for number in waiting):
            return True
        merge_s = sum(board.took_s for name, board in self.boards.items() if name in self._transforms)
        return any(self._loading_s(number, now) > _MERGES_EARLY * merge_s for number in waiting)

    def _loading_s(self, number: int, now: float) -> float:
        """Return in how many seconds the first target that gets a batch is expected to have it; 0 if that is not
        known.
        """
        loads = [board for board in self.boards.values() if board.stage.kind is StageKind.LOAD and board.is_at_work]
        return min((board.left_s(number, now) for board in loads if not board.skipped(number)), default=0.0)


class Board:
    """The view of one stage on the board of its run, for the loop of that stage.

    Args:
        worker: the process that this board is for.
        leaves: a reason to give the stage's worker back before the next batch, "" if there is none.
        on_done: called with each batch that has passed the stage.

    Attributes:
        is_at_work: this process works on the stage, and ``progress`` is newer than what is stored.
        sums: what was done for the stage in the run, by whichever process.
        error: the error with which the stage ended.
        took_s: seconds of the last batch on which it worked.
    """

    def __init__(
        self,
        view: RunView,
        stage: Stage,
        *,
        worker: Worker = Worker.TASK,
        leaves: Callable[[], str] = lambda: "",
        on_done: Callable[[Done], None] = lambda outcome: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = view
        self.stage = stage
        self.is_at_work = view.is_alone
        self.progress = Progress()
        self.sums = StageSums()
        self.error: BaseException | None = None
        self.took_s = 0.0
        self._begun = (0, 0.0)
        self._worker = worker
        self._leaves = leaves
        self._on_done = on_done
        self._clock = clock
        self._changed = threading.Event()
        self._guard = CancellationGuard(view.state, f"waiting for the next batch of {stage.name}")
        self._written_s = time.monotonic()
        view.boards[stage.name] = self
        if not view.is_alone:
            view.state.on_change(self._changed.set)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be the worker of the stage inside the block; batches of an earlier attempt, or of the other process, still
        count.

        Raises GivenBack if another process is at work on it and does not leave.
        """
        if self.view.is_alone:
            yield
            return
        runs, claim, name = self.view.state.runs, self.view.claim, self.stage.name
        if not runs.take(claim, name, self._worker):
            self._ask()
        try:
            self.progress = replace(self.view.progress(name) or Progress(), state=StageState.WORKING, why="")
            self.sums = StageSums.from_json(self.progress.sums) if self.progress.sums else StageSums()
            self.is_at_work = True
            self._write()
            yield
        finally:
            self.is_at_work = False
            with suppress(SluiceError):  # with the session, this node is gone, too
                runs.release(claim, name)

    def _ask(self) -> None:
        """Ask the process that works on the stage to leave it, and take it."""
        runs, claim, name = self.view.state.runs, self.view.claim, self.stage.name
        if self._worker is Worker.DRAIN and self.stage.kind is not StageKind.CAPTURE:
            raise GivenBack(f"{name} has a worker")
        runs.ask(claim, name)
        try:
            if not self.wait(lambda: runs.take(claim, name, self._worker)):
                raise GivenBack(f"another process is at work on a batch of {name}")
        finally:
            with suppress(SluiceError):
                runs.ask_no_more(claim, name)

    def require_same_run(self) -> None:
        """Raise Paused or Restarted if a person said so since this board was made."""
        self.view.state.pause_switch.require(since=self._guard.pause_state)

    def wait(self, until: Callable[[], bool]) -> bool:
        """Wait until ``until`` holds; False after :data:`PATIENCE_S`.

        Raises Paused, Restarted, and CoordinationUnavailable for a lost session.
        """
        end = time.monotonic() + PATIENCE_S
        while True:
            self._changed.clear()
            if until():
                return True
            if time.monotonic() > end:
                return False
            self._guard()
            self._changed.wait(LOOK_S)

    def wake(self) -> None:
        """Have :meth:`wait` look again."""
        self._changed.set()

    # -- what the loop asks --------------------------------------------------------------------------------------------

    def next_batch(self, after: int) -> int | None:
        """Wait for the first batch after ``after`` to be ready for the stage. None: the run has no further one.

        Raises NeverReady.
        """
        ready: list[int | None] = []

        def look() -> bool:
            if why := self._leaves():
                raise GivenBack(why)
            ready[:] = self.view.ready(self.stage, after)
            return bool(ready)

        while not self.wait(look):
            if self._worker is Worker.TASK:
                raise GivenBack(f"no batch came for {PATIENCE_S:.0f} s")
        self._begun = ready[0] or 0, self._clock()
        return ready[0]

    def skip_reason(self, batch: int) -> str:
        """Return the reason for which a stage before left this batch for another time; "" if none did."""
        for progress in map(self.view.progress, self.stage.needs):
            if progress is not None and progress.later and progress.since <= batch <= progress.batch:
                return progress.later
        return ""

    def skipped(self, batch: int) -> bool:
        """Return True if the stage left this batch for another time."""
        return bool(self.progress.later) and self.progress.since <= batch <= self.progress.batch

    def left_s(self, batch: int, now: float) -> float:
        """Return in how many seconds the stage is expected to have done a batch; 0 if that is not known."""
        if self.progress.batch >= batch:
            return 0.0
        begun_batch, at = self._begun
        return self.took_s - (now - at if begun_batch == batch else 0.0)

    # -- what the loop says --------------------------------------------------------------------------------------------

    def done(self, outcome: Done) -> None:
        """Record that a batch has passed the stage.

        Only what stands nowhere else is written for each batch; sums every few seconds.
        """
        before, kind = self.progress, self.stage.kind
        since = 0 if not outcome.later else before.since if before.later == outcome.later else outcome.batch
        stands_in = self._worker is Worker.DRAIN and kind is not StageKind.CAPTURE
        if kind is StageKind.CAPTURE:
            self.view.captured.append(outcome.batch)
        if not outcome.already or outcome.batch > before.batch:  # another process did it, and counted it
            self.sums.add(outcome, KEPT)
        if not outcome.already and not outcome.later:
            self.took_s = outcome.seconds
        self.progress = replace(
            before, batch=outcome.batch, later=outcome.later, since=since, in_drain=before.in_drain + stands_in
        )
        is_due = time.monotonic() - self._written_s >= SAY_EVERY_S
        if is_due or not self.stage.type.is_in_nodes:
            self._write(sums=is_due)
        self.view.wake()
        self._on_done(outcome)

    def failed(self, error: BaseException) -> None:
        """Record that the stage ends with an error.

        Only the stage's own failure is recorded: those after it see it there, a pause or restart every stage sees
        itself, and one that another process still works on has not failed.
        """
        if not isinstance(error, Exception):
            return
        if self._is_own_failure(error):
            self.error = error
            why = error.message if isinstance(error, SluiceError) else str(error)
            self.progress = replace(self.progress, state=StageState.GAVE_UP, why=why[:500])
        with suppress(SluiceError):  # ZooKeeper does not answer, which the others notice, too
            self._write()
        self.view.wake()

    def _is_own_failure(self, error: Exception) -> bool:
        if isinstance(error, NeverReady):
            return False
        if self.view.is_alone:
            return True
        is_elsewhere = self._worker is Worker.DRAIN and isinstance(error, LeaseHeld | Fenced)
        return not isinstance(error, Paused | Restarted) and not is_elsewhere

    def end(self, why: str = "") -> None:
        """Publish that this stage has done its batches."""
        self.progress = replace(self.progress, state=StageState.ENDED, why=why)
        self._write()
        self.view.wake()

    def _write(self, *, sums: bool = True) -> None:
        if self.view.is_alone:
            return
        if sums:
            self._written_s = time.monotonic()
            self.progress = replace(self.progress, sums=self.sums.to_json() if self.sums.batches else None)
        self.view.state.runs.write(self.view.claim, self.stage.name, self.progress)

    def publish(self) -> None:
        """Write what the stage did in a process that is alone, where the stage's own task reads it."""
        if self.sums.batches:
            progress = Progress(
                StageState.ENDED, self.sums.newest[-1].batch, sums=self.sums.to_json(), in_drain=self.sums.batches
            )
            self.view.state.runs.write(self.view.claim, self.stage.name, progress)


def work(board: Board, do: Callable[[Stage, int], Done]) -> None:
    """Run the stage of ``board`` for every batch of the run, in order.

    Raises:
        NeverReady: an earlier stage failed.
        What ``do`` raises: the batch stays, and the stage ends.
    """
    after = 0
    try:
        while (batch := board.next_batch(after)) is not None:
            later = board.skip_reason(batch)
            board.done(Done(batch, later=later) if later else do(board.stage, batch))
            after = batch
    except BaseException as error:
        board.failed(error)
        raise


__all__ = ["Board", "GivenBack", "NeverReady", "RunView", "work"]
