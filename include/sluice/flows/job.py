"""The job: one capture loop, and the stage loops of the batches that it captures.

A run of the DAG costs more than the work on a thousand changes. So a run captures batch after batch while changes keep
coming, and its stages work on them meanwhile: a batch is read while the one before it is merged and the one before that
is loaded. Every batch has its number and its claim, each stage records it in ZooKeeper, and it is acknowledged by
itself. So a process may end anywhere, even by ``kill -9``: the next attempt goes on with the first batch that has not
passed its stage (:mod:`sluice.flows.board`).

The graph is the same whatever the number of workers; the workers decide how much of it is done side by side:

* ``run: {tasks: own}``: a task per stage. The process that captures does the stages of tasks that have no worker, until
  they have one (:func:`run_capture`, :func:`run_stage`).
* ``run: {tasks: one}``: the process that captures does all stages of small batches, and leaves the others to the tasks
  of the run (:func:`run_microbatches`).
* ``sluice run`` takes one batch after the other through all stages, side by side for the targets
  (:func:`deliver_batch`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from sluice.coordination.run_progress import Progress, StageState, Worker
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, Fenced, LeaseHeld, OutOfOrder, Paused, Restarted, SluiceError
from sluice.flows import stages
from sluice.flows.board import Board, GivenBack, NeverReady, RunView, work
from sluice.flows.cancellation import LOOK_S, CancellationGuard
from sluice.flows.capture.drain import drain
from sluice.flows.capture.kept_source import KeptSource
from sluice.flows.load.isolation import deliver
from sluice.flows.runtime import Runtime
from sluice.flows.stage_notes import stage_notes
from sluice.flows.stage_sums import SAY_EVERY_S, DeliveredBatch, Done, StageSums, counted
from sluice.flows.stage_work import WAITS, do
from sluice.flows.stages import Stage, StageKind, limit_of_run, share_of_run
from sluice.model.batches import DrainOutcome
from sluice.segments.changeset import read_changeset

_log = structlog.get_logger()

GRACE_S = 2.0
"""Seconds from the start of *drain* in which the other tasks of the run may begin; it then does the stages of those
that have no worker.
"""

SHORT_AFTER_S = 3.0
"""Seconds after which stages give their workers back for a *sense* or *drain* that waits for one."""

SHORT_LOOK_S = 2.0
"""Seconds between two looks at which pipelines wait: with a thousand of them, one begins or ends to wait all the time.
"""

TURN_S = 15.0
"""Seconds for which a run captures before it ends for another pipeline that has waited that long for a worker of the
same pool; both in shares, so that not all runs end for the same one (:func:`sluice.flows.stages.share_of_run`).
"""

TURN_BESIDE_OTHER_POOLS_S = 60.0
"""The same if that pipeline waits for a worker of another pool, which this one may not free."""

DRAIN_COMES_S = 60.0
"""Seconds for which the other tasks of a run wait for *drain* to begin: a person may have marked it."""

MARKED_EVERY_S = 10.0
"""Seconds between two questions to Airflow whether a person marked a task of the run."""

SIDE_BY_SIDE = 20_000
"""Changes from which on a batch of ``run: {tasks: one}`` is left to the tasks of the run, so that the next one is
captured and merged while it is loaded.
"""

EARLIER_WAIT_S = 20.0
"""Seconds that a run that is alone waits for earlier batches, which the tasks of other runs deliver.

That takes a few seconds, more on a busy machine. Waiting costs little, as loads are serial. Without it the run could
not loop, and the next run would find the same.
"""

_ENDS_S = 5.0
"""Seconds that the capture waits for its threads when it ends by an error. Leases and epochs stop what still runs
then.
"""


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

    @property
    def in_drain_text(self) -> str:
        """The text about what the process of *drain* did in place of the stage's task; "" if it did nothing."""
        sums, count = self.sums or StageSums(), dict(self.in_drain).get(self.stage, 0)
        which = f"{count} of {counted(sums.batches)}"
        return f"done in the process of the task drain: {which}:\n{sums.table()}" if count else ""

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        ended = {"ended_by": self.ended_by} if self.ended_by else {}
        sums = self.sums if self.sums is not None else StageSums.of(self.done)
        counts = dict(self.in_drain)
        in_drain = {"in_drain": counts.get(self.stage, 0) if self.stage != StageKind.CAPTURE else counts}
        return {"stage": self.stage, **sums.result(), **ended, **in_drain}


