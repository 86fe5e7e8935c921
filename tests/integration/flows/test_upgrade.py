"""A pipeline of an earlier version continues after the upgrade: ZooKeeper, segments, target and Airflow's database stay
as they are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.dump.progress import one_view
from sluice.operations.deadletters.replay import replay
from sluice.operations.deadletters.store import letters
from sluice.operations.status import status
from sluice.sources.mysql.reader.warm_up import compile_kernels
from tests.support.pipelines.case import REPOSITORY, Case, case
from tests.support.running.waiting import waits_for_a_row
from tests.support.servers.airflows import airflow, wait_until

pytestmark = pytest.mark.slow

EARLIER = {"1dbb49b": 3, "87e6725": 1}
"""The last commit before the rooms moved, and the last one before stored values became neutral; how many runs its
Airflow ends after the upgrade: a batch was a run, later one run carries all of them."""

DAGS = """
import importlib, json, pkgutil, sys
sys.path.insert(0, sys.argv[1])
from airflow.sdk import DAG
dags = {}
for name in ("sync", "backfill", "control", "retention"):
    for value in vars(importlib.import_module("dags." + name)).values():
        if isinstance(value, DAG):
            dags[value.dag_id] = sorted(value.task_ids)
import sluice.orchestration
paths = set()
for module in pkgutil.walk_packages(sluice.orchestration.__path__, "sluice.orchestration."):
    for value in vars(importlib.import_module(module.name)).values():
        kinds = {base.__name__ for base in getattr(value, "__mro__", ())} & {"BaseTrigger", "RetryPolicy", "BaseTimetable", "Timetable"}
        if kinds and value.__module__ == module.name:
            paths.add(value.__module__ + "." + value.__qualname__)
print(json.dumps({"dags": dags, "classes": sorted(paths)}))
"""


@pytest.fixture(scope="module", params=EARLIER)
def earlier(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The code of the earlier version, in a folder of its own."""
    archive = subprocess.run(
        ["git", "archive", request.param, "include", "dags", "plugins"],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        pytest.skip(f"the history of this clone does not have commit {request.param}")
    folder = tmp_path_factory.mktemp(request.param)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


class Earlier:
    """The command line of the earlier version, for a pipeline."""

    def __init__(self, made: Case, code: Path) -> None:
        self.made = made
        self.environment = {**made.environment, "PYTHONPATH": str(code / "include")}

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.made.folder / "earlier.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sluice.cli", *arguments],
                env=self.environment,
                cwd=self.made.folder,
                stdout=log,
                stderr=log,
            )

    def run(self, *arguments: str) -> None:
        process = self.start(*arguments)
        assert process.wait(600) == 0, (self.made.folder / "earlier.log").read_text()[-3000:]


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    for server, size in ((mysql_source, 40), (mysql_target, 5)):
        server.execute(
            "CREATE TABLE a (id INT PRIMARY KEY, name VARCHAR(40), n DECIMAL(12,2))",
            "CREATE TABLE b (id INT PRIMARY KEY, note VARCHAR(40))",
            "CREATE TABLE keyless (n INT, name VARCHAR(40))",
            f"CREATE TABLE narrow (id INT PRIMARY KEY, name VARCHAR({size}))",
            database=schema,
        )
    with case(
        tmp_path, mysql_source, mysql_target, zookeeper, schema,
        extra="dump: {chunk_rows: 50}\nwindow: 4", target_extra="    on_error: dead_letter",
    ) as one:  # fmt: skip
        yield one


def until(what: Any, process: subprocess.Popen[bytes]) -> None:
    """Wait for what must come while ``process`` lives."""
    while not what():
        assert process.poll() is None, "the earlier version ended"
        time.sleep(0.05)


def test_a_pipeline_killed_in_the_middle_of_a_load_continues(made: Case, earlier: Path) -> None:
    """With a dead letter, a dump half done, a batch half loaded and batches behind it, all made by the earlier
    version.
    """
    compile_kernels()
    before = Earlier(made, earlier)
    before.run("run", "case", "--until-head")
    many = ",".join(f"({i}, 'name {i}', {i}.25)" for i in range(400))
    made.source.execute(
        f"INSERT INTO a VALUES {many}",
        "INSERT INTO b VALUES (1, 'one'), (2, 'two')",
        "INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (2, 'y')",
        "INSERT INTO narrow VALUES (1, 'short'), (2, 'much too long')",
        "ALTER TABLE a ADD COLUMN more INT DEFAULT 7",
        "UPDATE a SET more = id WHERE id < 10",
        database=made.schema,
    )
    before.run("run", "case", "--until-head")
    before.run("dump", "start", "case", "--table", f"{made.schema}.a", "--detach")
    with closing(made.target.connect(made.schema)) as holds:
        with holds.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT * FROM b FOR UPDATE")
        made.source.execute(
            "UPDATE a SET name = CONCAT(name, '!') WHERE id < 300",
            "DELETE FROM keyless WHERE n = 1 LIMIT 1",
            "UPDATE b SET note = 'changed' WHERE id = 1",
            "DELETE FROM b WHERE id = 2",
            database=made.schema,
        )
        running = before.start("run", "case")
        until(lambda: waits_for_a_row(made.target), running)
        reading = before.start("dump", "work", "case")
        until(lambda: any(made.folder.glob("store/**/dumps/**/*.parquet")) or reading.poll() is not None, running)
        made.source.execute("INSERT INTO a (id, name, n) VALUES (1000, 'later', 1)", database=made.schema)
        for process in (reading, running):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        holds.rollback()

    assert status(made.runtime()).to_json()["pipeline"] == "case"
    made.target.execute("ALTER TABLE narrow MODIFY name VARCHAR(40)", database=made.schema)
    made.run_until_head()
    (dump,) = [one["id"] for one in json.loads(made.cli("dump", "list", "case", "--json").stdout)]
    stop = threading.Event()

    def deliver() -> None:
        while not stop.is_set():
            made.run_until_head()

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        done = made.cli("dump", "work", "case")
        assert done.returncode == 0, done.stderr
    finally:
        stop.set()
        thread.join()
    made.run_until_head()
    assert one_view(made.runtime(), dump).state == "done"
    assert [one.outcome for one in replay(made.runtime(), [], by="test")] == ["replayed"]
    assert letters(made.runtime()) == []
    made.assert_equal("a", "b", "keyless", "narrow")


