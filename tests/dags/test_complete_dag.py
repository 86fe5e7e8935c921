"""The DAG of complete tables: its runs, what its tasks tell and wait for, and the sensor for everybody's DAGs."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from airflow.timetables.base import DataInterval, TimeRestriction
from pendulum import instance

from sluice.coordination.completions import Completions
from sluice.coordination.memory import MemoryTree
from sluice.errors import CoordinationUnavailable
from sluice.operations.completeness import TableState
from sluice.orchestration import complete_tables
from sluice.orchestration.complete_tables import (
    CompleteOperator,
    CompleteTrigger,
    SluiceTableSensor,
    TableCompleteTrigger,
    note_success,
)
from sluice.orchestration.dags.complete import build_all
from sluice.orchestration.timetable import CompleteTimetable
from tests.dags.conftest import WritePipeline

MIDNIGHT = datetime(2026, 11, 26, tzinfo=UTC)
MIDNIGHT_US = int(MIDNIGHT.timestamp()) * 1_000_000
TABLE = "mysql://db:3306/shop/orders"


# -- the DAG -----------------------------------------------------------------------------------------------------------


def test_only_pipelines_that_say_complete_have_the_dag(write_pipeline: WritePipeline) -> None:
    path = write_pipeline()
    assert build_all(path.parent) == {}
    path.write_text(path.read_text() + "complete: {every: 6h, timezone: Europe/Berlin}\n")
    [(dag_id, dag)] = build_all(path.parent).items()
    assert dag_id == "complete__shop"
    assert all(task.outlets for task in dag.tasks)
    for task in dag.tasks:
        name, _, target = task.task_id.partition(".")
        assert task.upstream_task_ids == ({f"complete.{target}"} if name == "late" else set())


def interval(info: Any) -> tuple[datetime, datetime]:
    return info.data_interval.start, info.data_interval.end


def test_runs_follow_one_another_and_none_is_left_out() -> None:
    """Also after a pause of the DAG, and over the day on which clocks are set back."""
    timetable = CompleteTimetable("0 0 * * *", "Europe/Berlin")
    start = TimeRestriction(instance(datetime(2024, 1, 1, tzinfo=UTC)), None, catchup=False)
    first = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=start)
    assert first is not None
    assert timedelta(0) <= datetime.now(UTC) - first.data_interval.start <= timedelta(hours=50)
    last = DataInterval(
        instance(datetime(2025, 10, 24, 22, tzinfo=UTC)), instance(datetime(2025, 10, 25, 22, tzinfo=UTC))
    )
    following = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=start)
    assert interval(following) == (last.end, datetime(2025, 10, 26, 23, tzinfo=UTC))


def test_a_run_has_the_begin_of_its_interval_as_its_partition() -> None:
    """The clock is that of the zone; a run that ended gives the interval that the next one follows."""
    timetable = CompleteTimetable("0 0 * * *", "Europe/Berlin", partitioned=True)
    timetable = CompleteTimetable.deserialize(timetable.serialize())
    last = SimpleNamespace(
        partition_key="2025-10-25T00:00:00",
        data_interval_start=datetime(2025, 10, 24, 22, tzinfo=UTC),
        data_interval_end=datetime(2025, 10, 25, 22, tzinfo=UTC),
    )
    restriction = TimeRestriction(instance(datetime(2024, 1, 1, tzinfo=UTC)), None, catchup=False)
    following = timetable.next_dagrun_info_v2(
        last_dagrun_info=timetable.run_info_from_dag_run(dag_run=last), restriction=restriction
    )
    assert following is not None
    assert interval(following) == (last.data_interval_end, datetime(2025, 10, 26, 23, tzinfo=UTC))
    assert following.run_after == following.data_interval.end
    assert following.partition_key == "2025-10-26T00:00:00"
    assert (
        timetable.resolve_partition_date(following.partition_key) == following.partition_date == last.data_interval_end
    )
    two_days = {"earliest": datetime(2025, 10, 25), "latest": datetime(2025, 10, 26)}
    backfilled = list(timetable.iter_partition_dagrun_infos(**two_days))
    assert [info.partition_key for info in backfilled] == [last.partition_key, following.partition_key]
    assert interval(backfilled[1]) == interval(following)


# -- its tasks ---------------------------------------------------------------------------------------------------------


class Seen:
    """Stands for what a look at the pipeline says."""

    def __init__(self, *states: TableState, settled: bool = True) -> None:
        self.states = {one.uri: one for one in states}
        self.is_settled = settled
        self.until_us = MIDNIGHT_US
        self.kept = Completions(MemoryTree().session(), "/data/sync")
        state = SimpleNamespace(completions=self.kept)

        @contextmanager
        def opened() -> Any:
            yield state

        self.writer = SimpleNamespace(runtime=SimpleNamespace(name="shop", state=opened))

    def look(self) -> dict[str, TableState]:
        return self.states

    def details(self, state: TableState) -> dict[str, object]:
        return {"table": state.uri}


class Outlets(dict[Any, "Outlets"]):
    """Stands for Airflow's accessors of outlet events."""

    def __init__(self) -> None:
        super().__init__()
        self.uris: list[str] = []

    def __missing__(self, key: Any) -> Outlets:
        self[key] = made = Outlets()
        return made

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        self.uris.append(asset.uri)


