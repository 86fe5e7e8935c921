"""A dump gives way: to a busy source, to a replica that is behind.

And a replica as the source, which nothing is written to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devstack.mysql import MySQLServer
from sluice.errors import SourceUnavailable
from sluice.flows.dump.progress import one_view
from sluice.flows.dump.start import start
from sluice.flows.dump.throttle import Throttle
from sluice.flows.dump.worker import work
from sluice.model.dumps import Dump, DumpState, Marking, Tuning
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import Watcher, Writers, begin, both, delivering, fill
from tests.support.running.waiting import counted, wait_until

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))"
PATIENCE_S = 60.0


def follow(replica: MySQLServer, source: Any, **more: Any) -> None:
    """Make one server the native replica of another."""
    options: dict[str, Any] = {
        "SOURCE_HOST": f"'{source.host}'",
        "SOURCE_PORT": source.port,
        "SOURCE_USER": "'root'",
        "GET_SOURCE_PUBLIC_KEY": 1,
        "SOURCE_AUTO_POSITION": 1,
    } | more
    password = getattr(source, "root_password", "") or ""
    if password:
        options["SOURCE_PASSWORD"] = f"'{password}'"
    words = ", ".join(f"{name} = {value}" for name, value in options.items())
    replica.execute(f"CHANGE REPLICATION SOURCE TO {words}", "START REPLICA")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[tuple[MySQLServer, MySQLServer]]:
    """A server and its native replica."""
    folder = tmp_path_factory.mktemp("pair")
    with (
        MySQLServer(folder / "primary", name="mysql-primary", server_id=91) as primary,
        MySQLServer(folder / "replica", name="mysql-replica", server_id=92) as replica,
    ):
        follow(replica, primary)
        yield primary, replica


def made_schema(pair: tuple[MySQLServer, MySQLServer], target: Any, name: str) -> None:
    primary, replica = pair
    primary.execute(f"DROP DATABASE IF EXISTS `{name}`", f"CREATE DATABASE `{name}`")
    wait_until(lambda: bool(replica.execute(f"SHOW DATABASES LIKE '{name}'")), "replication of the schema")


def held(made: Case, dump: Dump, let_go: Callable[[], None]) -> list[str]:
    """Work on a dump that has to wait; ``let_go`` ends what it waits for. The steps that were taken before that."""
    steps: list[str] = []
    worker = threading.Thread(
        target=lambda: work(made.runtime(), dump.id, hook=lambda at, chunk: steps.append(at)), daemon=True
    )
    with delivering(made), counted(Throttle, "hold") as looks:
        worker.start()
        looks.more(3)
        before = list(steps)
        assert one_view(made.runtime(), dump.id).waiting_for
        let_go()
        worker.join(PATIENCE_S)
    with made.runtime().state() as state:
        assert state.dumps.require(dump.id).state is DumpState.DONE
    assert "marked" in steps
    assert one_view(made.runtime(), dump.id).waiting_for == ""
    return before


def test_a_dump_waits_for_a_replica_that_has_stopped(pair, tmp_path, mysql_target, zookeeper, fresh_schema) -> None:
    primary, replica = pair
    schema = fresh_schema(mysql_target)
    made_schema(pair, mysql_target, schema)
    with case(tmp_path, primary, mysql_target, zookeeper, schema) as made:
        made.connections["case_replica"] = replica.connection_json()
        made.yaml += "\ndump: {chunk_rows: 40, max_replica_lag: 2s, replicas: [case_replica]}\n"
        made.path.write_text(made.yaml, encoding="utf-8")
        both(made, TABLE)
        fill(made, "t", 200)
        begin(made)
        replica.execute("STOP REPLICA SQL_THREAD")
        dump = start(made.runtime())
        assert held(made, dump, lambda: replica.execute("START REPLICA SQL_THREAD")) == []
        made.assert_equal("t")


def test_a_replica_behind_by_seconds(pair, tmp_path, mysql_target, zookeeper, fresh_schema) -> None:
    """``SOURCE_DELAY``: the replica applies later, and says by how much."""
    primary, replica = pair
    schema = fresh_schema(mysql_target)
    made_schema(pair, mysql_target, schema)
    replica.execute(
        "STOP REPLICA SQL_THREAD", "CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 4", "START REPLICA SQL_THREAD"
    )
    with case(tmp_path, primary, mysql_target, zookeeper, schema) as made:
        made.connections["case_replica"] = replica.connection_json()
        made.yaml += "\ndump: {replicas: [case_replica]}\n"
        made.path.write_text(made.yaml, encoding="utf-8")
        runtime = made.runtime()
        name = runtime.pipeline.source.connection
        with runtime.source.open_replica(name) as source, runtime.source.open_replica("case_replica") as behind:
            assert source.replica_lag_s() is None
            primary.execute(f"CREATE TABLE `{schema}`.late (id INT PRIMARY KEY)")
            wait_until(lambda: (behind.replica_lag_s() or 0) > 1, "a lag of a second")
            with Throttle.open(runtime.source, runtime.pipeline.dump.replicas) as throttle:
                assert throttle.hold(Tuning(max_replica_lag_s=0.5), source)
            with Throttle.open(runtime.source, runtime.pipeline.dump.replicas) as throttle:
                assert not throttle.hold(Tuning(max_replica_lag_s=1000.0), source)
            wait_until(lambda: behind.replica_lag_s() == 0, "catching up")
            with Throttle.open(runtime.source, runtime.pipeline.dump.replicas) as throttle:
                assert not throttle.hold(Tuning(max_replica_lag_s=0.5), source)
    replica.execute(
        "STOP REPLICA SQL_THREAD", "CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 0", "START REPLICA SQL_THREAD"
    )


def test_a_replica_that_is_gone_is_no_replica_without_lag(
    pair, tmp_path, mysql_target, zookeeper, fresh_schema
) -> None:
    primary, replica = pair
    schema = fresh_schema(mysql_target)
    made_schema(pair, mysql_target, schema)
    with case(tmp_path, primary, mysql_target, zookeeper, schema) as made:
        made.connections["case_replica"] = replica.connection_json()
        made.yaml += "\ndump: {replicas: [case_replica]}\n"
        made.path.write_text(made.yaml, encoding="utf-8")
        runtime = made.runtime()
        name = runtime.pipeline.source.connection
        with (
            runtime.source.open_replica(name) as source,
            Throttle.open(runtime.source, runtime.pipeline.dump.replicas) as throttle,
        ):
            replica.kill()
            try:
                with pytest.raises(SourceUnavailable, match="how far behind"):
                    throttle.hold(Tuning(max_replica_lag_s=0.5), source)
            finally:
                replica.start()


def test_a_dump_waits_for_a_busy_source(pair, tmp_path, mysql_target, zookeeper, fresh_schema) -> None:
    primary, _ = pair
    schema = fresh_schema(mysql_target)
    made_schema(pair, mysql_target, schema)
    with case(tmp_path, primary, mysql_target, zookeeper, schema) as made:
        made.yaml += "\ndump: {chunk_rows: 40, max_threads_running: 6}\n"
        made.path.write_text(made.yaml, encoding="utf-8")
        both(made, TABLE)
        fill(made, "t", 200)
        begin(made)
        dump = start(made.runtime())
        busy = [primary.connect() for _ in range(8)]
        numbers = [connection.thread_id() for connection in busy]
        sleepers = [threading.Thread(target=_sleep, args=(connection,), daemon=True) for connection in busy]
        for sleeper in sleepers:
            sleeper.start()
        wait_until(lambda: int(primary.execute("SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1]) > 8, "load")
        assert held(made, dump, lambda: primary.execute(*(f"KILL QUERY {number}" for number in numbers))) == []
        for sleeper in sleepers:
            sleeper.join(PATIENCE_S)
        made.assert_equal("t")


def _sleep(connection: Any) -> None:
    connection.cursor().execute("SELECT SLEEP(300)")


def test_a_replica_as_the_source_is_not_written_to(pair, tmp_path, mysql_target, zookeeper, fresh_schema) -> None:
    """A server that refuses every write, of root too: its own UUID stands in no GTID, while writers change the rows at
    its source.
    """
    primary, replica = pair
    schema = fresh_schema(mysql_target)
    made_schema(pair, mysql_target, schema)
    replica.execute("SET GLOBAL super_read_only = ON")
    uuid = replica.execute("SELECT @@server_uuid")[0][0]
    before = replica.execute("SELECT @@GLOBAL.gtid_executed")[0][0]
    try:
        with case(tmp_path, replica, mysql_target, zookeeper, schema) as made:
            made.yaml += "\ndump: {chunk_rows: 30, parallelism: 2}\n"
            made.path.write_text(made.yaml, encoding="utf-8")
            mysql_target.execute(f"USE `{schema}`", TABLE)
            upstream = Case(tmp_path, primary, mysql_target, zookeeper.hosts, schema)
            primary.execute(f"USE `{schema}`", TABLE)
            fill(upstream, "t", 400)
            wait_until(lambda: bool(replica.execute(f"SHOW TABLES FROM `{schema}`")), "replication of the table")
            begin(made)
            with Watcher(made, "t") as watcher, Writers(upstream, "t", 250, seed=6) as writers, delivering(made):
                dump = start(made.runtime())
                assert dump.marking is Marking.GTID
                work(made.runtime(), dump.id)
            assert writers.changes > 0
            head = primary.execute("SELECT @@GLOBAL.gtid_executed")[0][0]
            assert replica.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{head}', 60)") == [(0,)]
            made.run_until_head()
            made.assert_equal("t")
            assert watcher.back == []
        after = replica.execute("SELECT @@GLOBAL.gtid_executed")[0][0]
        assert replica.execute(f"SELECT GTID_SUBTRACT('{after}', '{before}') LIKE '%{uuid}%'") == [(0,)]
    finally:
        replica.execute("SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF")
