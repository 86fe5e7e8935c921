"""What capture costs: rows a second from the server's log to durable Parquet, against mysql-replication on the same
log.

Run by ``make bench-capture`` (``python tests/bench/bench_capture.py [changes]``). Prints a line a measurement; asserts
nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from tests.bench.figures import figure, save, size  # noqa: E402
from tests.support.capture.capturing import draining, head  # noqa: E402

FILES = 8
PARALLEL = ((1, 2), (2, 2), (4, 2), (4, 4), (8, 8))
"""(readers, cores); what the machine does not have is left out.

One reader alone uses two cores: it decodes in threads beside the scan.
"""
FAST = {
    "sync_binlog": 0,
    "innodb_flush_log_at_trx_commit": 2,
    "max_binlog_size": 2**30,
    "innodb_buffer_pool_size": 512 * 2**20,
}

OLTP = """CREATE PROCEDURE oltp(n INT) BEGIN
  DECLARE i INT DEFAULT 0; DECLARE x INT;
  WHILE i < n DO
    SET x = 1 + FLOOR(RAND() * 20000);
    START TRANSACTION;
    UPDATE sbtest SET k = k + 1 WHERE id = x;
    UPDATE sbtest SET c = REPEAT(LEFT(SHA2(RAND(), 256), 32), 3) WHERE id = 1 + (x * 7) MOD 20000;
    DELETE FROM sbtest WHERE id = x;
    INSERT INTO sbtest VALUES (x, i, CONCAT(REPEAT(LEFT(SHA2(RAND(), 256), 32), 3), 'abcdefghijklmnopqrst'), REPEAT(LEFT(SHA2(RAND(), 256), 32), 1));
    COMMIT;
    SET i = i + 1;
  END WHILE; END"""


def oltp(server: MySQLServer, changes: int) -> None:
    """Single-row events in transactions of four, as sysbench's oltp_write_only makes them."""
    server.execute(
        "CREATE DATABASE bench",
        "CREATE TABLE bench.sbtest (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, "
        "KEY (k))",
    )
    with server.connect("bench") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = 1000000")
        cursor.execute(
            "INSERT INTO sbtest WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < 20000)"
            " SELECT n, n, REPEAT(LEFT(SHA2(n, 256), 32), 3), LEFT(SHA2(n, 256), 32) FROM s"
        )
        cursor.execute(OLTP)


def bulk(server: MySQLServer, rows: int) -> None:
    server.execute("CREATE TABLE bench.bulk (id INT PRIMARY KEY, k INT, c CHAR(120), pad CHAR(60))")
    with server.connect("bench") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = 10000000")
        cursor.execute(
            "INSERT INTO bulk WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < %s)"
            " SELECT n, n * 7, REPEAT(LEFT(SHA2(n, 256), 32), 3), LEFT(SHA2(n, 256), 32) FROM s",
            (rows,),
        )


_KINDS = (
    "INT", "BIGINT UNSIGNED", "DECIMAL(12,2)", "VARCHAR(40)", "DATETIME(3)", "DOUBLE", "DATE", "CHAR(10)",
    "TIMESTAMP(6)", "SMALLINT",
)  # fmt: skip
WIDE = [f"{kind} NULL" for kind in _KINDS] * 5


def wide(server: MySQLServer, rows: int) -> None:
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(WIDE))
    server.execute(f"CREATE TABLE bench.wide (id INT PRIMARY KEY, {columns})")
    values = [
        "n",
        "n * 100000",
        "n / 7",
        "LEFT(SHA2(n, 256), 32)",
        "NOW(3)",
        "n / 3",
        "CURDATE()",
        "LEFT(LEFT(SHA2(n, 256), 32), 10)",
        "NOW(6)",
        "n MOD 30000",
    ] * 5
    with server.connect("bench") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = 10000000")
        cursor.execute(
            "INSERT INTO wide WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < %s)"
            f" SELECT n, {', '.join(values)} FROM s",
            (rows,),
        )