@dataclass(frozen=True, slots=True)
class MicrobatchOutcome:
    """The batches of a run that is alone, and what the run still has to deliver.

    Attributes:
        last: the capture of its last batch.
        delivered: the batches that all targets have, or that wait for one of them.
        ended_by: why no further batch was captured.
    """

    last: DrainOutcome
    delivered: tuple[DeliveredBatch, ...] = ()
    ended_by: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the last batch, how many were delivered, and what ended the run."""
        return {**self.last.to_json(), "carried": len(self.delivered), "ended_by": self.ended_by}


_SHORT = "workers are short"
_HAS_MORE = ("run.", _SHORT)
"""The reasons for which a run ends although it has more to capture begin so: the next one waits for a worker."""


class _Shortage:
    """Tells which pipelines wait for a worker of their *sense* or *drain*, and how long, by this process's clock."""

    def __init__(self, state: PipelineState) -> None:
        self._state = state
        self._looked = -SHORT_LOOK_S
        self._waiting: dict[str, str] = {}
        self._since: dict[str, float] = {}

    def waits(self, seconds: float, pool: str = "") -> str:
        """Return why a worker is needed elsewhere: for a pipeline that has waited so long for one of the pool, or, with
        "", of any; "" if none is.
        """
        now = time.monotonic()
        if now - self._looked >= SHORT_LOOK_S:
            self._looked, self._waiting = now, self._state.waiting_tasks.pipelines()
            self._since = {name: self._since.get(name, now) for name in self._waiting}
        for name, since in self._since.items():
            if now - since >= seconds and pool in {"", self._waiting[name]}:
                return f"{_SHORT}, and {name} waits for one"
        return ""


# -- the capture -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Capture:
    """The capture loop of a run.

    Attributes:
        due: dumps that came due by themselves.
        last: the last batch that was captured.
    """

    board: Board
    others: _Substitutes
    source: KeptSource
    idle_wait_s: float
    stop: Callable[[], str]
    gone: Callable[[], Sequence[str]] = tuple
    is_left: Callable[[DrainOutcome], str] = lambda outcome: ""
    on_captured: Callable[[DrainOutcome], None] = lambda outcome: None
    began: float = field(default_factory=time.monotonic)
    due: tuple[str, ...] = ()
    last: DrainOutcome | None = None
    _share: float = field(default_factory=share_of_run)
    _shortage: _Shortage = field(init=False)
    _asked_at: float = field(default_factory=time.monotonic)
    _marked: str = ""

    def __post_init__(self) -> None:
        self._shortage = _Shortage(self.view.state)

    @property
    def view(self) -> RunView:
        """The run."""
        return self.board.view

    def run(self) -> str:
        """Capture batch after batch; return why no further one is captured."""
        while True:
            if ended_by := self._wait_for_room():
                return ended_by
            self.board.require_same_run()  # a restart ends the work of this process, too
            began = time.monotonic()
            outcome = drain(
                self.view.runtime,
                claim=self.view.claim,
                idle_wait_s=self.idle_wait_s,
                another=True,
                kept=self.source,
                stays_open=self.is_busy,
            )
            if ended_by := self.add(outcome, time.monotonic() - began):
                return ended_by

    def add(self, outcome: DrainOutcome, seconds: float) -> str:
        """Add what was captured to the run; return why nothing follows it, "" if something may."""
        self.due = outcome.due
        if outcome.batch is None:
            return outcome.closed_by
        self.last = outcome
        if is_left := self.is_left(outcome):
            return is_left
        self.on_captured(outcome)
        self.board.done(Done(outcome.batch, seconds, outcome.changes))
        return ""

    def _wait_for_room(self) -> str:
        """Wait until the window has room for another batch; return why none is captured, "" if one may be."""
        ended_by = [""]

        def look() -> bool:
            self.others.require_life()
            ended_by[0] = self._limit()
            return bool(ended_by[0]) or len(self.view.under_way) < self.view.runtime.pipeline.window

        while not self.board.wait(look):
            pass
        return ended_by[0]

    def _limit(self) -> str:
        if name := self.view.failed_stage:
            return f"{name} failed"
        if name := self.marked():
            return f"the task {name} was marked by a person, and nothing is delivered without it"
        numbers = self.view.numbers
        if not self.view.is_alone:
            cursor = self.view.state.cursor()
            if cursor is not None and cursor.next_batch - 1 > max(numbers, default=0):
                return "another run has made batches since"
        seconds = time.monotonic() - self.began
        limit = limit_of_run(self.view.runtime.pipeline.run, len(numbers), seconds, self._share)
        return limit or ("a dump is due" if self.due else self.stop()) or self._gives_way(seconds)

    def _gives_way(self, seconds: float) -> str:
        """Return why this run ends for another pipeline, "" if it does not."""
        pool = self.view.runtime.pipeline.workers.pool_of_capture
        for turn_s, of_pool in ((TURN_S * self._share, pool), (TURN_BESIDE_OTHER_POOLS_S * self._share, "")):
            why = self._shortage.waits(turn_s, of_pool)
            if why and seconds > turn_s:
                return why
        return ""

    def is_busy(self) -> bool:
        """Return True if a batch that is captured now would wait for another one."""
        self.others.require_life()
        if self.view.failed_stage or self.marked():  # this run delivers nothing further
            return False
        return self.view.is_busy(time.monotonic())

    def marked(self) -> str:
        """Return a task of the run that a person marked, "" if there is none; asks every :data:`MARKED_EVERY_S`."""
        if not self._marked and time.monotonic() - self._asked_at > MARKED_EVERY_S:
            self._asked_at, self._marked = time.monotonic(), next(iter(self.gone()), "")
        return self._marked


