"""Work units over Spark Connect: results in order, errors as themselves, no server said soon."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from devstack.spark import SparkConnectServer
from sluice.config.connections import Endpoint, parse_connection
from sluice.errors import ConfigError, Fenced, RuleError, SparkUnavailable
from sluice.operations.doctor import answers, ask_connections
from sluice.spark import connect as connecting
from sluice.spark.connect import ConnectRunner
from sluice.spark.frames import FrameTable
from tests.support.pipelines.small_units import small_units
from tests.support.running.spark_functions import faulty, killed, nap, picky, square
from tests.support.running.waiting import wait_until
from tests.support.tables.batches import Delivery, checksum
from tests.support.tables.people import DDL, insert, people, rows, update


@pytest.fixture(scope="module")
def runner(spark_connect: Any) -> ConnectRunner:
    return ConnectRunner(parse_connection("spark", spark_connect.connection_json()))


def test_results_come_in_order_from_other_processes(runner: ConnectRunner) -> None:
    results = runner.run(square, list(range(20)), parallelism=4, description="squares")
    assert [value for value, _ in results] == [n * n for n in range(20)]
    assert os.getpid() not in {pid for _, pid in results}


def test_an_error_in_a_unit_comes_back_as_itself(runner: ConnectRunner) -> None:
    with pytest.raises(RuleError) as caught:
        runner.run(picky, list(range(6)), parallelism=2, description="picky")
    error = caught.value
    assert (error.message, error.where, error.hint) == ("rule 'x' failed", "x.py:7", "mend it")


def test_a_fault_in_the_program_shows_its_own_trace(runner: ConnectRunner) -> None:
    with pytest.raises(Exception, match="ZeroDivisionError") as caught:
        runner.run(faulty, [1], description="faulty")
    assert "org.apache.spark" not in str(caught.value)


def test_code_that_a_worker_lacks_is_named(runner: ConnectRunner) -> None:
    def only_here() -> None: ...

    only_here.__module__ = "no_such_module"
    only_here.__qualname__ = "only_here"
    module = type(os)("no_such_module")
    module.only_here = only_here  # type: ignore[attr-defined]
    sys.modules["no_such_module"] = module
    try:
        with pytest.raises(Exception, match="No module named 'no_such_module'"):
            runner.run(only_here, [1], description="elsewhere")
    finally:
        del sys.modules["no_such_module"]


def _one(number: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([pa.array([f"row {number}"])], names=["text"])


def _with_a_function(frame: Any) -> Any:
    from pyspark.sql import functions as f

    return frame.withColumn("text", f.udf(lambda text: text + "!", "string")("text"))


def _report(batches: Iterator[pa.RecordBatch]) -> bytes:
    return ", ".join(text for batch in batches for text in batch.column(0).to_pylist()).encode()


def test_a_frame_behind_another_job_finds_its_session(runner: ConnectRunner) -> None:
    """The job before has closed the session that it left behind in this thread."""
    table = FrameTable(pa.schema([("text", pa.string())]), 1, _one, _with_a_function, _report, sys.modules[__name__])
    for _ in range(2):
        runner.run(square, [1], description="squares")
        assert runner.frames([table]) == [b"row 0!"]


def test_no_units(runner: ConnectRunner) -> None:
    assert runner.run(square, [], description="nothing") == []


def test_no_server_is_said_soon() -> None:
    nowhere = ConnectRunner(Endpoint("spark", "spark_connect", "127.0.0.1", 1))
    with pytest.raises(SparkUnavailable, match="no Spark Connect server answers"):
        nowhere.run(square, [1])


def test_a_batch_goes_through(
    runner: ConnectRunner, tmp_path: Path, mysql_target: Any, fresh_schema: Any, monkeypatch: Any
) -> None:
    small_units(monkeypatch, 500)
    db = fresh_schema(mysql_target)
    mysql_target.execute(DDL.format(db, "people"), f"CREATE TABLE {db}.expected LIKE {db}.people")
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}}, runner=runner)
    schema, n = people(db), 2000
    pipe.deliver({schema: [insert(i, f"u{i}") for i in range(n)]})
    changeset = pipe.deliver({
        schema: [update(insert(i, f"u{i}"), email=f"u{(i + 1) % n}", points=i) for i in range(n)]
    })
    assert len(changeset.manifest.tables[0].files) > 2
    values = ", ".join(f"({i}, 'u{(i + 1) % n}', {i})" for i in range(n))
    mysql_target.execute(f"INSERT INTO {db}.expected VALUES {values}")
    assert checksum(mysql_target, f"{db}.people") == checksum(mysql_target, f"{db}.expected")


def test_rules_and_fences_fail_as_themselves_in_workers(
    runner: ConnectRunner, tmp_path: Path, mysql_target: Any, fresh_schema: Any
) -> None:
    db = fresh_schema(mysql_target)
    mysql_target.execute(DDL.format(db, "people"))
    (tmp_path / "rule.py").write_text("def transform(row, context):\n    return row['nope']\n")
    (tmp_path / "engine.yaml").write_text("rules: [{name: mine, path: rule.py}]\n")
    options = {"target": {"options": {"ack_schema": db}}, "runner": runner}
    pipe = Delivery(tmp_path, mysql_target, rules=tmp_path / "engine.yaml", **options)
    manifest = pipe.write({people(db): [insert(1, "a")]})
    with pytest.raises(RuleError, match=f"'mine' failed on insert of {db}.people id=1: KeyError: 'nope'") as caught:
        pipe.merge(manifest)
    assert str(caught.value.where).endswith("rule.py:2")
    (tmp_path / "rule.py").write_text(
        "def transform(row, context):\n    return row\n"
    )  # mended: the same batch goes on
    changeset = pipe.merge(manifest)
    pipe.begin(1)
    [phase] = pipe.plan(changeset)
    pipe.begin(2)
    from sluice.flows.load.units import run_load_unit

    with pytest.raises(Fenced, match="epoch 2"):
        runner.run(run_load_unit, phase)
    pipe.epoch = 3
    pipe.load(changeset)
    assert rows(mysql_target, db) == [(1, "a", None)]


def test_the_password_is_in_no_repr(tmp_path: Path, mysql_target: Any, fresh_schema: Any) -> None:
    db = fresh_schema(mysql_target)
    mysql_target.execute(DDL.format(db, "people"))
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    pipe.begin(1)
    [[unit]] = pipe.plan(pipe.merge(pipe.write({people(db): [insert(1, "a")]})))
    assert "LoadUnit" in repr(unit)
    assert "password=" not in repr(unit)


def test_a_job_is_interrupted_from_another_thread(runner: ConnectRunner, tmp_path: Path) -> None:
    """As a pause does: the server's tasks end, and the runner is as good as new."""
    failures: list[BaseException] = []
    started = tmp_path / "started"

    def work() -> None:
        try:
            runner.run(nap, [str(started)] * 2, parallelism=2, description="naps")
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(started.exists, "a task at work")
    runner.cancel()
    thread.join(timeout=150)
    assert not thread.is_alive()
    assert len(failures) == 1
    assert [value for value, _ in runner.run(square, [3], description="squares")] == [9]


