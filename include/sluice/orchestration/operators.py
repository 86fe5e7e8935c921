"""The tasks of a sync DAG. Each declares; ``execute`` calls one flow, the same that the command line calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import structlog
from airflow.sdk import BaseOperator, BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.triggers.base import StartTriggerArgs

from sluice import telemetry
from sluice.config.folders import rules_folder
from sluice.errors import Fenced, LeaseHeld, Paused, Restarted, SluiceError
from sluice.flows.stages import stages_of
from sluice.model.batches import StageKind
from sluice.orchestration.dag_runs import SENSE, is_paused
from sluice.orchestration.retry import boundary
from sluice.orchestration.runtime import claim, open_runtime, run_of
from sluice.orchestration.triggers import HoldTrigger, LogMovedTrigger, PermitTrigger, TurnTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from sluice.config.pipeline import PipelineConfig
    from sluice.flows.runtime import Runtime
    from sluice.flows.stage_sums import DeliveredBatch, Done
    from sluice.model.batches import DrainOutcome

_T = TypeVar("_T")

_IDLE_WAIT_S = 2.0
"""Seconds that a drain looks for changes before it releases its worker.

A trigger needs about 2.9 s even if its event is already there, so a drain that deferred at once would make batches
queue in the triggerer.
"""

_IN_VAIN_S = (0.0, 0.0, 0.5, 1.0, 2.0, 5.0)
"""Seconds to pause before looking again, by the number of wake-ups in a row that found nothing for this pipeline."""

_NICENESS = 10
"""The niceness of a micro-batch loop on a crowded machine: a tenth of the CPU if others want all of it."""

_CROWDED = 4.0
"""Processes per core that want to run on a crowded machine.

