"""A process that was paused for longer than its session, was replaced, and comes back: nothing that it still does
counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.errors import CoordinationUnavailable, LoadError, OutOfOrder
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.operations import control
from tests.faults.stopper import POINTS
from tests.support.pipelines.case import REPOSITORY, Case, case
from tests.support.running.waiting import patiently, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture
def orders(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(
            f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY, note VARCHAR(40))",
            f"CREATE TABLE `{schema}`.journal (what VARCHAR(40) NOT NULL)",  # without a key: a repeat would show
        )
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        yield made


def change(made: Case, number: int) -> None:
    made.source.execute(
        f"INSERT INTO `{made.schema}`.orders VALUES ({number}, 'n{number}')",
        f"INSERT INTO `{made.schema}`.journal VALUES ('n{number}'), ('n{number}')",
        f"UPDATE `{made.schema}`.orders SET note = CONCAT(note, '+') WHERE id <= {number}",
    )


def stopped(made: Case, point: str, batch: int) -> subprocess.Popen[str]:
    """A task that has stopped itself at ``point``."""
    environment = {**made.environment, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "include"), str(REPOSITORY)])}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.stopper", str(made.path), point, str(batch)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, f"stop of {point}")
    return process


def everything(made: Case) -> dict[str, Any]:
    """What the paused process must not change: ZooKeeper, the manifests of record, the target."""
    runtime = made.runtime()
    with runtime.state() as state:
        batches = {n: state.batches.get(n) for n in state.batches.numbers()}
        seen: dict[str, Any] = {"cursor": state.cursor(), "process": state.acks.get("copy"), "batches": batches}
    for number, batch in batches.items():
        assert batch is not None
        seen[f"manifest {number}"] = runtime.store.read_bytes(batch.manifest)
    seen["ack"] = made.target.execute(f"SELECT scope, epoch, batch FROM `{made.schema}`._sluice_ack ORDER BY scope")
    for table in ("orders", "journal"):
        seen[table] = made.target.execute(f"SELECT * FROM `{made.schema}`.{table} ORDER BY 1")
    return seen


APART = "load: before it moves the checkpoint"
"""Elsewhere it moves in the transaction of the rows."""
CASES = [(point, "table" if point == APART else "row") for point in POINTS]
CASES += [(point, "batch") for point in POINTS if point.startswith("load") and point != APART]
SOME = [
    ("drain: before its commit", "row"),
    ("merge: before its record", "row"),
    ("load: inside its transaction", "row"),
    ("load: before its rows", "batch"),
    ("ack: before its move", "row"),
]
"""Without ``make faults``."""


@pytest.mark.parametrize(("point", "consistency"), CASES if os.environ.get("SLUICE_FAULTS") else SOME)
def test_one_that_comes_back_changes_nothing(orders: Case, point: str, consistency: str) -> None:
    task = POINTS[point][0]
    orders.path.write_text(
        orders.yaml.replace("connection: case_target\n", f"connection: case_target\n    consistency: {consistency}\n")
    )
    change(orders, 1)
    runtime = orders.runtime()
    batch = 1
    if task != "drain":
        found = drain(runtime, claim="test:a:b", idle_wait_s=5).batch
        assert found is not None
        batch = found
    if task in {"load", "ack"}:
        merge(runtime, batch)
    if task == "ack":
        load(runtime, "copy", batch)
    process = stopped(orders, point, batch)
    try:
        with orders.runtime().state() as state:  # its session ends, and with it what it held
            wait_until(lambda: not state.owner() and not state.owner("copy"), "end of the paused one's session")
        change(orders, 2)
        patiently(orders.run_until_head)
        orders.assert_equal("orders")
        before = everything(orders)
        process.send_signal(signal.SIGCONT)
        said = process.communicate(timeout=240)[0].strip().splitlines()[-1]
    finally:
        process.kill()
        process.wait()
    assert everything(orders) == before
    word = said.split(" ", 1)[0]
    if task in {"merge", "ack"}:  # a repeat is harmless
        assert word in {"done", "CoordinationUnavailable"}, said
    else:
        assert word in {"Fenced", "CoordinationUnavailable", "TargetUnavailable"}, said
    change(orders, 3)
    orders.run_until_head()
    query = f"SELECT what, COUNT(*) FROM `{orders.schema}`.journal GROUP BY what ORDER BY what"
    rows = [server.execute(query) for server in (orders.source, orders.target)]
    assert rows[0] == rows[1]
    orders.assert_equal("orders")


def test_an_ack_that_slept_through_a_redelivery_moves_nothing(orders: Case) -> None:
    """It asked the target before the target was restored; its answer is out of date."""
    change(orders, 1)
    runtime = orders.runtime()
    batch = drain(runtime, claim="test:a:b", idle_wait_s=5).batch
    assert batch is not None
    merge(runtime, batch)
    load(runtime, "copy", batch)
    process = stopped(orders, "ack: before its move", batch)
    try:
        ack(orders.runtime(), "copy", batch)
        orders.target.execute(
            f"DELETE FROM `{orders.schema}`.orders", f"DELETE FROM `{orders.schema}`.journal",
            f"DELETE FROM `{orders.schema}`._sluice_ack",
        )  # fmt: skip
        change(orders, 2)
        with pytest.raises((LoadError, OutOfOrder)):
            orders.run_until_head()
        control.redeliver(orders.runtime(), "copy", by="test", dry_run=False)
        with orders.runtime().state() as state:
            before = state.acks.get("copy")
            process.send_signal(signal.SIGCONT)
            said = process.communicate(timeout=240)[0]
            assert state.acks.get("copy") == before, said
    finally:
        process.kill()
        process.wait()
    orders.run_until_head()
    orders.assert_equal("orders")


def test_the_leader_of_the_ensemble_changes_under_a_running_pipeline(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper_ensemble: Any, fresh_schema: Any
) -> None:
    """Twice; the first dead one comes back in between, because two of three must live."""
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY, note VARCHAR(40))")
    zookeeper_ensemble.connection_json = lambda: f'{{"conn_type": "zookeeper", "host": "{zookeeper_ensemble.hosts}"}}'
    with case(tmp_path, mysql_source, mysql_target, zookeeper_ensemble, schema) as made:
        made.run_until_head()
        done = threading.Event()
        failures: list[BaseException] = []

        def deliver() -> None:
            while not done.is_set():
                try:
                    made.run_until_head()
                except CoordinationUnavailable:
                    continue  # as a retry would
                except BaseException as error:
                    failures.append(error)
                    return

        worker = threading.Thread(target=deliver)
        worker.start()
        dead = None
        try:
            for number in range(60):
                mysql_source.execute(f"INSERT INTO `{schema}`.orders VALUES ({number}, 'x')")
                time.sleep(0.05)
                if number in {20, 40}:
                    if dead is not None:
                        dead.start()
                    wait_until(lambda: zookeeper_ensemble.leader() is not None, "a leader")
                    dead = zookeeper_ensemble.leader()
                    dead.kill()
        finally:
            done.set()
            worker.join(timeout=280)
        assert failures == []
        patiently(made.run_until_head)
        made.assert_equal()
