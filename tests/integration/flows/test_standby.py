"""Two owners on the command line: one works, the other stands by; a death, a pause, an orderly end and an announced
restart.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.config.loading import find_pipeline
from sluice.errors import ConfigError
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import wait_until
from tests.support.servers.proxy import TcpProxy

pytestmark = [pytest.mark.slow, pytest.mark.faults]


class Owner:
    """A ``sluice run`` that goes on until it is ended; a stand-in for an installation."""

    def __init__(self, made: Case, name: str, *options: str) -> None:
        self.name = f"cli:{name}"
        self.log = made.folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                made.command("run", made.name, "--verbose", *options),
                env={**made.environment, "SLUICE_INSTALLATION": name, "SLUICE_STANDBY": str(made.folder / "copies")},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def stands_by(self) -> bool:
        return "standby_started" in self.log.read_text()

    def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            if self.process.poll() is None:
                os.kill(self.process.pid, number)
        self.process.wait()


@pytest.fixture
def orders(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY)")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, session_s=5) as made:
        made.run_until_head()
        yield made


@pytest.fixture
def start(orders: Case) -> Iterator[Callable[..., Owner]]:
    started: list[Owner] = []

    def go(name: str, *options: str) -> Owner:
        started.append(Owner(orders, name, *options))
        return started[-1]

    yield go
    for owner in started:
        owner.end()


def owner_of(made: Case) -> str | None:
    with made.runtime().state() as state:
        return state.election.leader_name()


def insert(made: Case, *numbers: int) -> None:
    for number in numbers:
        made.source.execute(f"INSERT INTO `{made.schema}`.orders VALUES ({number})")


def delivered(made: Case) -> bool:
    rows = [
        server.execute(f"SELECT id FROM `{made.schema}`.orders ORDER BY id") for server in (made.source, made.target)
    ]
    return bool(rows[0] == rows[1])


@pytest.mark.promise("A34", "C18")
def test_the_second_takes_over_from_a_dead_one_and_from_one_that_is_paused(
    orders: Case, start: Callable[..., Owner]
) -> None:
    first = start("first")
    wait_until(lambda: owner_of(orders) == first.name, "the first working")
    second = start("second")
    wait_until(lambda: second.stands_by, "the second standing by")
    for number in range(20):
        insert(orders, number)
        assert owner_of(orders) == first.name
    wait_until(lambda: delivered(orders), "delivery by the first")

    first.process.send_signal(signal.SIGSTOP)
    insert(orders, 100)
    wait_until(lambda: owner_of(orders) == second.name, "the second taking over from the paused one")
    wait_until(lambda: delivered(orders), "delivery by the second")
    first.process.send_signal(signal.SIGCONT)  # it comes back, finds itself replaced, and either stands by or ends
    wait_until(lambda: first.stands_by or first.process.poll() is not None, "the first noticing")
    insert(orders, 101)
    wait_until(lambda: delivered(orders), "further delivery by the second")
    assert owner_of(orders) == second.name

    third = start("third")
    wait_until(lambda: third.stands_by, "a third standing by")
    first.end()
    second.process.kill()
    wait_until(lambda: owner_of(orders) == third.name, "the third taking over from the dead one")
    insert(orders, 102)
    wait_until(lambda: delivered(orders), "delivery by the third")


def test_an_orderly_end_hands_over_at_once_and_a_restart_is_waited_for(
    orders: Case, start: Callable[..., Owner]
) -> None:
    first = start("first")
    wait_until(lambda: owner_of(orders) == first.name, "the first working")
    second = start("second")
    wait_until(lambda: second.stands_by, "the second standing by")
    first.process.terminate()
    wait_until(lambda: owner_of(orders) == second.name, "the second taking over")
    assert first.process.wait() == 130

    third = start("third")
    wait_until(lambda: third.stands_by, "a third standing by")
    shown = orders.cli("restart", str(orders.path), "--grace", "120", "--reason", "a new version")
    assert "for 120 s no other installation takes over" in shown.stdout
    second.process.kill()
    second.process.wait()
    insert(orders, 1)
    end = time.monotonic() + 10  # far beyond the session timeout and its margin
    while time.monotonic() < end:
        assert owner_of(orders) == second.name
        time.sleep(0.2)
    again = start("second")
    wait_until(lambda: delivered(orders), "delivery by the restarted one")
    assert owner_of(orders) == again.name == "cli:second"


def test_until_head_ends_when_somebody_else_delivered(orders: Case, start: Callable[..., Owner]) -> None:
    first = start("first")
    wait_until(lambda: owner_of(orders) == first.name, "the first working")
    insert(orders, 1, 2, 3)
    shown = orders.cli("run", str(orders.path), "--until-head")
    assert shown.returncode == 0, shown.stderr
    assert "done: 0 batches" in shown.stdout
    assert delivered(orders)
    assert first.process.poll() is None


def test_it_goes_on_when_the_target_was_away(orders: Case, start: Callable[..., Owner]) -> None:
    target = orders.target
    with TcpProxy(target.host, target.port) as link:
        straight = f'"port": {target.port}'
        assert straight in orders.connections["case_target"]
        orders.connections["case_target"] = orders.connections["case_target"].replace(straight, f'"port": {link.port}')
        orders.path.write_text(orders.path.read_text() + "retry: {delay: 200ms, max_delay: 1s}\n")
        owner = start("first")
        insert(orders, 1)
        wait_until(lambda: delivered(orders), "the first delivery")
        link.refusing = True
        link.cut()
        insert(orders, 2)
        wait_until(lambda: owner.log.read_text().count("run_attempt_failed") > 1, "attempts in vain")
        link.heal()
        wait_until(lambda: delivered(orders), "delivery")
        assert owner.process.poll() is None


def test_a_standby_works_while_no_airflow_lives_and_hands_back(orders: Case, start: Callable[..., Owner]) -> None:
    """From its own copy of the files when the shared folder is gone."""
    airflow = orders.runtime()
    airflow.owner = "airflow:east"
    with airflow.state() as state:  # heard of from here on
        state.election.become_leader(airflow.owner)
        standby = start("aside", "--standby")
        wait_until(lambda: standby.stands_by, "the standby")
        assert owner_of(orders) == "airflow:east"
        copy = orders.folder / "copies" / orders.name / "pipeline.yaml"
        assert copy.read_text() == orders.path.read_text()
    insert(orders, 1)
    text = orders.path.read_text()
    orders.path.rename(orders.folder / "away")
    with pytest.raises(ConfigError, match="there is no pipeline"):
        find_pipeline(orders.name, orders.folder)
    wait_until(lambda: delivered(orders), "delivery by the standby")
    assert "local_copy_used" in standby.log.read_text()
    insert(orders, 2)
    wait_until(lambda: delivered(orders), "more of it")

    orders.path.write_text(text)
    with airflow.state() as state:
        wait_until(lambda: state.election.may_lead("airflow:east"), "the lead being handed back")
        state.election.become_leader("airflow:east")
        insert(orders, 3)
        assert owner_of(orders) == "airflow:east"
        batch = drain(airflow, claim="airflow:east:1", idle_wait_s=5).batch
        assert batch is not None
        merge(airflow, batch)
        load(airflow, "copy", batch)
        ack(airflow, "copy", batch)
    assert delivered(orders)
    assert standby.process.poll() is None
