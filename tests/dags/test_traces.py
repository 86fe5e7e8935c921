"""The tasks of a run, each as a process of its own would do it, tell of their batch in one trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.models.taskinstance import TaskInstance

from sluice.config.loading import load_pipeline
from sluice.flows.runtime import Runtime
from sluice.orchestration import metrics
from sluice.orchestration.dags.sync import build_sync_dag
from tests.dags.conftest import WritePipeline
from tests.support.servers.otlp import flush, forget, otlp_receiver
from tests.support.twins.pipes import Pipe, pipe

pytestmark = pytest.mark.usefixtures("airflow_database")
STAGES = {"drain", "merge", "load.reporting", "load.archive", "ack.reporting", "ack.archive"}
IN_ORDER = ("sense", "drain", "merge", "load.reporting", "load.archive", "ack.reporting", "ack.archive")


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    """A pipeline whose runs have one batch, so that each stage is done by its own task."""
    for found in pipe(tmp_path, "reporting", "archive", run={"max_batches": 1}):

        def opened(_: str, found: Pipe = found) -> Runtime:
            flush()
            forget()
            return found.made.runtime()

        for module in ("operators", "runtime"):
            monkeypatch.setattr(f"sluice.orchestration.{module}.open_runtime", opened)
        monkeypatch.setattr("sluice.orchestration.assets._events", lambda runtime, target, claim: [])
        monkeypatch.setattr(metrics, "_sent", {})
        yield found


@pytest.mark.full
def test_the_tasks_of_a_run_join_in_the_trace_of_their_batch(
    one: Pipe, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``dag.test()`` has no workers: it takes tasks that wait for each other one by one, in the order of a set
    monkeypatch.setattr(TaskInstance, "__hash__", lambda task: IN_ORDER.index(task.task_id))
    one.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
    path = write_pipeline("traced")
    dag = build_sync_dag(load_pipeline(path), path)
    with otlp_receiver() as received:
        run = dag.test()
        flush()
    assert run.state == "success"
    assert one.acknowledged("archive") == 1
    spans = {span.name: span for span in received.spans}
    assert sorted(spans) == sorted(span.name for span in received.spans)
    assert spans.keys() == STAGES
    assert len({span.trace for span in spans.values()}) == 1
    assert {span.parent for name, span in spans.items() if name != "drain"} == {spans["drain"].id}
    assert all(span.attributes["sluice.claim"].endswith(f":{run.run_id}") for span in spans.values())
