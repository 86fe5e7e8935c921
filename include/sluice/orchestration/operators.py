"""The tasks of a sync DAG. Each declares; ``execute`` calls one flow, the same that the command line calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import structlog
from airflow.sdk import BaseOperator, BaseSensorOperator, PokeReturnValue, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sluice import telemetry
from sluice.errors import ConfigError, Fenced, LeaseHeld, OutOfOrder, Paused, Restarted, SluiceError
from sluice.orchestration.dag_runs import SENSE
from sluice.orchestration.retry import boundary
from sluice.orchestration.runtime import claim, open_runtime, run_of
from sluice.orchestration.triggers import HoldTrigger, LogMovedTrigger, PermitTrigger, TurnTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from sluice.coordination.bundles import WaitingBatches
    from sluice.flows.job import MicrobatchOutcome
    from sluice.flows.load.ack import AckOutcome
    from sluice.flows.load.load import LoadOutcome
    from sluice.flows.runtime import Runtime
    from sluice.flows.stage_sums import DeliveredBatch, Done, StageSums

_T = TypeVar("_T")

_IDLE_WAIT_S = 2.0
"""Seconds that a drain looks for changes before it releases its worker.

A trigger needs about 2.9 s even if its event is already there, so a drain that deferred at once would make batches
queue in the triggerer.
"""

_IN_VAIN_S = (0.0, 0.0, 0.5, 1.0, 2.0, 5.0)
"""Seconds to pause before looking again, by the number of wake-ups in a row that found nothing for this pipeline."""

_REPORT_EVERY = 5
"""Batches after which an acknowledgement sends the metrics; while a pipeline waits or holds, the triggerer sends
them.
"""

_NICENESS = 10
"""The niceness of a micro-batch loop on a crowded machine: a tenth of the CPU if others want all of it."""

_CROWDED = 4.0
"""Processes per core that want to run on a crowded machine.

One pipeline with Spark, its servers and Airflow on two full cores: 2.7; twelve: 7.5.
"""

_SAY_EVERY_S = 5.0
"""Seconds between two log lines of a busy drain, whatever the number of its batches: 7,000 an hour would fill disks."""

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
        """Wait for a red task above, without a worker, so that the run stays open. ``waited``: pauses so far."""
        if red := self._red_above(context):
            self._report_red(red, why)
        self.log.warning("the run waits: %s. Fix the red task above and press Clear on it, with downstream tasks", why)
        self.wait(HoldTrigger(self.pipeline, _HOLD_S[min(waited, len(_HOLD_S) - 1)]), waited=waited + 1)

    def _red_above(self, context: Context) -> list[str]:
        """Return the first tasks before this one whose attempts are used up, or that a person marked as failed."""
        above = sorted(self.get_flat_relative_ids(upstream=True))
        red = _in_state(context, above, "failed", "upstream_failed")
        return [name for name in red if not self.dag.get_task(name).get_flat_relative_ids(upstream=True) & set(red)]

    def _report_red(self, red: Sequence[str], why: str) -> None:
        """Note that later runs wait for a red task: it may have been ended from outside, without a word of its own."""
        kind, _, subject = red[0].partition(".")
        parts = {SENSE: "drain", "rule": f"rules-{subject}", "load": f"load-{subject}", "ack": f"load-{subject}"}
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


class ChangesSensor(SourceOperator, BaseSensorOperator):  # type: ignore[misc]
    """A sensor of changes in the source's log, in Airflow's own sense, and deferrable. Subclasses write :meth:`poke`.

    Airflow's loop of a sensor (poke, sleep, poke, in a worker) is not used: where a poke finds nothing, the task waits
    in the triggerer, for as long as it takes. So ``poke_interval``, ``timeout`` and ``mode`` mean nothing here.
    """

    def poke(self, context: Context) -> PokeReturnValue:
        """Look for changes once; the value is the number of the run's batch. Raises SluiceError."""
        raise NotImplementedError

    def work(self, context: Context, in_vain: int = 0, **_: Any) -> Any:
        """Look for changes and otherwise wait. ``in_vain``: wake-ups in a row that found nothing for this pipeline."""
        try:
            found = self.poke(context)
        except (LeaseHeld, Fenced) as error:
            return self.stand_by(error)
        return found.xcom_value if found else self.wait_for_news(in_vain)


