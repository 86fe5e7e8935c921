"""The micro-batch loop: one run delivers batch after batch while changes keep coming.

A run of the DAG costs more than the work on a thousand changes. So the process that drains also merges and delivers
what it drained, as long as batches are small and nothing needs attention. Every stage is the loop of
:mod:`sluice.flows.stage_loop` in its own thread, and this one captures: a batch is read while the one before it is
merged and the one before that is loaded. A batch whose time is over stays open until the merge is free for it. Nothing
else changes: every batch has its number, its claim and its place in the window, each stage is recorded in ZooKeeper as
if its own task had done it, and targets are acknowledged batch by batch, each at its own pace.

So a loop may end anywhere, even by ``kill -9``. Batches that are not merged, loaded or acknowledged then are left to
the run's own tasks, which find them by the claim.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from sluice.coordination.pause_switch import PauseState
from sluice.coordination.run_progress import Progress, StageState
from sluice.coordination.state import PipelineState
from sluice.errors import Paused, Restarted, SluiceError
from sluice.flows import stages
from sluice.flows.cancellation import LOOK_S, CancellationGuard
from sluice.flows.capture.drain import drain
from sluice.flows.capture.kept_source import KeptSource
from sluice.flows.runtime import Runtime
from sluice.flows.stage_loop import Done, ThreadBoard, work
from sluice.flows.stage_notes import stage_notes
from sluice.flows.stage_sums import KEPT, SAY_EVERY_S, StageSums, aligned
from sluice.flows.stage_work import WAITS, do
from sluice.flows.stages import Stage, StageKind, limit_of_run, share_of_run, stages_of
from sluice.model.batches import DrainOutcome
from sluice.segments.changeset import read_changeset

_log = structlog.get_logger()

SIDE_BY_SIDE = 20_000
"""Changes from which on a batch has its own tasks, so that the next one is captured and merged while it is loaded."""

EARLIER_WAIT_S = 20.0
"""Seconds that a micro-batch loop waits for earlier batches, which the tasks of other runs deliver.

That takes a few seconds, more on a busy machine. Waiting costs little, as loads are serial. Without it the run could
not loop, and the next run would find the same.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """A batch that the loop delivered, with the seconds of its stages.

    Attributes:
        loaded: target -> seconds; None for one that is quarantined, or for which the batch waits.
        waits: targets that get the batch later, with others (``commit_every``).
        rows: rows written or removed, at all targets.
    """

    batch: int
    changes: int
    closed_by: str
    drained_s: float
    merged_s: float
    loaded: tuple[tuple[str, float | None], ...]
    rows: int
    waits: frozenset[str] = frozenset()

    def __str__(self) -> str:
        loads = ", ".join(f"{target} {self._load(target, seconds)}" for target, seconds in self.loaded)
        return (
            f"batch {self.batch}: {self.changes} changes, closed by {self.closed_by}; drain {self.drained_s:.2f} s, "
            f"merge {self.merged_s:.2f} s, {loads}; {self.rows} rows"
        )

    def _load(self, target: str, seconds: float | None) -> str:
        if seconds is not None:
            return f"{seconds:.2f} s"
        return "waits" if target in self.waits else "quarantined"


