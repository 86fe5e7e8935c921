"""A cleared run gets a place, taken from the youngest run that has nothing under way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("airflow_database")
START = datetime(2026, 1, 1, tzinfo=UTC)
DAG = "sync__room"


@pytest.fixture
def session(airflow_database: None) -> Any:
    """Whatever is written is rolled back."""
    from airflow.settings import Session

    made = Session()
    yield made
    made.rollback()
    made.close()


def dag_with(session: Any, *runs: tuple[str, str | None], dag_id: str = DAG) -> None:
    """A DAG with three places; ``runs``: (state of the run, state of its one task), oldest first."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.serialization.definitions.baseoperator import SerializedBaseOperator
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import select

    if session.get(DagBundleModel, "room") is None:
        session.add(DagBundleModel(name="room"))
        session.flush()
    session.add(DagModel(dag_id=dag_id, bundle_name="room", max_active_runs=3, is_paused=False, is_stale=False))
    session.flush()
    for number, (state, task) in enumerate(runs):
        at = START + timedelta(seconds=number)
        session.add(
            DagRun(
                dag_id=dag_id, run_id=f"run-{number}", logical_date=at, run_after=at, run_type=DagRunType.SCHEDULED,
                state=DagRunState(state), triggered_by=DagRunTriggeredByType.TEST,
            )
        )  # fmt: skip
        if state == "running":
            session.flush()
            session.scalars(
                select(DagRun).where(DagRun.run_id == f"run-{number}", DagRun.dag_id == dag_id)
            ).one().last_scheduling_decision = at
        if task is not None:
            session.flush()
            made = TaskInstance(SerializedBaseOperator(task_id="drain"), None, run_id=f"run-{number}", state=task)
            made.dag_id = dag_id
            session.add(made)
    session.flush()


def states(session: Any) -> list[str]:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    session.flush()
    found = session.scalars(select(DagRun).where(DagRun.dag_id == DAG).order_by(DagRun.logical_date))
    return [str(run.state) for run in found]


def startable(session: Any) -> list[str]:
    """What the scheduler would set running next, in its order."""
    from airflow.models.dagrun import DagRun

    session.flush()
    return [run.run_id for run in DagRun.get_queued_dag_runs_to_set_running(session) if run.dag_id == DAG]


def requeue_for_cleared_runs(session: Any) -> list[str]:
    from sluice.orchestration.cleared_runs import requeue_for_cleared_runs as work

    return work(session)


def test_the_youngest_gives_way_to_an_older_one_that_was_cleared(session: Any) -> None:
    dag_with(session, ("success", None), ("queued", None), ("running", None), ("running", None), ("running", None))
    assert startable(session) == []
    assert requeue_for_cleared_runs(session) == ["run-4"]
    assert states(session) == ["success", "queued", "running", "running", "queued"]
    assert startable(session) == ["run-1", "run-4"]  # by Airflow's own choice; it has one place


def test_where_there_is_a_place_nothing_moves(session: Any) -> None:
    dag_with(session, ("queued", None), ("running", None), ("running", None))
    assert requeue_for_cleared_runs(session) == []


def test_a_new_run_waits_as_it_should(session: Any) -> None:
    dag_with(session, ("running", None), ("running", None), ("running", None), ("queued", None))
    assert requeue_for_cleared_runs(session) == []


def test_other_dags_are_left_alone(session: Any) -> None:
    dag_with(session, ("queued", None), ("running", None), ("running", None), ("running", None), dag_id="shop")
    assert requeue_for_cleared_runs(session) == []


def test_a_run_with_something_under_way_stays(session: Any) -> None:
    dag_with(session, ("queued", None), ("running", None), ("running", "running"), ("running", "up_for_retry"))
    assert requeue_for_cleared_runs(session) == ["run-1"]


def test_where_nobody_is_idle_one_that_waits_in_the_triggerer_gives_way(session: Any) -> None:
    dag_with(
        session,
        ("queued", None),
        ("running", "deferred"),
        ("running", "deferred"),
        ("running", "queued"),
        ("queued", None),
    )
    assert requeue_for_cleared_runs(session) == ["run-2"]
    assert startable(session)[0] == "run-0"


