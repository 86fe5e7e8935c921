"""The batch protocol on a real Airflow: the form, the API, metrics, and clears in any order."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.errors import RetryableError
from tests.support.airflows import SharedAirflow, TestAirflow, wait_until
from tests.support.browsers import login, shot
from tests.support.orders import acknowledged, change, delivered, orders_case, permit, settled
from tests.support.pipelines import Case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DAG = "sync__protocol"


@pytest.fixture(scope="module")
def orders(shared_airflow: SharedAirflow, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    with orders_case(shared_airflow.folder, mysql_source, mysql_target, zookeeper, name="protocol") as made:
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


def test_the_form_pauses_resumes_restarts_and_rolls_back(
    orders: Case, east: TestAirflow, shared_airflow: SharedAirflow
) -> None:
    """A paused pipeline delivers nothing, and its lag is a metric."""
    gauges, base = shared_airflow.gauges, "airflow.sluice.protocol"
    change(orders, 1)
    wait_until(lambda: settled(orders), "the first delivery")

    def act(action: str, **more: Any) -> None:
        run = east.trigger("sluice_control", {"pipeline": "protocol", "action": action, "reason": "a test", **more})
        assert east.wait_for_run("sluice_control", run) == "success"

    act("pause")
    assert not permit(orders).open
    assert permit(orders).by == "admin@airflow"
    wait_until(lambda: gauges.last.get(f"{base}.paused") == 1, "the pause in a gauge")
    change(orders, 2)
    wait_until(lambda: gauges.last[f"{base}.copy.lag_bytes"] > 0, "the lag of a paused pipeline in a gauge")
    assert not delivered(orders)
    act("resume")
    wait_until(lambda: settled(orders), "delivery after resume")
    act("restart", grace_s=1)
    act("rollback")
    change(orders, 3)
    wait_until(lambda: settled(orders), "delivery after restart and rollback")
    with orders.runtime().state() as state:
        assert [entry["what"] for entry in state.audit_log()] == ["pause", "resume", "restart", "rollback"]
        assert {entry["by"] for entry in state.audit_log()} == {"admin@airflow"}
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
        assert (state.permit().open, state.permit().reason) == (False, "tea")
    assert post(east, "/sluice/api/pipelines/protocol/resume", {}, token)[0] == 200
    with orders.runtime().state() as state:
        assert state.permit().open


def test_one_who_may_only_look_changes_nothing(orders: Case, east: TestAirflow) -> None:
    """Airflow made up the reader's password when it first saw the user."""
    password = json.loads((east.folder / "home" / "passwords.json").read_text())["reader"]
    token = post(east, "/auth/token", {"username": "reader", "password": password}, None)[1]["access_token"]
    for action in ("pause", "resume", "restart", "rollback"):
        status, said = post(east, f"/sluice/api/pipelines/protocol/{action}", {}, token)
        assert (status, "not change it" in said) == (403, True)
    conf = {"conf": {"pipeline": "protocol", "action": "pause"}, "logical_date": None}
    assert post(east, "/api/v2/dags/sluice_control/dagRuns", conf, token)[0] == 403
    assert permit(orders).open


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
    wait_until(lambda: not permit(orders).open, "the pause from the form")
    shot(page, "control-run")
    page.context.close()
    assert permit(orders).reason == "tea"
    assert permit(orders).by == "admin@airflow"
    east.wait_for_run("sluice_control", east.trigger("sluice_control", {"pipeline": "protocol", "action": "resume"}))


def test_clears_in_any_order_deliver_nothing_twice(orders: Case, east: TestAirflow) -> None:
    """Tasks of ended and of open runs are cleared at random, one by one and by the dozen, while changes go on."""
    schema = orders.schema
    change(orders, 60)
    wait_until(lambda: settled(orders), "a first delivery")
    orders.target.execute(
        f"CREATE TABLE {schema}._history (id INT AUTO_INCREMENT PRIMARY KEY, old BIGINT, new BIGINT)",
        f"CREATE TRIGGER {schema}._watch AFTER UPDATE ON {schema}._sluice_ack FOR EACH ROW BEGIN "
        "IF NEW.scope = '' AND NEW.batch <> OLD.batch THEN "
        f"INSERT INTO {schema}._history (old, new) VALUES (OLD.batch, NEW.batch); END IF; END",
    )
    choose, done = random.Random(5), threading.Event()

    def write() -> None:
        number = 100
        while not done.wait(0.4):
            change(orders, number)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: len(east.runs(DAG, state="success")) >= 6, "six batches")
        for _ in range(10):
            chosen = choose.sample(east.runs(DAG)[:9], choose.choice((1, 1, 2, 5)))
            for run in chosen:
                tasks = choose.sample(["drain", "merge", "load.copy", "ack.copy"], choose.choice((1, 1, 2, 4)))
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
        wait_until(lambda: acknowledged(orders) > before + 2, "further batches after the clears", 240)
    finally:
        done.set()
        writer.join()
    wait_until(lambda: settled(orders), "delivery of everything", 180)
    moves = orders.target.execute(f"SELECT old, new FROM {schema}._history ORDER BY id")
    assert len(moves) > 5
    assert all(new == old + 1 for old, new in moves)
    assert [old for old, _ in moves[1:]] == [new for _, new in moves[:-1]]
