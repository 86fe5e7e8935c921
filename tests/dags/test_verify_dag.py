"""The verify DAG: its form, what its task asks for, and what it says of the result."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from sluice.errors import ConfigError
from sluice.operations.verify import verify as flow
from sluice.operations.verify.result import Difference, TableResult, VerifyResult
from sluice.orchestration.dags import backfill
from sluice.orchestration.dags.sync import schedule_of
from sluice.orchestration.dags.verify import VerifyOperator, build_all, result_note


def result(**table: Any) -> VerifyResult:
    one = TableResult(table="s.t", target="copy", way="rows", rows=1000, **table)
    return VerifyResult(id="20260301T000000-abc", pipeline="shop", began_ms=1000, ended_ms=3000, tables=(one,))


def context(**params: Any) -> Any:
    run = SimpleNamespace(dag_id="verify__shop", run_id="manual__1", conf=params)
    return {"dag_run": run, "params": params}


@pytest.mark.promise("F5")
def test_one_dag_a_pipeline_with_a_form(write_pipeline) -> None:
    path: Path = write_pipeline("shop")
    dag = build_all(path.parent)["verify__shop"]
    assert [task.task_id for task in dag.topological_sort()] == ["verify"]
    assert set(dag.params) == {"tables", "targets", "where", "method", "sample", "repair", "values"}
    dag.params.validate()
    assert (dag.schedule, dag.params["sample"]) == (None, 100)
    assert build_all(path.parent, only="verify__shop").keys() == {"verify__shop"}


def test_a_site_of_a_channel_is_asked_about(write_pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path: Path = write_pipeline("shop")
    channels = tmp_path / "channels"
    channels.mkdir()
    (channels / "both.yaml").write_text("channel: both\npipelines: [shop, back]\nmain: shop\n")
    monkeypatch.setenv("SLUICE_CHANNELS", str(channels))
    assert build_all(path.parent)["verify__shop"].params["overwrite"] is False
    assert backfill.build_all(path.parent)["backfill__shop"].params["overwrite"] is False


def test_a_schedule_and_a_sample_of_the_file(write_pipeline) -> None:
    path: Path = write_pipeline("shop")
    path.write_text(path.read_text() + 'verify: {schedule: "0 3 * * *", sample: 12.5%, digest: log, method: sweep}\n')
    dag = build_all(path.parent)["verify__shop"]
    assert (dag.schedule, dag.catchup, dag.params["sample"]) == (schedule_of("0 3 * * *"), False, 12.5)
    assert dag.params["method"] == "sweep"
    assert not any(dag.params[name] for name in ("repair", "tables", "where"))


@pytest.mark.promise("F5")
def test_the_task_asks_for_what_the_form_says(write_pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[flow.VerifySpec] = []
    monkeypatch.setattr(flow, "verify", lambda runtime, spec, told: asked.append(spec) or result(equal=1000))
    task = VerifyOperator(task_id="verify", pipeline=str(write_pipeline("shop")))
    done = task.work(context(tables=["s.t"], targets=None, sample=10, repair=True, where="a = 1", method="sweep"))
    assert done == {"id": "20260301T000000-abc", "outcome": "equal", "rows": 1000}
    [spec] = asked
    assert (spec.method, spec.tables, spec.targets, spec.sample, spec.repair, spec.where, spec.by) == (
        "sweep",
        ["s.t"],
        [],
        0.1,
        True,
        "a = 1",
        "airflow:manual__1",
    )
    with pytest.raises(AirflowFailException, match="no field 'tabels'"):
        task.work(context(tabels=["s.t"]))


def test_rows_that_differ_fail_the_run(write_pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    task = VerifyOperator(task_id="verify", pipeline=str(write_pipeline("shop")))
    monkeypatch.setattr(flow, "verify", lambda runtime, spec, told: result(equal=999, different=1))
    with pytest.raises(AirflowFailException, match="different, 1,000 rows, 2 s, 1 differ; `sluice verify show shop"):
        task.work(context())

    def refuse(*_: Any) -> VerifyResult:
        raise ConfigError("table 'x' is not captured")

    monkeypatch.setattr(flow, "verify", refuse)
    with pytest.raises(AirflowFailException, match="not captured"):
        task.work(context())


def test_the_note_says_what_differs() -> None:
    note = result_note(
        result(
            equal=998,
            different=2,
            note="a remark",
            differences=(Difference(key=("7",), kind="different", columns=("v",)),),
        ),
        "/sluice/?pipeline=shop&verify=x",
    )
    assert "([all of it](/sluice/?pipeline=shop&verify=x))" in note
    assert "**different, 1,000 rows, 2 s, 2 differ**" in note
    assert "| s.t | copy | 1,000 | 998 | 2 | 0 | 0 | 0 | 0 |" in note
    assert "- s.t at copy: `(7)` different in v" in note
    assert "- s.t at copy: a remark" in note
