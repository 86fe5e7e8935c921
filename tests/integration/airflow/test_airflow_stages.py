"""The tasks of a run side by side (``run: {tasks: own}``) on a real Airflow: what a person sees of a busy pipeline is
what happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.pipelines.case import Case
from tests.support.servers.airflows import SharedAirflow, TestAirflow, wait_until
from tests.support.tables.orders import History, acknowledged, change, delivered, orders_case, settled, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DAG = "sync__stages"
STAGES = {"drain", "merge", "rule.up", "load.copy", "ack.copy"}
RIGHT = "def transform(row, context):\n    return {**row, 'note': row['note']}\n"


@pytest.fixture(scope="module")
def orders(shared_airflow: SharedAirflow, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    run = "{tasks: own, max_time: 30s}"
    retry = "{attempts: 3, delay: 1s, max_delay: 2s}"
    with orders_case(
        shared_airflow.folder, mysql_source, mysql_target, zookeeper, name="stages", run=run, retry=retry, hidden=True
    ) as made:
        rules = shared_airflow.folder / "rules"
        (rules / "stages.yaml").write_text("rules: [{name: up, path: up.py, task: own, match: {table: orders}}]\n")
        (rules / "up.py").write_text(RIGHT)
        made.path.write_text(made.path.read_text() + "rules: stages.yaml\n")
        yield made


@pytest.fixture(scope="module")
def east(orders: Case, shared_airflow: SharedAirflow) -> Iterator[TestAirflow]:
    with shared_airflow.running(orders.connections, DAG) as started:
        yield started


def states_of(east: TestAirflow, run: str) -> dict[str, str]:
    return {task["task_id"]: task["state"] for task in east.tasks(DAG, run)}


def summary(east: TestAirflow, run: str, task: str) -> dict[str, Any]:
    """Return the result of the task."""
    answer = east.api.call(
        "GET", f"/dags/{DAG}/dagRuns/{run.replace('+', '%2B')}/taskInstances/{task}/xcomEntries/return_value"
    )
    value = answer["value"]
    found: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return found


def test_all_stages_of_a_run_are_at_work_at_the_same_time(orders: Case, east: TestAirflow) -> None:
    """Each ends green, with its batches in its own log and result; an idle pipeline holds no worker."""
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    history, seen = History(orders), ""

    def all_at_work() -> bool:
        nonlocal seen
        for run in east.runs(DAG, state="running"):
            states = states_of(east, run["dag_run_id"])
            if {name for name, state in states.items() if state == "running"} >= STAGES:
                seen = run["dag_run_id"]
        return bool(seen)

    with written(orders):
        wait_until(all_at_work, "a run with all stages at work")
        wait_until(lambda: seen in {r["dag_run_id"] for r in east.runs(DAG, state="success")}, "its end")
    assert set(states_of(east, seen).values()) == {"success"}
    results = {name: summary(east, seen, name) for name in STAGES}
    assert results["merge"]["batches"] > 3
    assert len({(one["first"], one["last"]) for name, one in results.items() if name != "drain"}) == 1
    assert results["rule.up"]["rows"] > 0
    assert {rule["name"]: rule["rows_in"] for rule in results["rule.up"]["rules"]} == {"up": results["rule.up"]["rows"]}
    for name in STAGES:  # a task that got its worker later tells what drain did before
        log, count = east.log(DAG, seen, name), results[name]["batches"]
        assert f"batches ({count})" in log or f"of {count} batches" in log, name
    wait_until(lambda: settled(orders), "delivery of everything")
    history.assert_in_order()
    wait_until(
        lambda: {task["state"] for task in east.tasks(DAG)} <= {"success", "deferred", None},
        "an idle pipeline without a worker",
    )


def test_a_rule_that_fails_is_seen_at_its_own_task_and_goes_on_after_clear(
    orders: Case, east: TestAirflow, shared_airflow: SharedAirflow
) -> None:
    """Yellow at the first failure.

    Once its attempts are used up the run is red, later ones wait, and Clear on this one task brings all back.
    """
    rule = shared_airflow.folder / "rules/up.py"
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    rule.write_text(RIGHT.replace("'note': row['note']", "'note': row['nothing']"))
    change(orders)
    red, run, states = {"failed", "up_for_retry"}, "", dict[str, str]()

    def is_red() -> bool:
        nonlocal run, states
        for one in east.runs(DAG, state="running"):
            run = one["dag_run_id"]
            states = states_of(east, run)
            if states.get("rule.up") in red:
                return True
        return False

    wait_until(is_red, "the rule's task in yellow or red")
    assert not {states[name] for name in STAGES - {"rule.up"}} & red
    assert "rule 'up'" in east.log(DAG, run, "rule.up")
    wait_until(lambda: run in {r["dag_run_id"] for r in east.runs(DAG, state="failed")}, "a red run")
    states = states_of(east, run)
    assert {name for name, state in states.items() if state == "failed"} == {"rule.up", "load.copy", "ack.copy"}
    assert {states["drain"], states["merge"]} == {"success"}
    assert "press Clear on rule.up" in east.log(DAG, run, "ack.copy")
    later = [states_of(east, one["dag_run_id"]) for one in east.runs(DAG, state="running")]
    assert all(one["sense"] is None for one in later)
    assert not delivered(orders)
    before = acknowledged(orders)
    rule.write_text(RIGHT)
    body = {"dry_run": False, "dag_run_id": run, "task_ids": ["rule.up"], "only_failed": False}
    wait_until(lambda: east.api.call("POST", f"/dags/{DAG}/clearTaskInstances", body), "the press of Clear")
    wait_until(lambda: run in {r["dag_run_id"] for r in east.runs(DAG, state="success")}, "the run's end")
    wait_until(lambda: settled(orders), "delivery of everything")
    assert acknowledged(orders) > before


def mark_failed(east: TestAirflow, run: str) -> None:
    path = f"/dags/{DAG}/dagRuns/{run.replace('+', '%2B')}"
    wait_until(lambda: east.api.call("PATCH", path, {"state": "failed"}), "the mark")


def test_a_red_run_that_a_person_gives_up_and_one_that_is_marked_while_it_works_let_the_next_one_go_on(
    orders: Case, east: TestAirflow, shared_airflow: SharedAirflow
) -> None:
    """The batches of the run that was given up are delivered by the next one, with the rule as it is then."""
    rule = shared_airflow.folder / "rules/up.py"
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    rule.write_text(RIGHT.replace("'note': row['note']", "'note': row['nothing']"))
    red = {run["dag_run_id"] for run in east.runs(DAG, state="failed")}
    change(orders)

    def failed() -> set[str]:
        return {run["dag_run_id"] for run in east.runs(DAG, state="failed")} - red

    wait_until(failed, "a red run")
    [run] = failed()
    rule.write_text(RIGHT)
    assert not delivered(orders)  # it is for a person to say so
    mark_failed(east, run)
    wait_until(lambda: settled(orders), "delivery of everything")
    assert states_of(east, run)["rule.up"] == "skipped"
    with written(orders):
        for _ in range(2):
            working = ""

            def at_work() -> bool:
                nonlocal working
                for one in east.runs(DAG, state="running"):
                    states = states_of(east, one["dag_run_id"])
                    if "running" in {states[name] for name in STAGES}:
                        working = one["dag_run_id"]
                return bool(working)

            wait_until(at_work, "a run at work")
            mark_failed(east, working)
            before = acknowledged(orders)
            wait_until(lambda before=before: acknowledged(orders) > before + 4, "further batches after the mark")
    wait_until(lambda: settled(orders), "delivery of everything")


def test_tasks_that_a_person_marks_while_they_work_lead_back_to_work_or_name_the_button(
    orders: Case, east: TestAirflow
) -> None:
    """An acknowledgement as a success: the next run goes on.

    A load as failed: the run is red, and Clear on the load brings all back.
    """
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    history, run = History(orders), ""

    def press(task: str, state: str) -> bool:
        """Mark the task in another run than the one before."""
        nonlocal run
        for one in (found["dag_run_id"] for found in east.runs(DAG, state="running")):
            if one != run and states_of(east, one).get(task) == "running":
                path = f"/dags/{DAG}/dagRuns/{one.replace('+', '%2B')}/taskInstances/{task}"
                east.api.call("PATCH", path, {"new_state": state})
                run = one
                return True
        return False

    def press_in_mid_load() -> bool:
        """Mark a load that waits for a lock: one that has nothing left leads to a green run."""
        runs = [found["dag_run_id"] for found in east.runs(DAG, state="running")]
        if not any(states_of(east, one).get("load.copy") == "running" for one in runs):
            return False
        with closing(orders.target.connect(orders.schema)) as holds, holds.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT * FROM orders FOR UPDATE")
            if not press("load.copy", "failed"):
                return False
            wait_until(lambda: run not in {r["dag_run_id"] for r in east.runs(DAG, state="running")}, "its end")
        return True

    with written(orders):
        wait_until(lambda: press("ack.copy", "success"), "the mark of an acknowledgement")
        before = acknowledged(orders)
        wait_until(lambda: acknowledged(orders) > before + 4, "further batches after the mark")
        wait_until(press_in_mid_load, "the mark of a load")
        assert run in {r["dag_run_id"] for r in east.runs(DAG, state="failed")}
    assert "press Clear on load.copy" in east.log(DAG, run, "ack.copy")
    assert not delivered(orders)
    body = {"dry_run": False, "dag_run_id": run, "task_ids": ["load.copy"], "only_failed": False}
    wait_until(lambda: east.api.call("POST", f"/dags/{DAG}/clearTaskInstances", body), "the press of Clear")
    wait_until(lambda: settled(orders), "delivery of everything")
    history.assert_in_order()


def test_a_task_that_is_killed_goes_on_where_it_was(orders: Case, east: TestAirflow) -> None:
    """``kill -9`` of the process that captures, then of the one that loads; Clear of a run that is delivered does
    nothing again.
    """
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    history = History(orders)
    with written(orders):
        for target in (None, "copy"):
            owner: str | None = None

            def at_work(target: str | None = target) -> bool:
                nonlocal owner
                with orders.runtime().state() as state:
                    owner = state.owner(target)
                return owner is not None

            wait_until(at_work, "a task at work")
            assert owner is not None
            with contextlib.suppress(ProcessLookupError):  # it may have ended just now
                os.kill(int(owner.rsplit(":", 1)[1]), signal.SIGKILL)
            before = acknowledged(orders)
            wait_until(lambda before=before: acknowledged(orders) > before + 4, "further batches after the kill")
    wait_until(lambda: settled(orders), "delivery of everything")
    history.assert_in_order()
    wait_until(lambda: east.runs(DAG, state="success"), "the end of a run")
    run = east.runs(DAG, state="success")[0]["dag_run_id"]
    done = {name: summary(east, run, name)["batches"] for name in STAGES}  # in the run, by whichever process
    body = {"dry_run": False, "dag_run_id": run, "task_ids": ["sense", *sorted(STAGES)], "only_failed": False}
    wait_until(lambda: east.api.call("POST", f"/dags/{DAG}/clearTaskInstances", body), "the press of Clear")
    wait_until(lambda: run in {r["dag_run_id"] for r in east.runs(DAG, state="success")}, "the cleared run's end")
    again = {name: summary(east, run, name)["batches"] for name in STAGES}
    assert again == {**done, "drain": 0}, "drain tells of its own attempt"
    hint = "`sluice redeliver stages copy --from-batch "
    for name in ("sense", *STAGES):
        tries = next(task["try_number"] for task in east.tasks(DAG, run) if task["task_id"] == name)
        assert hint in east.log(DAG, run, name, tries), name
    assert hint in next(one["note"] for one in east.runs(DAG) if one["dag_run_id"] == run)
    history.assert_in_order()


def test_a_busy_pipeline_goes_on_whatever_tasks_its_file_adds_and_removes(
    orders: Case, east: TestAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task for all stages, a target more, tasks of their own again: a task that a change adds has no past, which it
    depends on.
    """
    lake = json.dumps({"conn_type": "fs", "extra": {"path": str(tmp_path)}})
    monkeypatch.setenv("AIRFLOW_CONN_STAGES_LAKE", lake)
    east.connect("stages_lake", lake)
    own = orders.path.read_text()
    one = own.replace("tasks: own", "tasks: one")
    more = "targets:\n  - {name: lake, type: delta, connection: stages_lake, changes: all}\n"
    more_stages = STAGES | {"load.lake", "ack.lake"}
    files = [
        (one, STAGES),
        (one.replace("targets:\n", more), more_stages),
        (own.replace("targets:\n", more), more_stages | {"sense"}),
        (one.replace("targets:\n", more), more_stages),
        (own.replace("targets:\n", more), more_stages | {"sense"}),
    ]
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    later = tmp_path / "stages.yaml"
    later.write_text(one.replace("targets:\n", more))
    made = orders.cli("check", str(later), "--apply", "--yes")
    assert (tmp_path / orders.schema / "journal").exists(), made.stdout + made.stderr
    with written(orders):
        for text, expected in files:
            assert text != orders.path.read_text()
            orders.path.write_text(text)

            def new_tasks_ended(expected: set[str] = expected) -> bool:
                ended = east.runs(DAG, state="success")[:3]
                return any(
                    {name for name, state in states_of(east, run["dag_run_id"]).items() if state == "success"}
                    == expected
                    for run in ended
                )

            wait_until(new_tasks_ended, f"a green run of {sorted(expected)}")
            before = acknowledged(orders)
            wait_until(lambda before=before: acknowledged(orders) > before + 4, "further batches")
    wait_until(lambda: settled(orders), "delivery of everything")
    held = set(DeltaTable(tmp_path / orders.schema / "orders").to_pyarrow_table(columns=["id"])["id"].to_pylist())
    [(newest,)] = orders.source.execute(f"SELECT MAX(id) FROM {orders.schema}.orders")
    assert newest in held
    orders.path.write_text(own)
