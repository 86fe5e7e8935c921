"""The stages of a run as tasks of their own, and the process of *drain* in place of those that have no worker.

The batches of a run and their state are in ZooKeeper anyway. A process adds its progress if no other node tells it, and
whether it ended or failed. The tasks of the run read this and are notified of changes by their watches.

The graph is the same whatever the number of workers; the workers decide how much of it is done side by side. A stage
has one worker at a time (:class:`~sluice.coordination.run_progress.Worker`): its own task, or a thread of the process
that captures. The thread begins when the task has no worker, and leaves before its next batch when the task asks for
the stage. Both are the same loop, which begins with the first batch that has not passed the stage; so one that dies
anywhere is made up for by the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog

from sluice.coordination.run_progress import Progress, StageState, Worker
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, Fenced, LeaseHeld, OutOfOrder, Paused, Restarted, SluiceError
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

PATIENCE_S = 10.0
"""Seconds that a task waits for a batch in its worker before it gives the worker back."""

GRACE_S = 2.0
"""Seconds from the start of *drain* in which the other tasks of the run may begin; it then does the stages of those
that have no worker.
"""

SHORT_AFTER_S = 3.0
"""Seconds after which stages give their workers back for a *sense* or *drain* that waits for one."""

_ENDS_S = 5.0
"""Seconds that *drain* waits for its threads when it ends by an error. Leases and epochs stop what still runs then."""


class GivenBack(NeverReady):
    """The worker of a stage is given back although nothing failed; the message says why."""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The outcome of one attempt of a stage: each batch, and for the capture the reason why there was no further
    one.

    Attributes:
        done: the batches that this attempt did.
        sums: what was done for the stage in the run, by whichever process; None: what this attempt did.
        in_drain: the batches of the run that the process of *drain* did, by stage.
    """

    stage: str
    done: tuple[Done, ...] = ()
    ended_by: str = ""
    due: tuple[str, ...] = ()
    sums: StageSums | None = None
    in_drain: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        ended = {"ended_by": self.ended_by} if self.ended_by else {}
        sums = self.sums if self.sums is not None else StageSums.of(self.done)
        counts = dict(self.in_drain)
        in_drain = {"in_drain": counts.get(self.stage, 0) if self.stage != StageKind.CAPTURE else counts}
        return {"stage": self.stage, **sums.result(), **ended, **in_drain}


class _Shortage:
    """Tells whether *sense* or *drain* of a pipeline has waited for a worker for a while, by this process's clock."""

    def __init__(self, view: RunView, stage: Stage) -> None:
        self._view = view
        self._stage = stage
        self._since: dict[str, float] = {}

    def __call__(self) -> str:
        """Return why the worker of the stage is needed elsewhere, "" if it is not."""
        if self._stage.name not in self._view.of_drain or not self._view.has_drain:
            return ""
        now, waiting = time.monotonic(), self._view.state.waiting_tasks.pipelines()
        self._since = {name: self._since.get(name, now) for name in waiting}
        short = [name for name, since in self._since.items() if now - since >= SHORT_AFTER_S]
        return f"workers are short, and {short[0]} waits for one" if short else ""


