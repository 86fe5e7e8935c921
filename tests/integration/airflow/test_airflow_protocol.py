"""The batch protocol on a real Airflow: the form, the API, metrics, and clears in any order."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest

from sluice.errors import RetryableError
from sluice.operations import control
from tests.support.pipelines.case import Case
from tests.support.servers.airflows import SharedAirflow, TestAirflow, wait_until
from tests.support.servers.browsers import login, shot
from tests.support.suite.examples import examples
from tests.support.tables.orders import (
    History,
    acknowledged,
    batches_of,
    change,
    delivered,
    orders_case,
    pause_state,
    settled,
    written,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DAG = "sync__protocol"
LONGEST = 6
LOOPS = f"{{max_time: 4m, max_batches: {LONGEST}}}"
"""A run ends by the number of its batches while changes keep coming, however long a batch takes on this machine; its
time is far away.
"""


@pytest.fixture(scope="module")
def orders(shared_airflow: SharedAirflow, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    with orders_case(
        shared_airflow.folder, mysql_source, mysql_target, zookeeper, name="protocol", run=LOOPS, hidden=True
    ) as made:
        yield made


@pytest.fixture(scope="module")
def east(orders: Case, shared_airflow: SharedAirflow) -> Iterator[TestAirflow]:
    with shared_airflow.running(orders.connections, DAG) as started:
        yield started


def post(airflow: TestAirflow, path: str, body: Any, token: str | None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(airflow.url + path, data=json.dumps(body).encode(), headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.promise("B46")
def test_the_form_pauses_resumes_restarts_and_rolls_back(
    orders: Case, east: TestAirflow, shared_airflow: SharedAirflow
) -> None:
    """A paused pipeline delivers nothing, and its lag is a metric."""
    gauges, base = shared_airflow.gauges, "airflow.sluice.protocol"
    change(orders)
    wait_until(lambda: settled(orders), "the first delivery")

    def act(action: str, **more: Any) -> None:
        run = east.trigger("sluice_control", {"pipeline": "protocol", "action": action, "reason": "a test", **more})
        assert east.wait_for_run("sluice_control", run) == "success"

    act("pause")
    assert not pause_state(orders).open
    assert pause_state(orders).by == "admin@airflow"
    wait_until(lambda: gauges.last.get(f"{base}.paused") == 1, "the pause in a gauge")
    change(orders)
    wait_until(lambda: gauges.last[f"{base}.copy.lag_bytes"] > 0, "the lag of a paused pipeline in a gauge")
    assert not delivered(orders)
    act("resume")
    wait_until(lambda: settled(orders), "delivery after resume")
    act("restart", grace_s=1)
    act("rollback")
    change(orders)
    wait_until(lambda: settled(orders), "delivery after restart and rollback")
    with orders.runtime().state() as state:
        assert [entry["what"] for entry in state.audit.entries()] == ["pause", "resume", "restart", "rollback"]
        assert {entry["by"] for entry in state.audit.entries()} == {"admin@airflow"}
    assert {run["state"] for run in east.runs(DAG, state="failed")} == set()


def test_the_api_acts_for_those_who_may(orders: Case, east: TestAirflow) -> None:
    path = "/sluice/api/pipelines/protocol/pause"
    assert post(east, path, {}, None)[0] == 401
    login = {"username": "admin", "password": east.password}
    token = post(east, "/auth/token", login, None)[1]["access_token"]
    assert post(east, "/sluice/api/pipelines/nowhere/pause", {}, token)[0] == 404
    assert post(east, "/sluice/api/pipelines/protocol/explode", {}, token)[0] == 404
    assert post(east, path, {"colour": "red"}, token)[0] == 422
    status, plan = post(east, path, {"reason": "tea"}, token)
    assert (status, plan["what"]) == (200, "pause")
    with orders.runtime().state() as state:
        assert (state.pause_switch.read().open, state.pause_switch.read().reason) == (False, "tea")
    assert post(east, "/sluice/api/pipelines/protocol/resume", {}, token)[0] == 200
    with orders.runtime().state() as state:
        assert state.pause_switch.read().open


def test_a_check_on_the_page_is_made_by_a_task_whose_result_arrives(orders: Case, east: TestAirflow) -> None:
    login = {"username": "admin", "password": east.password}
    token = post(east, "/auth/token", login, None)[1]["access_token"]
    base = "/sluice/api/v1/pipelines/protocol"
    status, done = post(east, f"{base}/actions/check", {}, token)
    assert (status, done["run"]["dag_id"]) == (200, "sluice_control"), done
    assert east.wait_for_run("sluice_control", done["run"]["run_id"]) == "success"
    request = urllib.request.Request(f"{east.url}{base}/check", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        last = json.load(answer)["last"]
    assert (last["run"], last["by"]) == (done["run"]["run_id"], "admin@airflow")
    assert [one["why"] for one in last["report"]["findings"] if one["severity"] == "error"] == []
    assert any("by primary key" in one["why"] and one["line"] > 1 for one in last["report"]["findings"])


def test_a_run_tells_of_each_table_once_as_an_asset(orders: Case, east: TestAirflow) -> None:
    """Airflow's own account of the events: address, batches, rows; one per table and run."""

    def events() -> list[dict[str, Any]]:
        found = east.api.call("GET", f"/assets/events?source_dag_id={DAG}&limit=100") or {}
        return list(found.get("asset_events", ()))

    change(orders)
    wait_until(lambda: settled(orders), "delivery")
    wait_until(lambda: any(one["extra"]["last_batch"] == acknowledged(orders) for one in events()), "an asset event")
    found = events()
    assert {one["source_task_id"] for one in found} == {"ack.copy"}
    tables = {one["uri"] for one in found}
    assert len(tables) == 2, "orders, and the table without a key"
    assert all(re.fullmatch(r"mysql://127\.0\.0\.1:\d+/\w+/\w+", uri) for uri in tables)
    assert len({(one["source_run_id"], one["uri"]) for one in found}) == len(found)
    newest = max(found, key=lambda one: one["extra"]["last_batch"])["extra"]
    assert (newest["pipeline"], newest["target"]) == ("protocol", "copy")
    assert newest["rows"] > 0
    assert newest["committed_at"].endswith("+00:00")
    for uri in tables:
        ranges = sorted((o["extra"]["first_batch"], o["extra"]["last_batch"]) for o in found if o["uri"] == uri)
        assert all(before[1] < after[0] for before, after in pairwise(ranges)), "a batch is told once"


