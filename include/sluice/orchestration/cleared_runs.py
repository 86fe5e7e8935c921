"""Room for runs that a person clears, and a way past runs that a person marks as failed.

A run that is cleared after its end is queued, and Airflow starts it when fewer than ``max_active_runs`` are running.
But the slots are full of later runs, each of which waits for its own past, which is that run: nothing would ever move
again. So if an older run of a sync DAG waits for a slot, the youngest run that is doing nothing goes back into the
queue, and Airflow starts the older one. If there is none, the youngest whose tasks all wait in the triggerer goes:
events that wake them meanwhile reach them when their run has its slot again.

A run that is marked as failed has red tasks, and so may one that is marked as a success while a load of it is red; no
later run would begin: drain, load and ack depend on their own past. Such a run is over only because a person said so,
and its batches are in ZooKeeper. So its red tasks become *skipped*, and the next run continues with its batches. So do
tasks of it that wait: a task that ended when the mark came may have overwritten what the mark wrote, and the scheduler
starts nothing in a run that is over.

A task that a change of the pipeline's file adds (``sense`` of ``tasks: own``, the load of a new target) depends on its
own past, which it does not have: Airflow would never start it. So the last run without it gets it, as *skipped*.

A run that fails by itself is different: its red tasks wait for a person, and later runs for it. If one task takes
batches through all stages, acks keep such a run open. If each stage has its own task, it ends as failed, and Airflow's
audit log tells whether a person marked it. A task of it that is red only because an earlier one was starts again when
that one does, whatever was selected for *Clear*.

This is the one place that writes to Airflow's database: a thread in the API server, through which people clear. Once an
hour it also removes old rows of the audit log: neither a task nor the REST API can.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from sluice.orchestration.dag_runs import CONTROL_ID, FAMILIES, RETENTION_ID, SENSE, dag_id_of

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

log = structlog.get_logger()

EVERY_S = 2.0
CLEAN_EVERY_S = 3600.0
_NEWEST = 50
"""Runs with a red task that are checked, at most."""

_STATES = (
    "running",
    "success",
    "failed",
    "skipped",
    "deferred",
    "up_for_retry",
    "up_for_reschedule",
    "queued",
    "state mismatch",
)
_OPEN = ("queued", "running")
"""States of a run that is not over."""
_WAITS = "deferred"
_AT_WORK = ("running", "restarting")
_DONE_WITH = ("success", "skipped", "removed")
_UNDER_WAY = ("scheduled", "queued", "running", "restarting", _WAITS, "up_for_retry", "up_for_reschedule")


def requeue_for_cleared_runs(session: Session) -> list[str]:
    """Swap queued and running runs where needed; return the ids of the runs that went back into the queue.

    The caller commits.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    waiting = select(DagRun.dag_id).where(
        DagRun.dag_id.startswith(dag_id_of(""), autoescape=True), DagRun.state == DagRunState.QUEUED
    )
    moved: list[str] = []
    for dag_id in set(session.scalars(waiting)):
        runs = list(session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.state.in_(_OPEN))))
        runs = sorted((run for run in runs if run.logical_date is not None), key=lambda run: run.logical_date)
        queued = [run for run in runs if run.state == DagRunState.QUEUED]
        running = [run for run in runs if run.state == DagRunState.RUNNING]
        if not queued or not running or len(running) < _places(session, dag_id):
            continue
        ids = [run.run_id for run in running]
        states: dict[str, set[str]] = {}
        for run_id, state in session.execute(
            select(TaskInstance.run_id, TaskInstance.state).where(
                TaskInstance.dag_id == dag_id, TaskInstance.run_id.in_(ids), TaskInstance.state.in_(_UNDER_WAY)
            )
        ):
            states.setdefault(run_id, set()).add(state)
        later = [run for run in running if run.logical_date > queued[0].logical_date]
        idle = [run for run in later if run.run_id not in states]
        idle = idle or [run for run in later if states[run.run_id] == {_WAITS}]
        if idle:
            idle[-1].set_state(DagRunState.QUEUED)
            moved.append(idle[-1].run_id)
    return moved


_RELEASED = (
    "Marked as {}: the next run goes on with its batches, and tasks of it that did not succeed are shown as skipped."
)