class DrainOperator(ChangesSensor):
    """Captures the next batch from the source's log, and further ones while changes keep coming; returns the last one's
    number.

    It delivers small batches itself (:mod:`sluice.flows.job`); the later tasks do what is left, each its own
    stage of all batches of the run. It first polls for changes itself. If there are none, it waits in the triggerer
    (``waits=True``) or ends the run as skipped (``waits=False``: the schedule is a clock). While another installation
    leads the pipeline, or a drain that died still has the lease, it stands by in the triggerer, or its run is skipped.
    """

    def poke(self, context: Context) -> PokeReturnValue:
        """Look for changes for two seconds, deliver them and what follows, and return the number of the last batch.

        Raises SluiceError.
        """
        from sluice.flows.job import run_microbatches
        from sluice.flows.stage_log import brief

        mine = claim(context["ti"].dag_id, context["ti"].run_id)
        runtime = open_runtime(self.pipeline)
        told = _Told(self.log.info, _batches_line)
        with brief():
            outcome = run_microbatches(
                runtime,
                claim=mine,
                idle_wait_s=_IDLE_WAIT_S,
                on_delivered=partial(_log_batch, runtime, told),
                stop=_changed(Path(self.pipeline)),
                is_over=_is_over,
            )
        self.log.info("captured %s", outcome.to_json())
        self.open_backfills(outcome.last.due)
        if outcome.last.batch is None:
            return PokeReturnValue(False)
        return PokeReturnValue(True, self._hand_over(context, runtime, outcome))

    def _hand_over(self, context: Context, runtime: Runtime, outcome: MicrobatchOutcome) -> int:
        from sluice.flows.stage_sums import table

        number = int(outcome.last.batch or 0)
        if was_cleared(context) and outcome.last.adopted and not outcome.delivered:
            self.log.info("this run makes no further batch; %s", again_text(runtime, context))
        if outcome.delivered:
            self.log.info("delivered %d batches:\n%s", len(outcome.delivered), table(outcome.delivered))
        if outcome.ended_by:
            self.log.info("no further batch in this run: %s", outcome.ended_by)
        return number


def _log_batch(runtime: Runtime, told: Callable[[_T], None], batch: _T) -> None:
    """Log a batch that the process of *drain* captured or delivered, and report metrics at intervals."""
    from sluice.orchestration.metrics import report

    if is_crowded() and os.getpriority(os.PRIO_PROCESS, 0) < _NICENESS:
        give_way()
    told(batch)
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
    for thread in [int(one.name) for one in threads.iterdir()] if threads.is_dir() else [0]:
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
    changes, rows = sum(one.changes for one in batches), sum(one.rows for one in batches)
    return f"batches {first.batch} to {last.batch}: {changes} changes, {rows} rows; the last one: {last}"


def counted(batches: int) -> str:
    """Format a number of batches: ``1 batch``, ``2 batches``."""
    return f"{batches} batch{'es' if batches != 1 else ''}"


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
        numbers = claimed_numbers(runtime, claim(context["ti"].dag_id, context["ti"].run_id))
        all_have_it = not numbers or delivered(runtime) >= numbers[-1]
    which, first = "the batches", "NUMBER"
    if numbers:
        first = str(numbers[0])
        which = f"batch {first}" if len(numbers) == 1 else f"batches {first} to {numbers[-1]}"
    if not all_have_it:
        return f"nothing is done again: {which} of this run passed this stage before"
    names = [one.name for one in runtime.pipeline.targets]
    target = target or (names[0] if len(names) == 1 else "TARGET")
    return (
        f"nothing is delivered again: all targets have {which} of this run. `sluice redeliver {runtime.name} {target} "
        f"--from-batch {first}` loads them and all later ones into the target again, `sluice verify {runtime.name}` "
        "compares both sides"
    )


