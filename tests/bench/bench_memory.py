"""What a large transaction costs in memory: the peak of each process that drains, merges and loads it (PSS), in the
task and on Spark's workers.

Run by ``make bench-memory`` (``python tests/bench/bench_memory.py [WORKLOAD ...] [--mb N] [--spark]``). Each step runs
in a process of its own, as an Airflow task does; every process is sampled by itself, Spark's Python workers too, and
the largest one counts. The rows of source and target are compared before a figure counts. Figures that were measured
are written to ``tests/bench/results/memory.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import psutil  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.spark import SparkConnectServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.flows.stored import manifest_of  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from tests.support.pipelines.case import Case, case  # noqa: E402
from tests.support.running.stage_processes import step  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/memory.json"
GOAL_MB = 2**29 / 1e6
STATEMENT_ROWS = 20_000
OPTIONS = {
    "sync_binlog": 0,
    "innodb_flush_log_at_trx_commit": 0,
    "innodb_doublewrite": "OFF",
    "innodb_buffer_pool_size": 2**29,
    "innodb_redo_log_capacity": 2**30,
    "local_infile": "ON",
}

_NUMBERS = "WITH RECURSIVE s AS (SELECT {first} n UNION ALL SELECT n + 1 FROM s WHERE n < {last}) SELECT "
_WIDE = "(id INT PRIMARY KEY, k INT NOT NULL, v TEXT NOT NULL)"
_NAMED = "(id VARCHAR(40) PRIMARY KEY, k INT NOT NULL, v TEXT NOT NULL)"
_KEYLESS = "(id INT NOT NULL, k INT NOT NULL, v TEXT NOT NULL)"
_RANDOM = "(id INT PRIMARY KEY, v VARBINARY(1000) NOT NULL, w VARBINARY(900) NOT NULL)"
_SAME = "n, n % 1000, REPEAT(SHA2(n, 256), 29)"

WORKLOADS: dict[str, tuple[str, str, str]] = {
    "compressible": (_WIDE, _SAME, "1.9 KB rows that zstd packs 20:1, with a primary key"),
    "incompressible": (
        _RANDOM,
        "n, CONCAT(RANDOM_BYTES(1000)), CONCAT(RANDOM_BYTES(880))",
        "1.9 KB rows of random bytes, with a primary key",
    ),
    "text_key": (_NAMED, f"CONCAT('k', {_SAME[0]}), {_SAME[3:]}", "1.9 KB rows, 20:1, whose key is a text"),
    "keyless": (_KEYLESS, _SAME, "1.9 KB rows, 20:1, without a primary key"),
    "partial": (_WIDE, _SAME, "updates of 1.9 KB columns, binlog_row_image = MINIMAL"),
    "one_key": (_WIDE, _SAME, "updates of one row, 1.9 KB each"),
}
"""Name -> (columns, values of row n, words)."""


def write(source: MySQLServer, schema: str, workload: str, mb: int) -> None:
    """One transaction of about ``mb`` megabytes of rows."""
    _, values, _ = WORKLOADS[workload]
    rows = mb * 1_000_000 // 1_900
    updates = workload in {"partial", "one_key"}
    with source.connect(schema, autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SET SESSION cte_max_recursion_depth = 100000000, binlog_row_image = "
            f"'{'MINIMAL' if workload == 'partial' else 'FULL'}'"
        )
        if workload == "one_key":
            cursor.execute(
                "CREATE PROCEDURE again(total INT) BEGIN DECLARE i INT DEFAULT 0; WHILE i < total DO "
                "UPDATE t SET v = REPEAT(SHA2(i + 1000000, 256), 29) WHERE id = 1; SET i = i + 1; END WHILE; END"
            )
            cursor.execute("START TRANSACTION")
            cursor.execute(f"CALL again({rows // 2})")
            connection.commit()
            return
        for first in range(1, rows + 1, STATEMENT_ROWS):
            last = min(first + STATEMENT_ROWS - 1, rows)
            if updates:
                cursor.execute(f"UPDATE t SET v = REPEAT(SHA2(id + 7, 256), 29) WHERE id BETWEEN {first} AND {last}")
            else:
                cursor.execute(f"INSERT INTO t {_NUMBERS.format(first=first, last=last)} {values} FROM s")
        connection.commit()


def prepare(made: Case, source: MySQLServer, workload: str, mb: int) -> None:
    """The table, on both sides; with the rows that will be updated, narrow ones."""
    columns = WORKLOADS[workload][0]
    for server in (source, made.target):
        server.execute(f"CREATE TABLE {made.schema}.t {columns}")
    made.run_until_head()
    if workload in {"partial", "one_key"}:
        rows = mb * 1_000_000 // 1_900 if workload == "partial" else 1
        source.execute(
            "SET SESSION cte_max_recursion_depth = 100000000",
            f"INSERT INTO {made.schema}.t {_NUMBERS.format(first=1, last=rows)} n, n % 1000, '' FROM s",
        )
        made.run_until_head()


def same(made: Case) -> None:
    """Raises SystemExit if the two tables differ."""
    sums = [s.execute(f"CHECKSUM TABLE {made.schema}.t")[0][1] for s in (made.source, made.target)]
    if sums[0] != sums[1]:
        raise SystemExit(f"{made.schema}: source and target differ")


@contextmanager
def servers(folder: Path, *, spark: bool) -> Iterator[tuple[MySQLServer, MySQLServer, ZooKeeperServer, Any]]:
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(MySQLServer(folder / name, server_id=910 + n, options={**OPTIONS, **more}))
            for n, (name, more) in enumerate((("source", {}), ("target", {"skip_log_bin": "ON"})))
        )
        zookeeper = stack.enter_context(ZooKeeperServer(folder / "zookeeper"))
        yield source, target, zookeeper, stack.enter_context(SparkConnectServer(folder / "spark")) if spark else None


@contextmanager
def logs_of_a_failure(*running: MySQLServer) -> Iterator[None]:
    """The ends of the servers' logs, which are removed with their folders."""
    try:
        yield
    except BaseException:
        for server in running:
            print(f"{server.log}:\n" + "".join(server.log.read_text(errors="replace").splitlines(keepends=True)[-15:]))
        raise