One pipeline with Spark, its servers and Airflow on two full cores: 2.7; twelve: 7.5.
"""

_SAY_EVERY_S = 5.0
"""Seconds between two log lines of a busy drain, whatever the number of its batches: 7,000 an hour would fill disks."""

_BEGINS_S = 5.0
"""Seconds after which a stage has a worker although *drain* neither works nor waits for one: a person ended it."""

_ASK_IF_PAUSED_S = 10.0
"""Seconds between two questions to Airflow whether the DAG is paused."""

_HOLD_S = (5.0, 10.0, 30.0, 60.0)
"""Seconds between two looks of an ack that has nothing to acknowledge. Clear on the red task wakes it at once."""


class SluiceOperator(BaseOperator):  # type: ignore[misc]
    """The base of all tasks: reads the pipeline file in each attempt, shows an error as one message, and waits while
    the pipeline is paused.

    Subclasses implement :meth:`work`.
    """

    ui_color = "#e8f1f8"
    ui_fgcolor = "#12344d"

    def __init__(self, *, pipeline: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> Any:
        """Run :meth:`work` for the first time in this attempt."""
        return self._attempt(context)

    def woken(self, context: Context, event: Any = None, **memory: Any) -> Any:
        """Continue after the trigger fired; ``memory`` is what :meth:`wait` was given."""
        return self._attempt(context, **memory)

    def _attempt(self, context: Context, **memory: Any) -> Any:
        try:
            return self._until_done(context, **memory)
        finally:
            telemetry.flush()  # Airflow ends the process without the exit handlers of Python

    def _until_done(self, context: Context, **memory: Any) -> Any:
        with boundary(self.pipeline):
            while True:
                try:
                    return self.work(context, **memory)
                except Restarted as restart:
                    self.log.info("beginning again: %s", restart)
                except Paused as pause:
                    self.log.info("waiting: %s", pause)
                    return self.wait(PermitTrigger(self.pipeline))
                except SluiceError:
                    report_failure(self.pipeline)
                    raise

    def work(self, context: Context, **memory: Any) -> Any:
        """Do one attempt. Raises SluiceError."""
        raise NotImplementedError

    def wait(self, trigger: BaseTrigger, **memory: Any) -> NoReturn:
        """Release the worker until ``trigger`` fires."""
        self.defer(trigger=trigger, method_name="woken", kwargs=memory)
        raise AssertionError("defer() always raises")

    def hold(self, context: Context, why: str, waited: int) -> NoReturn:
        """Wait, without a worker, so that the run stays open. ``waited``: pauses so far."""
        todo = "No task before this one is red. It tries again by itself; Clear on it does so now"
        if red := self._red_above(context):
            self._report_red(red, why)
            todo = f"Fix the cause and press Clear on {' and '.join(red)}, with downstream tasks"
        self.log.warning("the run waits: %s. %s", why, todo)
        self.wait(HoldTrigger(self.pipeline, _HOLD_S[min(waited, len(_HOLD_S) - 1)]), waited=waited + 1)

    def _red_above(self, context: Context) -> list[str]:
        """Return the first tasks before this one whose attempts are used up, or that a person marked as failed."""
        above = sorted(self.get_flat_relative_ids(upstream=True))
        red = _in_state(context, above, "failed", "upstream_failed")
        return [name for name in red if not self.dag.get_task(name).get_flat_relative_ids(upstream=True) & set(red)]

    def _report_red(self, red: Sequence[str], why: str) -> None:
        """Note that later runs wait for a red task: it may have been ended from outside, without a word of its own."""
        kind, _, subject = red[0].partition(".")
        parts = {SENSE: "drain", "rule": red[0], "load": f"load-{subject}", "ack": f"load-{subject}"}
        error = SluiceError(
            f"the task {red[0]} is red, and later runs wait for its run: {why}",
            hint=f"fix the cause and press Clear on {red[0]}, with downstream tasks, or mark its run as failed to go "
            "on without it",
        )
        with suppress(SluiceError), open_runtime(self.pipeline).state() as state:
            state.note_failure(parts.get(kind, kind), error)


def report_failure(pipeline: str) -> None:
    """Send metrics and check the lag while a task fails and is retried.

    Errors in here are ignored: the task's own error counts.
    """
    from sluice.orchestration.metrics import report

    with suppress(SluiceError):
        report(open_runtime(pipeline), every_s=0.0)


class SourceOperator(SluiceOperator):
    """A task that reads the source's log. Subclasses write :meth:`work`.

    Args:
        waits: False: a clock starts the runs, and one that finds nothing is skipped.
    """

    ui_color = "#d6eaf8"

    def __init__(self, *, waits: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.waits = waits

    def stand_by(self, error: SluiceError) -> NoReturn:
        """Wait in the triggerer while another installation, or a drain that died, has the lease."""
        if not self.waits:
            raise AirflowSkipException(f"standing by: {error}") from None
        self.log.info("standing by: %s", error)
        self.wait(TurnTrigger(self.pipeline))

    def wait_for_news(self, in_vain: int) -> NoReturn:
        """Wait in the triggerer until the log moves. ``in_vain``: wake-ups in a row that found nothing."""
        if not self.waits:
            raise AirflowSkipException("there is nothing new in the source's log")
        pause = _IN_VAIN_S[min(in_vain, len(_IN_VAIN_S) - 1)]
        self.wait(LogMovedTrigger(self.pipeline, pause), in_vain=in_vain + 1)

    def open_backfills(self, dumps: Sequence[str]) -> None:
        """Open a run of the backfill DAG for each dump that came due by itself; one that was opened before stays as
        it is.
        """
        if dumps:
            from sluice.orchestration.dag_runs import open_run

            why = {dump: open_run(self.pipeline, dump) for dump in dumps}
            with suppress(SluiceError), open_runtime(self.pipeline).state() as state:  # the runs are open
                for dump in dumps:
                    state.dumps.not_begun(dump, why[dump])


class SenseOperator(SourceOperator, BaseSensorOperator):  # type: ignore[misc]
    """Waits for changes, captures the run's first batch and returns its number; the run's other tasks start then.

    It is a sensor in Airflow's own sense, and deferrable. Airflow's loop of a sensor (poke, sleep, poke, in a worker)
    is not used: the task looks for two seconds itself, then waits in the triggerer, which holds no worker, for as long
    as it takes. So ``poke_interval``, ``timeout`` and ``mode`` mean nothing here.

    Args:
        delivers: as the task *drain* of a run whose tasks follow each other: it captures further batches while changes
            keep coming, and delivers small ones itself (:func:`sluice.flows.job.run_microbatches`). The later tasks do
            what is left, each its own stage of all batches of the run. It returns the last batch's number.
    """

    def __init__(self, *, delivers: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delivers = delivers

    def work(self, context: Context, in_vain: int = 0, **_: Any) -> Any:
        """Look for changes and otherwise wait. ``in_vain``: wake-ups in a row that found nothing for this pipeline."""
        try:
            answer = self.poke(context)
        except (LeaseHeld, Fenced) as error:
            return self.stand_by(error)
        return answer.xcom_value if answer else self.wait_for_news(in_vain)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look for changes for two seconds; the value is the number of the run's batch. Raises SluiceError."""
        from sluice.flows.job import capture_first

        runtime, claimed = open_runtime(self.pipeline), claim_of(context)
        if self.delivers:
            last = self._delivered(context, runtime, claimed)
        else:
            last = capture_first(runtime, claim=claimed, idle_wait_s=_IDLE_WAIT_S, is_over=_is_over)
            self.log.info("captured %s", last.to_json())
        if was_cleared(context) and last.adopted:
            self.log.info(again_text(runtime, context))
        self.open_backfills(last.due)
        return PokeReturnValue(last.batch is not None, last.batch)

    def _delivered(self, context: Context, runtime: Runtime, claimed: str) -> DrainOutcome:
        from sluice.flows.job import run_microbatches
        from sluice.flows.stage_log import brief
        from sluice.flows.stage_sums import table

        progress_log = _Told(self.log.info, _batches_line)
        with brief():
            outcome = run_microbatches(
                runtime,
                claim=claimed,
                idle_wait_s=_IDLE_WAIT_S,
                on_delivered=partial(_log_batch, runtime, progress_log),
                stop=_reason_to_stop(context, Path(self.pipeline), runtime.pipeline),
                is_over=_is_over,
            )
        self.log.info("captured %s", outcome.to_json())
        if outcome.delivered:
            self.log.info("delivered %d batches:\n%s", len(outcome.delivered), table(outcome.delivered))
        if outcome.last.batch is not None and outcome.ended_by:
            self.log.info("no further batch in this run: %s", outcome.ended_by)
        return outcome.last


