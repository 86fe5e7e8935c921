"""Sluice beside what people use: MySQL's log into Kafka by Debezium on Kafka Connect, and from there into PostgreSQL by
Debezium's JDBC sink.

One run, one log, the same servers. Sluice is measured from the stored position to the acknowledgement. The peers are
measured warm: from the first message, or row, that arrives to the last one, so that the start of their Java process
does not count; the JDBC sink without its source, from topics that are filled. Both are tuned (larger batches, short
waits); they deliver at least once, Sluice exactly once. Run by ``make bench-targets``
(``python tests/bench/bench_target_peers.py [changes]``). Writes ``target_kafka_peer`` and ``target_postgresql_peer``
into the targets' results.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from confluent_kafka import Consumer, TopicPartition  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.postgresql import PostgreSQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from tests.bench import applying as ap  # noqa: E402
from tests.bench.bench_target_end_to_end import (  # noqa: E402
    AT_ONCE,
    KINDS,
    NEW,
    SCHEMA,
    Measured,
    Sums,
    backlog,
    measured,
    server_sums,
)
from tests.bench.connect_worker import ConnectWorker  # noqa: E402
from tests.bench.figures import figure, processor_s, save, size  # noqa: E402
from tests.support.pipelines.case import case  # noqa: E402

CHANGES = 200_000
PROBE = "probe"
"""A table whose rows show that a connector reads."""

PATIENCE_S = 900.0
DOCUMENTS, WITH_SCHEMAS = "documents", "with_schemas"
"""Topic prefixes: documents as Sluice writes them, and with the schemas that the JDBC sink wants."""


def source_connector(server: MySQLServer, prefix: str, folder: Path, number: int) -> dict[str, object]:
    """Debezium's MySQL connector from the present end of the log on."""
    return {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": server.host,
        "database.port": server.port,
        "database.user": "root",
        "database.server.id": 7000 + number,
        "database.include.list": SCHEMA,
        "topic.prefix": prefix,
        "snapshot.mode": "no_data",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": folder / f"{prefix}.history",
        "topic.creation.default.partitions": 1,
        "topic.creation.default.replication.factor": 1,
        "max.batch.size": 20_480,
        "max.queue.size": 81_920,
        "poll.interval.ms": 10,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": str(prefix == WITH_SCHEMAS).lower(),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": str(prefix == WITH_SCHEMAS).lower(),
    }


def sink_connector(server: PostgreSQLServer, names: Sequence[str]) -> dict[str, object]:
    """Debezium's JDBC sink: upserts by the key, deletes, one transaction a batch."""
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": ",".join(f"{WITH_SCHEMAS}.{SCHEMA}.{name}" for name in names),
        "connection.url": f"jdbc:postgresql://{server.host}:{server.port}/postgres",
        "connection.username": "postgres",
        "connection.password": "none",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "collection.name.format": "peer.${source.table}",
        "batch.size": 5000,
        "use.reduction.buffer": "true",
    }


class Topics:
    """How many messages the topics of a prefix have."""

    def __init__(self, bootstrap: str, prefix: str, names: Sequence[str]) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"bench-{prefix}"})
        self._names = [f"{prefix}.{SCHEMA}.{name}" for name in names]
        self._places: list[TopicPartition] = []

    def count(self) -> int:
        """Messages so far; a topic that is not there yet has none."""
        if len(self._places) < len(self._names):
            there = self._consumer.list_topics(timeout=30).topics
            self._places = [TopicPartition(name, 0) for name in self._names if name in there]
        return sum(self._consumer.get_watermark_offsets(place, timeout=30)[1] for place in self._places)


def wait(what: str, reached: Callable[[], bool], worker: ConnectWorker) -> None:
    """Until it is. Raises RuntimeError with the end of the worker's log."""
    end = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > end or not worker.running:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:.0f} s; {worker.log.read_text()[-2000:]}")
        time.sleep(0.05)


def warm_rate(worker: ConnectWorker, count: Callable[[], int], last: int) -> tuple[float, float]:
    """(a second, processor seconds of the worker for each million) from the first that arrives to the last one."""
    before = count()
    with worker:
        wait("the first change", lambda: count() > before, worker)
        assert worker.handle is not None
        pid, seen, began = worker.handle.pid, count(), time.perf_counter()
        cpu = processor_s(pid)
        wait("the last change", lambda: count() >= last, worker)
        took = time.perf_counter() - began
        return (last - seen) / took, (processor_s(pid) - cpu) / (last - seen) * 1e6


