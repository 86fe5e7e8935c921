"""Triggers that wait for the source's log to move, without a worker."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import structlog
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from sluice.errors import SluiceError
from sluice.model.batches import StageKind
from sluice.orchestration.dag_runs import SENSE
from sluice.orchestration.metrics import report

if TYPE_CHECKING:
    from sluice.flows.job import StageOutcome
    from sluice.flows.runtime import Runtime

log = structlog.get_logger()

_LOOK_EVERY_S = (0.2, 0.5, 1.0)
_LOOKS_A_STEP = 60
"""Looks after which a waiting pipeline is checked less often.

A look asks the source and ZooKeeper, which takes 0.03 to 0.08 s of work.
"""

_TROUBLE_FOR_S = 30.0

_REST_S = 20.0
"""Seconds for which a stage that the process of *drain* can do, too, gets no worker again."""

_SOON_S, _SHORT_FOR_S = 20.0, 1800.0
"""Seconds within which *merge* has a worker if there are free ones, and for which it does not ask beside *drain* after
one that had none.
"""

_merge_asked: dict[str, float] = {}
"""Pipeline -> when its *merge* asked for a worker, by the monotonic clock, unless it soon had one."""

_SETTLE_S = 1.0
"""Seconds after its start before which no trigger fires.

A task that defers also ends its worker, and Airflow learns of that end in another way than of the trigger's event. If
the task were running again before that, its first end would be taken for the second one's, and the attempt be counted
as failed: seen on a busy machine, where a worker's end takes its time. A task that begins in the triggerer had no
worker before.
"""


class LogMovedTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires when there may be something to drain.

    Every pipeline that waits in this process shares a look at the log of its source
    (:mod:`sluice.orchestration.shared_pollers`). It never decides anything: the drain that it wakes looks for itself.
    When the source or ZooKeeper does not answer it waits for half a minute, then wakes the drain too, so that the error
    shows where people look for it.

    Args:
        pipeline: path of the pipeline file.
        not_before_s: sleep this long first (the last wake-up was in vain, or another process has the lease).
    """

    def __init__(self, pipeline: str, not_before_s: float = 0.0) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.not_before_s = not_before_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that Airflow stores."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"pipeline": self.pipeline, "not_before_s": self.not_before_s},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when the log has news, at the earliest after ``not_before_s``."""
        await asyncio.sleep(self.not_before_s)
        news = await wait_for_news(self.pipeline)
        asyncio.get_running_loop().run_in_executor(None, _note_waiting, self.pipeline)
        yield TriggerEvent(news)


class PermitTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires when the pipeline is no longer paused.

    Args:
        pipeline: path of the pipeline file.
    """

    def __init__(self, pipeline: str) -> None:
        super().__init__()
        self.pipeline = pipeline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that Airflow stores."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"pipeline": self.pipeline}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when the pipeline may work."""
        yield TriggerEvent(await wait_until(self.pipeline, _permitted))


class TurnTrigger(PermitTrigger):
    """Fires when this installation may drain: the one that worked has gone silent, and the lease is free.

    Holds no worker.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when it is this installation that shall work."""
        yield TriggerEvent(await wait_until(self.pipeline, _my_turn, look_every_s=(_LOOK_EVERY_S[-1],)))


class HoldTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires after a number of seconds; for a stage with a task of its own also when there is work for the task.

    Meanwhile the installation sends heartbeats, as a pipeline that holds is not a dead one.

    Args:
        pipeline: path of the pipeline file.
        seconds: how long; the time does not end while the run has a process of *drain*, which does the stage.
        stage: name of the stage, "" for a task that is none.
        claim: the run's; "": of the run whose task the trigger belongs to, which begins here.
        behind: the stage before it that failed, at ``batch``; "" if none did.
        ends: a stage that has nothing left to do ends as a success here, without a worker.
    """

    def __init__(
        self,
        pipeline: str,
        seconds: float,
        *,
        stage: str = "",
        claim: str = "",
        behind: str = "",
        batch: int = 0,
        ends: bool = False,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.seconds = seconds
        self.stage = stage
        self.claim = claim
        self.behind = behind
        self.batch = batch
        self.ends = ends
        self._begins = bool(stage) and not claim
        self._began = time.monotonic()
        self._outcome: StageOutcome | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that Airflow stores."""
        names = ("pipeline", "seconds", "stage", "claim", "behind", "batch", "ends")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when the time is over, or the stage has work for its task."""
        end = time.monotonic() + self.seconds

        def over(opened: Runtime) -> bool:
            return self._goes_on(opened) or (time.monotonic() >= end and not self._has_drain(opened))

        task = self.task_instance
        if self._begins and task is not None:
            from sluice.orchestration.runtime import claim

            self.claim = claim(task.dag_id, task.run_id)
            self.ends = self.ends and task.try_number < 2
        settle_s = 0.0 if self._begins else _SETTLE_S
        outcome = await wait_until(self.pipeline, over, look_every_s=(_LOOK_EVERY_S[-1],), settle_s=settle_s)
        if outcome == "trouble":
            await asyncio.sleep(end - time.monotonic())
        if self._outcome is not None:
            if self._outcome.in_drain_text:
                self.log.info(self._outcome.in_drain_text)
            yield TaskSuccessEvent(xcoms={"return_value": self._outcome.to_json()})
        else:
            yield TriggerEvent("pause is over")

    def _goes_on(self, opened: Runtime) -> bool:
        from sluice.flows.job import end_stage, goes_on, may_begin

        if not self.stage:
            return False
        if self._begins:
            asked_s_ago = time.monotonic() - _merge_asked.get(self.pipeline, -math.inf)
            are_short = _SOON_S < asked_s_ago < _SHORT_FOR_S
            has_turn = may_begin(opened, self.stage, claim=self.claim, are_short=are_short)
            if has_turn and asked_s_ago < _SOON_S:  # there were free workers
                _merge_asked.pop(self.pipeline, None)
        else:
            is_rested = time.monotonic() - self._began > _REST_S
            has_turn = goes_on(
                opened, self.stage, claim=self.claim, behind=self.behind, batch=self.batch, for_backlog=is_rested
            )
        if has_turn and self.ends:
            self._outcome = end_stage(opened, self.stage, claim=self.claim)
        if has_turn and self._begins and self.stage == StageKind.MERGE and self._outcome is None:
            _merge_asked[self.pipeline] = time.monotonic()
        return has_turn

    def _has_drain(self, opened: Runtime) -> bool:
        from sluice.flows.job import has_drain

        return bool(self.stage) and has_drain(opened, self.claim, comes=self._begins)


class DumpTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires when a dump has something to read again, when all of it is placed, or when it ended.

    Meanwhile it counts as its reader.

    Args:
        pipeline: path of the pipeline file.
        dump: id of the dump.
        tables: ordinals of its tables.
    """

    def __init__(self, pipeline: str, dump: str, tables: list[int]) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.dump = dump
        self.tables = tables

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that Airflow stores."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"pipeline": self.pipeline, "dump": self.dump, "tables": self.tables},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Join the readers of the dump and fire when its tables have something to read, are placed or ended."""
        joined: Runtime | None = None

        def over(opened: Runtime) -> bool:
            from sluice.flows.dump.progress import has_work

            nonlocal joined
            with opened.state() as state:
                if joined is not opened:  # the reader ends with its session of ZooKeeper, and this is a new one
                    state.dumps.join(self.dump, self.tables)
                    joined = opened
                return has_work(state, self.dump, tuple(self.tables))

        yield TriggerEvent(await wait_until(self.pipeline, over))


def _note_waiting(pipeline: str) -> None:
    """Note that the pipeline's first task can begin as soon as it has a worker."""
    from sluice.orchestration.runtime import open_runtime

    with suppress(SluiceError):
        opened = open_runtime(pipeline)
        with opened.state() as state:
            state.waiting_tasks.waits(SENSE, opened.pipeline.workers.pool_of_capture)