class _Substitutes:
    """Threads of the process that captures, one for each stage that it may do, which do those without a worker."""

    def __init__(
        self,
        view: RunView,
        do: Callable[[Stage, int], Done],
        on_done: Callable[[Stage, Done], None] = lambda stage, outcome: None,
    ) -> None:
        self._view = view
        self._do = do
        self._grace_ends = time.monotonic() + (0.0 if view.is_alone else GRACE_S)
        self._is_captured = False
        self._is_stopped = False
        self._death: BaseException | None = None

        def board(stage: Stage) -> Board:
            return Board(
                view,
                stage,
                worker=Worker.DRAIN,
                leaves=lambda: self._leaves(stage),
                on_done=lambda outcome: on_done(stage, outcome),
            )

        self._boards = {
            stage.name: board(stage)
            for stage in view.stages.values()
            if stage.name in view.of_drain and stage.kind is not StageKind.CAPTURE
        }
        self._threads = {
            name: threading.Thread(target=self._run, args=(board,), name=name, daemon=True)
            for name, board in self._boards.items()
        }

    def __enter__(self) -> _Substitutes:
        loaded = {board.stage.subject for board in self._boards.values() if board.stage.kind is StageKind.LOAD}
        for target in self._view.runtime.pipeline.targets:
            for server in target.servers if target.name in loaded else ():
                with suppress(SluiceError):  # the load meets it again
                    self._view.runtime.resolver(server)  # resolved once, by this thread
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Have the threads leave their stages before the next batch."""
        self._is_stopped = True
        self._view.wake()
        until = time.monotonic() + _ENDS_S
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))

    def finish(self, board: Board) -> None:
        """Do what the captured batches lack in stages without a worker. Raises what a person's word or a lost session
        does.
        """
        self._is_captured = True
        self._view.wake()
        while not board.wait(self._is_settled):
            pass
        self.require_life()

    def join(self) -> None:
        """Wait until each stage has done the captured batches, or has failed: no other process does them."""
        for thread in self._threads.values():
            thread.join()
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
        if worker is not None or self._view.has_failed(name):
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
        progress = ((name, self._view.progress(name)) for name in self._boards)
        return tuple((name, stage.in_drain) for name, stage in progress if stage is not None and stage.in_drain)

    def _leaves(self, stage: Stage) -> str:
        if self._is_stopped:
            return "the process of drain ends"
        if self._view.is_alone:
            return ""
        return "its own task has a worker" if self._view.state.runs.is_asked(self._view.claim, stage.name) else ""

    def _run(self, board: Board) -> None:
        try:
            while self._is_vacant(board):
                with suppress(GivenBack, LeaseHeld, Fenced), board.at_work():
                    work(board, self._do)
                    board.end()
        except NeverReady:
            return
        except Exception as error:  # its own task meets and shows it again
            if not self._view.is_alone:
                name = self._view.runtime.name
                _log.warning("stage_left_to_task", pipeline=name, stage=board.stage.name, error=str(error))
        except BaseException as error:  # this process is about to end: no stage begins another batch
            self._death, self._is_stopped = error, True
            self._view.wake()

    def _is_vacant(self, board: Board) -> bool:
        """Wait until the stage has no worker although it has work; False if there is nothing to do here any more."""
        vacancy: list[bool] = []

        def look() -> bool:
            vacancy[:] = self._vacancy(board)
            return bool(vacancy)

        while not board.wait(look):
            pass
        return vacancy[0]

    def _vacancy(self, board: Board) -> list[bool]:
        """Return [True] for a stage without a worker, [False] if nothing is to be done here, [] if that may change."""
        name, view = board.stage.name, self._view
        if self._is_stopped or view.has_failed(name):
            return [False]
        if view.is_alone:
            return [board.progress.state is not StageState.ENDED]
        if view.worker(name) is not None or view.state.runs.is_asked(view.claim, name):
            return []
        if self._is_captured and view.has_ended(board.stage):
            return [False]
        return [True] if time.monotonic() >= self._grace_ends else []


def capture_first(
    runtime: Runtime, *, claim: str, idle_wait_s: float, is_over: Callable[[str], bool] = lambda claim: False
) -> DrainOutcome:
    """Capture the first batch of a run, whose other tasks then start; it counts among those of *drain*.

    Args:
        is_over: see :func:`run_microbatches`.

    Raises:
        What :func:`sluice.flows.capture.drain.drain` raises.
    """
    with runtime.state() as state:
        state.waiting_tasks.begins()
        began = time.monotonic()
        outcome = drain(runtime, claim=claim, idle_wait_s=idle_wait_s, is_over=is_over)
        if outcome.batch is not None:
            if not outcome.adopted:
                sums = StageSums.of([Done(outcome.batch, time.monotonic() - began, outcome.changes)])
                state.runs.write(claim, StageKind.CAPTURE, Progress(sums=sums.to_json()))
            state.waiting_tasks.waits(StageKind.CAPTURE, runtime.pipeline.workers.pool_of_capture)
    return outcome


def run_capture(
    runtime: Runtime,
    *,
    claim: str,
    idle_wait_s: float,
    on_done: Callable[[Done], None] = lambda outcome: None,
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
            :data:`MARKED_EVERY_S`.

    Raises:
        LeaseHeld: an earlier attempt still works on the run.
        What :func:`sluice.flows.capture.drain.drain` raises.
    """
    captured = list[Done]()

    def add(outcome: Done) -> None:
        captured.append(outcome)
        on_done(outcome)

    with runtime.state(caches_reads=True) as state, KeptSource() as source:
        state.waiting_tasks.begins()
        view = RunView(runtime, state, claim)
        stage = view.stages[StageKind.CAPTURE]
        board = Board(view, stage, worker=Worker.DRAIN, on_done=add)
        before = view.progress(stage.name)
        has_ended = before is not None and before.state is StageState.ENDED
        try:
            with board.at_work(), _Substitutes(view, lambda stage, batch: do(runtime, stage, batch)) as others:
                capture = _Capture(
                    board=board, others=others, source=source, idle_wait_s=idle_wait_s, stop=stop, gone=gone
                )
                try:
                    ended_by = "the run has ended before" if has_ended else capture.run()
                except BaseException as error:
                    board.failed(error)
                    raise
                source.close()  # the rest reads nothing there
                if ended_by.startswith(_HAS_MORE):
                    state.waiting_tasks.waits("sense", runtime.pipeline.workers.pool_of_capture)
                board.end(before.why if before is not None and has_ended else ended_by)
                if not capture.marked():
                    others.finish(board)
                in_drain = others.in_drain
        except GivenBack as error:
            raise LeaseHeld(
                f"an earlier attempt of {stage.name} still works on this run",
                where=state.layout.stage_worker(claim, stage.name),
                hint="it is free when that process ends or its session expires",
            ) from error
        finally:
            stage_notes.write(runtime)
    return StageOutcome(stage.name, tuple(captured), ended_by, capture.due, in_drain=in_drain)


