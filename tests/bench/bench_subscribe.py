"""What the subscription service gives: rows a second to one Arrow Flight client, from stored batches of sysbench's table.

Baseline in the same run: ``pyarrow.parquet`` reads the same segment files, all columns, in this process: no order, no rules, no wire. The
service is ``sluice serve`` in a process of its own; the client holds one record batch at a time. Run by ``make bench-subscribe``
(``python tests/bench/bench_subscribe.py [rows]``). Prints a line a measurement, writes tests/bench/results/subscribe.json; asserts nothing but
that every row came.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.flows.capture.drain import drain  # noqa: E402
from tests.bench.bench_dump import FAST, fill  # noqa: E402
from tests.support.pipelines import Case, case  # noqa: E402
from tests.support.subscribing import Subscriber  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/subscribe.json"
ROUNDS = 3
SOME = ["id", "k"]


def captured(made: Case, server: MySQLServer, rows: int) -> None:
    """The table's rows as batches: inserts, then an update of a quarter of them."""
    runtime = made.runtime()
    drain(runtime, claim="bench:first", idle_wait_s=0.1)
    fill(server, made.schema, rows)
    server.execute(f"UPDATE {made.schema}.sbtest SET k = k + 1 WHERE id MOD 4 = 0")
    with runtime.source.open() as source:
        head = source.head
    count = 0
    while (outcome := drain(runtime, claim=f"bench:{count}", idle_wait_s=0.5, until=head)).batch is not None:
        with runtime.state() as state:  # no target is asked: it is captured, which is enough
            state.acknowledge("copy", state.require(outcome.batch), seen=state.process("copy"))
        count += 1


def by_pyarrow(made: Case) -> tuple[int, float]:
    """(rows, seconds)."""
    runtime = made.runtime()
    store = runtime.store
    with runtime.state() as state:
        manifests = [store.read_manifest(state.require(number).manifest) for number in state.numbers()]
    began, count = time.perf_counter(), 0
    for manifest in manifests:
        for file in manifest.files:
            with store.open_input(file.path) as source:
                count += pq.read_table(source, use_threads=False).num_rows
    return count, time.perf_counter() - began


def by_flight(reader: Subscriber, **request: Any) -> tuple[int, float]:
    """(rows, seconds), with those that open the stream."""
    began, count = time.perf_counter(), 0
    for chunk in reader.stream(**request):
        count += chunk.data.num_rows
    return count, time.perf_counter() - began


def main() -> None:
    processes.tether()
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as servers:
        root = Path(folder)
        source = servers.enter_context(MySQLServer(root / "source", server_id=31, options=FAST))
        source.execute("CREATE DATABASE bench")
        zookeeper = servers.enter_context(ZooKeeperServer(root / "zookeeper"))
        with case(root / "case", source, source, zookeeper, "bench") as made:
            captured(made, source, rows)
            measure(made, rows)


def measure(made: Case, rows: int) -> None:
    command = made.command("serve", "--port", "0")
    with subprocess.Popen(command, env=made.environment, cwd=made.folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if "serving" in line)
            reader = Subscriber(said.split()[-1])
            wanted, _ = by_pyarrow(made)
            by_flight(reader, columns=SOME)  # the first read of a process loads code
            rates: dict[str, list[float]] = {name: [] for name in ("pyarrow", "changes", "some", "merged")}
            for _ in range(ROUNDS):
                for name, (count, seconds) in {
                    "pyarrow": by_pyarrow(made),
                    "changes": by_flight(reader),
                    "some": by_flight(reader, columns=SOME),
                    "merged": by_flight(reader, form="merged"),
                }.items():
                    assert count == wanted or name == "merged", f"{name}: {count} rows of {wanted}"
                    rates[name].append(count / seconds)
        finally:
            process.kill()
    middle = {name: round(statistics.median(values)) for name, values in rates.items()}
    words = {
        "changes": "every change, all columns",
        "some": "every change, columns id and k",
        "merged": "one row per key and batch",
    }
    results = [
        {
            "measure": "flight_rows", "variant": name, "workload": f"sysbench's table, {rows:,} inserts and {rows // 4:,} updates; {words[name]}",
            "value": middle[name], "unit": "rows/s", "baseline": "pyarrow reads the same files in process", "baseline_value": middle["pyarrow"],
            "ratio": round(middle[name] / middle["pyarrow"], 2), "wanted": "2,000,000 rows/s", "cores": os.cpu_count(), "samples": ROUNDS,
            "pyarrow": pa.__version__,
        }
        for name in words
    ]  # fmt: skip
    for one in results:
        print(
            f"{one['measure']:12} {one['variant']:8} {one['value']:>12,} {one['unit']}  "
            f"{one['baseline']}: {one['baseline_value']:,}  ratio {one['ratio']}"
        )
    if os.environ.get("SLUICE_BENCH_KEEP", "1") == "1":
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