def release_ended_runs(session: Session) -> list[str]:
    """Skip the red and waiting tasks of ended runs that stand directly before an open one; returns the ids of these
    runs. The caller commits.

    A run that failed by itself is left alone.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import or_, select

    is_own = DagRun.dag_id.startswith(dag_id_of(""), autoescape=True)
    is_open = select(DagRun.dag_id, DagRun.logical_date).where(
        is_own, DagRun.state.in_(_OPEN), DagRun.logical_date.is_not(None)
    )
    released: list[str] = []
    for dag_id, at in session.execute(is_open).all():
        before = _run_before(session, dag_id, at)
        if before is None or before.state in _OPEN or _failed_by_itself(session, before):
            continue
        red = select(TaskInstance).where(
            TaskInstance.dag_id == dag_id,
            TaskInstance.run_id == before.run_id,
            or_(
                TaskInstance.state.is_(None),
                TaskInstance.state.not_in((*_DONE_WITH, *_AT_WORK)),
            ),
        )
        tasks = list(session.scalars(red))
        for task in tasks:
            task.set_state(TaskInstanceState.SKIPPED, session=session)
        if tasks:
            before.note = before.note or _RELEASED.format(
                "failed" if before.state == DagRunState.FAILED else "a success"
            )
            released.append(before.run_id)
    return released


def _run_before(session: Session, dag_id: str, at: datetime) -> DagRun | None:
    """Return the run directly before the logical date ``at``, or None if there is none."""
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    earlier = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.logical_date < at)
    return session.scalars(earlier.order_by(DagRun.logical_date.desc()).limit(1)).first()


_MARKS = ("patch_dag_run", "bulk_dag_runs")
"""Events of Airflow's audit log by which a person marks a run or writes its note."""


def _failed_by_itself(session: Session, run: DagRun) -> bool:
    """Return True for a failed run with a task per stage, unless a person marked it since it began or was last
    cleared.
    """
    from airflow.models.log import Log
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    if run.state != DagRunState.FAILED:
        return False
    names = set(
        session.scalars(
            select(TaskInstance.task_id).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
        )
    )
    if SENSE not in names:
        return False
    marks = select(Log.run_id, Log.extra).where(Log.event.in_(_MARKS), Log.extra.contains("state", autoescape=True))
    if run.start_date is not None:
        marks = marks.where(Log.dttm >= run.start_date)
    return not any(run.run_id in (marked, *_ids_in(extra)) for marked, extra in session.execute(marks))


def _ids_in(extra: str | None) -> list[str]:
    """Return the ids of the runs that one request marked together."""
    try:
        actions = json.loads(extra or "{}").get("actions") or []
        return [str(entity["dag_run_id"]) for action in actions for entity in action.get("entities", [])]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def admit_new_tasks(session: Session) -> list[str]:
    """Add tasks that wait for their past to an ended run without them, as skipped; return the ids of these runs.

    The caller commits.

    A task that an earlier change of the file took out of that run is in it again.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.serialization.definitions.baseoperator import SerializedBaseOperator
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import func, or_, select

    oldest = (
        select(DagRun.dag_id, func.min(DagRun.logical_date))
        .where(
            DagRun.dag_id.startswith(dag_id_of(""), autoescape=True),
            DagRun.state.in_(_OPEN),
            DagRun.logical_date.is_not(None),
        )
        .group_by(DagRun.dag_id)
    )
    admitted: list[str] = []
    for dag_id, at in session.execute(oldest).all():
        before = _run_before(session, dag_id, at)
        if before is None:
            continue
        in_it = select(TaskInstance).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == before.run_id)
        known_tasks = in_it.with_only_columns(TaskInstance.task_id).where(
            or_(TaskInstance.state.is_(None), TaskInstance.state != TaskInstanceState.REMOVED)
        )
        new = (
            select(TaskInstance)
            .join(DagRun, (TaskInstance.dag_id == DagRun.dag_id) & (TaskInstance.run_id == DagRun.run_id))
            .where(DagRun.dag_id == dag_id, DagRun.logical_date == at)
            .where(TaskInstance.state.is_(None), TaskInstance.task_id.not_in(known_tasks))
        )
        serial = [
            instance
            for instance in session.scalars(new)
            if _depends_on_past(session, instance.dag_run, instance.task_id)
        ]
        for task in serial:
            removed = session.scalar(in_it.where(TaskInstance.task_id == task.task_id))
            if removed is not None:
                removed.set_state(TaskInstanceState.SKIPPED, session=session)
                continue
            skipped_task = TaskInstance(
                SerializedBaseOperator(task_id=task.task_id),
                task.dag_version_id,
                run_id=before.run_id,
                state=TaskInstanceState.SKIPPED,
            )
            skipped_task.dag_id = dag_id
            session.add(skipped_task)
        if serial:
            admitted.append(before.run_id)
    return admitted


def follow_cleared_tasks(session: Session) -> list[str]:
    """Clear the red tasks before which another one of their run began anew after they failed; returns the ids of their
    runs. The caller commits.

    Whoever presses Clear on the task with the cause may leave out those after it, which are red for no reason of their
    own. A run whose last task ends while this is done may end as failed with the cleared task in it, which the
    scheduler would never start: so such a task is cleared again, which opens its run.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance, clear_task_instances
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import and_, or_, select

    red_states = (TaskInstanceState.FAILED, TaskInstanceState.UPSTREAM_FAILED)
    which = (
        select(DagRun)
        .join(TaskInstance, (TaskInstance.dag_id == DagRun.dag_id) & (TaskInstance.run_id == DagRun.run_id))
        .where(
            DagRun.dag_id.startswith(dag_id_of(""), autoescape=True),
            DagRun.state.in_((DagRunState.QUEUED, DagRunState.RUNNING, DagRunState.FAILED)),
            or_(
                TaskInstance.state.in_(red_states),
                and_(
                    DagRun.state == DagRunState.FAILED,
                    TaskInstance.state.is_(None),
                    TaskInstance.end_date.is_not(None),
                ),
            ),
        )
        .order_by(DagRun.id.desc())
        .distinct()
        .limit(_NEWEST)
    )
    followed: list[str] = []
    for run in session.scalars(which).all():
        tasks = {
            instance.task_id: instance
            for instance in session.scalars(
                select(TaskInstance).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
            )
        }
        if SENSE not in tasks:
            continue
        red = {name for name, task in tasks.items() if task.state in red_states}
        if _failed_by_itself(session, run):
            red |= {name for name, task in tasks.items() if task.state is None}
        if not any(_began_after(task, tasks[name]) for name in red for task in tasks.values()):
            continue  # nothing happened since, so the graph need not be read
        anew = [
            tasks[name]
            for name in red
            if not red & (above := _upstream(session, run, name))
            and any(_began_after(tasks[earlier], tasks[name]) for earlier in above & tasks.keys())
        ]
        if anew:
            clear_task_instances(anew, session)
            followed.append(run.run_id)
    return followed