def test_nobody_gives_way_who_works(session: Any) -> None:
    dag_with(session, ("queued", None), ("running", "running"), ("running", "queued"), ("running", "restarting"))
    assert requeue_for_cleared_runs(session) == []


def test_old_events_of_our_tasks_go_and_what_people_did_stays(session: Any) -> None:
    from airflow.models.log import Log
    from sqlalchemy import select

    from sluice.orchestration.cleared_runs import remove_old_events

    made = [
        ("sync__room", "success", -1),
        ("sync__room", "clear", -1),
        ("sync__room", "success", 1),
        ("other", "success", -1),
        ("retention", "running", -1),
    ]
    for dag, event, days in made:
        row = Log(event=event, dag_id=dag, owner="airflow")
        row.dttm = START + timedelta(days=days)
        session.add(row)
    session.flush()
    assert remove_old_events(session, START) == 2
    left = session.execute(
        select(Log.dag_id, Log.event).where(Log.dag_id.in_(["sync__room", "other", "retention"]))
    ).all()
    assert sorted(map(tuple, left)) == [("other", "success"), ("sync__room", "clear"), ("sync__room", "success")]


def tasks_of(session: Any, run: str) -> dict[str, Any]:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    session.flush()
    found = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == DAG, TaskInstance.run_id == run))
    return {one.task_id: one.state for one in found}


def release_ended_runs(session: Any) -> list[str]:
    from sluice.orchestration.cleared_runs import release_ended_runs as work

    return work(session)


def drain_may_start(session: Any, run: str) -> bool:
    """What Airflow's own rule says of a task that depends on its past."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    session.flush()
    this = session.scalars(select(DagRun).where(DagRun.dag_id == DAG, DagRun.run_id == run)).one()
    earlier = select(DagRun).where(DagRun.dag_id == DAG, DagRun.logical_date < this.logical_date)
    before = session.scalars(earlier.order_by(DagRun.logical_date.desc())).first()
    red = select(TaskInstance).where(TaskInstance.dag_id == DAG, TaskInstance.run_id == before.run_id)
    return all(one.state in {"success", "skipped"} for one in session.scalars(red))


LATE = ["deferred", "up_for_retry", "scheduled", "queued", "up_for_reschedule"]
"""States of a task that ended as the mark came, and wrote over what the mark wrote: nothing goes on in a run that is
over.
"""


@pytest.mark.parametrize("run", ["failed", "success"])
@pytest.mark.parametrize("task", ["failed", "upstream_failed", *LATE])
def test_a_run_that_is_marked_as_ended_lets_the_next_one_go_on(session: Any, task: str, run: str) -> None:
    dag_with(session, ("success", "success"), (run, task), ("running", None))
    assert not drain_may_start(session, "run-2")
    assert release_ended_runs(session) == ["run-1"]
    assert drain_may_start(session, "run-2")
    assert states(session) == ["success", run, "running"]
    assert release_ended_runs(session) == []


def test_a_failed_run_between_open_ones_is_released_and_older_ones_are_left_alone(session: Any) -> None:
    dag_with(
        session,
        ("failed", "failed"),
        ("success", "success"),
        ("running", "failed"),
        ("failed", "failed"),
        ("queued", None),
    )
    assert release_ended_runs(session) == ["run-3"]
    assert [tasks_of(session, f"run-{number}")["drain"] for number in (0, 2, 3)] == ["failed", "failed", "skipped"]


def test_what_still_runs_in_a_failed_run_and_other_dags_are_left_alone(session: Any) -> None:
    dag_with(session, ("failed", "running"), ("running", None))
    assert release_ended_runs(session) == []
    dag_with(session, ("failed", "failed"), ("running", None), dag_id="shop")
    assert release_ended_runs(session) == []


def side_by_side(session: Any, *runs: tuple[str, Mapping[str, tuple[str | None, int]]]) -> None:
    """Runs with a task ``sense``; each task: its state, and the second in which its attempt began.

    It ends three seconds later.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.serialization.definitions.baseoperator import SerializedBaseOperator
    from sqlalchemy import select

    dag_with(session, *((state, None) for state, _ in runs))
    for number, (state, tasks) in enumerate(runs):
        run = session.scalars(select(DagRun).where(DagRun.dag_id == DAG, DagRun.run_id == f"run-{number}")).one()
        run.start_date = START if state != "queued" else None
        for name, (task, began) in {"sense": ("success", 0), **tasks}.items():
            made = TaskInstance(SerializedBaseOperator(task_id=name), None, run_id=f"run-{number}", state=task)
            made.dag_id, made.start_date = DAG, START + timedelta(seconds=began)
            made.end_date = made.start_date + timedelta(seconds=3)
            session.add(made)
    session.flush()