# -- a process that does all stages ------------------------------------------------------------------------------------


class _LeftToTasks(Exception):
    """The rest is for the run's own tasks; the message says why."""


class _Deliveries:
    """Reports each batch that has passed all stages, in order, and makes room for the next one."""

    def __init__(self, view: RunView, on_delivered: Callable[[DeliveredBatch], None]) -> None:
        self.batches: list[DeliveredBatch] = []
        self._view = view
        self._on_delivered = on_delivered
        self._lock = threading.Lock()
        self._captured: dict[int, DrainOutcome] = {}
        self._under_way: dict[int, dict[str, Done]] = {}
        self._published_s = time.monotonic()

    def captured(self, outcome: DrainOutcome) -> None:
        """Add a captured batch, before any stage has it."""
        assert outcome.batch is not None
        self._captured[outcome.batch], self._under_way[outcome.batch] = outcome, {}

    def add(self, stage: Stage, outcome: Done) -> None:
        """Add the outcome of a stage."""
        with self._lock:
            self._under_way[outcome.batch][stage.name] = outcome
            while (oldest := min(self._under_way, default=None)) is not None and self._has_passed(oldest):
                delivered = self._delivered(self._captured.pop(oldest), self._under_way.pop(oldest))
                self.batches.append(delivered)
                if time.monotonic() - self._published_s >= SAY_EVERY_S:
                    self.publish()
                self._on_delivered(delivered)
                self._view.through = oldest
        self._view.wake()

    def _has_passed(self, batch: int) -> bool:
        return self._under_way[batch].keys() >= self._view.stages.keys()

    def _delivered(self, outcome: DrainOutcome, outcomes: Mapping[str, Done]) -> DeliveredBatch:
        stages = self._view.stages.values()
        loads = {stage.subject: outcomes[stage.name] for stage in stages if stage.kind is StageKind.LOAD}
        acks_s = {
            stage.subject: outcomes[stage.name].seconds for stage in stages if stage.kind is StageKind.ACKNOWLEDGE
        }
        return DeliveredBatch(
            batch=int(outcome.batch or 0),
            changes=outcome.changes,
            closed_by=outcome.closed_by,
            drained_s=outcomes[StageKind.CAPTURE].seconds,
            merged_s=sum(outcomes[stage.name].seconds for stage in stages if stage.transforms),
            loaded=tuple((name, None if load.later else load.seconds + acks_s[name]) for name, load in loads.items()),
            rows=sum(load.rows for load in loads.values()),
            waits=frozenset(name for name, load in loads.items() if load.later == WAITS),
        )

    def publish(self) -> None:
        """Write what each stage did. A later attempt of the run's drain makes no batch, and leaves what is there."""
        self._published_s = time.monotonic()
        with suppress(SluiceError):  # it is only informative
            for board in self._view.boards.values():
                board.publish()


