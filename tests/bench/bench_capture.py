"""What capture costs: rows a second from the server's log to durable Parquet, against mysql-replication on the same log.

Run by ``make bench-capture`` (``python tests/bench/bench_capture.py [changes]``). Prints a line a measurement; asserts nothing.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from sluice.binlog.capture import warm_up  # noqa: E402
from sluice.stack.mysql import MySQLServer  # noqa: E402
from tests.integration.capturing import draining, head  # noqa: E402

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
        "CREATE TABLE bench.sbtest (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, KEY (k))",
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
    "INT",
    "BIGINT UNSIGNED",
    "DECIMAL(12,2)",
    "VARCHAR(40)",
    "DATETIME(3)",
    "DOUBLE",
    "DATE",
    "CHAR(10)",
    "TIMESTAMP(6)",
    "SMALLINT",
)
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
    """Median of three drains of the same log."""
    seconds, changes, log_bytes, stored = [], 0, 0, 0
    for run in range(3):
        with draining(server, folder / f"{name}{run}", "bench", **config) as drain:
            drain.position = start
            began = time.perf_counter()
            result = drain.once(max_changes=10**9, max_bytes=2**40, max_wait_s=600, stop_at=head(drain.endpoint))
            seconds.append(time.perf_counter() - began)
            changes = result.changes
            log_bytes = result.log_bytes
            stored = result.manifest.size_bytes if result.manifest else 0
    took = statistics.median(seconds)
    return {
        "name": name, "changes": changes, "seconds": round(took, 3), "changes_per_s": round(changes / took), "log_mb": round(log_bytes / 1e6, 1),
        "log_mb_per_s": round(log_bytes / took / 1e6, 1), "parquet_mb": round(stored / 1e6, 1),
    }  # fmt: skip


def baseline(server: MySQLServer, start: Any, limit_s: float = 10.0) -> float:
    """Row changes a second that mysql-replication decodes of the same log (a sample)."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    settings = {"host": server.host, "port": server.port, "user": "root", "password": ""}
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


def start_up(server: MySQLServer, start: Any) -> float:
    """Seconds from the start of a process to its first batch, warm caches."""
    code = (
        "import sys, json, time; sys.path[:0] = json.loads(sys.argv[1])\n"
        "from pathlib import Path; import tempfile\n"
        "from sluice.binlog.capture import *; from sluice.config.connections import parse_connection\n"
        "from sluice.config.pipeline import CaptureConfig; from sluice.model.positions import Position\n"
        "from sluice.segments.store import SegmentStore; from sluice.segments.writer import SegmentWriter\n"
        "store = SegmentStore('file://' + tempfile.mkdtemp(), 'p')\n"
        "r = capture(parse_connection('s', sys.argv[2]), server_id=3999999999, start=Position(**json.loads(sys.argv[3])),\n"
        "  selection=Selection.compile(CaptureConfig()), limits=CaptureLimits(max_changes=1),\n"
        "  writer_factory=lambda: SegmentWriter(store, 1, 1))\n"
    )
    times = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(
            [
                sys.executable,
                "-c",
                code,
                json.dumps(sys.path[:2]),
                server.connection_json(),
                json.dumps(start.to_json()),
            ],
            check=True,
        )
        times.append(time.perf_counter() - began)
    return statistics.median(times)


RESULTS = _ROOT / "tests/bench/results/capture.json"


def main() -> None:
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    warm_up()
    lines: list[dict[str, Any]] = []

    def report(
        measure: str, workload: str, value: float, unit: str, baseline: str = "", baseline_value: float = 0.0
    ) -> None:
        """One figure; ``ratio`` is how many times better it is than its baseline."""
        better = (
            value / baseline_value
            if unit.endswith("/s") and baseline_value
            else baseline_value / value
            if baseline_value
            else None
        )
        ratio = round(better, 2) if better else None
        line = {
            "measure": measure, "workload": workload, "value": round(value, 3), "unit": unit, "baseline": baseline or None,
            "baseline_value": round(baseline_value, 3) or None, "ratio": ratio,
        }  # fmt: skip
        lines.append(line)
        beside = f"  {baseline} {baseline_value:,.1f}  ratio {ratio}" if baseline else ""
        print(f"{measure:<22} {value:>12,.2f} {unit:<10}{beside}   ({workload})", flush=True)

    theirs = "mysql-replication, decoding only, 10 s of the same log"
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    with MySQLServer(folder / "server", server_id=99, options=FAST) as server:
        with draining(server, folder, "bench") as first:
            endpoint = first.endpoint
        oltp(server, changes)
        start = head(endpoint)
        with server.connect("bench") as connection, connection.cursor() as cursor:
            cursor.execute("CALL oltp(%s)", (changes // 4,))
        line = measure("capture_oltp", server, folder, start)
        workload = f"{line['changes']} single-row changes, {line['log_mb']} MB of log, before and after images, to durable zstd Parquet"
        report("capture_oltp", workload, line["changes_per_s"], "changes/s", theirs, baseline(server, start))
        filtered = measure("capture_filtered", server, folder, start, include=("other\\..*",))
        report(
            "capture_filtered",
            "the same log, its table filtered out",
            filtered["seconds"],
            "s",
            "the same log captured",
            line["seconds"],
        )
        report("capture_start", "process start to first batch, warm caches", start_up(server, start), "s")
        start = head(endpoint)
        bulk(server, changes)
        start = head_after_ddl(server, start)
        line = measure("capture_bulk_insert", server, folder, start)
        report(
            "capture_bulk_insert",
            f"{line['changes']} rows of multi-row inserts",
            line["changes_per_s"],
            "rows/s",
            theirs,
            baseline(server, start),
        )
        start = head(endpoint)
        wide(server, changes // 4)
        start = head_after_ddl(server, start)
        line = measure("capture_wide51", server, folder, start)
        report(
            "capture_wide51",
            f"{line['changes']} rows of 51 mixed columns",
            line["changes_per_s"],
            "rows/s",
            theirs,
            baseline(server, start),
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.relative_to(_ROOT)}")


def head_after_ddl(server: MySQLServer, start: Any) -> Any:
    """Behind the CREATE TABLE that follows ``start``, which would close the batch."""
    rows = server.execute(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset} LIMIT 2")
    return start.at(offset=int(rows[-1][4]))


if __name__ == "__main__":
    main()