@pytest.mark.timeout(900)
def test_an_airflow_with_open_runs_continues_with_the_new_code(made: Case, earlier: Path, tmp_path: Path) -> None:
    """The same home, database and ZooKeeper; stopped while one load waits for a lock, a batch waits for it, and a drain
    is deferred.
    """
    made.path.write_text(f"{made.yaml}\nretry: {{delay: 1s, max_delay: 3s}}\n")
    code, dag = tmp_path / "code", "sync__case"
    code.symlink_to(earlier)
    settings = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(code / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(code / "plugins"),
        "PYTHONPATH": os.pathsep.join([str(code / "include"), str(code)]),
    }

    def same() -> bool:
        both = [
            server.execute("SELECT * FROM a ORDER BY id", database=made.schema) for server in (made.source, made.target)
        ]
        return bool(both[0] == both[1])

    with airflow(tmp_path / "airflow", made.folder, made.connections, settings) as started:
        started.api.wait_for_dag(dag)
        wait_until(lambda: status(made.runtime()).captured is not None, "the first drain of the earlier version", 240)
        made.source.execute("INSERT INTO a VALUES (1, 'one', 1), (2, 'two', 2)", database=made.schema)
        wait_until(same, "a batch of the earlier version", 240)
        with closing(made.target.connect(made.schema)) as holds:
            with holds.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT * FROM a FOR UPDATE")
            made.source.execute("UPDATE a SET name = 'changed' WHERE id = 1", database=made.schema)
            wait_until(lambda: waits_for_a_row(made.target), "the load that waits for the lock")
            made.source.execute("DELETE FROM a WHERE id = 2", database=made.schema)
            wait_until(lambda: len(status(made.runtime()).in_flight) == 2, "the batch after it")
            wait_until(lambda: any(task["state"] == "deferred" for task in started.tasks(dag)), "a drain that waits")
            open_runs = {run["dag_run_id"] for run in started.runs(dag, state="running")}

            def upgrade() -> None:
                holds.rollback()
                code.unlink()
                code.symlink_to(REPOSITORY)

            started.restart(upgrade)
        made.source.execute("INSERT INTO a VALUES (3, 'later', 3)", database=made.schema)
        wait_until(same, "the batches of both versions", 240)
        wait_until(lambda: not status(made.runtime()).in_flight, "the acknowledgements")
        assert len(open_runs) >= 3
        [had_batches] = [runs for commit, runs in EARLIER.items() if earlier.name.startswith(commit)]

        def ended() -> bool:
            """A run ends after its batches: it first looks whether more changes come."""
            states = {run["dag_run_id"]: run["state"] for run in started.runs(dag)}
            assert "failed" not in states.values()
            return sum(states[run] == "success" for run in open_runs) >= had_batches

        wait_until(ended, "the end of the runs that were open")


def test_dags_tasks_and_triggers_of_the_earlier_version_are_found(tmp_path: Path, earlier: Path) -> None:
    """Runs that are open in Airflow's database find their tasks; triggers, timetables and retry policies their
    classes.
    """
    (tmp_path / "case.yaml").write_text(
        "version: 1\npipeline: case\nsource: {connection: a}\ntargets: [{name: copy, type: mysql, connection: b}]\n"
    )
    base = {**os.environ, "SLUICE_PIPELINES": str(tmp_path), "AIRFLOW_HOME": str(tmp_path / "airflow")}
    found = {}
    for folder in (earlier, REPOSITORY):
        environment = {**base, "PYTHONPATH": os.pathsep.join([str(folder / "include"), str(folder)])}
        done = subprocess.run(
            [sys.executable, "-c", DAGS, str(folder)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found[folder] = json.loads(done.stdout.splitlines()[-1])
    before, now = found[earlier], found[REPOSITORY]
    assert {"sync__case", "backfill__case"} <= set(before["dags"])
    for dag, tasks in before["dags"].items():
        assert set(tasks) <= set(now["dags"][dag])
    check = (
        "import importlib, sys\nfor p in sys.argv[1:]:\n m, _, n = p.rpartition('.'); "
        "getattr(importlib.import_module(m), n)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check, *before["classes"]],
        env={**base, "PYTHONPATH": str(REPOSITORY / "include")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert before["classes"]
    assert done.returncode == 0, done.stderr[-3000:]
