"""A backlog of a real MySQL's log into each kind of target: drained, merged, loaded and acknowledged by the real flow.

Baseline in the same run: the same log into MySQL, by Sluice too. Half of the changes insert rows, half update rows that
were there, each twice, in statements of 500 rows; four of sysbench's tables. Kafka gets every change with both images,
the others merged rows. Rows that arrived are counted, and summed up where a store can, before a figure counts. Run by
``make bench-targets`` (``python tests/bench/bench_target_end_to_end.py [changes]``; SLUICE_BENCH_KINDS="kafka delta"
measures only these). Writes ``target_KIND_end_to_end`` into tests/bench/results/target_KIND.json.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import pyarrow.compute as pc  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.kafka import KafkaServer  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.postgresql import PostgreSQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from tests.bench import applying as ap  # noqa: E402
from tests.bench.figures import figure, processor_s, save, size  # noqa: E402
from tests.support.pipelines.case import Case, case  # noqa: E402
from tests.support.readers.lakes import IcebergLake, Lake  # noqa: E402

SCHEMA = "e2e"
CHANGES = 1_000_000
AT_ONCE = 500
"""Rows of a statement."""

FILLED = 5_000
"""Rows of a statement that fills tables before."""

NEW = """INSERT INTO {table} WITH RECURSIVE s AS (SELECT {first} n UNION ALL SELECT n + 1 FROM s WHERE n < {last})
 SELECT n, n * 7, REPEAT(LEFT(SHA2(RAND(), 256), 32), 3), REPEAT(LEFT(SHA2(RAND(), 256), 32), 1) FROM s"""
"""Rows from ``first`` to ``last``."""

_CHANGED = (
    "UPDATE {table} SET k = k + 1, c = REPEAT(LEFT(SHA2(RAND(), 256), 32), 3) WHERE id BETWEEN {first} AND {last}"
)

Sums = list[tuple[int, int]]
"""Of each table: rows, and the sum of k."""


@dataclass(frozen=True)
class Store:
    """A store that runs.

    ``lines``: YAML inside the target; ``sums``: of what arrived; None: it has no rows, and ``messages`` counts what it
    got.

    ``pid``: of its server, 0 for a library in this process.
    """

    server: Any
    lines: str = f"    parallelism: {ap.WORKERS}"
    sums: Callable[[Sequence[str]], Sums] | None = None
    messages: Callable[[], int] = int
    pid: int = 0

    def processor_s(self) -> float:
        """Of its server."""
        return processor_s(self.pid) if self.pid else 0.0


def _pid(server: Any) -> int:
    return int(server.handle.pid)


@contextmanager
def _mysql(folder: Path) -> Iterator[Store]:
    with MySQLServer(folder / "mysql", server_id=902, options=ap.OPTIONS) as server:
        server.execute(f"CREATE DATABASE {SCHEMA}")
        yield Store(server, sums=lambda names: server_sums(server, names), pid=_pid(server))


def server_sums(server: MySQLServer | PostgreSQLServer, names: Sequence[str]) -> Sums:
    """Of a server that speaks SQL."""
    found = [server.execute(f"SELECT COUNT(*), SUM(k) FROM {SCHEMA}.{name}")[0] for name in names]
    return [(int(rows), int(total)) for rows, total in found]


@contextmanager
def _postgresql(folder: Path) -> Iterator[Store]:
    settings = {"shared_buffers": "512MB", "max_wal_size": "8GB"}
    with PostgreSQLServer(folder / "postgresql", options=settings) as server:
        yield Store(server, sums=lambda names: server_sums(server, names), pid=_pid(server))


@contextmanager
def _kafka(folder: Path) -> Iterator[Store]:
    from confluent_kafka import Consumer, TopicPartition

    with KafkaServer(folder / "kafka", heap_mb=1024) as server:

        def messages() -> int:
            """With the marks of transactions."""
            consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "bench"})
            topics = consumer.list_topics(timeout=30).topics
            places = [
                TopicPartition(topic, number)
                for topic, about in topics.items()
                if topic.startswith(f"{SCHEMA}.")
                for number in about.partitions
            ]
            found = sum(consumer.get_watermark_offsets(place, timeout=30)[1] for place in places)
            consumer.close()
            return found

        yield Store(
            server,
            "    changes: all\n    options: {create_topics: {when: needed}}",
            messages=messages,
            pid=_pid(server),
        )


@contextmanager
def _delta(folder: Path) -> Iterator[Store]:
    yield _lake(Lake(folder / "delta"))


@contextmanager
def _iceberg(folder: Path) -> Iterator[Store]:
    yield _lake(IcebergLake(folder / "iceberg"))


def _lake(lake: Lake | IcebergLake) -> Store:
    def sums(names: Sequence[str]) -> Sums:
        found = [lake.rows(SCHEMA, name) for name in names]
        return [(rows.num_rows, int(pc.sum(rows["k"]).as_py())) for rows in found]

    return Store(lake, sums=sums)


BASELINE = "mysql"
KINDS = {BASELINE: _mysql, "kafka": _kafka, "postgresql": _postgresql, "delta": _delta, "iceberg": _iceberg}


def backlog(source: MySQLServer, names: Sequence[str], there: int, new: int) -> None:
    """Tables with ``there`` rows each get ``new`` more, and each row that was there is updated twice."""

    def work(name: str) -> Callable[[Any], None]:
        table = f"{SCHEMA}.{name}"
        inserts = [
            NEW.format(table=table, first=first, last=min(first + AT_ONCE - 1, there + new))
            for first in range(there + 1, there + new + 1, AT_ONCE)
        ]
        updates = [
            _CHANGED.format(table=table, first=first, last=min(first + AT_ONCE - 1, there))
            for _ in range(2)
            for first in range(1, there + 1, AT_ONCE)
        ]

        def run(cursor: Any) -> None:
            for pair in zip(inserts, updates, strict=True):
                for statement in pair:
                    cursor.execute(statement)

        return run

    ap.in_parallel([work(name) for name in names], source, SCHEMA)


@dataclass
class Measured:
    """What a kind took."""

    steps: dict[str, float]
    cpu_s: float
    store_cpu_s: float


def measured(store: Store, made: Case) -> Measured:
    """From the stored position to the acknowledgement of all there is."""
    own, theirs = time.process_time(), store.processor_s()
    steps = ap.overlapping(made, "local")
    return Measured(steps, time.process_time() - own, store.processor_s() - theirs)


def main() -> None:
    processes.tether()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    compile_kernels()
    wanted = os.environ.get("SLUICE_BENCH_KINDS", " ".join(KINDS)).split()
    each = -(-size(CHANGES) // (4 * ap.TABLES * FILLED)) * FILLED
    changes = 4 * each * ap.TABLES
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-", ignore_cleanup_errors=True))
        )
        source = stack.enter_context(MySQLServer(folder / "source", server_id=901, options=ap.OPTIONS))
        zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        source.execute(f"CREATE DATABASE {SCHEMA}")
        pipelines: dict[str, tuple[Store, Case]] = {}
        for kind in dict.fromkeys((BASELINE, *wanted)):
            store = stack.enter_context(KINDS[kind](folder))
            one = case(
                folder / kind, source, store.server, zookeeper, SCHEMA, name=kind, kind=kind, target_extra=store.lines
            )
            made = stack.enter_context(one)
            made.run_until_head()
            pipelines[kind] = store, made
        mysql = pipelines[BASELINE][0].server
        names = ap.sbtest(source, mysql, SCHEMA, rows=each)
        before: dict[str, int] = {}
        for kind, (store, made) in pipelines.items():  # what a pipeline at work has: tables, files, compiled kernels
            made.run_until_head()
            before[kind] = store.messages()
        began = time.perf_counter()
        megabytes = ap.log_mb(source, lambda: backlog(source, names, each, 2 * each))
        print(
            f"{changes:,} changes written in {time.perf_counter() - began:.0f} s, {megabytes:.0f} MB of log", flush=True
        )
        right = server_sums(source, names)
        found: dict[str, Measured] = {}
        for kind, (store, made) in pipelines.items():
            found[kind] = measured(store, made)
            if store.sums is None:
                got = store.messages() - before[kind]
                assert changes <= got <= changes * 1.001 + 100, f"{kind} got {got} messages of {changes}"
            else:
                assert (got_sums := store.sums(names)) == right, f"{kind} has {got_sums}, the source {right}"
        for kind in wanted:
            if kind != BASELINE:
                report(kind, found[kind], found[BASELINE], changes, megabytes, each)


def report(kind: str, own: Measured, baseline: Measured, changes: int, megabytes: float, each: int) -> None:
    """Print and keep the figure of a kind."""
    a_million = 1e6 / changes
    line = figure(
        f"target_{kind}_end_to_end",
        f"{changes} changes, {megabytes:.0f} MB of MySQL's log, half of them inserts, {ap.TABLES} tables of {each} "
        "rows, "
        + ("every change with both images" if kind == "kafka" else "merged rows")
        + "; from the stored position to the acknowledgement, units in this process",
        changes / own.steps["all"],
        "changes/s",
        "the same log into MySQL by Sluice",
        changes / baseline.steps["all"],
        cpu_s_per_million=round(own.cpu_s * a_million, 2),
        store_cpu_s_per_million=round(own.store_cpu_s * a_million, 2),
        baseline_cpu_s_per_million=round(baseline.cpu_s * a_million, 2),
        phases_s={name: round(seconds, 3) for name, seconds in own.steps.items()},
    )
    save(_ROOT / f"tests/bench/results/target_{kind}.json", [line])


if __name__ == "__main__":
    main()