def run_microbatches(
    runtime: Runtime,
    *,
    claim: str,
    idle_wait_s: float,
    on_delivered: Callable[[DeliveredBatch], None] = lambda batch: None,
    stop: Callable[[], str] = lambda: "",
    is_over: Callable[[str], bool] = lambda claim: False,
) -> MicrobatchOutcome:
    """Make a batch for ``claim``, deliver it, and go on with the next one.

    It ends when the source is idle for ``idle_wait_s``, within the pipeline's ``run.max_time``, at its
    ``run.max_batches``, and at everything that is for a task of its own: a change of definitions, a large batch, slow
    rules, a dump that came due, a pause, any error. A claim that has a batch already gets it back and no further one.

    Args:
        on_delivered: called with each batch that is delivered, by the thread that delivered it.
        stop: a reason to make no further batch, "" if there is none.
        is_over: is the run of this claim known to have ended? Then its batches are delivered by this one, before new
            ones.

    Raises:
        What :func:`sluice.flows.capture.drain.drain` raises, as long as there is no batch.
    """
    with runtime.state(caches_reads=True) as state, KeptSource() as source:
        state.waiting_tasks.begins()
        began = time.monotonic()
        first = drain(runtime, claim=claim, idle_wait_s=idle_wait_s, kept=source, is_over=is_over)
        if first.batch is None:
            return MicrobatchOutcome(first)
        view = RunView(runtime, state, claim, is_alone=True)
        deliveries, error, ended_by = _Deliveries(view, on_delivered), None, ""
        last, due = first, first.due
        try:
            _require_first_turn(runtime, state, first)
            stage = view.stages[StageKind.CAPTURE]
            board = Board(view, stage, worker=Worker.DRAIN, on_done=lambda outcome: deliveries.add(stage, outcome))
            with _Substitutes(view, _do_unless_slow(view), deliveries.add) as others:
                capture = _Capture(
                    board=board,
                    others=others,
                    source=source,
                    idle_wait_s=idle_wait_s,
                    stop=stop,
                    is_left=lambda outcome: _needs_tasks(runtime, outcome),
                    on_captured=deliveries.captured,
                    began=began,
                )
                try:
                    ended_by = capture.add(first, time.monotonic() - began) or capture.run()
                except Exception as caught:
                    error = caught
                board.end()
                others.join()  # captured batches are delivered, or left to their tasks
                last, due = capture.last or first, capture.due
            failures = (board.error for board in view.boards.values() if isinstance(board.error, Exception))
            error = error or next(failures, None)
        except (_LeftToTasks, SluiceError) as caught:
            error = caught
        if error is not None:
            ended_by = _why_left(runtime, error)
        deliveries.publish()
        stage_notes.write(runtime)
        if ended_by.startswith(_HAS_MORE):
            state.waiting_tasks.waits(StageKind.CAPTURE, runtime.pipeline.workers.pool_of_capture)
        last = replace(last, due=due, merged=_is_merged(state, claim))
    return MicrobatchOutcome(last, tuple(deliveries.batches), ended_by)


