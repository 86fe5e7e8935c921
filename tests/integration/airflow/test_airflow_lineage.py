"""A real Airflow whose OpenLineage provider writes its events into a file. `make test-matrix CELLS=openlineage` has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.case import Case
from tests.support.servers.airflows import BEATS, JUDGES, airflow, wait_until
from tests.support.tables.orders import change, orders_case, settled

pytest.importorskip("airflow.providers.openlineage", reason="make test-matrix CELLS=openlineage installs the provider")
pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
ACK = "sync__lineage.ack.copy"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lineage") / "events.jsonl"


@pytest.fixture(scope="module")
def orders(told: Path, server_folder: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    """A pipeline that an Airflow delivers, whose provider is configured as for any other DAG."""
    transport = {"type": "file", "log_file_path": str(told), "append": True}
    settings = {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport), **BEATS}
    with ExitStack() as opened:
        made = opened.enter_context(
            orders_case(told.parent, mysql_source, mysql_target, zookeeper, name="lineage", run="{max_time: 30s}")
        )
        started = opened.enter_context(
            airflow(server_folder / "lineage", told.parent, made.connections, settings, JUDGES)
        )
        started.api.wait_for_dag("sync__lineage", 300)
        yield made


def events(told: Path, job: str, kind: str) -> list[dict[str, Any]]:
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [event for event in found if event["job"]["name"] == job and event["eventType"] == kind]


def test_the_provider_tells_of_the_tables_and_columns_that_a_run_brought_rows_to(orders: Case, told: Path) -> None:
    change(orders)
    wait_until(lambda: settled(orders), "a delivery")
    wait_until(lambda: [event for event in events(told, ACK, "COMPLETE") if event["outputs"]], "an event with tables")
    event = next(event for event in events(told, ACK, "COMPLETE") if event["outputs"])
    table = f"{orders.schema}.orders"
    read, written = ({one["name"]: one for one in event[side]} for side in ("inputs", "outputs"))
    assert read.keys() == written.keys() == {table, f"{orders.schema}.journal"}
    assert {one["namespace"] for one in read.values()} == {f"mysql://127.0.0.1:{orders.source.port}"}
    assert {one["namespace"] for one in written.values()} == {f"mysql://127.0.0.1:{orders.target.port}"}
    facets = written[table]["facets"]
    [origin] = facets["columnLineage"]["fields"]["note"]["inputFields"]
    assert (origin["name"], origin["field"]) == (table, "note")
    assert {column["name"] for column in facets["schema"]["fields"]} == {"id", "note"}
    assert written[table]["outputFacets"]["outputStatistics"]["rowCount"] > 0