def mark(session: Any, run: str, at: int, event: str = "patch_dag_run", extra: str = '{"state": "failed"}') -> None:
    from airflow.models.log import Log

    row = Log(event=event, dag_id=DAG, run_id=run or None, owner="somebody", extra=extra)
    row.dttm = START + timedelta(seconds=at)
    session.add(row)
    session.flush()


FAILED: tuple[str, dict[str, tuple[str, int]]] = ("failed", {"load": ("failed", 1), "ack": ("failed", 5)})
IDLE: tuple[str, dict[str, tuple[str, int]]] = ("running", {})


def test_a_run_that_failed_by_itself_waits_for_a_person_and_one_that_a_person_marked_does_not(session: Any) -> None:
    side_by_side(session, FAILED, IDLE)
    assert release_ended_runs(session) == []
    mark(session, "run-0", -5)  # before it was cleared
    mark(session, "run-0", 5, extra='{"note": "I look after it"}')
    mark(session, "run-1", 5)
    assert release_ended_runs(session) == []
    assert tasks_of(session, "run-0")["load"] == "failed"
    mark(session, "run-0", 5)
    assert release_ended_runs(session) == ["run-0"]
    assert tasks_of(session, "run-0") == {"sense": "success", "load": "skipped", "ack": "skipped"}


def test_runs_that_a_person_marks_together_are_marked(session: Any) -> None:
    side_by_side(session, FAILED, IDLE)
    entity = '{"dag_run_id": "%s", "new_state": "failed"}'
    extra = '{"actions": [{"action": "update", "entities": [%s]}]}'
    mark(session, "", 5, "bulk_dag_runs", extra % (entity % "another"))
    mark(session, "", 5, "bulk_dag_runs", "no JSON, state")
    assert release_ended_runs(session) == []
    mark(session, "", 5, "bulk_dag_runs", extra % f"{entity % 'another'}, {entity % 'run-0'}")
    assert release_ended_runs(session) == ["run-0"]