def run_task(
    monkeypatch: pytest.MonkeyPatch, seen: Seen, *, late: bool = False, end: datetime = MIDNIGHT, run: str = "r"
) -> tuple[list[str], dict[str, Any]]:
    """Return what a task told, and its context. Raises TaskDeferred."""
    monkeypatch.setattr(complete_tables, "open_watch", lambda *_: seen)
    monkeypatch.setattr(complete_tables, "open_runtime", lambda _: seen.writer.runtime)
    task = CompleteOperator(
        task_id="late.copy" if late else "complete.copy", pipeline="p.yaml", target="copy", late=late
    )
    dag_run = SimpleNamespace(data_interval_start=end - timedelta(days=1), data_interval_end=end)
    ti = SimpleNamespace(dag_id="complete__shop", run_id=run)
    context: dict[str, Any] = {"dag_run": dag_run, "ti": ti, "task": task, "outlet_events": Outlets()}
    task.execute(context)
    return [uri for outlet in context["outlet_events"].values() for uri in outlet.uris], context


def test_a_task_tells_of_complete_tables_once_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(TableState(TABLE, ("shop.orders",)))
    told, _ = run_task(monkeypatch, seen)
    assert told == [f"complete+{TABLE}"]
    told, context = run_task(monkeypatch, seen)
    assert told == [f"complete+{TABLE}"], "the first attempt failed, and Airflow dropped its event"
    note_success(context)
    assert run_task(monkeypatch, seen)[0] == [], "somebody pressed Clear"
    assert run_task(monkeypatch, seen, run="another")[0] == []
    assert seen.kept.read(TABLE).until_us == MIDNIGHT_US


def test_a_task_waits_for_the_log_and_leaves_blocked_tables_to_the_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = Seen(TableState(TABLE, (), "it is at 3"))
    with pytest.raises(TaskDeferred) as deferred:
        run_task(monkeypatch, behind)
    assert isinstance(deferred.value.trigger, CompleteTrigger)
    assert deferred.value.trigger.serialize()[1]["until_us"] == MIDNIGHT_US
    with pytest.raises(TaskDeferred):
        run_task(monkeypatch, Seen(settled=False))
    blocked = Seen(TableState(TABLE, (), "a copy runs", is_blocked=True), TableState(f"{TABLE}2", ()))
    assert run_task(monkeypatch, blocked)[0] == [f"complete+{TABLE}2"]
    today = datetime.now(UTC)
    with pytest.raises(TaskDeferred):
        run_task(monkeypatch, blocked, late=True, end=today)
    assert run_task(monkeypatch, blocked, late=True, end=today - timedelta(days=2))[0] == [], "the next time has come"


# -- the sensor --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Completions:
    made = Completions(MemoryTree().session(), "/data/sync")
    monkeypatch.setattr(complete_tables, "_opened", lambda *_: made)
    monkeypatch.setattr(complete_tables, "_SENSOR_LOOK_S", 0.01)
    return made


def sensor(**named: Any) -> SluiceTableSensor:
    return SluiceTableSensor(task_id="wait", uri=TABLE, until="2026-11-26T01:00:00+01:00", deferrable=True, **named)


def test_a_sensor_is_satisfied_by_a_time_that_is_not_earlier(kept: Completions) -> None:
    assert kept.take(TABLE, MIDNIGHT_US - 1, "run")
    assert not sensor().poke({})
    assert kept.take(TABLE, MIDNIGHT_US, "run")
    assert sensor().poke({})
    assert sensor().execute({}) is None


def test_a_sensor_waits_in_the_triggerer_until_a_run_tells(kept: Completions) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor().execute({})
    trigger = deferred.value.trigger
    again = TableCompleteTrigger(**trigger.serialize()[1])

    async def fired() -> Any:
        async def tell() -> None:
            await asyncio.sleep(0.1)
            kept.take(TABLE, MIDNIGHT_US, "run")

        telling = asyncio.create_task(tell())
        event = await anext(again.run())
        await telling
        return event.payload

    assert asyncio.run(fired()) == "complete"


def test_trouble_with_zookeeper_shows_in_the_task(kept: Completions, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise CoordinationUnavailable("ZooKeeper does not answer")

    monkeypatch.setattr(complete_tables, "_opened", away)
    trigger = TableCompleteTrigger(TABLE, 1, "zk", "/data/sync")

    async def fired() -> Any:
        return (await anext(trigger.run())).payload

    assert asyncio.run(fired()) == "trouble"
    with pytest.raises(Exception, match="does not answer"):
        sensor().woken({}, "trouble")


def test_a_time_without_a_zone_is_refused(kept: Completions) -> None:
    with pytest.raises(ValueError, match="with its zone"):
        SluiceTableSensor(task_id="wait", uri=TABLE, until="2026-11-26").poke({})


def test_other_pipelines_of_the_folder_count_and_invalid_ones_do_not(
    write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(write_pipeline())
    (path.parent / "second.yaml").write_text(path.read_text().replace("pipeline: shop", "pipeline: second"))
    (path.parent / "broken.yaml").write_text("pipeline: [")
    assert [one.name for one in complete_tables.other_runtimes(str(path))] == ["second"]