@dataclass(frozen=True, slots=True)
class MicrobatchOutcome:
    """The batches of a micro-batch loop, and what the run still has to deliver.

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
    ``run.max_batches``, and at all that is for its own task to do or to say: a change of definitions, a large batch,
    slow rules, a dump that came due, a pause, any error. A claim that has a batch already gets it back and no further
    one.

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
        return _MicrobatchLoop(
            runtime=runtime,
            state=state,
            claim=claim,
            last=first,
            idle_wait_s=idle_wait_s,
            on_delivered=on_delivered,
            stop=stop,
            began=began,
            source=source,
        ).run()


def unfinished(runtime: Runtime, claim: str, last: int) -> list[int]:
    """Return the batches up to ``last`` that ``claim`` delivers and that have no changeset yet; ``[last]`` if all of
    them have.
    """
    with runtime.state() as state:
        found = [int(one.number) for one in state.batches.claimed_all(claim) if one.number <= last and one.needs_merge]
    return found or [last]


def last_claimed(runtime: Runtime, claim: str) -> int | None:
    """Return the newest batch that ``claim`` delivers; None if it has none."""
    with runtime.state() as state:
        found = state.batches.claimed(claim)
    return int(found.number) if found else None


def claimed_numbers(runtime: Runtime, claim: str) -> list[int]:
    """Return the numbers of the batches that ``claim`` delivers and that are still known, ascending."""
    with runtime.state() as state:
        return state.batches.claimed_numbers(claim)


def delivered(runtime: Runtime) -> int:
    """Return the last batch that every target has, 0 if none."""
    with runtime.state() as state:
        return int(state.delivered())


def acknowledged(runtime: Runtime, target: str) -> int:
    """Return the last batch that ``target`` has acknowledged, 0 if none."""
    with runtime.state() as state:
        found = state.acks.get(target)
    return int(found.batch) if found is not None else 0


def sums_of(runtime: Runtime, claim: str, stage: str) -> StageSums:
    """Return the sums of a stage that the process which captured for ``claim`` did; they are empty if it did none of
    it, or that is not known.
    """
    with runtime.state() as state:
        found = state.runs.read(claim, stage)
    return StageSums.from_json(found.sums) if found is not None and found.sums else StageSums()


def table(batches: Sequence[DeliveredBatch]) -> str:
    """Format the batches of a micro-batch loop as a table for the end of the task log."""
    targets = [target for target, _ in batches[-1].loaded] if batches else []
    head = ["batch", "changes", "closed by", "drain s", "merge s", *(f"{target} s" for target in targets), "rows"]
    lines = [head]
    for one in batches:
        loads = dict(one.loaded)
        cells = [_seconds(loads.get(target)) for target in targets]
        lines.append([
            str(one.batch), str(one.changes), one.closed_by, _seconds(one.drained_s), _seconds(one.merged_s), *cells,
            str(one.rows),
        ])  # fmt: skip
    return aligned(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


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


class _HandOver(Exception):
    """The rest is for the run's own tasks; the message says why."""


