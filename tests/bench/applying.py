"""What bench_apply measures with: a source, a native replica and a Sluice target on one machine, and the workloads of
its figures.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devstack.mysql import MySQLServer
from devstack.spark import SparkConnectServer
from devstack.zookeeper import ZooKeeperServer
from sluice.flows.capture.drain import drain, head_of
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from tests.support.pipelines.case import Case, case

WORKERS = 4
"""Applier threads of the native replica, and the target's parallelism unless a figure says otherwise."""

OPTIONS = {
    "sync_binlog": 0,
    "innodb_flush_log_at_trx_commit": 2,
    "max_binlog_size": 2**30,
    "innodb_buffer_pool_size": 2**30,
    "innodb_redo_log_capacity": 2**30,
    "local_infile": "ON",
}
"""The same on all three servers."""

TABLES = 4
TABLE_ROWS = 100_000

_ROW = "REPEAT(LEFT(SHA2(RAND(), 256), 32), 3), REPEAT(LEFT(SHA2(RAND(), 256), 32), 1)"
_SBTEST = "(id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, KEY (k))"

_OLTP = """CREATE PROCEDURE {name}(total INT) BEGIN
  DECLARE i INT DEFAULT 0; DECLARE a INT; DECLARE b INT; DECLARE d INT;
  WHILE i < total DO
    SET a = IF(RAND() < 0.75, 1 + FLOOR(RAND() * {hot}), 1 + FLOOR(RAND() * {rows}));
    SET b = IF(RAND() < 0.75, 1 + FLOOR(RAND() * {hot}), 1 + FLOOR(RAND() * {rows}));
    SET d = IF(RAND() < 0.75, 1 + FLOOR(RAND() * {hot}), 1 + FLOOR(RAND() * {rows}));
    START TRANSACTION;
    UPDATE {table} SET k = k + 1 WHERE id = a;
    UPDATE {table} SET c = REPEAT(LEFT(SHA2(RAND(), 256), 32), 3) WHERE id = b;
    DELETE FROM {table} WHERE id = d;
    INSERT INTO {table} VALUES (d, i, {row});
    COMMIT;
    SET i = i + 1;
  END WHILE; END"""
"""sysbench's oltp_write_only with its default distribution: three of four draws fall on 1 % of the keys."""

_HOT = """CREATE PROCEDURE {name}(total INT) BEGIN
  DECLARE i INT DEFAULT 0; DECLARE a INT;
  WHILE i < total DO
    SET a = IF(RAND() < 0.99, 1 + FLOOR(RAND() * {hot}), 1 + FLOOR(RAND() * {rows}));
    UPDATE {table} SET k = k + 1, c = REPEAT(LEFT(SHA2(RAND(), 256), 32), 3) WHERE id = a;
    SET i = i + 1;
  END WHILE; END"""

_BULK = """CREATE PROCEDURE {name}(total INT) BEGIN
  DECLARE i INT DEFAULT 0;
  WHILE i < total DO
    INSERT INTO {table} WITH RECURSIVE s AS (SELECT i + 1 n UNION ALL SELECT n + 1 FROM s WHERE n < i + 5000)
      SELECT n, n * 7, {row} FROM s;
    SET i = i + 5000;
  END WHILE; END"""


@dataclass
class Servers:
    """Everything that a figure needs, running.

    ``batch``: most changes in a batch, 0 for the default; ``degrees``: of apply_parallelism.
    """

    folder: Path
    source: MySQLServer
    replica: MySQLServer
    target: MySQLServer
    zookeeper: ZooKeeperServer
    spark: SparkConnectServer | None
    batch: int = 0
    degrees: tuple[int, ...] = (1, 2, 4, 8)

    @property
    def mode(self) -> str:
        return "connect" if self.spark else "local"


@contextmanager
def servers(*, spark: bool) -> Iterator[Servers]:
    """Three MySQL servers with the same options, the second a replica of the first; ZooKeeper; Spark if wanted."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-", ignore_cleanup_errors=True))
        )
        source, replica, target = (
            stack.enter_context(
                MySQLServer(
                    folder / name,
                    server_id=900 + number,
                    options={**OPTIONS, **({"replica_parallel_workers": WORKERS} if name == "replica" else {})},
                )
            )
            for number, name in enumerate(("source", "replica", "target"))
        )
        replica.execute(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={source.port}, SOURCE_USER='root', "
            "SOURCE_AUTO_POSITION=1, SOURCE_SSL=1"
        )
        zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        connect = stack.enter_context(SparkConnectServer(folder / "spark")) if spark else None
        yield Servers(folder, source, replica, target, zookeeper, connect)


@contextmanager
def pipeline(on: Servers, schema: str, *, target: str = "", extra: str = "") -> Iterator[Case]:
    """A pipeline for ``schema``, made on the target too, begun at the source's present end."""
    on.source.execute(f"CREATE DATABASE {schema}")
    on.target.execute(f"CREATE DATABASE {schema}")
    folder = on.folder / schema
    with case(
        folder,
        on.source,
        on.target,
        on.zookeeper,
        schema,
        target_extra=target or f"    parallelism: {WORKERS}",
        extra=extra,
    ) as made:
        most = f", max_changes: {on.batch}" if on.batch else ""
        made.path.write_text(made.yaml.replace("max_wait: 200ms", f"max_wait: 2s{most}"), encoding="utf-8")
        if on.spark:
            made.connections["spark_connect_default"] = on.spark.connection_json()
        yield made


def deliver(on: Servers, made: Case) -> float:
    """Seconds from the stored position to the acknowledgement of all there is."""
    began = time.perf_counter()
    made.run_until_head(on.mode)
    return time.perf_counter() - began