def _why_left(runtime: Runtime, error: Exception) -> str:
    """Return why the rest of a run is left to its tasks, which meet the error and show it again."""
    if isinstance(error, _LeftToTasks | Paused | Restarted):
        return str(error.args[0])
    if isinstance(error, SluiceError):
        _log.warning("batches_left_to_tasks", pipeline=runtime.name, error=str(error))
        return str(error)
    ended_by = f"{type(error).__name__}: {error}"
    _log.exception("batches_left_to_tasks", pipeline=runtime.name, error=ended_by, exc_info=error)
    return ended_by


def _require_first_turn(runtime: Runtime, state: PipelineState, first: DrainOutcome) -> None:
    """Require that this run may deliver ``first`` itself: it is new, and everything before it is delivered.

    Raises _LeftToTasks, Paused, Restarted.
    """
    limits, pipeline = runtime.pipeline.run, runtime.pipeline
    if first.adopted or limits.max_batches == 1 or not limits.max_time or pipeline.schedule != "continuous":
        raise _LeftToTasks("the run has this batch already" if first.adopted else "a run has one batch")
    if why := _needs_tasks(runtime, first):
        raise _LeftToTasks(why)
    guard = CancellationGuard(state, "waiting for the batches before this one")
    end, moved = time.monotonic() + EARLIER_WAIT_S, threading.Event()

    def move(*_: object) -> None:
        moved.set()

    while True:
        moved.clear()
        state.notify(move)
        if state.passed() >= int(first.batch or 0) - 1:
            return
        if time.monotonic() > end:
            raise _LeftToTasks("batches before this one are not delivered yet")
        moved.wait(LOOK_S)
        guard()


def _needs_tasks(runtime: Runtime, outcome: DrainOutcome) -> str:
    """Return why a batch is left to the tasks of its run, "" if it is not."""
    if runtime.mode == "submit":
        return "stages run by spark-submit"
    if outcome.closed_by == "ddl":
        return "a change of definitions"
    is_large = outcome.changes >= max(runtime.pipeline.spark.from_changes, SIDE_BY_SIDE)
    return "a large batch" if is_large else ""