def _changed(path: Path) -> Callable[[], str]:
    """Return a function that says so once the pipeline file has changed, because only the next run reads it."""

    def stamp() -> tuple[int, int]:
        try:
            found = path.stat()
        except OSError:
            return (0, 0)
        return (found.st_mtime_ns, found.st_size)

    before = stamp()
    return lambda: "the pipeline file changed" if stamp() != before else ""


BATCH = "{{ ti.xcom_pull(task_ids='drain') }}"
"""The number of the last batch that this run's drain captured, as a template.

As a template it is shown among a task's rendered fields, and draws no edge from drain to every task in the graph.
"""


class BatchOperator(SluiceOperator):
    """A task on the batches of one run; ``batch``: the number of the last one, rendered from :data:`BATCH`."""

    template_fields: Sequence[str] = ("batch",)

    def __init__(self, *, batch: str | int = BATCH, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def number(self, context: Context) -> int | None:
        """Return the run's last batch: as its drain says, or from ZooKeeper if a person ended that drain; None if this
        run has no batch.
        """
        from sluice.flows.job import last_claimed

        if str(self.batch).isdecimal():
            return int(self.batch)
        mine = claim(context["ti"].dag_id, context["ti"].run_id)
        return last_claimed(open_runtime(self.pipeline), mine)

    def require_number(self, context: Context) -> int:
        """Return the batch's number.

        Skips the task if this run has none because a person marked its drain; raises ConfigError if it failed.
        """
        number = self.number(context)
        if number is None:
            self._require_red(context, "drain")
            raise ConfigError(
                "this run has no batch number", hint="press Clear on its task drain, with downstream tasks"
            )
        return number

    def _require_red(self, context: Context, task: str) -> None:
        """Skip this task if a person marked ``task`` as a success before it made a batch: nothing is left to do in this
        run.
        """
        if _in_state(context, [task], "success"):
            raise AirflowSkipException(f"this run has no batch: {task} was marked as a success before it made one")

    def unfinished(self, context: Context) -> list[int]:
        """Return the run's batches that have no changeset yet; its last one if all have.

        Raises ConfigError, see require_number.
        """
        from sluice.flows.job import unfinished

        mine = claim(context["ti"].dag_id, context["ti"].run_id)
        return unfinished(open_runtime(self.pipeline), mine, self.require_number(context))

    def conclude(self, context: Context, stage: str, own: StageSums, **more: Any) -> dict[str, Any]:
        """Log what became of the run's batches in this stage, in the drain's process and in this one; return the sums
        of both.

        Args:
            own: what this task did.
            more: fields of its result.
        """
        from sluice.flows.job import sums_of
        from sluice.flows.stage_notes import stage_notes

        runtime, drained = open_runtime(self.pipeline), None
        for done in own.newest:
            stage_notes.passed(runtime, stage, rows=done.rows, seconds=done.seconds)
        stage_notes.write(runtime)
        with suppress(SluiceError):  # the work is done; this is only informative
            drained = sums_of(runtime, claim(context["ti"].dag_id, context["ti"].run_id), stage)
        if drained is not None and drained.batches:
            self.log.info(
                "done in the process of the task drain (`run: {tasks: one}`), %s:\n%s",
                counted(drained.batches),
                drained.table(),
            )
        if own.batches:
            self.log.info("done by this task, %s:\n%s", counted(own.batches), own.table())
        elif was_cleared(context):
            self.log.info(again_text(runtime, context, getattr(self, "target", "")))
        elif drained is not None and drained.batches:
            self.log.info("nothing was left for this task")
        elif "later" not in more:
            self.log.info("nothing was left for this task: another run did it, or its batches are not known any more")
        whole = drained + own if drained is not None else own
        return {"stage": stage, **whole.result(), "in_drain": drained.batches if drained is not None else 0, **more}


def _in_state(context: Context, tasks: Sequence[str], *wanted: str) -> list[str]:
    """Return those of ``tasks`` of this run that are in one of the ``wanted`` states."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(tasks), run_ids=[ti.run_id]).get(ti.run_id, {})
    return [name for name in tasks if str(states.get(name)) in wanted]


class MergeOperator(BatchOperator):
    """Merges batches to one row per key and applies the rules, on Spark, if the drain has left any.

    Shows what the drain has merged.
    """

    ui_color = "#fdebd0"

    def __init__(self, *, execution_timeout: timedelta | None = timedelta(minutes=30), **kwargs: Any) -> None:
        super().__init__(execution_timeout=execution_timeout, **kwargs)

    def work(self, context: Context, **memory: Any) -> dict[str, Any]:
        """Merge the batches of the run that have no changeset yet."""
        from sluice.flows.stage_sums import Done, StageSums
        from sluice.flows.transform.merge import merge

        runtime, own = open_runtime(self.pipeline), StageSums()
        for number in self.unfinished(context):
            began, done = time.monotonic(), merge(runtime, number)
            if not done.already:
                errors = sum(rule.errors for rule in done.rules)
                own.add(Done(number, time.monotonic() - began, done.rows, errors, rules=done.rules))
        return self.conclude(context, "merge", own, batch=number)


class RuleOperator(BatchOperator):
    """Takes batches through one rule that has its own task, and the fused rules after it."""

    ui_color = "#fcf3cf"

    def __init__(self, *, rule: str, execution_timeout: timedelta | None = timedelta(hours=2), **kwargs: Any) -> None:
        super().__init__(execution_timeout=execution_timeout, **kwargs)
        self.rule = rule

    def work(self, context: Context, **memory: Any) -> dict[str, Any]:
        """Apply the rule to the batches of the run that lack it."""
        from sluice.flows.stage_sums import Done, StageSums
        from sluice.flows.transform.stages import apply_rule

        runtime, own = open_runtime(self.pipeline), StageSums()
        for number in self.unfinished(context):
            done = apply_rule(runtime, number, self.rule)
            if not done.already:
                own.add(Done(number, done.seconds, done.rows_out, done.errors, rules=done.rules))
        return self.conclude(context, f"rule.{self.rule}", own, batch=number)


class TargetOperator(BatchOperator):
    """A task on one batch for one target."""

    def __init__(self, *, target: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target

    def deliver(self, number: int) -> LoadOutcome | WaitingBatches:
        """Load the target up to this batch. Skips the task if the target is quarantined."""
        from sluice.coordination.quarantine import Quarantined
        from sluice.flows.load.isolation import deliver

        outcome = deliver(open_runtime(self.pipeline), self.target, number)
        if isinstance(outcome, Quarantined):
            raise AirflowSkipException(quarantine_text(self.target, outcome))
        return outcome

    def lineage(self) -> Any:
        """Return the data sets of the run's last batch for OpenLineage's provider; None if they are not known."""
        from sluice.orchestration.lineage import operator_lineage

        if not str(self.batch).isdecimal():
            return None
        return operator_lineage(open_runtime(self.pipeline), self.target, [int(self.batch)])

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the data sets that the task was to write or to acknowledge."""
        return self.lineage()


class LoadOperator(TargetOperator):
    """Delivers a batch to one target, in batch order; a batch that is already there is not delivered again.

    Skipped while the target is quarantined: it fails, and the others continue without it (see
    :class:`CatchUpOperator`). If the batch waits for others to be written with it (``commit_every``), nothing is left
    to do.
    """

    ui_color = "#d5f5e3"

    def __init__(self, *, execution_timeout: timedelta | None = timedelta(hours=2), **kwargs: Any) -> None:
        super().__init__(execution_timeout=execution_timeout, **kwargs)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return nothing: the task ``ack`` tells of what was delivered."""

    def work(self, context: Context, **memory: Any) -> dict[str, Any]:
        """Deliver the batch to the target, or skip while the target waits or is quarantined."""
        from sluice.coordination.bundles import WaitingBatches
        from sluice.flows.stage_sums import Done, StageSums

        number, own = self.require_number(context), StageSums()
        outcome = self.deliver(number)
        if isinstance(outcome, WaitingBatches):
            self.log.info(waiting_text(self.target, outcome))
            return self.conclude(context, f"load.{self.target}", own, batch=number, later="waits")
        if not outcome.already:
            rows = outcome.upserts + outcome.deletes
            own.add(Done(number, outcome.seconds, rows, outcome.dead_letters))
            own.batches, own.first = outcome.batches, number - outcome.batches + 1
        return self.conclude(context, f"load.{self.target}", own, batch=number)


def announce_tables(context: Context, task: BaseOperator, runtime: Runtime, target: str) -> range:
    """Emit an asset event for each table that the target got rows of, if the task has an outlet for them.

    Return the numbers of the batches that the events tell of.
    """
    if not task.outlets:
        return range(0)
    from sluice.orchestration.assets import announce

    found = announce(context, runtime, target, claim(context["ti"].dag_id, context["ti"].run_id))
    if found:
        shown = ", ".join(f"{event.uri} ({event.extra['rows']} rows)" for event in found[:20])
        task.log.info("told of %d tables: %s%s", len(found), shown, ", ..." if len(found) > 20 else "")
    first = min((event.extra["first_batch"] for event in found), default=0)
    return range(first, max((event.extra["last_batch"] for event in found), default=-1) + 1)


def waiting_text(target: str, waiting: Any) -> str:
    """Return the text for people whose batch is written with others."""
    return f"{target}: {waiting}; a later run does it, or `sluice targets commit`"


def quarantine_text(target: str, reason: Any) -> str:
    """Return the text for people about a quarantined target."""
    return (
        f"{target} is quarantined since {reason.since} and the other targets go on; its batches wait in the segments, "
        f"and its task catch_up.{target} delivers them when the cause is fixed: {reason.error}"
    )


class AckOperator(TargetOperator):
    """Moves one target's acknowledged position to the end of the batch: a compare-and-set in ZooKeeper.

    It is also what keeps a run open while an earlier task of it is red: it runs whatever became of the load
    (``none_skipped``), and waits in the triggerer until the target holds the batch. A run that ended as failed could
    never continue: Airflow queues a cleared run under ``max_active_runs``, and the window is full of runs that wait for
    it.

    It delivers the batch itself if a person marked its load as a success.
    """

    ui_color = "#e8daef"

    def __init__(self, *, trigger_rule: str = TriggerRule.NONE_SKIPPED, **kwargs: Any) -> None:
        super().__init__(trigger_rule=trigger_rule, **kwargs)
        self._announced = range(0)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the data sets that the run's batches came from and went to; Airflow's OpenLineage provider asks."""
        from sluice.orchestration.lineage import operator_lineage

        if not self._announced:
            return None
        return operator_lineage(open_runtime(self.pipeline), self.target, self._announced)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the data sets of the run's last batch, as far as it is merged by then."""
        return self.lineage()

    def work(self, context: Context, waited: int = 0, **_: Any) -> dict[str, Any]:
        """Acknowledge the run's batches, or wait for the load. ``waited``: pauses so far."""
        from sluice.coordination.bundles import WaitingBatches
        from sluice.flows.job import acknowledged
        from sluice.flows.stage_sums import Done, StageSums
        from sluice.orchestration.metrics import report
        from sluice.orchestration.run_note import RunNote

        began, own = time.monotonic(), StageSums()
        try:
            before = acknowledged(open_runtime(self.pipeline), self.target)
            number = self.number(context)
            if number is None:
                self._require_red(context, "drain")
                return self.hold(context, "this run has no batch: its drain did not succeed", waited)
            outcome = self._acknowledged(context, number)
        except OutOfOrder as error:
            return self.hold(context, str(error), waited)
        except SluiceError as error:
            if isinstance(error, Paused) or context["ti"].try_number <= context["ti"].max_tries:
                raise
            return self.hold(context, str(error), waited)
        if not self._load_is_green(context):
            return self.hold(
                context, f"{self.target} holds the batch, but its load task did not end as a success", waited
            )
        if number % _REPORT_EVERY == 0:
            report(open_runtime(self.pipeline), every_s=0.0)
        if isinstance(outcome, WaitingBatches):
            self.log.info(waiting_text(self.target, outcome))
            return self.conclude(context, f"ack.{self.target}", own, batch=number, later="waits")
        runtime = open_runtime(self.pipeline)
        if before < number:
            own.add(Done(number, time.monotonic() - began))
            own.batches, own.first = number - before, before + 1
        elif was_cleared(context):
            RunNote(context).add(again_text(runtime, context, self.target))
        self._announced = announce_tables(context, self, runtime, self.target)
        return self.conclude(context, f"ack.{self.target}", own, batch=number, position=str(outcome.position))

    def _acknowledged(self, context: Context, number: int) -> AckOutcome | WaitingBatches:
        """Acknowledge the batch. Raises OutOfOrder if the target lacks it and its load is not green."""
        from sluice.coordination.bundles import WaitingBatches
        from sluice.flows.load.ack import ack

        try:
            return ack(open_runtime(self.pipeline), self.target, number)
        except OutOfOrder as error:
            if not self._load_is_green(context):
                raise
            lacking = error
        delivered = self.deliver(number)
        if isinstance(delivered, WaitingBatches):
            return delivered
        self.log.info("the load is marked as a success, and so it was done here: %s", lacking)
        return ack(open_runtime(self.pipeline), self.target, number)

    def _load_is_green(self, context: Context) -> bool:
        """Return True if the load succeeded.

        It may die after it has delivered; its run must not end before it is cleared and green.
        """
        (load,) = self.upstream_task_ids
        return bool(_in_state(context, [load], "success"))


# -- a task per stage, side by side (the default) ----------------------------------------------------------------------


class SenseOperator(ChangesSensor):
    """Waits for changes and captures the run's first batch; returns its number.

    The run's other tasks start when it ends.

    It looks for two seconds itself, then waits in the triggerer, which holds no worker.
    """

    def poke(self, context: Context) -> PokeReturnValue:
        """Look for changes for two seconds, capture a batch of them and return its number. Raises SluiceError."""
        from sluice.flows.capture.drain import drain

        mine, runtime = claim(context["ti"].dag_id, context["ti"].run_id), open_runtime(self.pipeline)
        with runtime.state() as state:
            state.waiting_tasks.begins()
            outcome = drain(runtime, claim=mine, idle_wait_s=_IDLE_WAIT_S, is_over=_is_over)
            if outcome.batch is not None:
                state.waiting_tasks.waits("drain")
        self.log.info("captured %s", outcome.to_json())
        if was_cleared(context) and outcome.adopted:
            self.log.info(again_text(runtime, context))
        self.open_backfills(outcome.due)
        return PokeReturnValue(outcome.batch is not None, outcome.batch)


class _StageLog:
    """A line for the first batch of a stage, then one for all batches of the last seconds; and a table for the end."""

    def __init__(self, say: Callable[..., None], rows: str) -> None:
        from sluice.flows.stage_sums import StageSums

        self._say = say
        self._rows = rows
        self._told = _Told(say, self._line)
        self._sums = StageSums()

    def __call__(self, done: Done) -> None:
        self._sums.add(done)
        self._told(done)

    def _line(self, batches: Sequence[Done]) -> str:
        first, last, rows = batches[0].batch, batches[-1], sum(one.rows for one in batches)
        which = f"batch {first}" if first == last.batch else f"batches {first} to {last.batch}"
        return f"{which}: {rows} {self._rows}, {sum(one.seconds for one in batches):.2f} s{_later(last)}"

    def end(self) -> None:
        """Log the table of the run's batches."""
        if self._sums.batches:
            self._say(f"this run's batches ({self._sums.batches}):\n{self._sums.table(self._rows)}")


def _later(done: Done) -> str:
    return f"; {done.later}: the target gets it later" if done.later else ""


class CaptureOperator(SourceOperator):
    """Captures batch after batch while changes keep coming; the run's other tasks merge and deliver them meanwhile.

    It does the stages of tasks that have no worker, until they have one. Returns what it did.
    """

    def work(self, context: Context, **_: Any) -> dict[str, Any]:
        """Capture until the run ends, and return what was captured."""
        from sluice.flows.job import run_capture
        from sluice.flows.stage_log import brief

        told = _StageLog(self.log.info, "changes")
        mine, runtime = claim(context["ti"].dag_id, context["ti"].run_id), open_runtime(self.pipeline)
        try:
            with brief():
                outcome = run_capture(
                    runtime,
                    claim=mine,
                    idle_wait_s=_IDLE_WAIT_S,
                    on_done=partial(_log_batch, runtime, told),
                    stop=_changed(Path(self.pipeline)),
                    gone=partial(self._ended_after, context),
                )
        except (LeaseHeld, Fenced) as error:
            return self.stand_by(error)
        told.end()
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
    """Runs one stage for all batches of its run, in parallel with the run's other tasks; a retry, or Clear, starts at
    the first batch it lacks.

    It releases its worker and waits in the triggerer while no batch comes, and while an earlier stage has failed and
    will be retried; the process of *drain* then does what it can do. Once that stage's attempts are used up, it fails,
    too, and with the run's last task the run. It starts again when that stage does, see
    :mod:`sluice.orchestration.cleared_runs`.
    """

    def __init__(self, *, stage: str, color: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stage = stage
        self.ui_color = color

    def work(self, context: Context, waited: int = 0, **_: Any) -> dict[str, Any]:
        """Run the stage. ``waited``: pauses so far."""
        from sluice.flows.job import GivenBack, NeverReady, run_stage
        from sluice.flows.stage_log import brief

        told = _StageLog(self.log.info, "rows")
        mine = claim(context["ti"].dag_id, context["ti"].run_id)
        runtime = open_runtime(self.pipeline)
        try:
            with brief():
                outcome = run_stage(
                    runtime,
                    self.stage,
                    claim=mine,
                    on_done=partial(self._log_done, runtime, told),
                    marked=self._marked(context),
                )
        except NeverReady as why:
            told.end()
            if red := self._red_above(context):
                self._report_red(red, str(why))
                raise AirflowFailException(held_text(red, str(why))) from None
            if isinstance(why, GivenBack):
                self.log.info("this task gives its worker back: %s. It has one again when there is work for it", why)
            else:
                self.log.warning("the run waits: %s. Its task tries again by itself; Clear on it does so now", why)
            pause = _HOLD_S[min(waited, len(_HOLD_S) - 1)]
            trigger = HoldTrigger(
                self.pipeline, pause, stage=self.stage, claim=mine, behind=why.behind, batch=why.batch
            )
            self.wait(trigger, waited=waited + 1)
        told.end()
        if outcome.to_json()["in_drain"]:
            self.log.info(
                "done in the process of the task drain, as this task had no worker: %s of %s:\n%s",
                outcome.to_json()["in_drain"],
                counted(outcome.to_json()["batches"]),
                outcome.sums.table() if outcome.sums is not None else "",
            )
        if not outcome.done and (was_cleared(context) or not outcome.to_json()["in_drain"]):
            self._say_nothing_was_left(context, runtime)
        if self.stage.startswith("ack."):
            announce_tables(context, self, runtime, self.stage.removeprefix("ack."))
        return outcome.to_json()

    def _say_nothing_was_left(self, context: Context, runtime: Runtime) -> None:
        from sluice.orchestration.run_note import RunNote

        kind, _, subject = self.stage.partition(".")
        text = again_text(runtime, context, subject if kind in {"load", "ack"} else "")
        self.log.info(text)
        if kind == "ack" and was_cleared(context):
            RunNote(context).add(text)

    def _log_done(self, runtime: Runtime, told: _StageLog, done: Done) -> None:
        from sluice.orchestration.metrics import report

        told(done)
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