def measure(name: str, server: MySQLServer, folder: Path, start: Any, **config: Any) -> dict[str, Any]:
    """Median of five drains of the same log (after one that counts as warm-up), by one reader."""
    seconds, cpu, changes, log_bytes, stored = [], [], 0, 0, 0
    for run in range(6):
        with draining(server, folder / f"{name}{run}", "bench", **config) as drain:
            drain.position = start
            stop = head(drain.endpoint)
            began, busy = time.perf_counter(), time.process_time()
            result = drain.once(max_changes=10**9, max_bytes=2**40, max_wait_s=600, stop_at=stop.as_offset())
            seconds.append(time.perf_counter() - began)
            cpu.append(time.process_time() - busy)
            changes = result.changes
            log_bytes = result.log_bytes
            stored = result.manifest.size_bytes if result.manifest else 0
        shutil.rmtree(folder / f"{name}{run}", ignore_errors=True)
    took = statistics.median(seconds[1:])
    return {
        "name": name, "changes": changes, "seconds": took, "cpu_s": statistics.median(cpu[1:]),
        "changes_per_s": changes / took,
        "log_mb": round(log_bytes / 1e6, 1), "parquet_mb": round(stored / 1e6, 1),
    }  # fmt: skip


def baseline(server: MySQLServer, start: Any, limit_s: float = 6.0) -> float:
    """Row changes a second that mysql-replication decodes of the same log (a sample)."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    settings = {"host": server.host, "port": server.port, "user": "root", "password": "", "ssl_disabled": True}
    reader = BinLogStreamReader(
        settings, server_id=4_000_000_000, log_file=start.file, log_pos=start.offset, resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent], enable_logging=False,
    )  # fmt: skip
    rows, began = 0, time.perf_counter()
    for event in reader:
        rows += len(event.rows)
        if time.perf_counter() - began > limit_s:
            break
    rate = rows / (time.perf_counter() - began)
    reader.close()
    return rate


_START = """
import sys, json, time; sys.path[:0] = json.loads(sys.argv[1])
import tempfile
from sluice.sources.port import StreamLimits
from sluice.sources.mysql.reader.batch_reader import capture
from sluice.sources.mysql.reader.log_part import LogReading
from sluice.sources.table_filter import Selection
from sluice.config.connections import parse_connection
from sluice.config.pipeline import CaptureConfig
from sluice.model.offset import Offset
from sluice.sources.mysql.position import Position
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
store = SegmentStore("file://" + tempfile.mkdtemp(), "p")
def first_change():
    print(time.time())
    return SegmentWriter(store, 1, 1)
capture(LogReading(parse_connection("s", sys.argv[2]), 3999999999, Selection.compile(CaptureConfig()), StreamLimits(max_changes=1)),
  Position.of(Offset.from_json(json.loads(sys.argv[3]))), first_change)