def follow_cleared_tasks(session: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from sluice.orchestration import cleared_runs

    above = {"sense": set[str](), "merge": {"sense"}, "load": {"sense", "merge"}, "ack": {"sense", "merge", "load"}}
    monkeypatch.setattr(cleared_runs, "_upstream", lambda session, run, task: above[task])
    return cleared_runs.follow_cleared_tasks(session)


@pytest.mark.parametrize("run", ["running", "failed"])
def test_a_task_that_was_red_because_of_another_begins_again_with_it(
    session: Any, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    side_by_side(session, (run, {"merge": ("success", 1), "load": ("running", 9), "ack": ("failed", 5)}), IDLE)
    assert follow_cleared_tasks(session, monkeypatch) == ["run-0"]
    assert tasks_of(session, "run-0")["ack"] is None
    assert states(session) == ["queued" if run == "failed" else "running", "running"]
    assert follow_cleared_tasks(session, monkeypatch) == []


def test_a_run_that_ended_while_a_task_of_it_was_cleared_is_opened_again(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler ended the run by the task's former state: nothing of it would start, and later runs would wait."""
    side_by_side(session, ("failed", {"merge": ("success", 1), "load": ("success", 9), "ack": (None, 5)}), IDLE)
    assert follow_cleared_tasks(session, monkeypatch) == ["run-0"]
    assert states(session) == ["queued", "running"]
    assert follow_cleared_tasks(session, monkeypatch) == []


def test_a_run_that_a_person_ended_stays_so_with_a_cleared_task(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    side_by_side(session, ("failed", {"merge": ("success", 1), "load": ("success", 9), "ack": (None, 5)}), IDLE)
    mark(session, "run-0", 12)
    assert follow_cleared_tasks(session, monkeypatch) == []
    assert release_ended_runs(session) == ["run-0"]


@pytest.mark.parametrize(
    "tasks",
    [
        {"merge": ("success", 1), "load": ("failed", 1), "ack": ("failed", 5)},
        {"merge": ("success", 1), "load": ("success", 1), "ack": ("failed", 5)},
        {"merge": ("success", 9), "load": ("success", 9), "ack": ("success", 9)},
        {"merge": ("success", 1), "load": ("running", 4), "ack": ("failed", 5)},
    ],
    ids=["cause is red", "red by itself", "all green", "the one before still works"],
)
def test_a_task_that_is_red_for_a_reason_of_its_own_stays_so(
    session: Any, monkeypatch: pytest.MonkeyPatch, tasks: dict[str, tuple[str, int]]
) -> None:
    side_by_side(session, ("failed", tasks), IDLE)
    before = tasks_of(session, "run-0")
    assert follow_cleared_tasks(session, monkeypatch) == []
    assert tasks_of(session, "run-0") == before


def test_a_red_task_in_the_middle_waits_for_the_one_before_it_that_is_red(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture was cleared: the load follows, and the acknowledgement once the load has begun."""
    side_by_side(session, ("failed", {"merge": ("success", 20), "load": ("failed", 1), "ack": ("failed", 5)}), IDLE)
    assert follow_cleared_tasks(session, monkeypatch) == ["run-0"]
    assert tasks_of(session, "run-0") == {"sense": "success", "merge": "success", "load": None, "ack": "failed"}


def test_runs_of_one_task_are_not_followed(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dag_with(session, ("failed", "failed"), ("running", None))
    assert follow_cleared_tasks(session, monkeypatch) == []


def admit_new_tasks(session: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from sluice.orchestration import cleared_runs

    monkeypatch.setattr(cleared_runs, "_depends_on_past", lambda session, run, task: task != "rule.new")
    return cleared_runs.admit_new_tasks(session)


def add_waiting(session: Any, run: str, *names: str, state: str | None = None) -> None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.serialization.definitions.baseoperator import SerializedBaseOperator

    for name in names:
        made = TaskInstance(SerializedBaseOperator(task_id=name), None, run_id=run, state=state)
        made.dag_id = DAG
        session.add(made)
    session.flush()


def test_a_task_that_a_change_of_the_file_adds_finds_a_past(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dag_with(session, ("success", "success"), ("running", "success"), ("running", None))
    for run in ("run-1", "run-2"):
        add_waiting(session, run, "sense", "rule.new")
    assert admit_new_tasks(session, monkeypatch) == ["run-0"]
    assert tasks_of(session, "run-0") == {"drain": "success", "sense": "skipped"}
    assert tasks_of(session, "run-1") == {"drain": "success", "sense": None, "rule.new": None}
    assert admit_new_tasks(session, monkeypatch) == []


def test_a_task_that_comes_back_finds_a_past(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run before has it as *removed*, which is no end of it.

    Another stays removed, and nobody is said to have marked that run.
    """
    dag_with(session, ("success", "success"), ("running", "success"))
    add_waiting(session, "run-0", "sense", "load.gone", state="removed")
    add_waiting(session, "run-1", "sense")
    assert release_ended_runs(session) == []
    assert admit_new_tasks(session, monkeypatch) == ["run-0"]
    assert tasks_of(session, "run-0") == {"drain": "success", "sense": "skipped", "load.gone": "removed"}


def test_a_task_without_a_past_is_admitted_nowhere_else(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dag_with(session, ("running", "success"), ("running", "success"))
    add_waiting(session, "run-0", "sense")
    assert admit_new_tasks(session, monkeypatch) == []
    dag_with(session, ("success", "success"), ("running", "success"), dag_id="shop")
    assert admit_new_tasks(session, monkeypatch) == []
