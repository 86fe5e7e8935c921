"""A pipeline as its file is by default, every batch on Spark Connect, in a pool of one slot and with a window of one batch:
whatever Airflow starts first, one worker is enough.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers.airflows import SharedAirflow, wait_until
from tests.support.tables.orders import change, orders_case, settled, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DAG = "sync__slot"


def test_one_slot_and_one_batch_at_a_time_deliver_all(
    shared_airflow: SharedAirflow, mysql_source: Any, mysql_target: Any, zookeeper: Any, spark_connect: Any
) -> None:
    folder = shared_airflow.folder
    with orders_case(
        folder, mysql_source, mysql_target, zookeeper, name="slot", run="{max_time: 5s}", hidden=True
    ) as made:
        hidden = next(path for path in folder.iterdir() if path.name.startswith("slot"))
        text = hidden.read_text().replace("spark: {mode: local}", "spark: {mode: connect, connection: test_spark}")
        hidden.write_text(text + "window: 1\nworkers: {pool: single}\n")
        connections = {**made.connections, "test_spark": spark_connect.connection_json()}
        shared_airflow.started().api.call("POST", "/pools", {"name": "single", "slots": 1, "include_deferred": False})
        with shared_airflow.running(connections, DAG) as started:
            with written(made):
                wait_until(lambda: started.runs(DAG, state="success"), "a run with its tasks in one slot", 300)
            change(made)
            wait_until(lambda: settled(made), "delivery of everything", 300)
            wait_until(lambda: len(started.runs(DAG, state="success")) > 1, "the end of a further run", 300)
            run = started.runs(DAG, state="success")[0]["dag_run_id"]
            tasks = {task["task_id"]: task["state"] for task in started.tasks(DAG, run)}
            assert tasks == dict.fromkeys(("sense", "drain", "merge", "load.copy", "ack.copy"), "success")
            for name in ("merge", "load.copy", "ack.copy"):
                path = f"/dags/{DAG}/dagRuns/{run.replace('+', '%2B')}/taskInstances/{name}/xcomEntries/return_value"
                value = started.api.call("GET", path)["value"]
                shown = json.loads(value) if isinstance(value, str) else value
                assert shown["batches"] >= shown["in_drain"] > 0, name
            wait_until(lambda: started.runs(DAG, state="running"), "an open run of the idle pipeline", 300)
            assert len(started.runs(DAG, state="running")) == 1, "no more than one run is open"