def test_lag_and_positions_are_metrics(orders: Case, east: TestAirflow, shared_airflow: SharedAirflow) -> None:
    """Those of a pipeline at rest; of one that is paused, see the form."""
    gauges = shared_airflow.gauges.last
    wait_until(lambda: settled(orders), "delivery")
    base = "airflow.sluice.protocol"
    wait_until(lambda: gauges.get(f"{base}.copy.delivered_batch") == acknowledged(orders), "the last batch in a gauge")
    assert gauges[f"{base}.up"] == 1
    assert gauges[f"{base}.copy.lag_seconds"] == 0
    assert gauges[f"{base}.copy.lag_bytes"] == 0
    assert gauges[f"{base}.copy.alert"] == 0


def test_the_form_in_the_browser(orders: Case, east: TestAirflow, browser: Any) -> None:
    """A person presses Trigger, chooses, and sees a green run."""
    page = login(browser, east.url, east.password)
    page.goto(f"{east.url}/dags/sluice_control")
    page.get_by_role("button", name="Trigger").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("What to do").first.wait_for()
    shot(page, "control-form")
    dialog.locator("[name='element_reason']").fill("tea")
    shot(page, "control-form-2")
    dialog.get_by_role("button", name="Trigger").last.click()
    wait_until(lambda: not pause_state(orders).open, "the pause from the form")
    shot(page, "control-run")
    page.context.close()
    assert pause_state(orders).reason == "tea"
    assert pause_state(orders).by == "admin@airflow"
    east.wait_for_run("sluice_control", east.trigger("sluice_control", {"pipeline": "protocol", "action": "resume"}))


def train_of(orders: Case, east: TestAirflow, at_least: int, *, state: str) -> str:
    """A run in this state with so many batches."""
    found = ""

    def there() -> bool:
        nonlocal found
        for run in east.runs(DAG, state=state)[:4]:
            if len(batches_of(orders, claim_of(run["dag_run_id"]))) >= at_least:
                found = run["dag_run_id"]
        return bool(found)

    wait_until(there, f"a run ({state}) of {at_least} batches")
    return found


def claim_of(run: str) -> str:
    return f"airflow:east:{DAG}:{run}"


def states_of(east: TestAirflow, run: str) -> dict[str, str]:
    return {task["task_id"]: task["state"] for task in east.tasks(DAG, run)}


def xcom(east: TestAirflow, run: str, task: str) -> dict[str, Any]:
    """Return the result of the task."""
    answer = east.api.call("GET", f"/dags/{DAG}/dagRuns/{quote(run)}/taskInstances/{task}/xcomEntries/return_value")
    value = answer["value"]
    found: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return found