def _upstream(session: Session, run: DagRun, task: str) -> set[str]:
    """Return all tasks before this one in the graph of the run."""
    operator = _task(session, run, task)
    return set(operator.get_flat_relative_ids(upstream=True)) if operator else set()


def _depends_on_past(session: Session, run: DagRun, task: str) -> bool:
    operator = _task(session, run, task)
    return bool(operator and operator.depends_on_past)


def _task(session: Session, run: DagRun, task: str) -> Any:
    """Return the task of the run's graph, or None if the graph has no such task."""
    from airflow.models.dagbag import DBDagBag

    dag = DBDagBag(load_op_links=False).get_dag_for_run(dag_run=run, session=session)
    return dag.get_task(task) if dag and dag.has_task(task) else None


def _began_after(later: TaskInstance, earlier: TaskInstance) -> bool:
    """Return True if the current attempt of ``later`` began after ``earlier`` had ended."""
    return bool(later.start_date and earlier.end_date and later.start_date > earlier.end_date)


def _places(session: Session, dag_id: str) -> int:
    from airflow.models.dag import DagModel
    from sqlalchemy import select

    return int(session.scalar(select(DagModel.max_active_runs).where(DagModel.dag_id == dag_id)) or 0)


def remove_old_events(session: Session, before: datetime, most: int = 5_000) -> int:
    """Remove rows of Airflow's audit log that tasks of our DAGs wrote (their states) before that time; what people did
    stays. The caller commits.
    """
    from airflow.models.log import Log
    from sqlalchemy import delete, or_, select

    prefixes = [id_of("") for id_of in FAMILIES]
    own_element = or_(
        *(Log.dag_id.startswith(prefix, autoescape=True) for prefix in prefixes),
        Log.dag_id.in_((RETENTION_ID, CONTROL_ID)),
    )
    old = select(Log.id).where(own_element, Log.event.in_(_STATES), Log.dttm < before).order_by(Log.id).limit(most)
    ids = list(session.scalars(old))
    if ids:
        session.execute(delete(Log).where(Log.id.in_(ids)))
    return len(ids)


def _remove_old_events() -> None:
    from airflow.utils.session import create_session

    from sluice.config.pipeline import parse_span
    from sluice.orchestration.dags.retention import ages

    keep = parse_span(ages()["keep_logs"])
    removed = -1
    while removed:
        with create_session() as session:
            removed = remove_old_events(session, datetime.now(UTC) - keep)


def _watch() -> None:
    from airflow.utils.session import create_session

    cleaned = time.monotonic()
    while True:
        time.sleep(EVERY_S)
        if time.monotonic() - cleaned > CLEAN_EVERY_S:
            cleaned = time.monotonic()
            try:
                _remove_old_events()
            except Exception as error:
                log.warning("audit_rows_removal_failed", error=str(error)[:300])
        try:
            for act, reason in (
                (release_ended_runs, "its red and waiting tasks are skipped, for the run after it goes on"),
                (admit_new_tasks, "tasks that are new in the graph are added to it as skipped"),
                (follow_cleared_tasks, "a person cleared a task of it, and later red ones are cleared too"),
                (requeue_for_cleared_runs, "it goes back into the queue, for a cleared run before it"),
            ):
                with create_session() as session:  # one short session each: SQLite has one writer at a time
                    runs = act(session)
                for run in runs:
                    log.info("run_rescheduled", run=run, reason=reason)
        except Exception as error:  # the database is busy, or has another version: Airflow works without this
            log.warning("run_scheduling_failed", error=str(error)[:300])


_started = threading.Lock()


def start() -> None:
    """Watch from now on, if this process is an API server: through one of those people clear, and it forks nothing that
    a thread would harm.
    """
    if "api-server" in sys.argv and _started.acquire(blocking=False):
        threading.Thread(target=_watch, name="sluice-room", daemon=True).start()
