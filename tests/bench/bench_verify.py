"""What a verification costs: rows a second by checksums and by rows through a rule, and what it does to the log's lag.

Baseline in the same run: ``pt-table-checksum`` (Debian: percona-toolkit) of the same table at the source. It
computes one server's checksums only; a replica would compute them once more. Run by ``make bench-verify``
(``python tests/bench/bench_verify.py [rows]``). Prints a line a measurement, writes tests/bench/results/verify.json; asserts nothing but that
both sides are equal.
"""

from __future__ import annotations

import json
import os
import shutil
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

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.flows.operate.status import status  # noqa: E402
from sluice.flows.verify.verify import VerifySpec, verify  # noqa: E402
from tests.bench.bench_dump import CHANGES_A_SECOND, FAST, fill, writing  # noqa: E402
from tests.support.pipelines import Case, case  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/verify.json"
QUIET_S = 15.0
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


def copied(made: Case, rows: int) -> None:
    """Wait for the first copy."""
    count = f"SELECT COUNT(*) FROM `{made.schema}`.sbtest"
    until = time.monotonic() + 1800
    while made.target.execute(count) != [(rows,)]:
        assert time.monotonic() < until, (made.folder / "run.log").read_text()[-2000:]
        time.sleep(0.5)


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


def verified(made: Case, rows: int, way: str) -> float:
    """Rows a second."""
    began = time.monotonic()
    result = verify(made.runtime(), VerifySpec())
    seconds = time.monotonic() - began
    [table] = result.tables
    assert (result.outcome, table.rows, table.way) == ("equal", rows, way), result
    return rows / seconds


def pt_table_checksum(server: MySQLServer, schema: str, rows: int) -> float:
    """Rows a second at the source, with its own defaults; 0: it is not there, or does not run with this server."""
    program = shutil.which("pt-table-checksum")
    if program is None:
        return 0.0
    server.execute("CREATE USER IF NOT EXISTS pt@'%' IDENTIFIED BY ''", "GRANT ALL ON *.* TO pt@'%'")
    began = time.monotonic()
    done = subprocess.run(
        [
            program, "--no-version-check", "--recursion-method=none", "--no-check-binlog-format", "--no-check-replication-filters",
            f"--databases={schema}", "--tables=sbtest", f"h=127.0.0.1,P={server.port},u=pt",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    counted = [line.split() for line in done.stdout.splitlines() if line.endswith(f"{schema}.sbtest")]
    if not counted or int(counted[0][3]) < rows * 0.99:
        print(f"pt-table-checksum does not run here: {done.stderr[-500:] or done.stdout[-500:]}", file=sys.stderr)
        return 0.0
    return rows / seconds


def main() -> None:
    processes.tether()
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        MySQLServer(Path(folder) / "source", server_id=31, options=FAST) as source,
        MySQLServer(Path(folder) / "target", server_id=32, options=FAST) as target,
        ZooKeeperServer(Path(folder) / "zookeeper") as zookeeper,
    ):
        root = Path(folder)
        for schema in ("plain", "ruled"):
            for server in (source, target):
                server.execute(f"CREATE DATABASE {schema}")
            fill(source, schema, rows)
        with case(root / "plain", source, target, zookeeper, "plain", start="dump", name="plain") as made:
            made.cli("check", str(made.path), "--apply", "--yes")
            with running(made):
                copied(made, rows)
                verified(made, rows, "checksums")  # both servers have read the table
                by_checksums = verified(made, rows, "checksums")
                with writing(source, "plain", rows), lags(made) as seen:
                    time.sleep(5)
                    seen.clear()
                    time.sleep(QUIET_S)
                    quiet = list(seen)
                    seen.clear()
                    with_writers = verified(made, rows, "checksums")
                    under = list(seen)
        with case(
            root / "ruled", source, target, zookeeper, "ruled", start="dump", name="ruled", extra="rules: engine.yaml"
        ) as made:
            (made.folder / "rules" / "pad.py").write_text(RULE, encoding="utf-8")
            (made.folder / "rules" / "engine.yaml").write_text(
                "rules: [{name: pad, path: pad.py, type: row}]\n", encoding="utf-8"
            )
            made.cli("check", str(made.path), "--apply", "--yes")
            with running(made):
                copied(made, rows)
                by_rows = verified(made, rows, "rows of the source")
        # Last: it writes statements into the log, which a pipeline refuses.
        baseline = pt_table_checksum(source, "plain", rows)
    lag, lag_under = statistics.median(quiet), statistics.median(under or [0.0])
    beside = f"sysbench's table of {rows:,} rows"
    results: list[dict[str, Any]] = [
        {
            "measure": "verify_checksum",
            "workload": beside,
            "value": round(by_checksums),
            "unit": "rows/s", "baseline": "pt-table-checksum, source only", "baseline_value": round(baseline),
            "ratio": round(by_checksums / baseline, 2) if baseline else None, "wanted": "at least 2x", "cores": os.cpu_count(),
            "with_changes": round(with_writers),
        },
        {
            "measure": "verify_rules", "workload": f"{beside}, one row rule", "value": round(by_rows), "unit": "rows/s",
            "baseline": "verify_checksum",
            "baseline_value": round(by_checksums), "ratio": round(by_rows / by_checksums, 2), "wanted": "", "cores": os.cpu_count(),
        },
        {
            "measure": "verify_log_lag", "workload": f"the target's lag, median, {CHANGES_A_SECOND} changes/s",
            "value": round(lag_under, 3), "unit": "s",
            "baseline": "the same without a verification", "baseline_value": round(lag, 3), "ratio": round(lag_under / lag, 2) if lag else None,
            "wanted": "at most 2x", "cores": os.cpu_count(), "samples": len(under),
        },
    ]  # fmt: skip
    for one in results:
        beside = f"{one['baseline']}: {one['baseline_value']:,}  ratio {one['ratio']}  ({one['wanted']})"
        print(f"{one['measure']:16} {one['value']:>12,} {one['unit']:7} {beside}")
    if os.environ.get("SLUICE_BENCH_KEEP", "1") == "1":
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
