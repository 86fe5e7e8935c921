"""Kinds of pipeline on a real Airflow: stages by spark-submit, two targets of which one fails, a rule with a task of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.mysql import MySQLServer
from sluice.config.loading import load_pipeline
from sluice.flows.runtime import Runtime
from sluice.operations import control
from sluice.operations.check import apply_missing, check
from tests.support.pipelines.case import Case, case
from tests.support.readers.lakes import Lake
from tests.support.servers.airflows import SharedAirflow, TestAirflow, wait_until
from tests.support.servers.proxy import TcpProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SUBMITTED, APART, RULED, WAITS = "submitted", "apart", "ruled", "waits"

ENGINE = """\
rules:
  - {name: mark, path: mark.py, order: 1}
  - {name: slow, path: slow.py, order: 2, task: own}
  - {name: last, path: last.py, order: 3}
"""
RULE = """\
def transform(row, context):
    return {**row, "note": row["note"] + " NAME"}
"""


class World:
    """Source, two targets (the second behind ``link``), a pipeline file a test, one Airflow."""

    def __init__(self, made: Case, archive: MySQLServer, link: TcpProxy) -> None:
        self.made, self.archive, self.link = made, archive, link
        self.started: TestAirflow

    def write(
        self, name: str, *, mode: str, second: bool = False, rules: str = "", lake: bool = False, max_time: str = "3s"
    ) -> Path:
        text = self.made.yaml.replace("pipeline: case", f"pipeline: {name}").replace("mode: local", f"mode: {mode}")
        text = text.replace(f"/test/{self.made.schema}", f"/test/{name}").replace(
            f'"{self.made.schema}\\\\..*"', f'"{self.made.schema}\\\\.{name}"'
        )
        text = text.replace("spark: {mode: submit}", "window: 1\nspark: {mode: submit, connection: spark_default}")
        if second:
            text = text.rstrip() + "\n  - {name: archive, type: mysql, connection: case_archive}"
        if lake:
            text = text.rstrip() + "\n  - {name: lake, type: delta, connection: case_lake, commit_every: 15s}"
        path = self.made.folder / f"{name}.yaml"
        path.write_text(f"{text}\nretry: {{delay: 1s, max_delay: 3s}}\nrun: {{max_time: {max_time}}}\n{rules}")
        return path

    def runtime(self, name: str) -> Runtime:
        return Runtime.build(
            load_pipeline(self.made.folder / f"{name}.yaml"), resolver=self.made.resolver, runner="local"
        )

    def change(self, table: str, number: int) -> None:
        self.made.source.execute(
            f"INSERT INTO `{self.made.schema}`.{table} VALUES ({number}, 'n')",
            f"UPDATE `{self.made.schema}`.{table} SET note = CONCAT(note, '+')",
        )

    def rows(self, server: Any, table: str) -> Any:
        return server.execute(f"SELECT * FROM `{self.made.schema}`.{table} ORDER BY id")

    def same(self, server: Any, table: str) -> bool:
        return bool(self.rows(self.made.source, table) == self.rows(server, table))

    def acknowledged(self, name: str, target: str) -> int:
        with self.runtime(name).state() as state:
            process = state.acks.get(target)
        return int(process.batch) if process else 0

    def begins(self, name: str) -> None:
        def captured() -> bool:
            with self.runtime(name).state() as state:
                return state.cursor() is not None

        wait_until(captured, f"the first drain of {name}", 120)


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: Any,
    shared_airflow: SharedAirflow,
    mysql_source: MySQLServer,
    mysql_target: MySQLServer,
    zookeeper: Any,
) -> Iterator[World]:
    schema, folder = "airflow_pipelines", shared_airflow.folder
    with MySQLServer(tmp_path_factory.mktemp("archive") / "server", name="mysql-archive", server_id=105) as archive:
        for server in (mysql_source, mysql_target, archive):
            server.execute(
                f"CREATE DATABASE {schema}",
                *(
                    f"CREATE TABLE {schema}.{t} (id INT PRIMARY KEY, note VARCHAR(200))"
                    for t in (SUBMITTED, APART, RULED, WAITS)
                ),
            )
        with (
            case(folder, mysql_source, mysql_target, zookeeper, schema, session_s=20) as made,
            TcpProxy(archive.host, archive.port) as link,
        ):
            made.path.unlink()
            made.connections["spark_default"] = '{"conn_type": "spark", "host": "local[2]"}'
            made.connections["case_archive"] = archive.connection_json(schema=schema).replace(
                f'"port": {archive.port}', f'"port": {link.port}'
            )
            world = World(made, archive, link)
            world.write(SUBMITTED, mode="submit", rules="rules: engine.yaml\n")
            (made.folder / "rules/engine.yaml").write_text(ENGINE)
            for rule in ("mark", "slow", "last"):
                (made.folder / f"rules/{rule}.py").write_text(RULE.replace("NAME", rule))
            world.write(RULED, mode="local", rules="rules: engine.yaml\nwindow: 1\n")
            world.write(APART, mode="local", second=True, max_time="12s")  # several batches, however slow each is
            made.connections["case_lake"] = Lake(folder / "lake").connection_json()
            world.write(WAITS, mode="local", lake=True)
            apply_missing(world.runtime(WAITS), check(world.runtime(WAITS)).statements)
            synced = (SUBMITTED, APART, RULED, WAITS)
            dags = (*(f"sync__{name}" for name in synced), f"catchup__{APART}", f"catchup__{WAITS}")
            with shared_airflow.running(made.connections, *dags) as started:
                world.started = started
                yield world
    for server in (mysql_source, mysql_target):
        server.execute(f"DROP DATABASE {schema}")


def test_every_stage_by_spark_submit_and_a_pause_in_between(world: World) -> None:
    """Merge, a rule with a task of its own, load: each a job of spark-submit.

    Between the first two somebody pauses for a while.
    """
    dag, stages = f"sync__{SUBMITTED}", ("merge", "rule.slow", "load.copy")
    world.begins(SUBMITTED)
    before = world.acknowledged(SUBMITTED, "copy")
    world.made.source.execute(f"INSERT INTO `{world.made.schema}`.{SUBMITTED} VALUES (1, 'n')")
    run = ""

    def task(name: str) -> dict[str, Any]:
        [found] = [one for one in world.started.tasks(dag, run) if one["task_id"] == name]
        return found

    def merged() -> bool:
        nonlocal run
        done = [one for one in world.started.tasks(dag) if one["task_id"] == "merge" and one["state"] == "success"]
        run = done[0]["dag_run_id"] if done else ""
        return bool(done)

    wait_until(merged, "the merge through spark-submit", 400)
    control.pause(world.runtime(SUBMITTED), by="a test")
    wait_until(lambda: task("rule.slow")["state"] == "deferred", "the rule waiting for the end of the pause", 400)
    assert task("load.copy")["state"] is None
    assert world.rows(world.made.target, SUBMITTED) == []
    assert world.acknowledged(SUBMITTED, "copy") == before
    control.resume(world.runtime(SUBMITTED), by="a test")
    wait_until(lambda: world.acknowledged(SUBMITTED, "copy") == before + 1, "the acknowledgement, after the pause", 400)
    assert world.rows(world.made.target, SUBMITTED) == [(1, "n mark slow last")]
    for name, job in zip(stages, ("merge.py", "rule.py", "load.py"), strict=True):
        wait_until(lambda name=name: task(name)["state"] == "success", f"the end of {name}")
        assert (task(name)["operator_name"], task(name)["try_number"]) == ("SubmitOperator", 1)
        said = world.started.log(dag, run, name)
        assert "spark-submit" in said
        assert f"spark_jobs/{job}" in said
    with world.runtime(SUBMITTED).state() as state:
        assert state.batches.require(before + 1).claim.endswith(f":{dag}:{run}")


def test_batches_that_wait_for_a_lake_are_written_when_the_pipeline_stands_still(world: World) -> None:
    """Their runs have ended, and nothing comes after them: a run is started when their time has come."""
    lake = Lake(world.made.folder / "lake")

    def is_the_same() -> bool:
        rows = lake.rows(world.made.schema, WAITS).sort_by("id").to_pylist()
        return [tuple(row.values()) for row in rows] == list(world.rows(world.made.source, WAITS))

    world.begins(WAITS)
    for number in range(1, 4):
        world.change(WAITS, number)
        wait_until(lambda: world.same(world.made.target, WAITS), "the change at the target that does not wait")
    wait_until(is_the_same, "the batches that waited", 180)
    made = world.acknowledged(WAITS, "copy")
    wait_until(lambda: world.acknowledged(WAITS, "lake") == made, "their acknowledgement")

    def states() -> set[str]:
        return {task["state"] for task in world.started.tasks(f"sync__{WAITS}") if task["task_id"] == "load.lake"}

    wait_until(lambda: "success" in states(), "the end of tasks that waited and of one that wrote")
    assert not {"failed", "skipped"} & states()


def test_a_target_that_fails_in_mid_loop_and_a_rule_that_starts_failing(world: World) -> None:
    """The loop goes on without the target, and ends at the rule, whose task is red until its file is right.

    Every run ends green.
    """
    dag, schema = f"sync__{RULED}", world.made.schema
    world.begins(APART)
    world.begins(RULED)
    before = world.acknowledged(APART, "copy")
    number = 100

    def loops(name: str, target: Any, until: int) -> None:
        nonlocal number
        while world.acknowledged(name, "copy") < until:
            number += 1
            world.made.source.execute(f"INSERT INTO `{schema}`.{name} VALUES ({number}, 'n')")

    loops(APART, world.made.target, before + 3)
    world.link.refusing = True
    world.link.cut()
    loops(APART, world.made.target, before + 12)
    wait_until(lambda: world.same(world.made.target, APART), "all of it at the target that works")
    assert not world.same(world.archive, APART)
    world.link.heal()
    wait_until(lambda: world.same(world.archive, APART), "all of it at the target that was quarantined", 120)
    runs = world.started.runs(f"sync__{APART}")
    with world.runtime(APART).state() as state:
        carried = [len(state.batches.claimed_all(f"airflow:east:sync__{APART}:{run['dag_run_id']}")) for run in runs]
    assert max(carried) > 1
    assert not [run for run in runs if run["state"] == "failed"]

    rule, right = world.made.folder / "rules/slow.py", RULE.replace("NAME", "slow")
    first = world.acknowledged(RULED, "copy")
    loops(RULED, world.made.target, first + 4)
    rule.write_text(right.replace("row[", "rwo["))
    world.made.source.execute(f"INSERT INTO `{schema}`.{RULED} VALUES (100000, 'last')")

    def states(task_id: str) -> list[str]:
        return [task["state"] for task in world.started.tasks(dag) if task["task_id"] == task_id]

    wait_until(lambda: "up_for_retry" in states("rule.slow"), "the rule's task that fails")
    assert not {"failed", "up_for_retry"}.intersection(states("drain") + states("merge"))
    rule.write_text(right)

    def delivered() -> bool:
        theirs = world.made.target.execute(f"SELECT id FROM `{schema}`.{RULED} ORDER BY id")
        return bool(theirs == world.made.source.execute(f"SELECT id FROM `{schema}`.{RULED} ORDER BY id"))

    wait_until(delivered, "everything after the rule is right")
    wait_until(
        lambda: not world.started.runs(dag, state="failed") and "up_for_retry" not in states("rule.slow"),
        "its run's end",
    )


def test_a_run_that_ended_is_cleared_while_the_only_place_waits(world: World) -> None:
    """The source is quiet and the window is one: the run that waits for changes gives its place away, and has it
    back.
    """
    dag = f"sync__{RULED}"
    world.begins(RULED)

    def runs(state: str) -> list[str]:
        return [run["dag_run_id"] for run in world.started.runs(dag, state=state)]

    wait_until(lambda: runs("success"), "a run that ended")
    wait_until(lambda: any(task["state"] == "deferred" for task in world.started.tasks(dag)), "the drain's wait")
    ended, waiting = runs("success")[0], runs("running")
    body = {"dry_run": False, "dag_run_id": ended, "only_failed": False}
    wait_until(lambda: world.started.api.call("POST", f"/dags/{dag}/clearTaskInstances", body), "the press of Clear")
    wait_until(lambda: ended in runs("success"), "the cleared run's end")
    wait_until(lambda: runs("running") == waiting, "the place of the run that waits")


def test_an_idle_pipeline_opens_no_runs(world: World, shared_airflow: SharedAirflow) -> None:
    """The window is open and waits in the triggerer; it does so for days, however often the log moves for others."""
    dag, looks = f"sync__{APART}", f"airflow.sluice.{APART}.up"
    world.begins(APART)

    def waits() -> bool:
        """One run is open; its wait is deferred, and nothing is at work."""
        running = [run["dag_run_id"] for run in world.started.runs(dag, state="running")]
        states = {task["state"] for run in running for task in world.started.tasks(dag, run)}
        full = len(running) == 1
        return full and "deferred" in states and not states & {"running", "queued", "scheduled"}

    wait_until(waits, "the drain's wait", 180)
    before, seen, number = {run["dag_run_id"] for run in world.started.runs(dag)}, shared_airflow.gauges.count[looks], 0
    while shared_airflow.gauges.count[looks] < seen + 2 or number < 40:
        number += 1
        other = f"other_{number % 2}"
        world.made.source.execute(f"CREATE DATABASE IF NOT EXISTS {other}", f"DROP DATABASE {other}")
    after = {run["dag_run_id"]: run["state"] for run in world.started.runs(dag)}
    assert set(after) == before
    assert sorted(after.values()).count("running") == 1
