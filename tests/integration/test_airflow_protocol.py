"""The batch protocol on a real Airflow: the form, clears in any order, a pause within seconds, a second installation."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import RetryableError
from tests.support.airflows import Keeper, TestAirflow, airflow, wait_until
from tests.support.browsers import login
from tests.support.pipelines import Case, case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DAG = "sync__case"

BEATS = {"AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1"}
JUDGES = {"AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20"}
"""Of the API server alone: it says after twenty seconds that a scheduler is gone, the default is thirty. A busy machine is no dead scheduler."""


@pytest.fixture(scope="module")
def orders(tmp_path_factory: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    schema, folder = "airflow_case", tmp_path_factory.mktemp("case")
    for server in (mysql_source, mysql_target):
        server.execute(
            f"CREATE DATABASE {schema}",
            f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(200))",
            f"CREATE TABLE {schema}.journal (what VARCHAR(40) NOT NULL)",
        )
    try:
        retry = "retry: {delay: 1s, max_delay: 3s}"
        with case(folder, mysql_source, mysql_target, zookeeper, schema, extra=retry, session_s=8) as made:
            made.run_until_head()
            yield made
    finally:
        for server in (mysql_source, mysql_target):
            server.execute(f"DROP DATABASE {schema}")


@pytest.fixture(scope="module")
def metrics() -> Iterator[tuple[int, dict[str, float]]]:
    """A StatsD server: its port, and the last value of every gauge that it was sent."""
    seen: dict[str, float] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        done = threading.Event()

        def listen() -> None:
            server.settimeout(0.2)
            while not done.is_set():
                try:
                    packet = server.recv(65536).decode()
                except TimeoutError:
                    continue
                for line in packet.splitlines():
                    name, _, rest = line.partition(":")
                    value, _, kind = rest.partition("|")
                    if kind.startswith("g"):
                        seen[name] = float(value)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], seen
        finally:
            done.set()
            thread.join()


@pytest.fixture(scope="module")
def east(orders: Case, metrics: tuple[int, dict[str, float]], tmp_path_factory: Any) -> Iterator[TestAirflow]:
    """The Airflow that works."""
    extra = {
        "SLUICE_INSTALLATION": "east", "SLUICE_RULES": str(orders.folder / "rules"),
        "AIRFLOW__METRICS__STATSD_ON": "True", "AIRFLOW__METRICS__STATSD_PORT": str(metrics[0]),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,reader:viewer", **BEATS,
    }  # fmt: skip
    with airflow(tmp_path_factory.mktemp("east"), orders.folder, orders.connections, extra, JUDGES) as started:
        started.api.wait_for_dag(DAG)
        yield started


def change(made: Case, number: int) -> None:
    made.source.execute(
        f"INSERT INTO {made.schema}.orders VALUES ({number}, 'n')",
        f"INSERT INTO {made.schema}.journal VALUES ('n{number}')",
        f"UPDATE {made.schema}.orders SET note = CONCAT(LEFT(note, 150), '+') WHERE id > {number - 5}",
    )


def delivered(made: Case) -> bool:
    """Both sides hold the same rows, the table without a key among them."""
    rows = []
    for server in (made.source, made.target):
        rows.append([
            server.execute(f"SELECT * FROM {made.schema}.orders ORDER BY id"),
            server.execute(f"SELECT what, COUNT(*) FROM {made.schema}.journal GROUP BY what ORDER BY what"),
        ])
    return bool(rows[0] == rows[1])


def acknowledged(made: Case) -> int:
    with made.runtime().state() as state:
        process = state.process("copy")
    return process.batch if process else 0


def settled(made: Case) -> bool:
    with made.runtime().state() as state:
        return delivered(made) and not state.undelivered()


def post(airflow: TestAirflow, path: str, body: Any, token: str | None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(airflow.url + path, data=json.dumps(body).encode(), headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_form_pauses_resumes_restarts_and_rolls_back(orders: Case, east: TestAirflow) -> None:
    change(orders, 1)
    wait_until(lambda: settled(orders), "the first delivery")
    east.api.wait_for_dag("sluice_control")

    def act(action: str, **more: Any) -> None:
        run = east.trigger("sluice_control", {"pipeline": "case", "action": action, "reason": "a test", **more})
        assert east.wait_for_run("sluice_control", run) == "success"

    act("pause")
    change(orders, 2)
    with orders.runtime().state() as state:
        assert not state.permit().open
        assert state.permit().by == "admin@airflow"
    time.sleep(4)
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
    path = "/sluice/api/pipelines/case/pause"
    assert post(east, path, {}, None)[0] == 401
    login = {"username": "admin", "password": east.password}
    token = post(east, "/auth/token", login, None)[1]["access_token"]
    assert post(east, "/sluice/api/pipelines/nowhere/pause", {}, token)[0] == 404
    assert post(east, "/sluice/api/pipelines/case/explode", {}, token)[0] == 404
    assert post(east, path, {"colour": "red"}, token)[0] == 422
    status, plan = post(east, path, {"reason": "tea"}, token)
    assert (status, plan["what"]) == (200, "pause")
    with orders.runtime().state() as state:
        assert (state.permit().open, state.permit().reason) == (False, "tea")
    assert post(east, "/sluice/api/pipelines/case/resume", {}, token)[0] == 200
    with orders.runtime().state() as state:
        assert state.permit().open


def test_one_who_may_only_look_changes_nothing(orders: Case, east: TestAirflow) -> None:
    """Airflow made up the reader's password when it first saw the user."""
    password = json.loads((east.folder / "home" / "passwords.json").read_text())["reader"]
    token = post(east, "/auth/token", {"username": "reader", "password": password}, None)[1]["access_token"]
    for action in ("pause", "resume", "restart", "rollback"):
        status, said = post(east, f"/sluice/api/pipelines/case/{action}", {}, token)
        assert (status, "not change it" in said) == (403, True)
    conf = {"conf": {"pipeline": "case", "action": "pause"}, "logical_date": None}
    assert post(east, "/api/v2/dags/sluice_control/dagRuns", conf, token)[0] == 403
    assert _permit(orders).open


