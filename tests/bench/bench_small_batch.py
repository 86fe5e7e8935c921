"""Processor time and ZooKeeper requests of a small batch: 500 changes of one table, one rule, one MySQL target.

Run by ``make bench-small-batch`` (``python tests/bench/bench_small_batch.py [batches]``). A source, a target and a
ZooKeeper on this machine; stages run in this process without Spark, as a run of the DAG delivers small batches itself.
Every batch is one transaction of inserts, updates and deletes.

* ``small_batch_cpu``: the micro-batch loop of a run delivers batch after batch; processor seconds of this process.
* ``small_batch_drain_cpu`` and so on: the stages one after the other, each measured by itself.
* Baseline: the smallest client that does the work without a promise: mysql-replication reads the same log, a loop keeps
  the newest row of each key and hashes one column, and ``REPLACE`` and ``DELETE`` statements write them.

SLUICE_BENCH_PROFILE=FILE writes what cProfile says about the stages. Asserts nothing but that both sides are equal.
"""

from __future__ import annotations

import cProfile
import hashlib
import logging
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import structlog  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.flows.capture.drain import drain, head_of  # noqa: E402
from sluice.flows.job import run_microbatches  # noqa: E402
from sluice.flows.stage_sums import DeliveredBatch  # noqa: E402
from sluice.sources.mysql.position import Position  # noqa: E402
from tests.bench.figures import Line, figure, save, size  # noqa: E402
from tests.bench.stage_by_stage import ENGINE, stage_by_stage  # noqa: E402
from tests.support.pipelines.case import Case, case  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/small_batch.json"
CHANGES, KEYS = 500, 100_000
WHAT = f"{CHANGES} changes of one table in a transaction, one rule, one MySQL target, no Spark"
BASELINE = "mysql-replication, a dict and REPLACE"
TABLE = "(id BIGINT PRIMARY KEY, customer INT, total DECIMAL(10,2), v VARCHAR(40), at TIMESTAMP(3) NULL)"


@dataclass(frozen=True)
class Place:
    """The servers of the bench."""

    folder: Path
    source: MySQLServer
    target: MySQLServer
    zookeeper: ZooKeeperServer

    def write(self, number: int, schema: str = "small") -> None:
        """Commit the changes of one batch in one transaction: half inserts, the rest mostly updates."""
        inserts, updates, deletes = CHANGES // 2, CHANGES * 2 // 5, CHANGES // 10
        first = number * inserts
        rows = ", ".join(f"({first + n}, {n % 97}, {n % 1_000}.5, 'value {first + n}', NOW(3))" for n in range(inserts))
        old = first - inserts
        self.source.execute(
            "BEGIN",
            f"INSERT INTO {schema}.orders VALUES {rows}",
            f"UPDATE {schema}.orders SET total = total + 1 WHERE id >= {old} AND id < {old + updates}",
            f"DELETE FROM {schema}.orders WHERE id >= {old + updates} AND id < {old + updates + deletes}",
            "COMMIT",
        )


def main() -> None:
    processes.tether()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    os.environ["SLUICE_BENCH_SALT"] = secrets.token_hex(16)
    batches = max(size(60), 5)
    with _place() as place:
        lines = _measures(place, batches)
    save(RESULTS, lines)


@contextmanager
def _place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        with (
            MySQLServer(folder / "source", name="source", server_id=1) as source,
            MySQLServer(folder / "target", name="target", server_id=2) as target,
            ZooKeeperServer(folder / "zookeeper") as zookeeper,
        ):
            for server in (source, target):
                server.execute("CREATE DATABASE small", f"CREATE TABLE small.orders {TABLE}")
            target.execute("CREATE DATABASE plain", f"CREATE TABLE plain.orders {TABLE}")
            yield Place(folder, source, target, zookeeper)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measures(place: Place, batches: int) -> list[Line]:
    with case(place.folder / "pipelines", place.source, place.target, place.zookeeper, "small", extra=EXTRA) as made:
        (made.folder / "rules" / "engine.yaml").write_text(ENGINE, encoding="utf-8")
        drain(made.runtime(), claim="first", idle_wait_s=0.0)
        begin = Position.of(head_of(made.runtime()))
        _stages(place, made, 0, 10, None)  # what is compiled and imported once
        profile = cProfile.Profile() if os.environ.get("SLUICE_BENCH_PROFILE") else None
        stages, requests = _stages(place, made, 10, batches, profile)
        if profile is not None:
            profile.dump_stats(os.environ["SLUICE_BENCH_PROFILE"])
        cpu, asked, written = _loop(place, made, 10 + batches, batches)
    total = 10 + 2 * batches
    plain = _plain(place, begin, total) / total
    rows = [place.target.execute(f"SELECT COUNT(*), SUM(total) FROM {one}.orders") for one in ("small", "plain")]
    if rows[0] != rows[1]:
        raise AssertionError(f"the targets differ: {rows}")
    return [
        figure("small_batch_cpu", WHAT, cpu, "CPU s", BASELINE, plain),
        figure("small_batch_zk_requests", "the same batches", asked, "requests"),
        figure("small_batch_zk_transactions", "the same batches", written, "transactions"),
        *(figure(f"small_batch_{name}_cpu", "stages one after the other", s, "CPU s") for name, s in stages.items()),
        *(
            figure(f"small_batch_{name}_zk", "stages one after the other", n, "requests")
            for name, n in requests.items()
        ),
    ]


