"""Loops whose every batch is merged, ruled and loaded by Spark's workers: what is killed there loses and doubles
nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from devstack.spark import SparkConnectServer
from sluice.flows.job import MicrobatchOutcome, run_microbatches
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.stage_sums import DeliveredBatch
from sluice.spark import connect as connecting
from sluice.spark.connect import ConnectRunner
from tests.support.pipelines.case import REPOSITORY, Case, case
from tests.support.running.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ROWS = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkConnectServer]:
    """A server of its own, to be killed."""
    with SparkConnectServer(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture
def made(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, server: SparkConnectServer
) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    for one in (mysql_source, mysql_target):
        one.execute(
            f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))",
            f"CREATE TABLE `{schema}`.journal (what VARCHAR(40) NOT NULL)",  # without a key: a repeat would show
        )
    extra = "rules: engine.yaml\nrun: {max_time: 10m}\n"  # a slow machine ends no loop
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra=extra, session_s=6) as one:
        (one.folder / "rules/engine.yaml").write_text("rules: [{name: up, path: up.py, match: {table: t}}]\n")
        (one.folder / "rules/up.py").write_text("def transform(row, context):\n    return row\n")
        one.yaml = one.yaml.replace("spark: {mode: local}", "spark: {mode: connect, connection: case_spark}")
        one.yaml = one.yaml.replace("max_wait: 200ms", "max_changes: 3")
        one.path.write_text(one.yaml)
        one.connections["case_spark"] = server.connection_json()
        one.run_until_head("connect")
        yield one


def write(made: Case, first: int, rows: int = ROWS) -> None:
    for number in range(first, first + rows):
        made.source.execute(
            f"INSERT INTO `{made.schema}`.t VALUES ({number}, 'n')",
            f"INSERT INTO `{made.schema}`.journal VALUES ('n{number}'), ('n{number}')",
        )


def carry(made: Case, claim: str, at: int = 0, do: Callable[[], object] = lambda: None) -> MicrobatchOutcome:
    """Run one loop; ``do`` happens when its batch number ``at`` is delivered."""
    told: list[DeliveredBatch] = []

    def tell(carried: DeliveredBatch) -> None:
        told.append(carried)
        if len(told) == at:
            do()

    return run_microbatches(made.runtime("connect"), claim=claim, idle_wait_s=1, on_delivered=tell)


def assert_delivered(made: Case) -> None:
    query = f"SELECT what, COUNT(*) FROM `{made.schema}`.journal GROUP BY what ORDER BY what"
    assert made.source.execute(query) == made.target.execute(query)
    made.assert_equal("t")
    with made.runtime().state() as state:
        assert state.undelivered() == []


def workers(server: SparkConnectServer) -> list[psutil.Process]:
    """The Python workers, without the daemons that fork them."""
    assert server.handle is not None
    family = psutil.Process(server.handle.pid).children(recursive=True)
    daemons: dict[int, psutil.Process] = {}
    for one in family:
        with suppress(psutil.Error):  # it ended just now
            if "pyspark.daemon" in " ".join(one.cmdline()):
                daemons[one.pid] = one
    found = []
    for one in daemons.values():
        with suppress(psutil.Error):
            if one.ppid() in daemons:
                found.append(one)
    return found


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.kill()


def test_every_batch_is_two_jobs(made: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[str] = []
    own = ConnectRunner.run

    def counted(self: ConnectRunner, *args: Any, **named: Any) -> Any:
        jobs.append(named["description"].split(": ", 1)[1].split(" ")[0])
        return own(self, *args, **named)

    monkeypatch.setattr(ConnectRunner, "run", counted)
    write(made, 1, 4)
    outcome = carry(made, "test:a:1")
    assert outcome.ended_by == "idle"
    assert sorted(jobs) == ["load"] * len(outcome.delivered) + ["merge"] * len(outcome.delivered)
    assert_delivered(made)


def test_a_session_that_the_server_closed_does_not_end_a_loop(made: Case) -> None:
    runner = made.runtime("connect").runner
    assert isinstance(runner, ConnectRunner)

    def close() -> None:
        with connecting._clients.of(runner) as client:
            client.session.client.release_session()

    write(made, 1)
    outcome = carry(made, "test:a:1", 3, close)
    assert (outcome.ended_by, len(outcome.delivered)) == ("idle", ROWS)
    assert_delivered(made)


def test_a_worker_that_is_killed_in_mid_loop(made: Case, server: SparkConnectServer) -> None:
    """The loop goes on, or it ends and the tasks of its run do the batch that was under way."""
    write(made, 1)
    outcome = carry(made, "test:a:1", 3, lambda: kill(workers(server)))
    finish(made, outcome)
    made.run_until_head("connect")
    assert_delivered(made)


def test_a_server_that_is_killed_in_mid_loop(made: Case, server: SparkConnectServer) -> None:
    write(made, 1)
    outcome = carry(made, "test:a:1", 3, server.kill)
    assert "Spark" in outcome.ended_by
    server.start()
    finish(made, outcome)
    made.run_until_head("connect")
    assert_delivered(made)


def finish(made: Case, outcome: MicrobatchOutcome) -> None:
    """What the run's own tasks do."""
    assert outcome.last.batch is not None
    load(made.runtime("connect"), "copy", outcome.last.batch)  # merges what is not merged
    ack(made.runtime("connect"), "copy", outcome.last.batch)