def _log_batch(runtime: Runtime, progress_log: Callable[[_T], None], batch: _T) -> None:
    """Log a batch that the process of *drain* captured or delivered, and report metrics at intervals."""
    from sluice.orchestration.metrics import report

    if is_crowded() and os.getpriority(os.PRIO_PROCESS, 0) < _NICENESS:
        give_way()
    progress_log(batch)
    report(runtime)


def is_crowded() -> bool:
    """Return True if more processes want to run than the cores of this machine can serve."""
    return os.getloadavg()[0] > _CROWDED * len(os.sched_getaffinity(0))


def give_way() -> None:
    """Lower the priority of this process, of all its threads and of those they start.

    If micro-batch loops fill a machine, the task of a pipeline's next run would take half a minute to start, and its
    changes would wait. It cannot be undone: one pipeline with Spark on two cores had a freshness of 2.3 s instead of
    1.6 s with lower priority.
    """
    threads = Path("/proc/self/task")
    for thread in [int(folder.name) for folder in threads.iterdir()] if threads.is_dir() else [0]:
        with suppress(OSError):  # the thread has ended
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)


def _is_over(claim: str) -> bool:
    """Return True if the run of this claim has ended; False if that is not known.

    A person may mark it as failed or as a success while its batches are being delivered.
    """
    run = run_of(claim)
    if run is None:
        return False
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        return str(RuntimeTaskInstance.get_dagrun_state(*run)) in {"success", "failed"}
    except Exception as error:  # no such run, or another version of Airflow: the batch's age decides later
        structlog.get_logger().debug("run_lookup_failed", claim=claim, error=str(error)[:300])
        return False


class _Told(Generic[_T]):
    """A line for the first batch of a run, then one for all batches of the last seconds: the table at the end has each.

    ``line``: of batches, one or more.
    """

    def __init__(self, say: Callable[[str], None], line: Callable[[Sequence[_T]], str]) -> None:
        self._say = say
        self._line = line
        self._since = -_SAY_EVERY_S
        self._batches: list[_T] = []

    def __call__(self, batch: _T) -> None:
        self._batches.append(batch)
        if time.monotonic() - self._since < _SAY_EVERY_S:
            return
        self._since = time.monotonic()
        self._say(self._line(self._batches))
        self._batches = []