class RunView:
    """The progress of the batches and stages of one run, as ZooKeeper has it.

    Args:
        marked: stages whose task a person marked as a success: they count as done, and the stages after them do what
            they lack.

    Attributes:
        of_drain: *drain*, and the stages that its process may do: those whose tasks, and all before them, run at the
            same place as it does. A worker at another place may reach other servers, and another pool spares them.
    """

    def __init__(self, runtime: Runtime, state: PipelineState, claim: str, marked: Collection[str] = ()) -> None:
        stages, workers = stages_of(runtime.pipeline, runtime.rules_folder), runtime.pipeline.workers
        self.state = state
        self.stages = {stage.name: stage for stage in stages}
        self.claim = claim
        place = workers.place(StageKind.CAPTURE)
        self.of_drain: set[str] = set()
        for stage in stages:
            if self.of_drain.issuperset(stage.needs) and workers.place(stage.kind, stage.subject) == place:
                self.of_drain.add(stage.name)
        self._marked = frozenset(marked)

    def said(self, name: str) -> Progress | None:
        """Return the progress of a stage."""
        return self.state.runs.read(self.claim, name)

    def gave_up(self, name: str) -> bool:
        """Return True if a stage failed and has not begun again."""
        said = self.said(name)
        return said is not None and said.state is StageState.GAVE_UP

    def worker(self, name: str) -> Worker | None:
        """Return which process works on a stage."""
        return self.state.runs.worker(self.claim, name)

    @property
    def has_drain(self) -> bool:
        """True while a process captures, and does the stages that have no worker."""
        return self.worker(StageKind.CAPTURE) is not None

    def ready(self, stage: Stage, after: int) -> list[int | None]:
        """Return [batch] if one is ready, [None] if the run has no further one, [] if that is not known yet.

        Raises NeverReady if a stage before it failed.
        """
        capture = self.said(StageKind.CAPTURE)
        numbers = self.state.batches.claimed_numbers(self.claim)
        for number in (one for one in numbers if one > after):
            batch = self.state.batches.get(number)
            if batch is None or batch.claim != self.claim or self._is_over(stage, batch):
                continue
            missing = [name for name in stage.needs if not self.has_passed(name, batch)]
            for name in self._before(missing, batch) if missing else ():
                if self.gave_up(name):
                    said = self.said(name)
                    why = said.why if said is not None else ""
                    raise NeverReady(f"{name} failed at batch {number}: {why}", behind=name, batch=number)
            return [] if missing else [number]
        if StageKind.CAPTURE in self._marked:
            return [None]
        if capture is None or capture.state is StageState.WORKING:
            return []
        if capture.state is StageState.GAVE_UP:
            raise NeverReady(f"{StageKind.CAPTURE} failed: {capture.why}", behind=StageKind.CAPTURE)
        return [None] if capture.batch <= max(numbers, default=0) else []

    def has_ended(self, stage: Stage) -> bool:
        """Return True if the stage has done every batch of a run that gets no further one. Raises as :meth:`ready`."""
        said = self.said(stage.name)
        return (said is not None and said.state is StageState.ENDED) or self.ready(stage, 0) == [None]

    def _before(self, names: Sequence[str], batch: Batch) -> Iterator[str]:
        """Yield these stages and all before them that the batch has not passed."""
        for name in names:
            yield name
            yield from self._before([n for n in self.stages[name].needs if not self.has_passed(n, batch)], batch)

    def goes_on(self, stage: Stage, behind: str, batch: int, *, for_backlog: bool = True) -> bool:
        """Return True if a task of ``stage`` that gave its worker back should have one again.

        That is when the stage before it that had failed has done its batch, when the run is over, and when the process
        of *drain* is gone or has more batches under way than it can do.

        Args:
            behind: the stage that failed, at ``batch``; "" if none did.
            for_backlog: False: not for what the process of *drain* can do, as workers were short.
        """
        if behind == StageKind.CAPTURE:
            return not self.gave_up(behind)
        found = self.state.batches.get(batch) if behind else None
        if behind and behind in self.stages and found is not None and not self.has_passed(behind, found):
            return False
        try:
            ready = self.ready(stage, 0)
        except NeverReady:
            return False
        if behind or ready == [None]:
            return True
        if stage.name in self.of_drain and self.has_drain:
            return bool(ready) and for_backlog and len(self.state.in_window()) > 1
        return bool(ready)

    def _is_over(self, stage: Stage, batch: Batch) -> bool:
        """Return True if the stage has nothing left to do or to check for the batch."""
        if stage.kind in {StageKind.LOAD, StageKind.ACKNOWLEDGE}:
            return self._acknowledged(stage.subject) >= batch.number
        return batch.number <= self.state.delivered() and has_passed(stage, tuple(self.stages.values()), batch)

    def has_passed(self, name: str, batch: Batch) -> bool:
        """Return True if a batch has passed the stage of that name."""
        stage = self.stages[name]
        if stage.kind is StageKind.CAPTURE or name in self._marked:
            return True
        if stage.kind is StageKind.LOAD:
            said = self.said(name)
            held = max(said.batch if said is not None else 0, self._acknowledged(stage.subject))
            return held >= batch.number
        return has_passed(stage, tuple(self.stages.values()), batch)

    def _acknowledged(self, target: str) -> int:
        found = self.state.acks.get(target)
        return found.batch if found is not None else 0


