"""A backlog, a hanging target and pipelines that change now and then, on an Airflow with two workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.runtime import Runtime
from tests.support.pipelines.many_pipelines import ManyPipelines, many_pipelines
from tests.support.servers.airflows import TestAirflow, airflow, wait_until
from tests.support.servers.proxy import TcpProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

WORKERS, BACKLOG, HANGS, SLOW = 2, 0, 1, (2, 3, 4)


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any
) -> Iterator[tuple[ManyPipelines, TestAirflow, TcpProxy]]:
    folder: Path = tmp_path_factory.mktemp("fair")
    schema = "fairness"
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE DATABASE {schema}")
    extra = "retry: {delay: 1s, max_delay: 3s}\nrun: {max_time: 3s, grace: 12s}\n"
    with (
        TcpProxy(mysql_target.host, mysql_target.port) as link,
        many_pipelines(folder / "pipelines", mysql_source, mysql_target, zookeeper, schema, 5, extra) as many,
    ):
        slow = many.paths[BACKLOG].read_text().replace("max_wait: 200ms", "max_wait: 100ms, max_changes: 50")
        many.paths[BACKLOG].write_text(slow)
        hangs = many.paths[HANGS].read_text().replace("connection: case_target", "connection: case_link")
        many.paths[HANGS].write_text(hangs)
        many.made.connections["case_link"] = mysql_target.connection_json(schema=schema).replace(
            f'"port": {mysql_target.port}', f'"port": {link.port}'
        )
        settings = {"SLUICE_INSTALLATION": "fair", "AIRFLOW__CORE__PARALLELISM": str(WORKERS)}
        with airflow(folder / "airflow", folder / "pipelines", many.made.connections, settings) as started:
            for path in many.paths:
                started.api.wait_for_dag(f"sync__{path.stem}", 300)
            wait_until(lambda: all(begun(many.runtime(n)) for n in range(5)), "the first drain of each", 300)
            yield many, started, link
    for server in (mysql_source, mysql_target):
        server.execute(f"DROP DATABASE {schema}")


def begun(runtime: Runtime) -> bool:
    with runtime.state() as state:
        return state.cursor() is not None


def rows(many: ManyPipelines, number: int) -> int:
    return int(many.made.target.execute(f"SELECT COUNT(*) FROM `{many.made.schema}`.p{number}")[0][0])


def test_slow_pipelines_go_on_beside_a_backlog_and_a_target_that_hangs(
    world: tuple[ManyPipelines, TestAirflow, TcpProxy],
) -> None:
    many, started, link = world
    schema = many.made.schema
    many.made.source.execute(
        f"INSERT INTO `{schema}`.p{BACKLOG} (v) VALUES " + ", ".join(["('x')"] * 1000),
        *(f"INSERT INTO `{schema}`.p{BACKLOG} (v) VALUES ('y')" for _ in range(1500)),
    )
    link.stall()
    many.change(HANGS)
    for _ in range(3):  # each has its turn while the backlog is worked off, and while a delivery hangs
        before = {number: rows(many, number) for number in SLOW}
        for number in SLOW:
            many.change(number)
        wait_until(
            lambda before=before: all(rows(many, number) == before[number] + 1 for number in SLOW),
            "the slow pipelines' rows",
            300,
        )
    dag = f"sync__p{HANGS}"

    def tried_again() -> bool:
        """An attempt to reach the target was ended, by the deadline of its connection or by the time limit of its
        task.
        """
        return any(task["try_number"] > 1 for task in started.tasks(dag) if task["task_id"] in {"drain", "load.copy"})

    wait_until(tried_again, "the end of the attempt that hangs", 300)
    link.flow()
    link.heal()
    link.cut()
    wait_until(lambda: rows(many, HANGS) == 1, "the row whose delivery hung", 300)
    wait_until(lambda: rows(many, BACKLOG) == 2500, "the backlog", 600)
    many.made.assert_equal(*(f"p{number}" for number in range(5)))