def _batches_line(batches: Sequence[DeliveredBatch]) -> str:
    first, last = batches[0], batches[-1]
    if len(batches) == 1:
        return str(last)
    changes, rows = sum(batch.changes for batch in batches), sum(batch.rows for batch in batches)
    return f"batches {first.batch} to {last.batch}: {changes} changes, {rows} rows; the last one: {last}"


def claim_of(context: Context) -> str:
    """Return the claim of the run of a task."""
    return claim(context["ti"].dag_id, context["ti"].run_id)


def was_cleared(context: Context) -> bool:
    """Return True if a person pressed Clear on this run, or on one of its tasks."""
    return bool(getattr(context.get("dag_run"), "clear_number", 0))


def again_text(runtime: Runtime, context: Context, target: str = "") -> str:
    """Return the text for people who pressed Clear on what is done; on a delivered run also the command that does what
    they may have wanted.
    """
    from sluice.flows.job import claimed_numbers, delivered

    numbers, all_have_it = list[int](), True
    with suppress(SluiceError):
        numbers = claimed_numbers(runtime, claim_of(context))
        all_have_it = not numbers or delivered(runtime) >= numbers[-1]
    which, first = "the batches", "NUMBER"
    if numbers:
        first = str(numbers[0])
        which = f"batch {first}" if len(numbers) == 1 else f"batches {first} to {numbers[-1]}"
    if not all_have_it:
        return f"nothing is done again: {which} of this run passed this stage before"
    names = [target.name for target in runtime.pipeline.targets]
    target = target or (names[0] if len(names) == 1 else "TARGET")
    return (
        f"nothing is delivered again: all targets have {which} of this run. `sluice redeliver {runtime.name} {target} "
        f"--from-batch {first}` loads them and all later ones into the target again, `sluice verify {runtime.name}` "
        "compares both sides"
    )


def _reason_to_stop(context: Context, path: Path, pipeline: PipelineConfig) -> Callable[[], str]:
    """Return a function that says why a run ends: only the next one reads a changed pipeline file and has the tasks of
    added rules, and a person who pauses the DAG wants no further batch.
    """

    def stamp() -> tuple[int, int]:
        try:
            stat = path.stat()
        except OSError:
            return (0, 0)
        return (stat.st_mtime_ns, stat.st_size)

    before, stages, dag_id = stamp(), stages_of(pipeline, rules_folder()), context["ti"].dag_id
    asked_at = time.monotonic()

    def reason() -> str:
        nonlocal asked_at
        if stamp() != before:
            return "the pipeline file changed"
        if stages_of(pipeline, rules_folder()) != stages:
            return "the stages of its rules changed"
        if time.monotonic() - asked_at < _ASK_IF_PAUSED_S:
            return ""
        asked_at = time.monotonic()
        return f"the DAG {dag_id} is paused" if is_paused(dag_id) else ""

    return reason


def _in_state(context: Context, tasks: Sequence[str], *allowed: str) -> list[str]:
    """Return those of ``tasks`` of this run that are in one of the ``allowed`` states."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(tasks), run_ids=[ti.run_id]).get(ti.run_id, {})
    return [name for name in tasks if str(states.get(name)) in allowed]


def announce_tables(context: Context, task: BaseOperator, runtime: Runtime, target: str) -> range:
    """Emit an asset event for each table that the target got rows of, if the task has an outlet for them.

    Return the numbers of the batches that the events tell of.
    """
    if not task.outlets:
        return range(0)
    from sluice.orchestration.assets import announce

    events = announce(context, runtime, target, claim_of(context))
    if events:
        names = ", ".join(f"{event.uri} ({event.extra['rows']} rows)" for event in events[:20])
        task.log.info("told of %d tables: %s%s", len(events), names, ", ..." if len(events) > 20 else "")
    first = min((event.extra["first_batch"] for event in events), default=0)
    return range(first, max((event.extra["last_batch"] for event in events), default=-1) + 1)


class _StageLog:
    """A line for the first batch of a stage, then one for all batches of the last seconds; and a table for the end."""

    def __init__(self, say: Callable[..., None], rows: str) -> None:
        from sluice.flows.stage_sums import StageSums

        self._say = say
        self._rows = rows
        self._told = _Told(say, self._line)
        self._sums = StageSums()

    def __call__(self, outcome: Done) -> None:
        self._sums.add(outcome)
        self._told(outcome)

    def _line(self, batches: Sequence[Done]) -> str:
        first, last, rows = batches[0].batch, batches[-1], sum(batch.rows for batch in batches)
        which = f"batch {first}" if first == last.batch else f"batches {first} to {last.batch}"
        return f"{which}: {rows} {self._rows}, {sum(batch.seconds for batch in batches):.2f} s{_later(last)}"

    def end(self) -> None:
        """Log the table of the run's batches."""
        if self._sums.batches:
            self._say(f"this run's batches ({self._sums.batches}):\n{self._sums.table(self._rows)}")


