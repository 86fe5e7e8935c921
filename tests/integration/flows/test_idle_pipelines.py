"""Pipelines of one source that wait in one triggerer: what they cost together, and whom a change wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from sluice.flows.run import run
from sluice.operations import control
from sluice.orchestration import shared_pollers, triggers
from sluice.sources.mysql.position import Position
from tests.support.pipelines.many_pipelines import ManyPipelines, many_pipelines

COUNT = 12


@pytest.fixture
def kind() -> str:
    return "mysql_source"


@pytest.fixture
def many(
    tmp_path: Any,
    kind: str,
    request: pytest.FixtureRequest,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: Any,
) -> Iterator[ManyPipelines]:
    """All of them have begun; this process is their triggerer."""
    source = request.getfixturevalue(kind)
    schema = fresh_schema(source, mysql_target)
    monkeypatch.setattr(shared_pollers, "_pollers", shared_pollers.SharedPollers())
    with many_pipelines(tmp_path, source, mysql_target, zookeeper, schema, COUNT) as made:
        for name, value in made.made.environment.items():
            if name.startswith("AIRFLOW_CONN_"):
                monkeypatch.setenv(name, value)
        made.begin()
        yield made
        shared_pollers.shared_pollers().close()


def connections(server: Any) -> int:
    return len([row for row in server.execute("SHOW PROCESSLIST") if row[1] != "event_scheduler"]) - 1


async def settled(tasks: dict[int, asyncio.Task[Any]], look: Any = None) -> None:
    """Everybody has looked at least twice, so what is in the log until now has been seen."""
    look = look or shared_pollers.shared_pollers()
    for _ in range(2):
        before = sum(one.looks for one in look.sources)
        async with asyncio.timeout(120):
            while sum(one.looks for one in look.sources) < before + 2 or look.waits < sum(
                not t.done() for t in tasks.values()
            ):
                await asyncio.sleep(0.05)


async def ended(tasks: dict[int, asyncio.Task[Any]]) -> None:
    for task in tasks.values():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def woken(tasks: dict[int, asyncio.Task[Any]]) -> set[int]:
    return {number for number, task in tasks.items() if task.done()}


def test_they_share_connections_and_a_change_wakes_whom_it_concerns(many: ManyPipelines, mysql_source: Any) -> None:
    async def go() -> None:
        before = connections(mysql_source)
        tasks = many.waiting(range(COUNT))
        await settled(tasks)
        assert woken(tasks) == set()
        assert connections(mysql_source) - before <= 2
        assert len(shared_pollers.shared_pollers().sessions) == 1
        many.change(3)
        assert (await asyncio.wait_for(tasks[3], 60)).payload == "news"
        await settled(tasks)
        assert woken(tasks) == {3}
        mysql_source.execute(
            f"ALTER TABLE `{many.made.schema}`.p5 ADD COLUMN w INT"
        )  # nobody can tell whom a statement concerns
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks.values())

    asyncio.run(go())


def test_what_was_written_before_somebody_waits_wakes_him(many: ManyPipelines) -> None:
    many.change(2)

    async def go() -> None:
        tasks = many.waiting(range(COUNT))
        await asyncio.wait_for(tasks[2], 60)
        await settled(tasks)
        assert woken(tasks) == {2}
        await ended(tasks)

    asyncio.run(go())


def executed_at(server: Any, position: Any) -> str:
    """What the server says that it had executed at this place of its log."""
    if not position.server_uuid.startswith("mariadb"):
        return str(server.execute("SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")
    return str(server.execute(f"SELECT BINLOG_GTID_POS('{position.file}', {position.offset})")[0][0])


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_the_position_moves_on_and_a_drain_goes_on_there(many: ManyPipelines, kind: str, monkeypatch: Any) -> None:
    """What the log holds for others is left out without a drain, and the place is one where a drain can begin."""
    monkeypatch.setattr("sluice.flows.capture.watch.STEP_OVER_S", 0.0)

    def place(number: int) -> Any:
        with many.runtime(number).state() as state:
            cursor = state.cursor()
            assert cursor is not None
            return Position.of(cursor.position)

    async def go() -> None:
        before = place(1)
        tasks = many.waiting([0, 1])
        await settled(tasks)
        for number in range(3):
            if number == 1:
                many.made.source.execute("FLUSH BINARY LOGS")
            many.change(7)
        end = many.made.source.execute("SHOW MASTER STATUS" if kind == "mariadb" else "SHOW BINARY LOG STATUS")[0][:2]
        async with asyncio.timeout(60):
            while (place(1).file, place(1).offset) < end:  # MariaDB goes on by itself: a checkpoint after a new file
                await asyncio.sleep(0.05)
        assert place(1).follows(before)
        assert executed_at(many.made.source, place(1)) == place(1).gtid_set
        assert woken(tasks) == set()
        many.change(1)
        await asyncio.wait_for(tasks[1], 60)
        await ended(tasks)

    asyncio.run(go())
    assert place(1).last_event is not None
    list(run(many.runtime(1), until_head=True))
    many.made.assert_equal("p1")
    with many.runtime(1).state() as state:
        assert [state.batches.require(number).changes for number in state.batches.numbers()] == [1]


def test_a_server_that_is_gone_reaches_everybody_who_waits(
    many: ManyPipelines, mysql_source: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(triggers, "_TROUBLE_FOR_S", 0.0)
    mysql_source.execute("CREATE USER IF NOT EXISTS 'gone'@'%' IDENTIFIED BY 'x'")
    mysql_source.execute("GRANT ALL ON *.* TO 'gone'@'%'")
    text = many.made.source.connection_json(user="gone", password="x")
    monkeypatch.setenv("AIRFLOW_CONN_CASE_SOURCE", text)

    async def go() -> list[str]:
        tasks = many.waiting(range(4))
        await settled(tasks)
        mysql_source.execute("DROP USER 'gone'@'%'")
        for number, *_ in [row for row in mysql_source.execute("SHOW PROCESSLIST") if row[1] == "gone"]:
            mysql_source.execute(f"KILL {number}")
        done = await asyncio.wait_for(asyncio.gather(*tasks.values()), 120)
        return [event.payload for event in done]

    assert asyncio.run(go()) == ["trouble"] * 4


def test_a_paused_pipeline_is_not_woken_until_it_may_work(many: ManyPipelines) -> None:
    async def go() -> None:
        tasks = many.waiting([0, 1])
        await settled(tasks)
        control.pause(many.runtime(0), by="a test")
        await settled(tasks)
        many.change(0)
        many.change(1)
        await asyncio.wait_for(tasks[1], 60)
        await settled(tasks)
        assert woken(tasks) == {1}
        control.resume(many.runtime(0), by="a test")
        await asyncio.wait_for(tasks[0], 60)

    asyncio.run(go())