def test_lag_and_positions_are_metrics_at_work_and_at_rest(
    orders: Case, east: TestAirflow, metrics: tuple[int, dict[str, float]]
) -> None:
    gauges = metrics[1]
    wait_until(lambda: settled(orders), "delivery")
    base = "airflow.sluice.case"
    wait_until(lambda: gauges.get(f"{base}.copy.delivered_batch") == acknowledged(orders), "the last batch in a gauge")
    assert gauges[f"{base}.up"] == 1
    assert gauges[f"{base}.copy.lag_seconds"] == 0
    assert gauges[f"{base}.copy.lag_bytes"] == 0
    assert gauges[f"{base}.copy.alert"] == 0
    run = east.trigger("sluice_control", {"pipeline": "case", "action": "pause"})
    assert east.wait_for_run("sluice_control", run) == "success"
    change(orders, 50)
    wait_until(lambda: gauges[f"{base}.paused"] == 1, "the pause in a gauge")
    wait_until(lambda: gauges[f"{base}.copy.lag_bytes"] > 0, "the lag of a paused pipeline in a gauge")
    east.wait_for_run("sluice_control", east.trigger("sluice_control", {"pipeline": "case", "action": "resume"}))
    wait_until(lambda: settled(orders), "delivery after resume")


def test_the_form_in_the_browser(orders: Case, east: TestAirflow, browser: Any, tmp_path: Path) -> None:
    """A person presses Trigger, chooses, and sees a green run."""
    folder = Path(os.environ.get("SLUICE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    page = login(browser, east.url, east.password)
    page.goto(f"{east.url}/dags/sluice_control")
    page.get_by_role("button", name="Trigger").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("What to do").first.wait_for()
    page.wait_for_timeout(1000)
    page.screenshot(path=str(folder / "control-form.png"))
    dialog.locator("[name='element_reason']").fill("tea")
    page.screenshot(path=str(folder / "control-form-2.png"))
    dialog.get_by_role("button", name="Trigger").last.click()
    wait_until(lambda: not _permit(orders).open, "the pause from the form")
    page.wait_for_timeout(2000)
    page.screenshot(path=str(folder / "control-run.png"))
    page.context.close()
    assert _permit(orders).reason == "tea"
    assert _permit(orders).by == "admin@airflow"
    east.wait_for_run("sluice_control", east.trigger("sluice_control", {"pipeline": "case", "action": "resume"}))


def _permit(made: Case) -> Any:
    with made.runtime().state() as state:
        return state.permit()


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


@pytest.fixture(scope="module")
def west(orders: Case, east: TestAirflow, tmp_path_factory: Any) -> Iterator[TestAirflow]:
    """The one that stands by."""
    extra = {"SLUICE_INSTALLATION": "west", "SLUICE_RULES": str(orders.folder / "rules"), **BEATS}
    with airflow(tmp_path_factory.mktemp("west"), orders.folder, orders.connections, extra, JUDGES) as started:
        started.api.wait_for_dag(DAG)
        wait_until(lambda: [t for t in started.tasks(DAG) if t["state"] == "deferred"], "the second standing by")
        yield started


def owner(made: Case) -> str | None:
    with made.runtime().state() as state:
        return state.turns.owner()


def waits(airflow: TestAirflow) -> bool:
    """A drain waits in its triggerer, and none is at work."""
    open_runs = airflow.runs(DAG, state="running")
    tasks = [task for run in open_runs for task in airflow.tasks(DAG, run["dag_run_id"]) if task["task_id"] == "drain"]
    states = {task["state"] for task in tasks}
    return "deferred" in states and not states & {"running", "queued", "scheduled"}


def test_a_second_installation_stands_by(orders: Case, east: TestAirflow, west: TestAirflow) -> None:
    """It holds no worker meanwhile."""
    owners: set[str | None] = set()
    for number in range(10_200, 10_220):
        change(orders, number)
        owners.add(owner(orders))
        time.sleep(0.2)
    wait_until(lambda: settled(orders), "delivery by the first")
    assert owners == {"airflow:east"}
    with orders.runtime().state() as state:
        claims = {state.require(number).claim.split(":")[1] for number in state.numbers()[-3:]}
    assert claims == {"east"}
    assert [t for t in west.tasks(DAG) if t["state"] in {"running", "queued"}] == []


@pytest.mark.skipif(
    "SLUICE_FAULTS" not in os.environ, reason="runs in make faults: two Airflows, and a scheduler that dies twice"
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_standby_takes_over_from_a_scheduler_that_is_gone_while_its_triggerer_lives(
    orders: Case, east: TestAirflow, west: TestAirflow, number: signal.Signals
) -> None:
    """First from east to west, then back: the one that was replaced stands by when its scheduler is back."""
    loser, winner = (east, west) if number is signal.SIGKILL else (west, east)
    names = {id(east): "airflow:east", id(west): "airflow:west"}
    assert owner(orders) == names[id(loser)]
    wait_until(lambda: waits(loser), "the drain's wait in the triggerer, which goes on for as long as nothing changes")
    loser.keeper.stop()
    scheduler, triggerer = loser.components["scheduler"], loser.components["triggerer"]
    if number is signal.SIGKILL:
        scheduler.kill()
    else:
        assert scheduler.handle is not None
        os.kill(scheduler.handle.pid, number)
    began = time.monotonic()
    wait_until(lambda: owner(orders) == names[id(winner)], "the standby taking over", 180)
    print(f"taken over {time.monotonic() - began:.1f} s after the scheduler was {number.name}")
    assert triggerer.running
    change(orders, 10_230 + number)
    wait_until(lambda: settled(orders), "delivery by the standby")
    if number is signal.SIGKILL:
        scheduler.start()
    else:
        os.kill(scheduler.handle.pid, signal.SIGCONT)
        scheduler.wait()
    loser.keeper = Keeper(loser.components)

    wait_until(lambda: waits(loser), "the first one standing by")
    for more in range(5):
        change(orders, 10_300 + 10 * number + more)
        wait_until(lambda: settled(orders), "delivery after the first one is back")
        assert owner(orders) == names[id(winner)]


def test_it_takes_over_from_one_that_dies_as_a_whole(orders: Case, east: TestAirflow, west: TestAirflow) -> None:
    """kill -9 to everything; with it goes the database, so this is the last test."""
    assert owner(orders) == "airflow:east"
    east.die()
    change(orders, 11_300)
    wait_until(lambda: owner(orders) == "airflow:west", "the second taking over", 60)
    wait_until(lambda: settled(orders), "delivery by the second")