def _later(outcome: Done) -> str:
    return f"; {outcome.later}: the target gets it later" if outcome.later else ""


class CaptureOperator(SourceOperator):
    """Captures batch after batch while changes keep coming; the run's other tasks merge and deliver them meanwhile.

    It does the stages of tasks that have no worker, until they have one. Returns what it did.
    """

    def work(self, context: Context, **_: Any) -> dict[str, Any]:
        """Capture until the run ends, and return what was captured."""
        from sluice.flows.job import run_capture
        from sluice.flows.stage_log import brief
        from sluice.flows.stage_sums import counted

        log = _StageLog(self.log.info, "changes")
        runtime = open_runtime(self.pipeline)
        try:
            with brief():
                outcome = run_capture(
                    runtime,
                    claim=claim_of(context),
                    idle_wait_s=_IDLE_WAIT_S,
                    on_done=partial(_log_batch, runtime, log),
                    stop=_reason_to_stop(context, Path(self.pipeline), runtime.pipeline),
                    gone=partial(self._ended_after, context),
                )
        except (LeaseHeld, Fenced) as error:
            return self.stand_by(error)
        log.end()
        self.log.info("no further batch in this run: %s", outcome.ended_by)
        for name, batches in outcome.in_drain:
            self.log.info("did %s of %s, whose task had no worker", counted(batches), name)
        if was_cleared(context) and not outcome.done:
            self.log.info(again_text(runtime, context))
        self.open_backfills(outcome.due)
        return outcome.to_json()

    def _ended_after(self, context: Context) -> list[str]:
        """Return the tasks after this one that have ended. None of them does so by itself before this one has."""
        after = sorted(self.get_flat_relative_ids(upstream=False))
        return _in_state(context, after, "success", "failed", "skipped", "upstream_failed")