print(time.time())
"""


def start_up(server: MySQLServer, start: Any) -> tuple[float, float]:
    """Seconds from the start of a process to its first change, and to its first durable batch.

    Warm caches; median of five.
    """
    first, durable = [], []
    for _ in range(6):
        argv = [
            sys.executable,
            "-c",
            _START,
            json.dumps(sys.path[:2]),
            server.connection_json(),
            json.dumps(start.as_offset().to_json()),
        ]
        began = time.time()
        said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
        first.append(float(said[0]) - began)
        durable.append(float(said[1]) - began)
    return statistics.median(first[1:]), statistics.median(durable[1:])


def side_by_side(
    server: MySQLServer, folder: Path, start: Any, stop: Any, *, readers: int, cores: int
) -> tuple[float, int]:
    """(changes a second, changes) of a drain process of its own, bound to so many cores.

    The server runs on all of them.
    """
    asked = {
        "connection": server.connection_json(), "start": start.as_offset().to_json(),
        "stop": stop.as_offset().to_json(), "store": f"file://{folder}/parallel",
        "include": r"bench\..*", "readers": readers, "cores": cores, "runs": 4, "max_changes": 10**9,
        "max_bytes": 2**40,
    }  # fmt: skip
    argv = [sys.executable, "-m", "tests.support.capture.drain_process", json.dumps(asked)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[:2])}
    said = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=_ROOT, env=environment).stdout
    answer = json.loads(said.splitlines()[-1])
    return answer["changes"] / answer["seconds"], answer["changes"]


RESULTS = _ROOT / "tests/bench/results/capture.json"


def main() -> None:
    processes.tether()
    changes = size(400_000)
    compile_kernels()
    lines: list[dict[str, Any]] = []

    def report(measure: str, workload: str, value: float, unit: str, *beside: Any, **more: Any) -> None:
        lines.append(figure(measure, workload, value, unit, *beside, **more))

    theirs = "mysql-replication, decoding only, on the same log"
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    with MySQLServer(folder / "server", server_id=99, options=FAST) as server:
        with draining(server, folder, "bench") as first:
            endpoint = first.endpoint
        oltp(server, changes)
        server.execute("FLUSH BINARY LOGS")
        start = head(endpoint)
        with server.connect("bench") as connection, connection.cursor() as cursor:
            for _ in range(FILES):
                cursor.execute("CALL oltp(%s)", (changes // 4 // FILES,))
                cursor.execute("FLUSH BINARY LOGS")
        stop = head(endpoint)
        line = measure("capture_oltp", server, folder, start)
        workload = (
            f"{line['changes']} single-row changes, {line['log_mb']} MB of log, before and after images, to "
            "durable zstd Parquet"
        )
        report("capture_oltp", workload, line["changes_per_s"], "changes/s", theirs, baseline(server, start))
        filtered = measure("capture_filtered", server, folder, start, include=("other\\..*",))
        each = 1e6 / line["changes"]
        report(
            "capture_filtered", "the same log, its table filtered out: CPU time of the drain", filtered["cpu_s"] * each,
            "us/change",
            "the same log captured", line["cpu_s"] * each,
        )  # fmt: skip
        report(
            "capture_filtered_wall", "the same, by the clock: the server sends no faster", filtered["seconds"] * each,
            "us/change",
            "the same log captured", line["seconds"] * each,
        )  # fmt: skip
        to_first, to_batch = start_up(server, start)
        report("capture_start", "process start to first change, warm caches", to_first, "s")
        report("capture_start_batch", "process start to first durable batch, warm caches", to_batch, "s")
        alone, count = side_by_side(server, folder, start, stop, readers=1, cores=1)
        for readers, cores in PARALLEL:
            if cores <= (os.cpu_count() or 1):
                rate, _ = side_by_side(server, folder, start, stop, readers=readers, cores=cores)
                report(
                    "capture_parallel", f"{count} changes in {FILES} closed files, {readers} readers on {cores} cores",
                    rate, "changes/s",
                    "1 reader on 1 core", alone, variant=f"{readers} readers, {cores} cores",
                )  # fmt: skip
        for name, rows, fill in (("capture_bulk_insert", 2 * changes, bulk), ("capture_wide51", changes // 4, wide)):
            start = head(endpoint)
            fill(server, rows)
            start = head_after_ddl(server, start)
            line = measure(name, server, folder, start)
            what = "51 mixed columns" if fill is wide else "multi-row inserts, 4 columns"
            workload = f"{line['changes']} rows of {what}, {line['log_mb']} MB of log"
            report(name, workload, line["changes_per_s"], "rows/s", theirs, baseline(server, start))
    shutil.rmtree(folder, ignore_errors=True)
    save(RESULTS, lines)


def head_after_ddl(server: MySQLServer, start: Any) -> Any:
    """Behind the CREATE TABLE that follows ``start``, which would close the batch."""
    rows = server.execute(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset} LIMIT 2")
    return start.at(offset=int(rows[-1][4]))


if __name__ == "__main__":
    main()