@pytest.mark.skipif(
    not os.environ.get("SLUICE_FAULTS"),
    reason="with SLUICE_FAULTS only: it takes more than a minute",
)
def test_the_job_of_a_killed_task_does_not_load_after_its_retry(made: Case, server: SparkConnectServer) -> None:
    """kill -9 of the task while a worker is in the target's transaction; the worker sleeps until the retry has
    delivered everything.
    """
    write(made, 1, 2)
    assert carry(made, "test:a:1").ended_by == "idle"
    blocker = made.target.connect(made.schema)
    cursor = blocker.cursor()
    cursor.execute("BEGIN")
    cursor.execute("SELECT * FROM t WHERE id = 2 FOR UPDATE")
    made.source.execute(f"UPDATE `{made.schema}`.t SET note = 'of the killed one' WHERE id = 2")
    made.source.execute(f"INSERT INTO `{made.schema}`.journal VALUES ('once')")
    environment = {**made.environment, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "include"), str(REPOSITORY)])}
    said = made.folder / "task.log"
    with said.open("wb") as log:
        task = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.loop_process", str(made.path), "test:a:2"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    waiting = """SELECT p.id, SUBSTRING_INDEX(p.host, ':', -1) FROM performance_schema.data_lock_waits w
                 JOIN performance_schema.threads t ON t.thread_id = w.requesting_thread_id
                 JOIN information_schema.processlist p ON p.id = t.processlist_id"""  # innodb_trx is a copy, which looking at it keeps
    stopped: list[psutil.Process] = []
    try:
        wait_until(lambda: made.target.execute(waiting) or task.poll() is not None, "a worker that waits for the row")
        assert task.poll() is None, said.read_text()
        [(number, port)] = made.target.execute(waiting)
        stopped = [one for one in workers(server) if int(port) in {c.laddr.port for c in one.net_connections()}]
        assert len(stopped) == 1
        stopped[0].send_signal(signal.SIGSTOP)
        task.kill()
        task.wait()
        blocker.rollback()
        made.target.execute(f"KILL {number}")  # as the server does with the session of a process that sleeps for long
        made.source.execute(f"UPDATE `{made.schema}`.t SET note = 'of the retry' WHERE id = 2")
        with made.runtime().state() as state:
            wait_until(lambda: not state.owner() and not state.owner("copy"), "end of the killed one's session")
        made.run_until_head("connect")
        assert_delivered(made)
        before = made.target.execute(f"SELECT * FROM `{made.schema}`._sluice_ack ORDER BY scope")
    finally:
        for worker in stopped:
            worker.send_signal(signal.SIGCONT)
        task.kill()
        task.wait()
        blocker.close()
    made.source.execute(f"INSERT INTO `{made.schema}`.t VALUES (900, 'after it')")
    made.run_until_head("connect")
    assert_delivered(made)
    after = made.target.execute(f"SELECT * FROM `{made.schema}`._sluice_ack ORDER BY scope")
    assert len(after) == len(before)