class StageOperator(SluiceOperator):
    """Runs one stage for all batches of its run; a retry, or Clear, starts at the first batch it lacks.

    It works in parallel with the run's other tasks. It releases its worker and waits in the triggerer while no batch
    comes, and while an earlier stage has failed and will be retried; the process of *drain* then does what it can do.
    Once that stage's attempts are used up, it fails, too, and with the run's last task the run. It starts again when
    that stage does, see :mod:`sluice.orchestration.cleared_runs`.

    Args:
        begins_in_triggerer: it waits there for its turn to have a worker (:func:`sluice.flows.job.may_begin`), and
            ends there if the process of *drain* did all of it meanwhile.
        keeps_open: as the acknowledgement of a run whose tasks follow each other: it keeps the run open while a task
            before it is red, whatever became of the load, and waits in the triggerer. A run that ended as failed could
            never continue: Airflow queues a cleared run under ``max_active_runs``, and the window is full of runs that
            wait for it.
    """

    def __init__(
        self, *, stage: str, color: str, keeps_open: bool = False, begins_in_triggerer: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.stage = stage
        self.ui_color = color
        self.keeps_open = keeps_open
        self.start_from_trigger = begins_in_triggerer
        if begins_in_triggerer:
            trigger = HoldTrigger(self.pipeline, _BEGINS_S, stage=stage, ends=not self.outlets)
            name, arguments = trigger.serialize()
            self.start_trigger_args = StartTriggerArgs(trigger_cls=name, trigger_kwargs=arguments, next_method="woken")
        self._announced = range(0)

    @property
    def target(self) -> str:
        """The target that is loaded or acknowledged; "" for another stage."""
        kind, _, subject = self.stage.partition(".")
        return subject if kind in {StageKind.LOAD, StageKind.ACKNOWLEDGE} else ""

    def work(self, context: Context, waited: int = 0, **_: Any) -> dict[str, Any]:
        """Run the stage. ``waited``: pauses so far."""
        if not self.keeps_open:
            return self._run(context, waited)
        before = sorted(self.upstream_task_ids)
        if len(_in_state(context, before, "success")) < len(before):
            return self.hold(context, f"{' and '.join(before)} did not end as a success", waited)
        try:
            return self._run(context, waited)
        except SluiceError as error:
            if isinstance(error, Paused | Restarted) or context["ti"].try_number <= context["ti"].max_tries:
                raise
            return self.hold(context, str(error), waited)

    def _run(self, context: Context, waited: int) -> dict[str, Any]:
        from sluice.flows.job import GivenBack, NeverReady, run_stage
        from sluice.flows.stage_log import brief

        log, claimed, runtime = _StageLog(self.log.info, "rows"), claim_of(context), open_runtime(self.pipeline)
        try:
            with brief():
                outcome = run_stage(
                    runtime,
                    self.stage,
                    claim=claimed,
                    on_done=partial(self._log_done, runtime, log),
                    marked=self._marked(context),
                )
        except NeverReady as why:
            log.end()
            if red := self._red_above(context):
                self._report_red(red, str(why))
                raise AirflowFailException(held_text(red, str(why))) from None
            if isinstance(why, GivenBack):
                self.log.info("this task gives its worker back: %s. It has one again when there is work for it", why)
            else:
                self.log.warning("the run waits: %s. Its task tries again by itself; Clear on it does so now", why)
            pause = _HOLD_S[min(waited, len(_HOLD_S) - 1)]
            trigger = HoldTrigger(
                self.pipeline,
                pause,
                stage=self.stage,
                claim=claimed,
                behind=why.behind,
                batch=why.batch,
                ends=not self.outlets and not was_cleared(context),
            )
            self.wait(trigger, waited=waited + 1)
        log.end()
        result = outcome.to_json()
        if outcome.in_drain_text:
            self.log.info(outcome.in_drain_text)
        if not outcome.done and (was_cleared(context) or not result["in_drain"]):
            self._say_nothing_was_left(context, runtime)
        if self.stage.startswith("ack."):
            self._announced = announce_tables(context, self, runtime, self.target)
        return result

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the data sets of the batches that an acknowledgement told of; Airflow's OpenLineage provider asks."""
        return self._lineage(self._announced)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the data sets that the run's newest batch was to be written to, or acknowledged of."""
        if not self.target:
            return None
        from sluice.flows.job import claimed_numbers

        numbers: Sequence[int] = ()
        with suppress(SluiceError):
            claimed = claim(task_instance.dag_id, task_instance.run_id)
            numbers = claimed_numbers(open_runtime(self.pipeline), claimed)
        return self._lineage(numbers[-1:])

    def _lineage(self, numbers: Sequence[int]) -> Any:
        from sluice.orchestration.lineage import operator_lineage

        return operator_lineage(open_runtime(self.pipeline), self.target, numbers) if numbers else None

    def _say_nothing_was_left(self, context: Context, runtime: Runtime) -> None:
        from sluice.orchestration.run_note import RunNote

        text = again_text(runtime, context, self.target)
        self.log.info(text)
        if self.stage.startswith("ack.") and was_cleared(context):
            RunNote(context).add(text)

    def _log_done(self, runtime: Runtime, log: _StageLog, outcome: Done) -> None:
        from sluice.orchestration.metrics import report

        log(outcome)
        if self.stage.startswith("ack."):
            report(runtime)

    def _marked(self, context: Context) -> list[str]:
        """Return the earlier stages, and the capture, whose task succeeded by itself or was marked so: nothing more
        comes from them.
        """
        above = sorted({*self.upstream_task_ids, "drain"} - {SENSE})
        return _in_state(context, above, "success", "skipped")


def held_text(red: Sequence[str], why: str) -> str:
    """Return the text in the log of a task that fails because tasks before it did."""
    return (
        f"this task is red because {' and '.join(red)} is, and the run with it: {why}. Nothing is lost, and later "
        f"runs wait. Fix the cause and press Clear on {' and '.join(red)}: this task begins again by itself"
    )