def _do_unless_slow(view: RunView) -> Callable[[Stage, int], Done]:
    """Return a function that does a stage of a batch, and raises _LeftToTasks before the last rules where rules are
    slow.
    """
    runtime = view.runtime
    transforms = [stage.name for stage in view.stages.values() if stage.transforms]

    def rules_s(batch: int) -> float:
        """Return how long the rules took on a batch; only what another process did is read from the store."""
        newest = (outcome for name in transforms for outcome in list(view.boards[name].sums.newest))
        here = [outcome for outcome in newest if outcome.batch == batch and not outcome.already]
        if len(here) < len(transforms):
            return seconds_of_rules(runtime, batch) or 0.0
        return sum(rule.seconds for outcome in here for rule in outcome.rules)

    def carry(stage: Stage, batch: int) -> Done:
        ends_rules = stage.name == transforms[-1] and runtime.rules_path is not None  # the batch before has passed it
        if ends_rules and rules_s(batch - 1) > stages.SLOW_RULES_S:
            raise _LeftToTasks("slow rules")
        return do(runtime, stage, batch)

    return carry


def _is_merged(state: PipelineState, claim: str) -> bool:
    """Return True if no batch of this claim waits for a merge or for rules."""
    with suppress(SluiceError):
        return not any(batch.needs_merge and not batch.dropped for batch in state.batches.claimed_all(claim))
    return False


def deliver_batch(runtime: Runtime, state: PipelineState, batch: int) -> Iterator[Stage]:
    """Take one batch through all stages; yield each stage before it begins, without acknowledgements.

    The calling thread merges and applies rules. Each of several targets has a thread, so that one that does not answer
    keeps the batch from no other.

    Raises what the first stage that fails raises; the batch stays where it was.
    """
    view = RunView(runtime, state, "", is_alone=True)
    boards = [Board(view, stage, worker=Worker.DRAIN) for stage in view.stages.values()]
    boards[0].done(Done(batch))
    boards[0].end()  # the capture has ended

    def work_on(stages: Sequence[Board]) -> None:
        for board in stages:
            work(board, lambda stage, number: do(runtime, stage, number))

    for board in boards[1:]:
        if board.stage.transforms:
            yield board.stage
            work_on([board])
    deliveries = [
        [board for board in boards if board.stage.subject == target.name and not board.stage.transforms]
        for target in runtime.pipeline.targets
    ]
    if len(deliveries) == 1:
        for board in deliveries[0]:
            if board.stage.kind is not StageKind.ACKNOWLEDGE:
                yield board.stage
            work_on([board])
        return
    for board in itertools.chain.from_iterable(deliveries):
        if board.stage.kind is not StageKind.ACKNOWLEDGE:
            yield board.stage
    side_by_side([partial(work_on, delivery) for delivery in deliveries])