def sink_rate(
    worker: ConnectWorker, server: PostgreSQLServer, names: Sequence[str], right: Sums, changes: int
) -> float:
    """Changes a second of the sink, from its first row to the same sums as the source."""

    def there() -> list[tuple[int, int]]:
        made = {row[0] for row in server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'peer'")}
        rows = [
            server.execute(f"SELECT COUNT(*), COALESCE(SUM(k), 0) FROM peer.{name}")[0]
            for name in names
            if name in made
        ]
        return [(int(number), int(total)) for number, total in rows]

    server.execute("CREATE SCHEMA peer")
    with worker:
        wait("the first row", lambda: any(rows for rows, _ in there()), worker)
        began = time.perf_counter()
        wait("the source's rows", lambda: there() == right, worker)
        return changes / (time.perf_counter() - began)


def report(kind: str, own: Measured, changes: int, workload: str, peer: str, rate: float, **more: Any) -> None:
    """Print and keep the figure of a kind."""
    line = figure(
        f"target_{kind}_peer",
        workload,
        changes / own.steps["all"],
        "changes/s",
        peer,
        rate,
        cpu_s_per_million=round(own.cpu_s / changes * 1e6, 2),
        **more,
    )
    save(_ROOT / f"tests/bench/results/target_{kind}.json", [line])


def main() -> None:
    processes.tether()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    compile_kernels()
    each = -(-size(CHANGES) // (5 * ap.TABLES * AT_ONCE)) * AT_ONCE
    changes = 5 * each * ap.TABLES
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-", ignore_cleanup_errors=True))
        )
        source = stack.enter_context(MySQLServer(folder / "source", server_id=901, options=ap.OPTIONS))
        zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        source.execute(f"CREATE DATABASE {SCHEMA}")
        stores = {kind: stack.enter_context(KINDS[kind](folder)) for kind in ("kafka", "postgresql")}
        cases = {
            kind: stack.enter_context(
                case(
                    folder / kind,
                    source,
                    store.server,
                    zookeeper,
                    SCHEMA,
                    name=kind,
                    kind=kind,
                    target_extra=store.lines,
                )
            )
            for kind, store in stores.items()
        }
        for made in cases.values():
            made.run_until_head()
        names = ap.sbtest(source, source, SCHEMA, rows=0)
        source.execute(f"CREATE TABLE {SCHEMA}.{PROBE} (id INT PRIMARY KEY AUTO_INCREMENT)")
        for made in cases.values():
            made.run_until_head()

        kafka, postgresql = stores["kafka"].server, stores["postgresql"].server
        connectors = {
            prefix: source_connector(source, prefix, folder / "worker", number)
            for number, prefix in enumerate((DOCUMENTS, WITH_SCHEMAS))
        }
        topics = {prefix: Topics(kafka.bootstrap, prefix, names) for prefix in connectors}

        def worker(*prefixes: str) -> ConnectWorker:
            chosen = {prefix: connectors[prefix] for prefix in prefixes}
            return ConnectWorker(folder / "worker", bootstrap=kafka.bootstrap, connectors=chosen)

        print("connectors note their places", flush=True)
        with worker(*connectors) as first:
            wait(
                "the connectors' first places",
                lambda: all((folder / "worker" / f"{p}.history").exists() for p in connectors),
                first,
            )
            probes = [Topics(kafka.bootstrap, prefix, [PROBE]) for prefix in connectors]
            while not all(one.count() for one in probes):
                source.execute(f"INSERT INTO {SCHEMA}.{PROBE} VALUES (NULL)")
                time.sleep(1)

        print("the backlog", flush=True)
        megabytes = ap.log_mb(source, lambda: backlog_from_nothing(source, names, each))
        right = server_sums(source, names)
        workload = f"{changes} changes, {megabytes:.0f} MB of MySQL's log, two of five update rows, {ap.TABLES} tables"
        own = {kind: measured(stores[kind], made) for kind, made in cases.items()}
        assert server_sums(postgresql, names) == right, "PostgreSQL does not have what the source has"

        there = topics[DOCUMENTS].count()
        rate, cpu = warm_rate(worker(DOCUMENTS), topics[DOCUMENTS].count, there + changes)
        report(
            "kafka", own["kafka"], changes, f"{workload}; every change with both images as debezium-json",
            "Debezium's MySQL connector 3.6.1 on Kafka Connect, warm", rate, baseline_cpu_s_per_million=round(cpu, 2),
        )  # fmt: skip
        print("topics for the sink", flush=True)
        there = topics[WITH_SCHEMAS].count()
        full, _ = warm_rate(worker(WITH_SCHEMAS), topics[WITH_SCHEMAS].count, there + changes)
        sink = ConnectWorker(
            folder / "sink",
            kind="jdbc",
            bootstrap=kafka.bootstrap,
            connectors={"sink": sink_connector(postgresql, names)},
        )
        rate = sink_rate(sink, postgresql, names, right, changes)
        report(
            "postgresql", own["postgresql"], changes, f"{workload}; merged rows",
            "Debezium's JDBC sink 3.5.0 on Kafka Connect, warm, from topics that are filled", rate,
            baseline_source=round(full),
        )  # fmt: skip


def backlog_from_nothing(source: MySQLServer, names: Sequence[str], each: int) -> None:
    """Each table gets ``3 * each`` rows, and a third of them is updated twice: ``5 * each`` changes."""
    for name in names:
        for first in range(1, each + 1, AT_ONCE):
            source.execute(NEW.format(table=f"{SCHEMA}.{name}", first=first, last=first + AT_ONCE - 1))
    backlog(source, names, each, 2 * each)


if __name__ == "__main__":
    main()