class RunBoard:
    """A board in ZooKeeper for one stage of a run; see :class:`~sluice.flows.stage_loop.Board`.

    Args:
        view: of a session that keeps its reads.
        worker: the process that this board is for.
        leaves: a reason to give the stage's worker back before the next batch, "" if there is none.
    """

    def __init__(
        self, view: RunView, mine: Stage, *, worker: Worker = Worker.TASK, leaves: Callable[[], str] = lambda: ""
    ) -> None:
        self.view = view
        self._mine = mine
        self._worker = worker
        self._leaves = leaves
        self._told = threading.Event()
        self._watch = CancellationGuard(view.state, f"waiting for the next batch of {mine.name}")
        self._progress = Progress()
        self.sums = StageSums()
        self._said_at = time.monotonic()
        view.state.on_change(self._told.set)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be the worker of the stage inside the block; batches of an earlier attempt, or of the other process, still
        count.

        Raises GivenBack if another process is at work on it and does not leave.
        """
        runs, claim, name = self.view.state.runs, self.view.claim, self._mine.name
        if not runs.take(claim, name, self._worker):
            self._ask()
        try:
            self._progress = replace(self.view.said(name) or Progress(), state=StageState.WORKING, why="")
            self.sums = StageSums.from_json(self._progress.sums) if self._progress.sums else StageSums()
            self._say()
            yield
        finally:
            with suppress(SluiceError):  # with the session, this node is gone, too
                runs.release(claim, name)

    def _ask(self) -> None:
        """Ask the process that works on the stage to leave it, and take it."""
        runs, claim, name = self.view.state.runs, self.view.claim, self._mine.name
        if self._worker is Worker.DRAIN and self._mine.kind is not StageKind.CAPTURE:
            raise GivenBack(f"{name} has a worker")
        runs.ask(claim, name)
        try:
            if not self.wait(lambda: runs.take(claim, name, self._worker)):
                raise GivenBack(f"another process is at work on a batch of {name}")
        finally:
            with suppress(SluiceError):
                runs.ask_no_more(claim, name)

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

    def wake(self) -> None:
        """Have :meth:`wait` look again."""
        self._told.set()

    @property
    def in_drain(self) -> int:
        """The number of batches that the process of *drain* did for this stage."""
        return self._progress.in_drain

    # -- what the loop asks --------------------------------------------------------------------------------------------

    def take(self, stage: Stage, after: int) -> int | None:
        """See :class:`~sluice.flows.stage_loop.Board`."""
        found: list[int | None] = []

        def look() -> bool:
            if why := self._leaves():
                raise GivenBack(why)
            found[:] = self.view.ready(stage, after)
            return bool(found)

        while not self.wait(look):
            if self._worker is Worker.TASK:
                raise GivenBack(f"no batch came for {PATIENCE_S:.0f} s")
        return found[0]

    def left(self, stage: Stage, batch: int) -> str:
        """See :class:`~sluice.flows.stage_loop.Board`."""
        for said in map(self.view.said, stage.needs):
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
        stands_in = self._worker is Worker.DRAIN and stage.kind is not StageKind.CAPTURE
        self._progress = replace(
            before, batch=done.batch, later=done.later, since=since, in_drain=before.in_drain + stands_in
        )
        self.sums.add(done, KEPT)
        is_due = time.monotonic() - self._said_at >= SAY_EVERY_S
        if is_due or stage.kind in {StageKind.CAPTURE, StageKind.LOAD}:
            self._say(sums=is_due)

    def gave_up(self, stage: Stage, error: BaseException) -> None:
        """See :class:`~sluice.flows.stage_loop.Board`.

        Only the stage's own failure is recorded: those after it see it there, a pause or restart every stage sees
        itself, and one that another process still works on has not failed.
        """
        if not isinstance(error, Exception):
            return
        if isinstance(error, Paused | Restarted | NeverReady) or (
            self._worker is Worker.DRAIN and isinstance(error, LeaseHeld | Fenced)
        ):
            with suppress(SluiceError):
                self._say()
            return
        why = error.message if isinstance(error, SluiceError) else str(error)
        self._progress = replace(self._progress, state=StageState.GAVE_UP, why=why[:500])
        with suppress(SluiceError):  # ZooKeeper does not answer, which the others notice, too
            self._say()

    def _say(self, *, sums: bool = True) -> None:
        if sums:
            self._said_at = time.monotonic()
            self._progress = replace(self._progress, sums=self.sums.to_json() if self.sums.batches else None)
        self.view.state.runs.write(self.view.claim, self._mine.name, self._progress)


def run_stage(
    runtime: Runtime,
    name: str,
    *,
    claim: str,
    on_done: Callable[[Done], None] = lambda done: None,
    marked: Collection[str] = (),
) -> StageOutcome:
    """Run a stage for every batch of the run of ``claim``, from the first one that has not passed it, until the run has
    no further batch.

    Args:
        on_done: called with the outcome of each batch.
        marked: see :class:`RunView`.

    Raises:
        NeverReady: an earlier stage failed.
        GivenBack: no batch came for long, workers are short, or the process of *drain* is at a batch of this stage.
        ConfigError: the pipeline no longer has this stage.
        What the stage raises; the batch stays.
    """
    told: list[Done] = []
    with runtime.state(caches_reads=True) as state:
        view = RunView(runtime, state, claim, marked)
        stage = _stage(view, name)
        board = RunBoard(view, stage, leaves=_Shortage(view, stage))

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
            with board.at_work():
                work(stage, board, one)
                board.end()
        finally:
            stage_notes.write(runtime)
    return StageOutcome(name, tuple(told), sums=board.sums, in_drain=((name, board.in_drain),))


def goes_on(
    runtime: Runtime, name: str, *, claim: str, behind: str = "", batch: int = 0, for_backlog: bool = True
) -> bool:
    """Return True if the task of a stage that gave its worker back should have one again, see
    :meth:`RunView.goes_on`.
    """
    with runtime.state() as state:
        view = RunView(runtime, state, claim)
        stage = view.stages.get(name)
        return stage is None or view.goes_on(stage, behind, batch, for_backlog=for_backlog)


def has_drain(runtime: Runtime, claim: str) -> bool:
    """Return True while a process captures for the run of ``claim``, or does the stages that have no worker."""
    with runtime.state() as state:
        return state.runs.worker(claim, StageKind.CAPTURE) is not None


class _Substitutes:
    """Threads of the process of *drain*, one for each stage that it may do, which do those without a worker."""

    def __init__(self, runtime: Runtime, view: RunView) -> None:
        self._runtime = runtime
        self._view = view
        self._grace_ends = time.monotonic() + GRACE_S
        self._is_captured = False
        self._is_stopped = False
        self._death: BaseException | None = None
        self._boards = {
            stage.name: RunBoard(view, stage, worker=Worker.DRAIN, leaves=self._leaves(stage))
            for stage in view.stages.values()
            if stage.name in view.of_drain and stage.kind is not StageKind.CAPTURE
        }
        self._threads = {
            name: threading.Thread(target=self._run, args=(view.stages[name], board), name=name, daemon=True)
            for name, board in self._boards.items()
        }

    def __enter__(self) -> _Substitutes:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Have the threads leave their stages before the next batch."""
        self._is_stopped = True
        self._wake()
        until = time.monotonic() + _ENDS_S
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))

    def finish(self, board: RunBoard) -> None:
        """Do what the captured batches lack in stages without a worker. Raises what a person's word or a lost session
        does.
        """
        self._is_captured = True
        self._wake()
        while not board.wait(self._is_settled):
            pass
        self.require_life()

    def _is_settled(self) -> bool:
        """Return True if no stage needs this process: each has done its batches, has failed, or has its own task.

        While one of them needs it, a task of another one may still die and be made up for.
        """
        return self._death is not None or all(self._settled(name) for name in self._boards)

    def _settled(self, name: str) -> bool:
        if not self._threads[name].is_alive():
            return True
        worker = self._view.worker(name)
        if worker is not None or self._view.gave_up(name):
            return worker is not Worker.DRAIN
        try:
            return self._view.has_ended(self._view.stages[name])
        except NeverReady:
            return True

    def require_life(self) -> None:
        """Raise what ends this process, if it came to a thread."""
        if self._death is not None:
            raise self._death

    @property
    def in_drain(self) -> tuple[tuple[str, int], ...]:
        """The batches that the process of *drain* did in this run, by stage."""
        said = ((name, self._view.said(name)) for name in self._boards)
        return tuple((name, one.in_drain) for name, one in said if one is not None and one.in_drain)

    def _wake(self) -> None:
        for board in self._boards.values():
            board.wake()

    def _leaves(self, stage: Stage) -> Callable[[], str]:
        def why() -> str:
            if self._is_stopped:
                return "the process of drain ends"
            asked = self._view.state.runs.is_asked(self._view.claim, stage.name)
            return "its own task has a worker" if asked else ""

        return why

    def _run(self, stage: Stage, board: RunBoard) -> None:
        try:
            while self._is_vacant(stage, board):
                with suppress(GivenBack, LeaseHeld, Fenced), board.at_work():
                    work(stage, board, self._do)
                    board.end()
        except NeverReady:
            return
        except Exception as error:  # its own task meets and shows it again
            _log.warning("stage_left_to_task", pipeline=self._runtime.name, stage=stage.name, error=str(error))
        except BaseException as error:
            self._death = error

    def _do(self, stage: Stage, batch: int) -> Done:
        return do(self._runtime, stage, batch)

    def _is_vacant(self, stage: Stage, board: RunBoard) -> bool:
        """Wait until the stage has no worker although it has work; False if there is nothing to do here any more."""
        found: list[bool] = []

        def look() -> bool:
            found[:] = self._vacancy(stage)
            return bool(found)

        while not board.wait(look):
            pass
        return found[0]

    def _vacancy(self, stage: Stage) -> list[bool]:
        """Return [True] for a stage without a worker, [False] if nothing is to be done here, [] if that may change."""
        if self._is_stopped or self._view.gave_up(stage.name):
            return [False]
        if self._view.worker(stage.name) is not None or self._view.state.runs.is_asked(self._view.claim, stage.name):
            return []
        if self._is_captured and self._view.has_ended(stage):
            return [False]
        return [True] if time.monotonic() >= self._grace_ends else []


