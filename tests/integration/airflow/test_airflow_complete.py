"""Complete tables on a real Airflow: a run for each time, an event for each table, once, also where nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.pipelines.case import Case
from tests.support.servers.airflows import SharedAirflow, TestAirflow, wait_until
from tests.support.tables.orders import change, orders_case, settled

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
DAG = "complete__daily"
EVERY = timedelta(minutes=5)


@pytest.fixture(scope="module")
def orders(shared_airflow: SharedAirflow, mysql_source: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    more = "{max_time: 2s}\ncomplete: {every: 5m, timezone: Europe/Berlin}"
    with orders_case(
        shared_airflow.folder, mysql_source, mysql_target, zookeeper, name="daily", run=more, hidden=True
    ) as made:
        yield made


@pytest.fixture(scope="module")
def east(orders: Case, shared_airflow: SharedAirflow) -> Iterator[TestAirflow]:
    with shared_airflow.running(orders.connections, "sync__daily", DAG) as started:
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
    known = len(times())
    wait_until(lambda: len(times()) > known, "the next complete time, of tables that nobody changed", 900)
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
