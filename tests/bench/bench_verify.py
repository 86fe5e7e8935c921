"""What a verification costs: rows a second by checksums and by rows through a rule, and what it does to the log's lag.

Baseline in the same run: ``pt-table-checksum`` (Debian: percona-toolkit) of the same table at the source. It
computes one server's checksums only; a replica would compute them once more. Run by ``make bench-verify``
(``python tests/bench/bench_verify.py [rows]``). Prints a line a measurement, writes tests/bench/results/verify.json;
asserts nothing but that both sides are equal.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.spark import SparkConnectServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.operations.status import status  # noqa: E402
from sluice.operations.verify.verify import VerifySpec, verify  # noqa: E402
from tests.bench.bench_dump import CHANGES_A_SECOND, FAST, fill, writing  # noqa: E402
from tests.bench.figures import keep  # noqa: E402
from tests.support.pipelines.case import Case, case  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/verify.json"
QUIET_S = 15.0
SIDES = ("source", "target", "here")
RULE = "def transform(row, context):\n    return {**row, 'pad': row['pad'][::-1]}\n"


@contextmanager
def running(made: Case) -> Iterator[None]:
    """``sluice run`` in a process of its own."""
    with open(made.folder / "run.log", "wb") as log:
        process = subprocess.Popen(made.command("run", str(made.path)), env=made.environment, stdout=log, stderr=log)
        try:
            yield
        except BaseException:
            print((made.folder / "run.log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait()


def twin(source: MySQLServer, folder: Path) -> MySQLServer:
    """A server with the same rows, from a copy of the stopped ``source``."""
    shutil.copytree(source.data_dir, folder / "data", ignore=shutil.ignore_patterns("auto.cnf", "binlog.*"))
    return MySQLServer(folder, server_id=32, options=FAST)


def cpu_s(*servers: MySQLServer) -> list[float]:
    """Seconds of a core that each has used."""
    times = [psutil.Process(int((server.folder / "mysqld.pid").read_text())).cpu_times() for server in servers]
    return [one.user + one.system for one in times]


def drained(made: Case) -> None:
    """Wait until the pipeline has a position."""
    with made.runtime().state() as state:
        until = time.monotonic() + 120
        while state.cursor() is None or state.acks.get("copy") is None:
            assert time.monotonic() < until, (made.folder / "run.log").read_text()[-2000:]
            time.sleep(0.1)


@contextmanager
def lags(made: Case) -> Iterator[list[float]]:
    """Seconds that the target lags, five times a second."""
    found: list[float] = []
    stop = threading.Event()

    def look() -> None:
        runtime = made.runtime()
        with runtime.state():
            while not stop.wait(0.2):
                lag = status(runtime).lag_ms
                if lag is not None:
                    found.append(lag / 1000)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def verified(made: Case, rows: int, way: str, mode: str = "local") -> tuple[float, list[float]]:
    """Rows a second, and microseconds of a core for each row: at the source, at the target, and here."""
    runtime, before, own = made.runtime(mode), cpu_s(made.source, made.target), time.process_time()
    began = time.monotonic()
    result = verify(runtime, VerifySpec())
    seconds = time.monotonic() - began
    [table] = result.tables
    assert (result.outcome, table.rows, table.way) == ("equal", rows, way), result
    used = [later - earlier for earlier, later in zip(before, cpu_s(made.source, made.target), strict=True)]
    return rows / seconds, [round(one * 1e6 / rows, 2) for one in (*used, time.process_time() - own)]


def pt_table_checksum(server: MySQLServer, schema: str, rows: int) -> tuple[float, float]:
    """As :func:`verified`, at the source alone and with its own defaults; 0: it is not there, or does not run with this
    server.
    """
    program = shutil.which("pt-table-checksum")
    if program is None:
        return 0.0, 0.0
    [before] = cpu_s(server)
    server.execute("CREATE USER IF NOT EXISTS pt@'%' IDENTIFIED BY ''", "GRANT ALL ON *.* TO pt@'%'")
    began = time.monotonic()
    done = subprocess.run(
        [
            program, "--no-version-check", "--recursion-method=none", "--no-check-binlog-format",
            "--no-check-replication-filters",
            f"--databases={schema}", "--tables=sbtest", f"h=127.0.0.1,P={server.port},u=pt",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    counted = [line.split() for line in done.stdout.splitlines() if line.endswith(f"{schema}.sbtest")]
    if not counted or int(counted[0][3]) < rows * 0.99:
        print(f"pt-table-checksum does not run here: {done.stderr[-500:] or done.stdout[-500:]}", file=sys.stderr)
        return 0.0, 0.0
    return rows / seconds, round((cpu_s(server)[0] - before) * 1e6 / rows, 2)


def main() -> None:
    processes.tether()
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    ruled = max(rows // 5, 1)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as servers:
        root = Path(folder)
        source = servers.enter_context(MySQLServer(root / "source", server_id=31, options=FAST))
        source.execute("CREATE DATABASE plain", "CREATE DATABASE ruled")
        fill(source, "plain", rows)
        source.execute(
            "CREATE TABLE ruled.sbtest LIKE plain.sbtest",
            f"INSERT INTO ruled.sbtest SELECT * FROM plain.sbtest WHERE id <= {ruled}",
            "ANALYZE TABLE ruled.sbtest",
        )
        source.stop(120)
        target = servers.enter_context(twin(source, root / "target"))
        source.start()
        target.execute("UPDATE ruled.sbtest SET pad = REVERSE(pad)")
        zookeeper = servers.enter_context(ZooKeeperServer(root / "zookeeper"))
        with case(root / "plain", source, target, zookeeper, "plain", name="plain") as made, running(made):
            drained(made)
            verified(made, rows, "checksums")  # both servers have read the table
            by_checksums, used = verified(made, rows, "checksums")
            load = os.getloadavg()[0]
            with writing(source, "plain", rows), lags(made) as seen:
                time.sleep(5)
                seen.clear()
                time.sleep(QUIET_S)
                quiet = list(seen)
                seen.clear()
                with_writers, _ = verified(made, rows, "checksums")
                under = list(seen)
        with case(root / "ruled", source, target, zookeeper, "ruled", name="ruled", extra="rules: engine.yaml") as made:
            (made.folder / "rules" / "pad.py").write_text(RULE, encoding="utf-8")
            (made.folder / "rules" / "engine.yaml").write_text(
                "rules: [{name: pad, path: pad.py, type: row}]\n", encoding="utf-8"
            )
            with running(made):
                drained(made)
                here, used_here = verified(made, ruled, "rows of the source")
            spark = servers.enter_context(SparkConnectServer(root / "spark"))
            made.connections["spark_connect_default"] = spark.connection_json()
            with running(made):  # as Airflow's tasks do it: only the comparison is on Spark
                connected = replace(made, yaml=made.yaml.replace("spark: {mode: local}", "spark: {}"))
                connected.path.write_text(connected.yaml, encoding="utf-8")
                verified(connected, ruled, "rows of the source", "connect")  # its workers have started
                by_rows, used_by_rows = verified(connected, ruled, "rows of the source", "connect")
        # Last: it writes statements into the log, which a pipeline refuses.
        pt_table_checksum(source, "plain", rows)
        baseline, used_by_pt = pt_table_checksum(source, "plain", rows)
    lag, lag_under = statistics.median(quiet), statistics.median(under or [0.0])
    beside = f"sysbench's table of {rows:,} rows"
    results: list[dict[str, Any]] = [
        {
            "measure": "verify_checksum",
            "workload": beside,
            "value": round(by_checksums),
            "unit": "rows/s", "baseline": "pt-table-checksum, source only", "baseline_value": round(baseline),
            "ratio": round(by_checksums / baseline, 2) if baseline else None, "wanted": "at least 2x",
            "cores": os.cpu_count(),
            "with_changes": round(with_writers), "cpu_us_a_row": dict(zip(SIDES, used, strict=True)),
            "baseline_cpu_us_a_row": used_by_pt,
            "load": round(load, 1),
        },
        {
            "measure": "verify_rules", "workload": f"the same of {ruled:,} rows, one row rule, on Spark",
            "value": round(by_rows), "unit": "rows/s",
            "baseline": "the same in one process", "baseline_value": round(here), "ratio": round(by_rows / here, 2),
            "wanted": "",
            "cores": os.cpu_count(), "cpu_us_a_row": dict(zip(SIDES, used_by_rows, strict=True)),
            "baseline_cpu_us_a_row": dict(zip(SIDES, used_here, strict=True)),
        },
        {
            "measure": "verify_log_lag", "workload": f"the target's lag, median, {CHANGES_A_SECOND} changes/s",
            "value": round(lag_under, 3), "unit": "s",
            "baseline": "the same without a verification", "baseline_value": round(lag, 3),
            "ratio": round(lag_under / lag, 2) if lag else None,
            "wanted": "at most 2x", "cores": os.cpu_count(), "samples": len(under),
        },
    ]  # fmt: skip
    keep(RESULTS, results)


if __name__ == "__main__":
    main()