def run_capture(
    runtime: Runtime,
    *,
    claim: str,
    idle_wait_s: float,
    on_done: Callable[[Done], None] = lambda done: None,
    stop: Callable[[], str] = lambda: "",
    gone: Callable[[], Sequence[str]] = tuple,
) -> StageOutcome:
    """Make batch after batch for a run that has its first one, while the other tasks of the run merge and deliver them;
    do the stages of tasks that have no worker.

    It captures as long as a run does: within ``run.max_time``, until ``run.max_batches``, until the source is idle, a
    dump comes due, ``stop`` gives a reason, or a stage gave up. A run that has ended, and one after which another run
    made batches, gets no further batch. It returns when each stage has a worker, has failed, or has done all batches.

    Args:
        gone: other tasks of the run that have ended although this one goes on: a person marked them. It is asked every
            :data:`PATIENCE_S`.

    Raises:
        LeaseHeld: an earlier attempt still works on the run.
        What :func:`sluice.flows.capture.drain.drain` raises.
    """
    told = list[Done]()
    with runtime.state(caches_reads=True) as state, KeptSource() as source:
        state.waiting_tasks.begins()
        view = RunView(runtime, state, claim)
        capture = next(iter(view.stages.values()))
        board = RunBoard(view, capture, worker=Worker.DRAIN)
        said = view.said(capture.name)
        has_ended = said is not None and said.state is StageState.ENDED
        try:
            with board.at_work(), _Substitutes(runtime, view) as others:
                run = _Capture(runtime, view, board, others, stop, gone)
                ended_by = "the run has ended before" if has_ended else ""
                try:
                    while not ended_by:
                        if ended_by := run.wait_for_room():
                            break
                        at = time.monotonic()
                        made = drain(
                            runtime,
                            claim=claim,
                            idle_wait_s=idle_wait_s,
                            another=True,
                            kept=source,
                            stays_open=run.is_busy,
                        )
                        run.due = made.due
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
                source.close()  # the rest reads nothing there
                if ended_by.startswith("run."):  # a limit: the next run has more to capture
                    state.waiting_tasks.waits("sense")
                board.end(ended_by if not has_ended else said.why if said is not None else "")
                if not run.marked():
                    others.finish(board)
                in_drain = others.in_drain
        except GivenBack as error:
            raise LeaseHeld(
                f"an earlier attempt of {capture.name} still works on this run",
                where=state.layout.stage_worker(claim, capture.name),
                hint="it is free when that process ends or its session expires",
            ) from error
        finally:
            stage_notes.write(runtime)
    return StageOutcome(capture.name, tuple(told), ended_by, run.due, in_drain=in_drain)