def overlapping(made: Case, mode: str) -> dict[str, float]:
    """Seconds of each step of delivering all there is, and of the whole: steps of up to three batches overlap, as the
    window lets them.
    """
    took = dict.fromkeys(("drain", "merge", "load", "ack"), 0.0)
    until = head_of(made.runtime(mode))
    window = threading.Semaphore(3)
    queues: dict[str, queue.Queue[int | None]] = {"merge": queue.Queue(), "load": queue.Queue()}
    failed: list[BaseException] = []

    def timed(name: str, step: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return step()
        finally:
            took[name] += time.perf_counter() - began

    def draining() -> None:
        runtime = made.runtime(mode)
        with runtime.state():
            while True:
                window.acquire()
                outcome = timed(
                    "drain", lambda: drain(runtime, claim=f"bench:1:{time.time_ns()}", idle_wait_s=0.05, until=until)
                )
                if outcome.batch is None:
                    return
                queues["merge"].put(outcome.batch)

    def merging() -> None:
        runtime = made.runtime(mode)
        with runtime.state():
            while (number := queues["merge"].get()) is not None:
                timed("merge", lambda n=number: merge(runtime, n))
                queues["load"].put(number)

    def loading() -> None:
        runtime = made.runtime(mode)
        with runtime.state():
            while (number := queues["load"].get()) is not None:
                timed("load", lambda n=number: load(runtime, "copy", n))
                timed("ack", lambda n=number: ack(runtime, "copy", n))
                window.release()

    def guarded(work: Callable[[], None], following: str | None) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            if following:
                queues[following].put(None)

    began = time.perf_counter()
    threads = [
        threading.Thread(target=guarded, args=(work, following))
        for work, following in ((draining, "merge"), (merging, "load"), (loading, None))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return {**took, "all": time.perf_counter() - began}


def replicate(on: Servers) -> float:
    """Seconds that the native replica takes from where it stopped to where the source is now."""
    wanted = on.source.execute("SELECT @@GLOBAL.gtid_executed")[0][0]
    began = time.perf_counter()
    on.replica.execute("START REPLICA")
    on.replica.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{wanted}')")
    took = time.perf_counter() - began
    on.replica.execute("STOP REPLICA")
    return took


def same(on: Servers, schema: str, tables: Sequence[str]) -> None:
    """CHECKSUM TABLE on all three servers. Raises AssertionError that names the table."""
    for table in tables:
        sums = [s.execute(f"CHECKSUM TABLE {schema}.{table}")[0][1] for s in (on.source, on.replica, on.target)]
        if len(set(sums)) != 1:
            raise AssertionError(f"{schema}.{table}: source, replica and target differ: {sums}")


def sbtest(
    source: MySQLServer,
    target: MySQLServer,
    schema: str,
    tables: int = TABLES,
    rows: int = TABLE_ROWS,
    *,
    target_schema: str = "",
) -> list[str]:
    """sysbench's tables, filled, on the source; the same tables, empty, on the target. Returns their names."""
    names = [f"sbtest{n}" for n in range(1, tables + 1)]
    for name in names:
        source.execute(f"CREATE TABLE {schema}.{name} {_SBTEST}")
        target.execute(f"CREATE TABLE IF NOT EXISTS {target_schema or schema}.{name} {_SBTEST}")
    if rows:
        for name in names:
            source.execute(
                "SET SESSION cte_max_recursion_depth = 10000000",
                _BULK.format(name=f"{schema}.fill_{name}", table=f"{schema}.{name}", row=_ROW),
            )
        in_parallel([lambda c, name=name: c.execute(f"CALL fill_{name}({rows})") for name in names], source, schema)
    return names


def procedure(source: MySQLServer, schema: str, kind: str, name: str, table: str, rows: int) -> str:
    """A stored procedure that writes; returns its name. ``kind``: oltp, hot or bulk."""
    text = {"oltp": _OLTP, "hot": _HOT, "bulk": _BULK}[kind]
    source.execute(
        text.format(name=f"{schema}.{name}", table=f"{schema}.{table}", row=_ROW, rows=rows, hot=max(rows // 100, 1))
    )
    return name


def in_parallel(work: Sequence[Callable[[Any], Any]], server: MySQLServer, schema: str) -> None:
    """Each of ``work`` with a cursor of its own, at the same time."""
    failed: list[BaseException] = []

    def run(one: Callable[[Any], Any]) -> None:
        try:
            with server.connect(schema) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION cte_max_recursion_depth = 10000000")
                one(cursor)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def warm(on: Servers, made: Case) -> Runtime:
    """Position written, kernels compiled, Spark's workers started: what a pipeline at work has."""
    made.run_until_head(on.mode)
    for server in (on.source, on.target):
        server.execute(f"CREATE TABLE {made.schema}.warm (id INT PRIMARY KEY, k INT NOT NULL DEFAULT 0)")
    for first in (0, 20_000):  # more than a task works on by itself
        on.source.execute(
            "SET SESSION cte_max_recursion_depth = 100000",
            f"INSERT INTO {made.schema}.warm (id) WITH RECURSIVE s AS (SELECT {first} n UNION ALL SELECT n + 1 FROM s "
            f"WHERE n < {first + 19_999}) SELECT n FROM s",
        )
        made.run_until_head(on.mode)
    return made.runtime(on.mode)


def log_mb(server: MySQLServer, schema_changes: Callable[[], None]) -> float:
    """Megabytes of log that ``schema_changes`` writes."""
    before = sum(int(row[1]) for row in server.execute("SHOW BINARY LOGS"))
    schema_changes()
    return (sum(int(row[1]) for row in server.execute("SHOW BINARY LOGS")) - before) / 1e6


def cores() -> int:
    return len(os.sched_getaffinity(0))
