"""A second Airflow stands by, and takes over from the first when that dies."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.pipelines.case import Case
from tests.support.servers.airflows import BEATS, JUDGES, Keeper, SharedAirflow, TestAirflow, airflow, wait_until
from tests.support.tables.orders import change, orders_case, owner, settled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DAG = "sync__standby"


@pytest.fixture(scope="module")
def orders(shared_airflow: SharedAirflow, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    with orders_case(shared_airflow.folder, mysql_source, mysql_target, zookeeper, name="standby") as made:
        yield made


@pytest.fixture(scope="module")
def east(orders: Case, shared_airflow: SharedAirflow) -> Iterator[TestAirflow]:
    """The one that works."""
    with shared_airflow.running(orders.connections, DAG) as started:
        change(orders)
        wait_until(lambda: settled(orders), "the first delivery")
        yield started


@pytest.fixture(scope="module")
def west(orders: Case, east: TestAirflow, tmp_path_factory: Any) -> Iterator[TestAirflow]:
    """The one that stands by; it has its own copy of the pipeline's file."""
    folder = tmp_path_factory.mktemp("west")
    shutil.copytree(orders.folder / "rules", folder / "rules")
    shutil.copy(orders.path, folder)
    extra = {"SLUICE_INSTALLATION": "west", "SLUICE_RULES": str(folder / "rules"), **BEATS}
    with airflow(folder / "airflow", folder, orders.connections, extra, JUDGES) as started:
        started.api.wait_for_dag(DAG, 300)
        wait_until(lambda: [t for t in started.tasks(DAG) if t["state"] == "deferred"], "the second standing by", 300)
        yield started


def waits(airflow: TestAirflow) -> bool:
    """A task that waits for changes is in its triggerer, and none is at work."""
    open_runs = airflow.runs(DAG, state="running")
    tasks = [task for run in open_runs for task in airflow.tasks(DAG, run["dag_run_id"]) if task["task_id"] == "sense"]
    states = {task["state"] for task in tasks}
    return "deferred" in states and not states & {"running", "queued", "scheduled"}


def test_a_second_installation_stands_by(orders: Case, east: TestAirflow, west: TestAirflow) -> None:
    """It holds no worker meanwhile."""
    owners: set[str | None] = set()

    def seen() -> bool:
        owners.add(owner(orders))
        return settled(orders)

    for _ in range(20):
        change(orders)
        seen()
    wait_until(seen, "delivery by the first")
    assert owners == {"airflow:east"}
    with orders.runtime().state() as state:
        claims = {state.batches.require(number).claim.split(":")[1] for number in state.batches.numbers()[-3:]}
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
    wait_until(lambda: waits(loser), "the wait in the triggerer, which goes on for as long as nothing changes")
    loser.keeper.stop()
    scheduler, triggerer = loser.components["scheduler"], loser.components["triggerer"]
    if number is signal.SIGKILL:
        scheduler.kill()
    else:
        assert scheduler.handle is not None
        os.kill(scheduler.handle.pid, number)
    wait_until(lambda: owner(orders) == names[id(winner)], "the standby taking over", 300)
    assert triggerer.running
    change(orders)
    wait_until(lambda: settled(orders), "delivery by the standby")
    if number is signal.SIGKILL:
        scheduler.start()
    else:
        os.kill(scheduler.handle.pid, signal.SIGCONT)
        scheduler.wait()
    loser.keeper = Keeper(loser.components)

    wait_until(lambda: waits(loser), "the first one standing by")
    for _ in range(5):
        change(orders)
        wait_until(lambda: settled(orders), "delivery after the first one is back")
        assert owner(orders) == names[id(winner)]


def test_it_takes_over_from_one_that_dies_as_a_whole(orders: Case, east: TestAirflow, west: TestAirflow) -> None:
    """kill -9 to everything; with it goes the database, so this is the last test."""
    assert owner(orders) == "airflow:east"
    east.die()
    change(orders)
    wait_until(lambda: owner(orders) == "airflow:west", "the second taking over", 300)
    wait_until(lambda: settled(orders), "delivery by the second")