def side_by_side(calls: Sequence[Callable[[], None]]) -> None:
    """Run each call in a thread, and wait for all. Raises the error of the first one in order that failed."""
    errors: dict[int, BaseException] = {}

    def run(number: int, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors[number] = error

    threads = [threading.Thread(target=run, args=call, daemon=True) for call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]


# -- a task of its own -------------------------------------------------------------------------------------------------


def run_stage(
    runtime: Runtime,
    name: str,
    *,
    claim: str,
    on_done: Callable[[Done], None] = lambda outcome: None,
    marked: Collection[str] = (),
) -> StageOutcome:
    """Run a stage for every batch of the run of ``claim``, from the first one that has not passed it, until the run has
    no further batch.

    Args:
        on_done: called with the outcome of each batch.
        marked: see :class:`~sluice.flows.board.RunView`.

    Raises:
        NeverReady: an earlier stage failed.
        GivenBack: no batch came for long, workers are short, or the process of *drain* is at a batch of this stage.
        ConfigError: the pipeline no longer has this stage.
        What the stage raises; the batch stays.
    """
    outcomes: list[Done] = []

    def add(outcome: Done) -> None:
        outcomes.append(outcome)
        on_done(outcome)

    def do_or_load(stage: Stage, batch: int) -> Done:
        try:
            return do(runtime, stage, batch)
        except OutOfOrder:
            if stage.kind is not StageKind.ACKNOWLEDGE or not marked:
                raise
        _log.info("batch_loaded_by_ack", pipeline=runtime.name, batch=batch)
        deliver(runtime, stage.subject, batch)  # a person marked the load as a success
        return do(runtime, stage, batch)

    with runtime.state(caches_reads=True) as state:
        view = RunView(runtime, state, claim, marked)
        if name not in view.stages:
            raise ConfigError(
                f"the pipeline has no stage {name} any more",
                hint="its stages follow the pipeline file and engine.yaml; mark this task as a success, the run goes "
                "on without it",
            )
        shortage = _Shortage(state)

        def leaves() -> str:
            return shortage.waits(SHORT_AFTER_S) if name in view.of_drain and view.has_drain else ""

        board = Board(view, view.stages[name], leaves=leaves, on_done=add)
        try:
            with board.at_work():
                work(board, do_or_load)
                board.end()
        finally:
            stage_notes.write(runtime)
    return StageOutcome(name, tuple(outcomes), sums=board.sums, in_drain=((name, board.progress.in_drain),))


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


def may_begin(runtime: Runtime, name: str, *, claim: str, are_short: bool = False) -> bool:
    """Return True if the task of a stage that waits in the triggerer for the first time should have a worker.

    *merge* asks for one together with *drain*, and the later ones as soon as one of them has it: where workers are
    short, one task of a run waits for one, and not all of them. None asks while a pipeline has no worker at all. The
    process of *drain* does meanwhile what has no task.

    Args:
        are_short: *merge* of an earlier run waited in vain, and does not ask beside *drain*: a task in Airflow's queue
            cannot end without a worker, and its run ends after it.
    """
    with runtime.state() as state:
        view = RunView(runtime, state, claim)
        stage = view.stages.get(name)
        if stage is None or name not in view.of_drain:
            return True
        comes = _drain_comes(state)
        if comes or view.has_drain:  # asked every second by each such task: few reads
            if state.waiting_tasks.pipelines().keys() - ({runtime.name} if comes else set()):
                return False
            if name == StageKind.MERGE:
                return not are_short
            return any(view.worker(task) is Worker.TASK for task in view.stages)
        return view.goes_on(stage, "", 0)


def end_stage(runtime: Runtime, name: str, *, claim: str) -> StageOutcome | None:
    """End a stage all of whose batches other processes did; None if it has something to do, or its run goes on."""
    with runtime.state() as state:
        view = RunView(runtime, state, claim)
        stage = view.stages.get(name)
        try:
            if stage is None or view.worker(name) is not None or view.ready(stage, 0) != [None]:
                return None
        except NeverReady:
            return None
        progress = replace(view.progress(name) or Progress(), state=StageState.ENDED, why="")
        state.runs.write(claim, name, progress)
        sums = StageSums.from_json(progress.sums) if progress.sums else StageSums()
        return StageOutcome(name, sums=sums, in_drain=((name, progress.in_drain),))


def has_drain(runtime: Runtime, claim: str, *, comes: bool = False) -> bool:
    """Return True while a process captures for the run of ``claim``, or does the stages that have no worker; with
    ``comes`` also while *drain* waits for a worker.
    """
    with runtime.state() as state:
        if comes and _drain_comes(state):
            return True
        return state.runs.worker(claim, StageKind.CAPTURE) is not None


def _drain_comes(state: PipelineState) -> bool:
    waiting_task = state.waiting_tasks.own()
    return (
        waiting_task is not None
        and waiting_task[0] == StageKind.CAPTURE
        and time.time() - waiting_task[1] / 1000 < DRAIN_COMES_S
    )


# -- what the tasks ask ------------------------------------------------------------------------------------------------


def claimed_numbers(runtime: Runtime, claim: str) -> list[int]:
    """Return the numbers of the batches that ``claim`` delivers and that are still known, ascending."""
    with runtime.state() as state:
        return state.batches.claimed_numbers(claim)


def delivered(runtime: Runtime) -> int:
    """Return the last batch that every target has, 0 if none."""
    with runtime.state() as state:
        return int(state.delivered())


def seconds_of_rules(runtime: Runtime, batch: int) -> float | None:
    """Return how long the rules took on a batch; None if that is not known."""
    try:
        with runtime.state() as state:
            record = state.batches.get(batch)
        if record is None or not record.changeset:
            return None
        return sum(rule.seconds for rule in read_changeset(runtime.store, record.changeset).manifest.rules)
    except SluiceError:
        return None


__all__ = [
    "GivenBack",
    "MicrobatchOutcome",
    "NeverReady",
    "StageOutcome",
    "capture_first",
    "claimed_numbers",
    "deliver_batch",
    "delivered",
    "end_stage",
    "goes_on",
    "has_drain",
    "may_begin",
    "run_capture",
    "run_microbatches",
    "run_stage",
]
