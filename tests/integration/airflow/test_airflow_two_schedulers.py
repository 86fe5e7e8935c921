"""An Airflow on PostgreSQL with two schedulers, whose pipelines lie in a DAG bundle: the schedulers share the runs of a
pipeline, and one goes on where the other died.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.airflow import AirflowComponent
from devstack.mysql import run_setup
from tests.support.pipelines.case import Case
from tests.support.servers.airflows import TestAirflow, airflow, wait_until
from tests.support.tables.orders import orders_case, settled, written

pytestmark = [pytest.mark.slow, pytest.mark.full]
DATABASE, DAG = "airflow_of_two", "sync__shared"
DAG_FILE = """\
from pathlib import Path
from sluice.orchestration.dags import all_dags  # Airflow reads files with the words airflow and dag

globals().update(all_dags(Path(__file__).parent / "pipelines"))
"""


@pytest.fixture
def orders(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    with orders_case(tmp_path / "bundle/pipelines", mysql_source, mysql_target, zookeeper, name="shared") as pipeline:
        yield pipeline


@pytest.fixture
def east(orders: Case, postgresql: Any, server_folder: Path, tmp_path: Path) -> Iterator[TestAirflow]:
    postgresql.execute(f"CREATE DATABASE {DATABASE}")
    address = f"postgresql+psycopg://postgres@127.0.0.1:{postgresql.port}/{DATABASE}"
    (tmp_path / "bundle/sync.py").write_text(DAG_FILE)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundle = {"name": "shop", "classpath": local, "kwargs": {"path": str(tmp_path / "bundle")}}
    settings = {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": address,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": address,
        "SLUICE_RULES": str(orders.folder / "rules"),
    }
    migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
    run_setup(migrate, "making Airflow's database", env={**os.environ, **settings, "AIRFLOW_HOME": str(tmp_path)})
    with airflow(server_folder / "two_schedulers", tmp_path / "elsewhere", orders.connections, settings) as started:
        started.api.wait_for_dag(DAG, 300)
        yield started
    postgresql.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


def test_two_schedulers_share_a_pipeline_and_each_goes_on_without_the_other(
    orders: Case, east: TestAirflow, postgresql: Any
) -> None:
    first = east.components["scheduler"]
    second = AirflowComponent(east.folder / "second", kind="scheduler", port=east.port, env=first.env)
    second.folder.mkdir()

    def schedulers_of(since: str) -> set[Any]:
        """Return the jobs that queued tasks of runs that began later."""
        rows = postgresql.execute(
            "SELECT DISTINCT t.queued_by_job_id FROM task_instance t JOIN dag_run r USING (dag_id, run_id) WHERE dag_id "
            f"= '{DAG}' AND r.start_date > '{since}' AND t.state = 'success' AND t.queued_by_job_id IS NOT NULL",
            database=DATABASE,
        )
        return {row[0] for row in rows}

    def now() -> str:
        return str(postgresql.execute("SELECT now()")[0][0])

    try:
        with written(orders):
            second.start(wait=False)
            began = now()
            wait_until(lambda: len(schedulers_of(began)) == 2, "tasks of both schedulers")
            assert len(east.runs(DAG, state="running")) <= 2
            east.keeper.stop()  # nobody starts again what is killed here
            first.kill()
            killed = now()
            wait_until(lambda: schedulers_of(killed), "runs by the second scheduler alone")
            first.start()
            wait_until(lambda: len(schedulers_of(killed)) == 2, "tasks of the first scheduler, started again")
            second.kill()
            killed = now()
            wait_until(lambda: schedulers_of(killed), "runs by the first scheduler alone")
        wait_until(lambda: settled(orders), "delivery")
        orders.assert_equal()
        assert east.runs(DAG, state="failed") == []
    finally:
        second.kill()
