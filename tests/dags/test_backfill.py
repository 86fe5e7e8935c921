"""The backfill DAG: its form, its timetable, and how its work is cut."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pendulum
import pytest
from airflow.timetables.base import TimeRestriction

from sluice.config.loading import load_pipeline
from sluice.errors import ConfigError
from sluice.flows.dump.progress import DumpView, TableView
from sluice.flows.dump.start import tuned
from sluice.model.dumps import Tuning
from sluice.orchestration.dags.backfill import MOST_PARTS, _dump_id, build_all, parts, progress_note
from sluice.orchestration.dags.forms import require_known
from sluice.orchestration.timetable import BackfillTimetable


def test_one_dag_a_pipeline_with_a_form(write_pipeline) -> None:
    path: Path = write_pipeline("shop")
    dag = build_all(path.parent)["backfill__shop"]
    assert [t.task_id for t in dag.topological_sort()] == ["plan", "read", "placed"]
    fields = set(dag.params)
    assert {"tables", "targets", "first_key", "last_key", "keys", "where", "since", "until", "dry_run"} <= fields
    assert {"chunk_rows", "parallelism", "delay_ms", "max_rows_per_second"} <= fields
    dag.params.validate()
    assert build_all(path.parent, only="backfill__shop").keys() == {"backfill__shop"}


def test_the_scheduler_opens_no_run_and_backfill_opens_one_an_hour() -> None:
    timetable = BackfillTimetable()
    since, until = pendulum.datetime(2026, 3, 1, 9), pendulum.datetime(2026, 3, 1, 11)
    by_itself = TimeRestriction(earliest=since, latest=None, catchup=False)
    assert timetable.next_dagrun_info(last_automated_data_interval=None, restriction=by_itself) is None
    asked = TimeRestriction(earliest=since, latest=until, catchup=True)
    hours, last = [], None
    while info := timetable.next_dagrun_info(last_automated_data_interval=last, restriction=asked):
        last = info.data_interval
        hours.append((last.start.hour, last.end.hour))
    assert hours == [(9, 10), (10, 11), (11, 12)]
    assert isinstance(BackfillTimetable.deserialize(timetable.serialize()), BackfillTimetable)
    assert timetable.periodic


def test_many_tables_share_parts() -> None:
    tables = [f"s.t{i}" for i in range(120)]
    made = parts("d", tables)
    assert len(made) == MOST_PARTS
    assert sorted(i for p in made for i in p["tables"]) == list(range(120))
    assert parts("d", ["s.a"]) == [{"dump": "d", "tables": [0], "label": "s.a"}]
    assert parts("d", []) == []


def test_a_retry_finds_the_dump_of_its_run() -> None:
    run = SimpleNamespace(run_id="manual__1", run_after=datetime(2026, 3, 1, tzinfo=UTC))
    assert _dump_id(run) == _dump_id(run)
    assert _dump_id(run).startswith("20260301T000000-")
    assert "/" not in _dump_id(run)


def test_the_note_has_a_bar_a_table() -> None:
    tables = (
        TableView(
            table="s.a",
            state="done",
            rows=100,
            overtaken=0,
            waiting=0,
            estimate=90,
            chunks=2,
            rate=50.0,
            remaining_s=0.0,
        ),
        TableView(
            table="s.b",
            state="reading",
            rows=50,
            overtaken=0,
            waiting=10,
            estimate=100,
            chunks=1,
            rate=25.0,
            remaining_s=2.0,
        ),
    )
    seen = DumpView(
        id="d",
        state="running",
        reason="asked for",
        by="me",
        targets=(),
        marking="table",
        tuning=Tuning(),
        created_ms=0,
        ended_ms=0,
        workers=1,
        note="",
        tables=tables,
    )
    text = progress_note(seen)
    assert "█" * 20 in text
    assert "█" * 10 + "░" * 10 in text
    assert "150 rows placed" in text


def test_a_field_that_the_form_does_not_have_is_refused_with_the_nearest() -> None:
    """What is misspelt is left out of what is asked for: `table: [...]` would copy all tables."""
    asked = SimpleNamespace(dag_id="backfill__shop", conf={"table": ["shop.orders"]})
    with pytest.raises(ConfigError, match="no field 'table' in the form of backfill__shop; did you mean 'tables'"):
        require_known(asked, ("tables", "where"))
    require_known(SimpleNamespace(dag_id="x", conf={"tables": []}), ("tables", "where"))
    require_known(SimpleNamespace(dag_id="x", conf=None), ("tables",))


def test_numbers_of_a_request_have_limits(write_pipeline) -> None:
    pipeline = load_pipeline(write_pipeline("shop"))
    for name in ("chunk_rows", "parallelism", "delay_ms", "max_rows_per_second", "max_replica_lag_s"):
        for value in (-1, float("nan"), float("inf"), 10**12, True, "5", 0.5 if name != "max_replica_lag_s" else -0.5):
            with pytest.raises(ConfigError, match=name):
                tuned(pipeline, **{name: value})
    assert tuned(pipeline, chunk_rows=5.0).chunk_rows == 5


def test_a_submitted_job_gets_the_connections_of_lookups(write_pipeline, tmp_path, monkeypatch) -> None:
    from sluice.config.connections import Endpoint
    from sluice.orchestration import connections, submit

    path: Path = write_pipeline("shop", mode="submit")
    path.write_text(path.read_text() + "rules: engine.yaml\n")
    (tmp_path / "engine.yaml").write_text(
        "rules: [{name: r, path: r.py, lookups: {a: {connection: dimensions, query: SELECT 1 AS id, key: id}, b: "
        "{file: b.csv, key: id}}}]"
    )
    monkeypatch.setenv("SLUICE_RULES", str(tmp_path))
    monkeypatch.setattr(connections, "from_airflow", lambda name: Endpoint(name, "mysql", "h"))
    assert submit._connections(str(path)).keys() == {
        f"AIRFLOW_CONN_{name}"
        for name in ("SHOP_MYSQL", "REPORTING_MYSQL", "ARCHIVE_MYSQL", "ZOOKEEPER_DEFAULT", "DIMENSIONS")
    }