@pytest.fixture
def one_task(orders: Case, east: TestAirflow) -> Iterator[None]:
    """The pipeline with one task for all stages, for one test."""
    default = orders.path.read_text()
    orders.path.write_text(default.replace("run: {", "run: {tasks: one, "))

    def is_read(is_one: bool) -> bool:
        return (
            "sense" not in {task["task_id"] for task in east.api.call("GET", f"/dags/{DAG}/tasks")["tasks"]}
        ) == is_one

    wait_until(lambda: is_read(True), "the DAG of one task", 300)
    yield
    orders.path.write_text(default)
    wait_until(lambda: is_read(False), "the DAG of the default", 300)


@pytest.mark.promise("B4", "B7")
@pytest.mark.usefixtures("one_task")
def test_a_run_with_one_task_carries_a_loop_of_batches(orders: Case, east: TestAirflow) -> None:
    """One run, many batches; each task of it says what it is about, and Clear of any of them delivers nothing twice."""
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    history = History(orders)
    green = {"drain": "success", "merge": "success", "load.copy": "success", "ack.copy": "success"}
    run = ""

    def carried() -> bool:
        nonlocal run
        for one in (found["dag_run_id"] for found in east.runs(DAG, state="success")[:4]):
            if states_of(east, one) == green and len(batches_of(orders, claim_of(one))) >= 4:
                run = one
        return bool(run)

    with written(orders):
        wait_until(carried, "the end of a run of one task with four batches")
    batches = batches_of(orders, claim_of(run))
    said = east.log(DAG, run, "drain")
    assert f"delivered {len(batches)} batches" in said
    assert all(re.search(rf"\\n *{number}  ", said) for number in batches), "the table at the end has a line for each"
    for task in ("merge", "load.copy", "ack.copy"):  # green, with what was done for it in drain
        told = xcom(east, run, task)
        assert (told["batches"], told["in_drain"], told["last"]) == (len(batches), len(batches), batches[-1]), task
        assert told["seconds"] > 0
        assert "done in the process of the task drain" in east.log(DAG, run, task)
    assert xcom(east, run, "merge")["rows"] == xcom(east, run, "load.copy")["rows"] > 0
    wait_until(lambda: settled(orders), "delivery of everything")
    for tasks in (["load.copy"], ["merge", "ack.copy"], ["drain"]):
        body = {"dry_run": False, "dag_run_id": run, "task_ids": tasks, "only_failed": False}
        wait_until(
            lambda body=body: east.api.call("POST", f"/dags/{DAG}/clearTaskInstances", body), "the press of Clear"
        )
        wait_until(lambda: run in {r["dag_run_id"] for r in east.runs(DAG, state="success")}, "the cleared run's end")
        wait_until(lambda: set(states_of(east, run).values()) == {"success"}, "its tasks' end")
        assert f"`sluice redeliver {DAG.removeprefix('sync__')} copy --from-batch {batches[0]}`" in east.log(
            DAG, run, tasks[0], 2
        )
    assert "nothing is delivered again" in next(r["note"] for r in east.runs(DAG) if r["dag_run_id"] == run)
    assert batches_of(orders, claim_of(run)) == batches
    history.assert_in_order()


def test_a_loop_that_is_killed_is_finished_by_its_tasks(orders: Case, east: TestAirflow) -> None:
    """``kill -9`` of the process that drains, merges and loads, several times."""
    history = History(orders)
    with written(orders):
        for _ in range(3):
            train_of(orders, east, 2, state="running")
            with orders.runtime().state() as state:
                wait_until(state.owner, "a drain at work")
                owner = state.owner()
            if owner:  # it may have ended just now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(owner.rsplit(":", 1)[1]), signal.SIGKILL)
            before = acknowledged(orders)
            wait_until(lambda before=before: acknowledged(orders) > before + 2, "further batches after the kill", 240)
    wait_until(lambda: settled(orders), "delivery of everything", 180)
    history.assert_in_order()
    assert {run["state"] for run in east.runs(DAG, state="failed")} == set()


def test_what_a_person_says_and_ddl_in_the_middle_of_a_loop(orders: Case, east: TestAirflow) -> None:
    """Pause, resume, restart, roll back, and a change of definitions: the run ends green, and what follows is
    delivered.
    """
    history, by = History(orders), "a test"
    with written(orders):
        train_of(orders, east, 2, state="running")
        control.pause(orders.runtime(), by=by)
        wait_until(
            lambda: "deferred" in {task["state"] for task in east.tasks(DAG) if task["task_id"] != "sense"},
            "a task that waits for the end of the pause",
        )
        control.resume(orders.runtime(), by=by)
        for act in (
            lambda: control.restart(orders.runtime(), by=by, grace_s=1),
            lambda: control.rollback(orders.runtime(), by=by, dry_run=False),
            lambda: orders.source.execute(f"ALTER TABLE {orders.schema}.orders MODIFY note VARCHAR(250)"),
        ):
            run = train_of(orders, east, 2, state="running")
            act()
            wait_until(
                lambda run=run: run in {r["dag_run_id"] for r in east.runs(DAG, state="success")}, "the run's end"
            )
            before = acknowledged(orders)
            wait_until(lambda before=before: acknowledged(orders) > before + 2, "further batches")
    wait_until(lambda: settled(orders), "delivery of everything", 180)
    history.assert_in_order()
    assert "varchar(250)" in str(orders.target.execute(f"SHOW CREATE TABLE {orders.schema}.orders"))
    assert {run["state"] for run in east.runs(DAG, state="failed")} == set()