def test_all_jobs_of_a_process_share_one_client(runner: ConnectRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads at a time, and runners of other runtimes, too."""
    runner.run(square, [1], description="the first one")
    monkeypatch.setattr(connecting.socket, "create_connection", lambda *a, **k: pytest.fail("another connection"))
    monkeypatch.setattr(connecting, "SparkSession", lambda *a, **k: pytest.fail("another client"))
    other = ConnectRunner(runner._endpoint)
    results: dict[int, list[int]] = {}

    def work(number: int, mine: ConnectRunner) -> None:
        for _ in range(5):
            results.setdefault(number, []).extend(v for v, _ in mine.run(square, [number, number + 1]))

    threads = [threading.Thread(target=work, args=(10 * n, (runner, other)[n % 2])) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [n * n, (n + 1) ** 2] * 5 for n in (10, 20, 30)}


def test_a_session_that_the_server_closed_is_followed_by_the_next(runner: ConnectRunner) -> None:
    with connecting._clients.of(runner) as client:
        before = client.generation
        client.session.client.release_session()
    assert [value for value, _ in runner.run(square, [3], description="squares")] == [9]
    with connecting._clients.of(runner) as client:
        assert client.generation > before


def test_a_job_fails_when_its_worker_is_killed_and_the_next_one_runs(runner: ConnectRunner) -> None:
    with pytest.raises(SparkUnavailable, match="did not finish"):
        runner.run(killed, [1], description="squares")
    assert [value for value, _ in runner.run(square, [3], description="squares")] == [9]


def test_a_server_that_was_restarted_is_used_again(tmp_path: Path) -> None:
    """A client that was open meanwhile finds another server there, which does not know its session."""
    with SparkConnectServer(tmp_path / "spark") as server:
        mine = ConnectRunner(parse_connection("spark", server.connection_json()))
        assert mine.run(square, [3], description="squares")[0][0] == 9
        server.kill()
        with pytest.raises(SparkUnavailable):
            mine.run(square, [4], description="squares")
        with pytest.raises(SparkUnavailable, match="no Spark Connect server answers"):
            mine.run(square, [4], description="squares")
        server.start()
        assert mine.run(square, [5], description="squares")[0][0] == 25
        server.kill()
        server.start()
        assert mine.run(square, [6], description="squares")[0][0] == 36


def test_a_server_that_caches_plans_is_refused_before_it_reads_stale_files(tmp_path: Path) -> None:
    conf = {"spark.connect.session.planCache.enabled": "true"}
    with SparkConnectServer(tmp_path / "caching", "caching", conf=conf) as server:
        endpoint = parse_connection("caching", server.connection_json())
        with pytest.raises(ConfigError, match="caches plans") as refused:
            ConnectRunner(endpoint).run(square, [1], description="never done")
        assert "spark.connect.session.planCache.enabled=false" in str(refused.value.hint)
        [line] = answers(ask_connections(lambda _: endpoint, ["caching"]))
        assert (line.severity, "caches plans" in line.why) == ("error", True)


def test_the_version_of_a_server_is_told(spark_connect: SparkConnectServer) -> None:
    endpoint = parse_connection("test_spark", spark_connect.connection_json())
    [line] = answers(ask_connections(lambda _: endpoint, ["test_spark"]))
    assert (line.severity, line.why.startswith("Spark 4")) == ("ok", True), line