def measure(folder: Path, workload: str, mb: int, *, spark: bool) -> list[dict[str, Any]]:
    """The figures of one workload, on servers of its own: what a transaction leaves on disk goes with them."""
    lines: list[dict[str, Any]] = []
    with servers(folder, spark=spark) as (source, target, zookeeper, connect), logs_of_a_failure(source, target):
        schema, mode = f"memory_{workload}", "connect" if spark else "local"
        for server in (source, target):
            server.execute(f"CREATE DATABASE {schema}")
        with case(folder / "case", source, target, zookeeper, schema, target_extra="    parallelism: 4") as made:
            if connect:
                made.connections["spark_connect_default"] = connect.connection_json()
            made.path.write_text(made.yaml.replace("session_timeout: 10s", "session_timeout: 40s"), encoding="utf-8")
            prepare(made, source, workload, mb)
            began = time.perf_counter()
            write(source, schema, workload, mb)
            print(f"{workload}: one transaction of {mb} MB written in {time.perf_counter() - began:.0f} s", flush=True)

            def workers() -> list[int]:
                if connect is None:
                    return []
                children = psutil.Process(connect.handle.pid).children(recursive=True)
                return [child.pid for child in children if "python" in child.name()]

            batch = "0"
            for name in ("drain", "merge", "load"):
                said, peak, seconds = step(made, name, mode, int(batch), workers)
                batch = said if name == "drain" else batch
                words = f"{workload}, one transaction of {mb} MB, {'Spark workers' if spark else 'in the task'}"
                line = {
                    "measure": f"memory_{name}",
                    "workload": words,
                    "value": round(peak),
                    "unit": "MB peak PSS of one process",
                    "baseline": "goal 512 MiB",
                    "baseline_value": round(GOAL_MB),
                    "ratio": round(GOAL_MB / peak, 2),
                    "seconds": round(seconds, 1),
                }
                lines.append(line)
                print(f"{line['measure']:<14} {line['value']:>6} MB  {seconds:7.1f} s   {words}", flush=True)
            stored = manifest_of(made.runtime().state, made.runtime().store, int(batch))
            print(f"   stored: {stored.size_bytes / 1e6:.0f} MB in {len(stored.files)} files", flush=True)
            same(made)
    shutil.rmtree(folder, ignore_errors=True)
    return lines


def save(lines: list[dict[str, Any]]) -> None:
    """A figure measured again replaces its old line."""
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    new = {(line["measure"], line["workload"]): line for line in [*old, *lines]}
    RESULTS.write_text(json.dumps(list(new.values()), indent=1) + "\n", encoding="utf-8")


def main() -> None:
    processes.tether()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="workload", help=", ".join(WORKLOADS))
    parser.add_argument("--mb", type=int, default=2_000, help="megabytes of rows in the transaction")
    parser.add_argument("--spark", action="store_true", help="work units on Spark's workers")
    parser.add_argument("--folder", type=Path, help="where the servers keep their data while it runs")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    unknown = set(given.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    compile_kernels()
    lines: list[dict[str, Any]] = []
    for workload in given.workloads:
        with tempfile.TemporaryDirectory(prefix="sluice-memory-", dir=given.folder, ignore_cleanup_errors=True) as made:
            lines += measure(Path(made) / "run", workload, given.mb, spark=given.spark)
        if not given.dry:
            save(lines)
    if not given.dry:
        print(f"written to {RESULTS.relative_to(_ROOT)}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(_ROOT / "include"))
    main()
