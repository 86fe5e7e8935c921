"""Complete tables on a real Airflow: a run for each time, an event for each table, once, also where nothing changes;
and the DAGs of another team that wait for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.support.pipelines.case import Case
from tests.support.servers.airflows import BEATS, JUDGES, TestAirflow, airflow, wait_until
from tests.support.tables.orders import change, orders_case, settled

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
DAG = "complete__daily"
EVERY = timedelta(minutes=5)
TEAM = """\
from airflow.sdk import DAG, Asset, IdentityMapper, PartitionedAssetTimetable
from airflow.providers.standard.operators.empty import EmptyOperator
from sluice.orchestration.complete_tables import SluiceTableSensor

URI = "{uri}"

with DAG("report", schedule=[Asset("complete+" + URI)]):
    EmptyOperator(task_id="make")

PARTITIONS = PartitionedAssetTimetable(assets=Asset("complete+" + URI.replace("_daily/", "_parts/")))

with DAG("report_of_a_partition", schedule=PARTITIONS):
    EmptyOperator(task_id="make")

with DAG("waits", schedule=None, params={{"until": "2000-01-01T00:00:00+00:00"}}):
    SluiceTableSensor(task_id="wait", uri=URI, until="{{{{ params.until }}}}", root="{root}")
"""


@pytest.fixture(scope="module")
def orders(
    tmp_path_factory: pytest.TempPathFactory, mysql_source: Any, mysql_target: Any, zookeeper: Any
) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("daily")
    more = "{{max_time: 2s}}\ncomplete: {{every: 5m, timezone: Europe/Berlin, partitions: {}}}"
    servers = (folder, mysql_source, mysql_target, zookeeper)
    with (
        orders_case(*servers, name="parts", run=more.format("true")) as other,
        orders_case(*servers, name="daily", run=more.format("false")) as made,
    ):
        made.connections |= other.connections
        yield made


@pytest.fixture(scope="module")
def east(
    orders: Case, server_folder: Path, mysql_target: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestAirflow]:
    """An Airflow with the DAGs of Sluice, and those of a team that reads the table ``orders``."""
    team = tmp_path_factory.mktemp("team")
    uri = f"mysql://127.0.0.1:{mysql_target.port}/airflow_daily/orders"
    (team / "team.py").write_text(TEAM.format(uri=uri, root="/test/airflow_daily"))
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    folders = {"sluice": str(Path(__file__).parents[3] / "dags"), "team": str(team)}
    bundles = [{"name": name, "classpath": local, "kwargs": {"path": path}} for name, path in folders.items()]
    settings = {
        "SLUICE_RULES": str(orders.folder / "rules"),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        **BEATS,
    }
    with airflow(server_folder / "complete", orders.folder, orders.connections, settings, JUDGES) as started:
        for dag in ("sync__daily", DAG, "report", "waits", "sync__parts", "complete__parts", "report_of_a_partition"):
            started.api.wait_for_dag(dag, 300)
        yield started


def test_each_table_is_complete_at_each_time_once(orders: Case, east: TestAirflow) -> None:
    def events() -> list[dict[str, Any]]:
        found = east.api.call("GET", f"/assets/events?source_dag_id={DAG}&limit=100") or {}
        return list(found.get("asset_events", ()))

    def times() -> set[str]:
        return {one["extra"]["until"] for one in events()}

    change(orders)
    wait_until(lambda: settled(orders), "delivery")
    wait_until(lambda: times(), "the first complete time", 600)
    known = max(times())
    later = (datetime.fromisoformat(known) + EVERY).isoformat()
    waiting = east.trigger("waits", {"until": later})
    wait_until(lambda: max(times()) > known, "the next complete time, of tables that nobody changed", 900)
    found = events()
    assert {one["uri"].partition("+")[0] for one in found} == {"complete"}
    assert {one["source_task_id"] for one in found} == {"complete.copy"}
    told = [(one["uri"], one["extra"]["until"]) for one in found]
    assert len(told) == len(set(told))
    assert len({uri for uri, _ in told}) == 2, "orders, and the table without a key"
    for one in found:
        until = datetime.fromisoformat(one["extra"]["until"])
        assert until.timestamp() % EVERY.total_seconds() == 0
        assert datetime.fromisoformat(one["timestamp"]) >= until, "never early"
    assert {run["state"] for run in east.runs(DAG, state="failed")} == set()
    wait_until(lambda: east.runs("report", state="success"), "a run of the DAG that waits for the event", 300)
    assert east.wait_for_run("waits", waiting) == "success", "the sensor"
    [task] = east.tasks("waits", waiting)
    assert datetime.fromisoformat(task["end_date"]) >= datetime.fromisoformat(later)


def test_a_dag_of_partitions_gets_each_of_them_once(east: TestAirflow) -> None:
    """Keys are the begins of intervals, by the clock of the pipeline's time zone."""
    wait_until(lambda: len(east.runs("report_of_a_partition", state="success")) >= 2, "two partitions", 900)
    keys = [run["partition_key"] for run in east.runs("report_of_a_partition")]
    assert len(keys) == len(set(keys))
    events = east.api.call("GET", "/assets/events?source_dag_id=complete__parts&limit=100") or {}
    for event in events["asset_events"]:
        begin = datetime.fromisoformat(event["extra"]["until"]).astimezone(ZoneInfo("Europe/Berlin")) - EVERY
        assert event["partition_key"] == begin.strftime("%Y-%m-%dT%H:%M:%S")
    assert set(keys) <= {event["partition_key"] for event in events["asset_events"]}
    assert {run["state"] for run in east.runs("complete__parts", state="failed")} == set()