EXTRA = "rules: engine.yaml"


def _stages(
    place: Place, made: Case, first: int, batches: int, profile: cProfile.Profile | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Processor seconds, and ZooKeeper requests, that each stage takes for a batch."""
    spent: defaultdict[str, float] = defaultdict(float)
    asked: defaultdict[str, float] = defaultdict(float)

    def counted(name: str, work: Callable[[], object]) -> None:
        before = place.zookeeper.counters()["packets_received"]
        began = time.process_time()
        if profile is not None:
            profile.enable()
        work()
        if profile is not None:
            profile.disable()
        spent[name] += (time.process_time() - began) / batches
        asked[name] += (place.zookeeper.counters()["packets_received"] - before) / batches

    with stage_by_stage(made.runtime()) as stages:
        for number in range(first, first + batches):
            place.write(number + 1)
            stages.deliver(f"bench-{number}", counted)
    return spent, asked


def _loop(place: Place, made: Case, first: int, batches: int) -> tuple[float, float, float]:
    """Return what a batch takes in the micro-batch loop of a run: processor seconds, requests and transactions."""
    passed = threading.Semaphore(0)
    delivered: list[DeliveredBatch] = []

    def told(batch: DeliveredBatch) -> None:
        delivered.append(batch)
        passed.release()

    spent: list[tuple[float, int, int]] = []

    def note() -> None:
        counters = place.zookeeper.counters()
        spent.append((time.process_time(), counters["packets_received"], counters["transactions"]))

    def write() -> None:
        for number in range(first, first + batches):
            place.write(number + 1)
            passed.acquire(timeout=60)
            if number in {first, first + batches - 1}:
                note()

    writer = threading.Thread(target=write)
    writer.start()
    run_microbatches(made.runtime(), claim="bench-loop", idle_wait_s=10.0, on_delivered=told)
    writer.join()
    if len(delivered) != batches:
        raise AssertionError(f"{len(delivered)} batches for {batches} transactions")
    (cpu, asked, written), (cpu_end, asked_end, written_end) = spent
    over = batches - 1
    return (cpu_end - cpu) / over, (asked_end - asked) / over, (written_end - written) / over


def _plain(place: Place, begin: Position, transactions: int) -> float:
    """Processor seconds of the baseline for all transactions since a place in the log."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.event import XidEvent
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    salt = os.environ["SLUICE_BENCH_SALT"].encode()
    server = place.source
    login = {"host": server.host, "port": server.port, "user": "root", "password": "", "ssl_disabled": True}
    began, seen = time.process_time(), 0
    reader = BinLogStreamReader(
        login, server_id=4_000_000_000, log_file=begin.file, log_pos=begin.offset, resume_stream=True, blocking=True,
        only_schemas=["small"], only_events=[DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent, XidEvent],
        enable_logging=False,
    )  # fmt: skip
    newest: dict[int, tuple[object, ...] | None] = {}
    with place.target.connect("plain") as connection, connection.cursor() as cursor:
        for event in reader:
            if isinstance(event, XidEvent):
                if not newest:
                    continue
                rows = [
                    (*row[:3], hashlib.sha256(salt + str(row[3]).encode()).hexdigest()[:40], row[4])
                    for row in newest.values()
                    if row is not None
                ]
                cursor.executemany("REPLACE INTO orders VALUES (%s, %s, %s, %s, %s)", rows)
                gone = [key for key, row in newest.items() if row is None]
                cursor.executemany("DELETE FROM orders WHERE id = %s", gone)
                connection.commit()
                newest, seen = {}, seen + 1
                if seen == transactions:
                    break
                continue
            for row in event.rows:
                values = row.get("after_values") or row["values"]
                newest[values["id"]] = None if isinstance(event, DeleteRowsEvent) else tuple(values.values())
    reader.close()
    return time.process_time() - began


if __name__ == "__main__":
    main()