class _Capture:
    """Decides whether a capture makes another batch, and when."""

    def __init__(
        self,
        runtime: Runtime,
        view: RunView,
        board: RunBoard,
        others: _Substitutes,
        stop: Callable[[], str],
        gone: Callable[[], Sequence[str]],
    ) -> None:
        self._pipeline = runtime.pipeline
        self._view = view
        self._board = board
        self._others = others
        self._stop = stop
        self._gone = gone
        self._began, self._share = time.monotonic(), share_of_run()
        self._asked_at, self._marked = time.monotonic(), ""
        self.due: tuple[str, ...] = ()

    def wait_for_room(self) -> str:
        """Wait until the window has room for another batch; return why none is made, "" if one may be."""
        state, found = self._view.state, [""]

        def look() -> bool:
            self._others.require_life()
            found[0] = self._made_enough()
            return bool(found[0]) or len(state.in_window()) < self._pipeline.window

        while not self._board.wait(look):
            pass
        return found[0]

    def _made_enough(self) -> str:
        if name := self._failed():
            return f"{name} failed"
        if name := self.marked():
            return f"the task {name} was marked by a person, and nothing is delivered without it"
        state = self._view.state
        known, cursor = state.batches.claimed_numbers(self._view.claim), state.cursor()
        if cursor is not None and cursor.next_batch - 1 > max(known, default=0):
            return "another run has made batches since"
        limit = limit_of_run(self._pipeline.run, len(known), time.monotonic() - self._began, self._share)
        return limit or ("a dump is due" if self.due else self._stop())

    def is_busy(self) -> bool:
        """Return True if a batch that is captured now would wait for the merge of another one."""
        self._others.require_life()
        if self._failed() or self.marked():  # this run delivers nothing further
            return False
        state = self._view.state
        waiting = [state.batches.get(number) for number in state.in_window()]
        return len(waiting) > 1 or any(batch is not None and batch.needs_merge for batch in waiting)

    def _failed(self) -> str:
        """Return the first stage that failed, "" if none did."""
        names = (name for name in self._view.stages if name != StageKind.CAPTURE)
        return next((name for name in names if self._view.gave_up(name)), "")

    def marked(self) -> str:
        """Return a task of the run that a person marked, "" if there is none. Asked every ``PATIENCE_S`` at most."""
        if not self._marked and time.monotonic() - self._asked_at > PATIENCE_S:
            self._asked_at, self._marked = time.monotonic(), next(iter(self._gone()), "")
        return self._marked


def _stage(view: RunView, name: str) -> Stage:
    if name in view.stages:
        return view.stages[name]
    raise ConfigError(
        f"the pipeline has no stage {name} any more",
        hint="its stages follow the pipeline file and engine.yaml; mark this task as a success, the run goes on "
        "without it",
    )


__all__ = ["GivenBack", "NeverReady", "RunBoard", "StageOutcome", "goes_on", "has_drain", "run_capture", "run_stage"]
