"""Airflow's own Backfill of any DAG, beside as many idle pipelines as the scheduler looks at in a loop, and more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.many_pipelines import many_pipelines
from tests.support.servers.airflows import TestAirflow, airflow, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
PIPELINES = 30
TEAM = """\
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("report", schedule="@daily", catchup=False):
    EmptyOperator(task_id="make")
"""


@pytest.fixture(scope="module")
def idle(tmp_path_factory: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[TestAirflow]:
    """An Airflow with the settings of the demo, the pipelines, and a DAG of a team."""
    folder: Path = tmp_path_factory.mktemp("idle")
    (folder / "team").mkdir()
    (folder / "team/report.py").write_text(TEAM)
    schema, local = "many_idle", "airflow.dag_processing.bundles.local.LocalDagBundle"
    folders = {"sluice": Path(__file__).parents[3] / "dags", "team": folder / "team"}
    bundles = [{"name": name, "classpath": local, "kwargs": {"path": str(path)}} for name, path in folders.items()]
    settings = {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles)}
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE DATABASE {schema}")
    pipelines = folder / "pipelines"
    with (
        many_pipelines(pipelines, mysql_source, mysql_target, zookeeper, schema, PIPELINES) as many,
        airflow(folder / "airflow", pipelines, many.made.connections, settings) as started,
    ):
        for dag in (*(f"sync__{path.stem}" for path in many.paths), "report"):
            started.api.wait_for_dag(dag, 600)
        yield started
    for server in (mysql_source, mysql_target):
        server.execute(f"DROP DATABASE {schema}")


def open_runs(started: TestAirflow) -> Counter[str]:
    """Return how many open runs each pipeline has."""
    found = started.api.call("GET", "/dags/~/dagRuns?state=running&state=queued&limit=100")["dag_runs"]
    return Counter(run["dag_id"] for run in found if run["dag_id"].startswith("sync__"))


def test_airflows_backfill_runs_beside_idle_pipelines_of_which_each_keeps_one_run(idle: TestAirflow) -> None:
    wait_until(lambda: len(open_runs(idle)) == PIPELINES, "the open run of each pipeline", 600)
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=2)
    asked = {
        "dag_id": "report",
        "from_date": (end - timedelta(days=1)).isoformat(),
        "to_date": end.isoformat(),
        "run_backwards": False,
        "dag_run_conf": {},
        "reprocess_behavior": "none",
        "max_active_runs": 2,
    }  # with SQLite Airflow may answer that its database is locked: a person presses the button again
    wait_until(lambda: idle.api.call("POST", "/backfills", asked)["dag_id"] == "report", "the backfill")

    def states() -> list[str]:
        return [run["state"] for run in idle.runs("report", run_type="backfill")]

    wait_until(lambda: states() == ["success"] * 2, "the two runs of the backfill", 600)
    assert set(open_runs(idle).values()) == {1}
    assert len(open_runs(idle)) == PIPELINES
