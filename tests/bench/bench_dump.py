"""What a dump costs: rows a second from one MySQL into segments with the log flowing, and what it does to the log's
lag.

Baselines in the same run: ``mysqldump`` of the same table, with the same changes beside it and the log drained, and
alone; and a plain cursor. Run by ``make bench-dump`` (``python tests/bench/bench_dump.py [rows]``;
SLUICE_BENCH_CHANGES: changes a second). Prints a line a measurement, writes tests/bench/results/dump.json; asserts
nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import pymysql.cursors  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer, find_mysql  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.flows.dump.progress import one_view  # noqa: E402
from sluice.flows.dump.start import start  # noqa: E402
from sluice.flows.dump.worker import work  # noqa: E402
from tests.support.pipelines.case import Case, case  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/dump.json"
FAST = {
    "sync_binlog": 0,
    "innodb_flush_log_at_trx_commit": 2,
    "max_binlog_size": 2**30,
    "innodb_buffer_pool_size": 512 * 2**20,
}
CREATE = (
    "CREATE TABLE sbtest (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, KEY (k))"
)
QUIET_S = 12.0
CHANGES_A_SECOND = int(os.environ.get("SLUICE_BENCH_CHANGES", "200"))


def fill(server: MySQLServer, schema: str, rows: int) -> None:
    """sysbench's table: c is 11 groups of 11 digits, pad 5."""
    with server.connect(schema) as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.execute("SET SESSION cte_max_recursion_depth = 100000000")
        group = "LPAD(FLOOR(RAND() * 99999999999), 11, '0')"
        c, pad = "-".join(["x"] * 10), "-".join(["x"] * 5)
        texts = [f"CONCAT_WS('-', {', '.join([group] * n)})" for n in (len(c) // 2 + 1, len(pad) // 2 + 1)]
        cursor.execute(
            f"INSERT INTO sbtest WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < {rows}) "
            f"SELECT n, FLOOR(RAND() * {rows}), {texts[0]}, {texts[1]} FROM s"
        )
        cursor.execute("ANALYZE TABLE sbtest")


@contextmanager
def writing(server: MySQLServer, schema: str, rows: int) -> Iterator[None]:
    """About CHANGES_A_SECOND updates a second, twenty a transaction, all over the table."""
    stop = threading.Event()

    def run() -> None:
        count = 0
        with server.connect(schema, autocommit=False) as connection, connection.cursor() as cursor:
            began = time.monotonic()
            while not stop.is_set():
                ids = ",".join(str((count * 20 + i) * 7919 % rows + 1) for i in range(20))
                cursor.execute(f"UPDATE sbtest SET k = k + 1 WHERE id IN ({ids})")
                connection.commit()
                count += 1
                stop.wait(max(began + count * 20 / CHANGES_A_SECOND - time.monotonic(), 0))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


DRAIN = """
import json, sys, time
from pathlib import Path
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from sluice.config.connections import from_environment
from sluice.config.loading import load_pipeline
from sluice.flows.capture.drain import drain
from sluice.flows.runtime import Runtime
runtime = Runtime.build(load_pipeline(Path(sys.argv[1])), resolver=from_environment, runner="local")
with runtime.state() as state:
    while True:
        outcome = drain(runtime, claim=f"bench:{time.time_ns()}", idle_wait_s=0.5)
        if outcome.batch is not None:
            batch = state.batches.get(outcome.batch)
            print(json.dumps([time.time(), time.time() - batch.first_commit_time_us / 1e6, batch.changes]), flush=True)
            for target in runtime.pipeline.targets:
                state.acks.acknowledge(target.name, batch)
"""


@contextmanager
def draining(made: Case) -> Iterator[list[tuple[float, float, int]]]:
    """Drains in a process of its own, as Airflow does; a line a batch: moment, age of its first change when it was
    recorded, changes.
    """
    lines: list[tuple[float, float, int]] = []
    process = subprocess.Popen(
        [sys.executable, "-c", DRAIN, str(made.path)], env=made.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    reader = threading.Thread(
        target=lambda: lines.extend(tuple(json.loads(line)) for line in process.stdout), daemon=True
    )  # type: ignore[union-attr]
    reader.start()
    try:
        while not lines:
            if process.poll() is not None:
                raise SystemExit("the drain ended")
            time.sleep(0.1)
        yield lines
    finally:
        process.terminate()
        process.wait()


def program(name: str) -> list[str]:
    """How a client program of MySQL is called; empty where there is none."""
    distribution = find_mysql()
    places = [Path(distribution.origin) / "usr/bin" / name, Path("/usr/bin") / name]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        return []
    return [*distribution.command[:-2], str(found)] if len(distribution.command) > 2 else [str(found)]


def mysqldump(server: MySQLServer, schema: str, rows: int) -> float:
    """Rows a second of mysqldump into /dev/null, with its own defaults for one table."""
    command = program("mysqldump")
    if not command:
        return 0.0
    started = time.monotonic()
    subprocess.run(
        [*command, "--no-defaults", "-h127.0.0.1", f"-P{server.port}", "-uroot", "--single-transaction", schema,
            "sbtest"],
        stdout=subprocess.DEVNULL, check=True, env={**os.environ, "MYSQL_PWD": server.root_password},
    )  # fmt: skip
    return rows / (time.monotonic() - started)


def plain_cursor(server: MySQLServer, schema: str, rows: int) -> float:
    """Rows a second of PyMySQL's streaming cursor."""
    count = min(rows, 200_000)
    with server.connect(schema) as connection, connection.cursor(pymysql.cursors.SSCursor) as cursor:
        started = time.monotonic()
        cursor.execute(f"SELECT * FROM sbtest WHERE id <= {count}")
        seen = sum(1 for _ in cursor)
        return seen / (time.monotonic() - started)


def main() -> None:
    processes.tether()
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_500_000
    results: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        MySQLServer(Path(folder) / "source", server_id=21, options=FAST) as source,
        ZooKeeperServer(Path(folder) / "zookeeper") as zookeeper,
    ):
        schema = "bench"
        source.execute(f"CREATE DATABASE {schema}")
        fill(source, schema, rows)
        with case(Path(folder) / "case", source, source, zookeeper, schema) as made:
            with writing(source, schema, rows), draining(made) as batches:
                time.sleep(3)
                mark = time.time()
                time.sleep(QUIET_S)
                quiet = [lag for at, lag, _ in batches if at > mark]
                seconds, under, phases = dump(made, batches, rows)
                dump_rate = mysqldump(source, schema, rows)
            cursor_rate = plain_cursor(source, schema, rows)
            alone = mysqldump(source, schema, rows)
        rate = rows / seconds
        lag, lag_under = statistics.median(quiet), statistics.median(under)
        results.append({
            "measure": "dump_rows", "variant": str(rows), "workload": f"sysbench's table, {CHANGES_A_SECOND} "
            "changes/s beside it, stored and placed",
            "value": round(rate), "unit": "rows/s", "baseline": "mysqldump beside the same changes",
            "baseline_value": round(dump_rate),
            "ratio": round(rate / dump_rate, 2) if dump_rate else None, "wanted": "at least 150,000 rows/s",
            "cores": os.cpu_count(),
            "plain_cursor": round(cursor_rate), "mysqldump_alone": round(alone), **phases,
        })  # fmt: skip
        results.append({
            "measure": "dump_log_lag", "variant": str(rows), "workload": "age of a batch's first change when the "
            "batch is recorded, median",
            "value": round(lag_under, 3), "unit": "s", "baseline": "the same without a dump",
            "baseline_value": round(lag, 3),
            "ratio": round(lag_under / lag, 2), "wanted": "at most 2x", "cores": os.cpu_count(),
            "worst": round(max(under), 3), "worst_without": round(max(quiet), 3),
        })  # fmt: skip
    for result in results:
        print(
            f"{result['measure']:14} {result['value']:>12,} {result['unit']:7} {result['baseline']}: "
            f"{result['baseline_value']:,}  ratio {result['ratio']}  ({result['wanted']})"
        )
    for other in ("plain_cursor", "mysqldump_alone"):
        print(f"{other:14} {results[0][other]:>12,} rows/s")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def dump(made: Case, batches: list[tuple[float, float, int]], rows: int) -> tuple[float, list[float], dict[str, Any]]:
    """Seconds until every row is placed, and the lags of the batches meanwhile."""
    steps: dict[str, float] = {}
    moments: dict[tuple[int, int], tuple[str, float]] = {}

    def hook(step: str, chunk: Any) -> None:
        key = (threading.get_ident(), 0)
        if key in moments:
            before, at = moments[key]
            name = f"{before} to {step}"
            steps[name] = steps.get(name, 0.0) + time.monotonic() - at
        moments[key] = step, time.monotonic()

    began, mark = time.monotonic(), time.time()
    asked = start(made.runtime())
    work(made.runtime(), asked.id, hook=hook)
    seconds = time.monotonic() - began
    seen = one_view(made.runtime(), asked.id)
    assert seen.rows + sum(t.overtaken for t in seen.tables) == rows, seen
    under = [lag for at, lag, _ in batches if at > mark]
    return seconds, under, {"seconds": round(seconds, 2), "worker_seconds": {k: round(v, 2) for k, v in steps.items()}}


if __name__ == "__main__":
    main()
