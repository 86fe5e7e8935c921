"""Whole runs of the DAG by Airflow's own ``dag.test()``, over stand-in flows."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sluice.config.loading import load_pipeline
from sluice.orchestration import operators
from sluice.orchestration.dags.sync import build_sync_dag
from tests.dags.conftest import WritePipeline
from tests.support.running.standin import settings

pytestmark = pytest.mark.usefixtures("airflow_database")


@pytest.fixture
def write_pipeline(write_pipeline: WritePipeline) -> WritePipeline:
    """Writes a pipeline file with one task for all stages, as the stand-ins of the flows have it."""

    def write(*arguments: Any, **options: Any) -> Path:
        path = write_pipeline(*arguments, **options)
        path.write_text(path.read_text() + "run: {tasks: one}\n")
        return path

    return write


def test_a_run_delivers_a_batch_to_every_target(
    write_pipeline: WritePipeline, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pipeline()
    dag = build_sync_dag(load_pipeline(path), path)
    flows.change(3)
    run = dag.test()
    assert run.state == "success"
    assert {e["target"] for e in flows.events("ack")} == {"reporting", "archive"}


def test_a_run_tells_airflow_of_the_tables_that_it_brought_rows_to(
    write_pipeline: WritePipeline, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is an asset of that address, with one event of the run."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from sluice.model.tables import TableId
    from sluice.operations.asset_events import TableEvent

    def told(runtime: object, target: str, claim: str) -> list[TableEvent]:
        uris = [f"mysql://{target}:3306/shop/{name}" for name in ("orders", "customers")]
        return [TableEvent(uri, TableId("shop", "t"), {"rows": 3, "first_batch": 1, "last_batch": 1}) for uri in uris]

    monkeypatch.setattr("sluice.orchestration.assets._events", told)
    path = write_pipeline("told")
    flows.change(3)
    run = build_sync_dag(load_pipeline(path), path).test()
    assert run.state == "success"
    with create_session() as session:
        chosen = select(AssetModel.uri, AssetEvent.source_task_id, AssetEvent.extra)
        chosen = chosen.join(AssetEvent, AssetEvent.asset_id == AssetModel.id).where(
            AssetEvent.source_dag_id == "sync__told"
        )
        found = sorted((uri, task, extra["rows"]) for uri, task, extra in session.execute(chosen))
    assert found == [
        (f"mysql://{target}:3306/shop/{name}", f"ack.{target}", 3)
        for target in ("archive", "reporting")
        for name in ("customers", "orders")
    ]


def test_what_a_drain_has_merged_is_not_merged_again_and_nothing_is_skipped(
    write_pipeline: WritePipeline, flows: ModuleType
) -> None:
    path = write_pipeline()
    dag = build_sync_dag(load_pipeline(path), path)
    settings(flows, merges=True)
    flows.change(3)
    run = dag.test()
    assert run.state == "success"
    states = {ti.task_id: ti.state for ti in run.get_task_instances()}
    assert set(states.values()) == {"success"}
    assert [e["batch"] for e in flows.events("merge")] == [1]
    assert {e["target"] for e in flows.events("load")} == {"reporting", "archive"}


def test_what_a_drain_has_delivered_is_confirmed_by_the_tasks_after_it(
    write_pipeline: WritePipeline, flows: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline()
    dag = build_sync_dag(load_pipeline(path), path)
    settings(flows, merges=True, carries=True)
    flows.change(3)
    run = dag.test()
    assert run.state == "success"
    states = {ti.task_id: ti.state for ti in run.get_task_instances()}
    assert set(states.values()) == {"success"}
    assert sorted(e["target"] for e in flows.events("load")) == ["archive", "reporting"]
    said = capsys.readouterr()
    assert "delivered 1 batches" in said.out + said.err


def test_an_idle_run_by_the_clock_is_all_skipped(
    write_pipeline: WritePipeline, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "_IDLE_WAIT_S", 0.0)
    path = write_pipeline("by_clock", schedule="30s")
    run = build_sync_dag(load_pipeline(path), path).test()
    assert {ti.state for ti in run.get_task_instances()} == {"skipped"}
    assert flows.events("ack") == []