@dataclass(kw_only=True)
class _MicrobatchLoop:
    """One loop, from its first batch on."""

    runtime: Runtime
    state: PipelineState
    claim: str
    last: DrainOutcome
    idle_wait_s: float
    on_delivered: Callable[[DeliveredBatch], None]
    stop: Callable[[], str]
    began: float
    source: KeptSource
    delivered: list[DeliveredBatch] = field(default_factory=list)
    due: tuple[str, ...] = ()
    share: float = field(default_factory=share_of_run)
    """The share of ``run.max_time`` after which it ends."""
    _made: int = 0
    _pause_state: PauseState | None = None
    _sums: dict[str, StageSums] = field(init=False)
    """The sums of each stage; written where the stage's own task reads them, every :data:`SAY_EVERY_S` and at the
    end.
    """
    _said_at: float = field(default_factory=time.monotonic)
    _drained: dict[int, tuple[DrainOutcome, float]] = field(default_factory=dict)
    """The outcome of the capture, and the seconds it took, by batch."""
    _stages: tuple[Stage, ...] = field(init=False)
    _board: ThreadBoard = field(init=False)

    def __post_init__(self) -> None:
        pipeline = self.runtime.pipeline
        self._stages = stages_of(pipeline, self.runtime.rules_folder)
        self._sums = {stage.name: StageSums() for stage in self._stages}
        self._board = ThreadBoard(self._stages, self._record)

    def run(self) -> MicrobatchOutcome:
        """Deliver the first batch and what follows it."""
        first = self.last
        self.due = first.due
        self._pause_state = self.state.pause_switch.read()
        loops: list[Future[int]] = []
        pools = [ThreadPoolExecutor(1, thread_name_prefix=stage.name) for stage in self._stages[1:]]
        try:
            self._require_own_place(first)
            for target in self.runtime.pipeline.targets:
                for server in target.servers:
                    self.runtime.resolver(server)  # resolved once, by this thread
            for stage, pool in zip(self._stages[1:], pools, strict=True):
                loops.append(pool.submit(work, stage, self._board, self._do))
            ended_by = self._capture(first)
        except (_HandOver, Paused, Restarted) as said:
            ended_by = str(said.args[0])
        except SluiceError as error:
            ended_by = str(error)
            _log.warning("batches_left_to_tasks", pipeline=self.runtime.name, error=ended_by)
        except Exception as error:  # whatever it is, the task of that stage meets and shows it again
            ended_by = f"{type(error).__name__}: {error}"
            _log.exception("batches_left_to_tasks", pipeline=self.runtime.name)
        except BaseException:  # this process is about to end, and so do the other stages, which lose their session
            self._board.stop()
            raise
        finally:
            self._board.end()
            for pool in pools:
                pool.shutdown(wait=False)
        wait(loops)  # captured batches are delivered, or left to their tasks
        self._say_sums()
        stage_notes.write(self.runtime)
        for ended in filter(None, (loop.exception() for loop in loops)):
            if not isinstance(ended, Exception):
                raise ended  # this process is about to end
        return MicrobatchOutcome(
            replace(self.last, due=self.due, merged=self._is_merged()), tuple(self.delivered), ended_by
        )

    def _capture(self, first: DrainOutcome) -> str:
        """Capture batch after batch; return why no further one was captured.

        Raises _HandOver, SluiceError, and a stage's own error.
        """
        made, drained_s = first, time.monotonic() - self.began
        while True:
            self._require_small(made)
            assert made.batch is not None
            self._drained[made.batch] = made, drained_s
            self._sums[StageKind.CAPTURE].add(Done(made.batch, drained_s, made.changes), KEPT)
            self._board.captured(made.batch)
            self._made += 1
            ended_by = self._end_after(made)
            self._board.wait_for_room(0 if ended_by else self.runtime.pipeline.window - 1)
            if ended_by:
                return ended_by
            self.state.pause_switch.require(since=self._pause_state)  # a restart also ends the work of this process
            at = time.monotonic()
            made = drain(
                self.runtime,
                claim=self.claim,
                idle_wait_s=self.idle_wait_s,
                another=True,
                kept=self.source,
                stays_open=lambda: self._board.is_busy,
            )
            drained_s, self.due = time.monotonic() - at, made.due
            if made.batch is None:
                self._board.wait_for_room(0)
                return made.closed_by
            self.last = made

    def _do(self, stage: Stage, batch: int) -> Done:
        """Run one stage of one batch.

        Raises _HandOver if slow rules need their own tasks, and what the stage raises.
        """
        runtime = self.runtime
        ends_rules = stage == self._last_transform and runtime.rules_path is not None  # the batch before has passed it
        if ends_rules and self._seconds_of_rules(batch - 1) > stages.SLOW_RULES_S:
            raise _HandOver("slow rules")
        done = do(runtime, stage, batch)
        self._sums[stage.name].add(done, KEPT)
        return done

    def _seconds_of_rules(self, batch: int) -> float:
        """Return how long the rules took on a batch, 0 if that is not known.

        Only what another process did is read from the store.
        """
        newest = [list(self._sums[stage.name].newest) for stage in self._transforms]
        did = [one for batches in newest for one in batches if one.batch == batch and not one.already]
        if len(did) < len(newest):
            return seconds_of_rules(self.runtime, batch) or 0.0
        return sum(rule.seconds for one in did for rule in one.rules)

    @property
    def _transforms(self) -> list[Stage]:
        return [stage for stage in self._stages if stage.transforms]

    @property
    def _last_transform(self) -> Stage:
        return self._transforms[-1]

    def _record(self, batch: int, done: Mapping[str, Done]) -> None:
        """Report a batch that has passed all stages."""
        made, drained_s = self._drained.pop(batch)
        merged_s = sum(done[one.name].seconds for one in self._transforms)
        loads = {one.subject: done[one.name] for one in self._stages if one.kind is StageKind.LOAD}
        acknowledged = {
            one.subject: done[one.name].seconds for one in self._stages if one.kind is StageKind.ACKNOWLEDGE
        }
        loaded = tuple(
            (target, None if load.later else load.seconds + acknowledged[target]) for target, load in loads.items()
        )
        waits = frozenset(target for target, load in loads.items() if load.later == WAITS)
        rows = sum(load.rows for load in loads.values())
        passed = DeliveredBatch(
            batch=batch,
            changes=made.changes,
            closed_by=made.closed_by,
            drained_s=drained_s,
            merged_s=merged_s,
            loaded=loaded,
            rows=rows,
            waits=waits,
        )
        self.delivered.append(passed)
        if time.monotonic() - self._said_at >= SAY_EVERY_S:
            self._say_sums()
        self.on_delivered(passed)

    def _say_sums(self) -> None:
        """Write what each stage did. A later attempt of the run's drain makes no batch, and leaves what is there."""
        self._said_at = time.monotonic()
        with suppress(SluiceError), self.runtime.state() as state:  # it is only informative
            for name, sums in self._sums.items():
                if sums.batches:
                    progress = Progress(StageState.ENDED, sums.newest[-1].batch, sums=sums.to_json())
                    state.runs.write(self.claim, name, progress)

    def _require_own_place(self, first: DrainOutcome) -> None:
        """Require that this run may deliver ``first``: it is new, small, and everything before it is delivered.

        Raises _HandOver, Paused, Restarted.
        """
        limits, pipeline = self.runtime.pipeline.run, self.runtime.pipeline
        if first.adopted or limits.max_batches == 1 or not limits.max_time or pipeline.schedule != "continuous":
            raise _HandOver("the run has this batch already" if first.adopted else "a run has one batch")
        self._require_small(first)
        watch = CancellationGuard(self.state, "waiting for the batches before this one")
        end, moved = time.monotonic() + EARLIER_WAIT_S, threading.Event()

        def told(*_: object) -> None:
            moved.set()

        while True:
            moved.clear()
            self.state.notify(told)
            if not self._is_early(first):
                return
            if time.monotonic() > end:
                raise _HandOver("batches before this one are not delivered yet")
            moved.wait(LOOK_S)
            watch()

    def _is_early(self, first: DrainOutcome) -> bool:
        assert first.batch is not None
        return self.state.passed() < first.batch - 1

    def _require_small(self, made: DrainOutcome) -> None:
        """Raise _HandOver for a batch that needs its own tasks."""
        assert made.batch is not None
        spark = self.runtime.pipeline.spark
        if self.runtime.mode == "submit":
            raise _HandOver("stages run by spark-submit")
        if made.closed_by == "ddl":
            raise _HandOver("a change of definitions")
        if made.changes >= max(spark.from_changes, SIDE_BY_SIDE):
            raise _HandOver("a large batch")

    def _end_after(self, made: DrainOutcome) -> str:
        """Return why no batch shall follow ``made``, "" if one may."""
        seconds = time.monotonic() - self.began
        limit = limit_of_run(self.runtime.pipeline.run, self._made, seconds, self.share)
        return limit or ("a dump is due" if made.due else self.stop())

    def _is_merged(self) -> bool:
        """Return True if no batch of this claim waits for a merge or for rules."""
        with suppress(SluiceError):
            return not any(one.needs_merge and not one.dropped for one in self.state.batches.claimed_all(self.claim))
        return False


__all__ = [
    "DeliveredBatch",
    "MicrobatchOutcome",
    "acknowledged",
    "claimed_numbers",
    "delivered",
    "last_claimed",
    "run_microbatches",
    "sums_of",
    "table",
    "unfinished",
]