def mark_run(state: str) -> tuple[str, dict[str, str]]:
    return f"/dags/{DAG}/dagRuns/{{run}}", {"state": state}


def mark_drain(state: str) -> tuple[str, dict[str, str]]:
    return f"/dags/{DAG}/dagRuns/{{run}}/taskInstances/drain", {"new_state": state}


def marks_in_the_middle_of_loops(orders: Case, east: TestAirflow, *marks: tuple[str, dict[str, str]]) -> None:
    """Mark a run each time, and see the next run go on.

    With SQLite Airflow may answer 500, and a loop may end by itself before the mark: a person presses again, at the run
    that goes then.
    """
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    history = History(orders)
    marked = ""

    def press(path: str, body: dict[str, str]) -> bool:
        nonlocal marked
        marked = train_of(orders, east, 2, state="running")
        try:
            pressed = east.api.call("PATCH", path.format(run=quote(marked)), body) is not None
        except RetryableError as error:  # a mark that was answered by 500 is there all the same
            pressed = " 409 " in str(error)
            if not pressed:
                raise
        return pressed and len(batches_of(orders, claim_of(marked))) < LONGEST

    with written(orders):
        for mark in marks:
            wait_until(lambda mark=mark: press(*mark), "the mark")
            before = acknowledged(orders)
            wait_until(lambda before=before: acknowledged(orders) > before + 2, "further batches after the mark", 240)
            wait_until(lambda: marked not in {r["dag_run_id"] for r in east.runs(DAG, state="running")}, "its end")
    wait_until(lambda: settled(orders), "delivery of everything", 240)
    history.assert_in_order()


def test_a_run_that_is_marked_as_failed_in_the_middle_of_a_loop_lets_the_next_run_go_on(
    orders: Case, east: TestAirflow
) -> None:
    """Nobody has to press Clear, and nothing is lost or delivered twice."""
    marks_in_the_middle_of_loops(orders, east, mark_run("failed"))


def test_other_marks_in_the_middle_of_a_loop_let_the_next_run_go_on(orders: Case, east: TestAirflow) -> None:
    """The run as a success, its drain as a success or as skipped."""
    marks_in_the_middle_of_loops(orders, east, mark_drain("success"), mark_run("success"), mark_drain("skipped"))


@pytest.mark.promise("B4", "B7")
def test_clears_in_any_order_deliver_nothing_twice(orders: Case, east: TestAirflow) -> None:
    """Tasks of ended and of open runs are cleared at random, one by one and by the dozen, while changes go on."""
    change(orders)
    wait_until(lambda: settled(orders), "a first delivery")
    history, choose = History(orders), random.Random(5)
    with written(orders, 0.4):
        wait_until(lambda: len(east.runs(DAG, state="success")) >= 3, "three runs", 900)
        for _ in range(examples(1 / 40)):
            runs = east.runs(DAG)[:9]
            chosen = choose.sample(runs, min(len(runs), choose.choice((1, 1, 2, 5))))
            for run in chosen:
                tasks = choose.sample(["sense", "drain", "merge", "load.copy", "ack.copy"], choose.choice((1, 1, 2, 4)))
                body = {
                    "dry_run": False, "dag_run_id": run["dag_run_id"], "task_ids": tasks, "only_failed": False,
                    "include_downstream": choose.random() < 0.5,
                }  # fmt: skip
                try:
                    east.api.call("POST", f"/dags/{DAG}/clearTaskInstances", body)
                except RetryableError as error:  # a task that Airflow is about to start cannot be cleared
                    print(error)
            time.sleep(choose.uniform(0, 2))
        for run in east.runs(DAG)[:9]:  # everything that is open, and the runs before it, as a whole
            with contextlib.suppress(RetryableError):
                east.api.call(
                    "POST",
                    f"/dags/{DAG}/clearTaskInstances",
                    {"dry_run": False, "dag_run_id": run["dag_run_id"], "only_failed": False},
                )
        before = acknowledged(orders)
        wait_until(lambda: acknowledged(orders) > before + 2, "further batches after the clears", 600)
    wait_until(lambda: settled(orders), "delivery of everything", 180)
    history.assert_in_order()