def _permitted(opened: Runtime) -> bool:
    with opened.state() as state:
        return bool(state.pause_switch.read().open)


def _my_turn(opened: Runtime) -> bool:
    from sluice.flows.capture.drain import may_drain

    return may_drain(opened)


async def wait_for_news(pipeline: str) -> str:
    """Wait as :func:`wait_until` does, for news in the source's log; all pipelines that wait share one look."""
    from sluice.orchestration.shared_pollers import Waiter, shared_pollers

    began, trouble, outcome = time.monotonic(), _Trouble(pipeline), ""
    while not outcome:
        waiter: list[Waiter] = []
        try:
            await shared_pollers().news(pipeline, waiter)
            outcome = "news"
        except SluiceError as error:
            if waiter and waiter[0].looked:
                trouble.ended()
            if trouble.lasts(error):
                outcome = "trouble"
            else:
                await asyncio.sleep(_LOOK_EVERY_S[-1])
    await asyncio.sleep(max(began + _SETTLE_S - time.monotonic(), 0.0))
    return outcome


async def wait_until(
    pipeline: str,
    condition: Callable[[Runtime], bool],
    look_every_s: tuple[float, ...] = _LOOK_EVERY_S,
    settle_s: float = _SETTLE_S,
) -> str:
    """Return ``news`` once ``condition`` holds, ``trouble`` if it could not be asked for half a minute; never before
    ``settle_s``.
    """
    began = time.monotonic()
    outcome = await _outcome(pipeline, condition, look_every_s)
    await asyncio.sleep(max(began + settle_s - time.monotonic(), 0.0))
    return outcome


async def _outcome(pipeline: str, condition: Callable[[Runtime], bool], look_every_s: tuple[float, ...]) -> str:
    looks, trouble = 0, _Trouble(pipeline)
    while True:
        watch = _Watch(pipeline, condition)
        try:
            while not await asyncio.to_thread(watch.look):
                trouble.ended()
                await asyncio.sleep(look_every_s[min(looks // _LOOKS_A_STEP, len(look_every_s) - 1)])
                looks += 1
            return "news"
        except SluiceError as error:
            if trouble.lasts(error):
                return "trouble"
        finally:
            await asyncio.to_thread(watch.close)
        await asyncio.sleep(_LOOK_EVERY_S[-1])


class _Trouble:
    """Tracks how long a pipeline's servers have not answered."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._since: float | None = None

    def ended(self) -> None:
        """Note that the servers answered."""
        self._since = None

    def lasts(self, error: SluiceError) -> bool:
        """Return True if the servers have not answered for so long, or the error is of such a kind, that a person must
        see it.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        log.warning("change_check_failed", pipeline=self._pipeline, error=str(error))
        return not error.retryable or now - self._since > _TROUBLE_FOR_S


class _Watch:
    """Asks a question over one runtime and one ZooKeeper session, opened by the thread that first asks."""

    def __init__(self, pipeline: str, condition: Callable[[Runtime], bool]) -> None:
        self._pipeline = pipeline
        self._condition = condition
        self._stack = ExitStack()
        self._runtime: Runtime | None = None

    def look(self) -> bool:
        from sluice.orchestration.runtime import open_runtime

        if self._runtime is None:
            opened = open_runtime(self._pipeline)
            self._stack.enter_context(opened.state())
            self._runtime = opened
        report(self._runtime)
        return self._condition(self._runtime)

    def close(self) -> None:
        self._stack.close()


class HeldTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires when a target is quarantined.

    Args:
        pipeline: path of the pipeline file.
        target: name of the target.
    """

    def __init__(self, pipeline: str, target: str) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.target = target

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that Airflow stores."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"pipeline": self.pipeline, "target": self.target},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire when the target is quarantined."""
        yield TriggerEvent(await wait_until(self.pipeline, self._is_held))

    def _is_held(self, opened: Runtime) -> bool:
        with opened.state() as state:
            return state.quarantine.reason(self.target) is not None
