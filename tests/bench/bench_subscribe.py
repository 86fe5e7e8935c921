"""What the subscription service gives: rows a second to one client, from stored batches of sysbench's table, and how
soon it has a change.

Baseline of ``flight_rows`` and ``http_rows`` in the same run: ``pyarrow.parquet`` reads the same segment files, all
columns, in this process: no order, no rules, no wire. ``subscriber_lag``: from the statement at the source to the rows
at a Flight client that follows, with 1,000 changes a second and batches of 100 ms. The service is ``sluice serve`` in a
process of its own. Run by ``make bench-subscribe`` (``python tests/bench/bench_subscribe.py [rows]``). Prints a line a
measurement, writes tests/bench/results/subscribe.json; asserts nothing but that every row came.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.flows.capture.drain import drain  # noqa: E402
from tests.bench.bench_dump import FAST, fill  # noqa: E402
from tests.bench.figures import figure, save, size  # noqa: E402
from tests.support.pipelines.case import Case, case  # noqa: E402
from tests.support.pipelines.subscribing import Subscriber  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/subscribe.json"
ROUNDS = 5
LAG_S = 30
A_SECOND = 1_000
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
            state.acks.acknowledge("copy", state.batches.require(outcome.batch), seen=state.acks.get("copy"))
        count += 1


def by_pyarrow(made: Case) -> tuple[int, float]:
    """(rows, seconds)."""
    runtime = made.runtime()
    store = runtime.store
    with runtime.state() as state:
        manifests = [store.read_manifest(state.batches.require(number).manifest) for number in state.batches.numbers()]
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


def by_http(address: str, **query: Any) -> tuple[int, float]:
    """(documents, seconds)."""
    began, count = time.perf_counter(), 0
    headers = {"accept-encoding": "identity"}
    with httpx.stream(
        "GET", f"{address}/v1/pipelines/case/changes", params=query, headers=headers, timeout=600
    ) as answer:
        for piece in answer.iter_raw():
            count += piece.count(b"\n")
    return count, time.perf_counter() - began


def main() -> None:
    processes.tether()
    rows = size(1_000_000)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as servers:
        root = Path(folder)
        source = servers.enter_context(MySQLServer(root / "source", server_id=31, options=FAST))
        source.execute("CREATE DATABASE bench")
        zookeeper = servers.enter_context(ZooKeeperServer(root / "zookeeper"))
        with case(root / "case", source, source, zookeeper, "bench", max_wait="100ms") as made:
            captured(made, source, rows)
            with serving(made) as (reader, address):
                measure(made, reader, address, rows)
                lag(made, source, reader)


@contextmanager
def serving(made: Case) -> Iterator[tuple[Subscriber, str]]:
    """(a reader by Flight, the address of the HTTP server) of ``sluice serve``."""
    command = made.command("serve", "--port", "0", "--http-port", "0")
    with subprocess.Popen(command, env=made.environment, cwd=made.folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            grpc, http = (
                next(line for line in process.stderr if sign in line).split()[-1] for sign in ("grpc://", "http://")
            )
            yield Subscriber(grpc), http
        finally:
            process.kill()


def measure(made: Case, reader: Subscriber, address: str, rows: int) -> None:
    wanted, _ = by_pyarrow(made)
    by_flight(reader, columns=SOME)  # the first read of a process loads code
    rates: dict[str, list[float]] = {name: [] for name in ("pyarrow", "changes", "some", "merged", "http")}
    for _ in range(ROUNDS):
        for name, (count, seconds) in {
            "pyarrow": by_pyarrow(made),
            "changes": by_flight(reader),
            "some": by_flight(reader, columns=SOME),
            "merged": by_flight(reader, form="merged"),
            "http": by_http(address),
        }.items():
            assert count == wanted or name == "merged", f"{name}: {count} rows of {wanted}"
            rates[name].append(count / seconds)
    middle = {name: round(statistics.median(values)) for name, values in rates.items()}
    words = {
        "changes": "every change, all columns",
        "some": "every change, columns id and k",
        "merged": "one row per key and batch",
        "http": "every change as debezium-json, a line each, not compressed",
    }
    lines = [
        figure(
            "http_rows" if name == "http" else "flight_rows", f"sysbench's table, {rows} inserts and {rows // 4} "
            f"updates; {words[name]}",
            middle[name], "rows/s", "pyarrow reads the same files in process", middle["pyarrow"], variant=name,
            wanted=None if name == "http" else "2,000,000 rows/s", samples=ROUNDS, pyarrow=pa.__version__,
        )
        for name in words
    ]  # fmt: skip
    save(RESULTS, lines)


def lag(made: Case, source: MySQLServer, reader: Subscriber) -> None:
    """Milliseconds from a statement to its row at a client that follows."""
    source.execute(f"CREATE TABLE {made.schema}.beats (id INT PRIMARY KEY AUTO_INCREMENT, us BIGINT)")
    over = threading.Event()
    threads = [threading.Thread(target=work, args=(made, source, over)) for work in (_beat, _capture)]
    for thread in threads:
        thread.start()
    try:
        found = _seen(made, reader)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    ranked = statistics.quantiles(found, n=100)
    workload = f"{A_SECOND} single-row inserts a second for {LAG_S} s, batches of 100 ms, to one Flight client"
    save(
        RESULTS,
        [figure("subscriber_lag", f"{workload}; p{at}", ranked[at - 1], "ms", variant=f"p{at}") for at in (50, 95)],
    )


def _beat(made: Case, source: MySQLServer, over: threading.Event) -> None:
    with source.connect(made.schema) as connection, connection.cursor() as cursor:
        connection.autocommit(True)
        began, count = time.perf_counter(), 0
        while not over.is_set():
            due = int((time.perf_counter() - began) * A_SECOND) - count
            for _ in range(due):
                cursor.execute("INSERT INTO beats (us) VALUES (%s)", (time.time_ns() // 1000,))
            count += due
            over.wait(0.002)


def _capture(made: Case, source: MySQLServer, over: threading.Event) -> None:
    runtime, count = made.runtime(), 0
    while not over.is_set():
        outcome = drain(runtime, claim=f"lag:{count}", idle_wait_s=0.05)
        count += 1
        if outcome.batch is not None:
            with runtime.state() as state:  # no target is asked
                state.acks.acknowledge("copy", state.batches.require(outcome.batch), seen=state.acks.get("copy"))


def _seen(made: Case, reader: Subscriber) -> list[float]:
    """Of all rows after the first seconds."""
    found: list[float] = []
    until = 0.0
    while True:  # until the table has a batch
        try:
            stream = reader.stream(tables=[f"{made.schema}.beats"], from_="latest", follow=True, columns=["us"])
            break
        except pa.ArrowException:
            time.sleep(0.5)
    for chunk in stream:
        now = time.time_ns() / 1000
        until = until or time.monotonic() + LAG_S
        found += [(now - us) / 1000 for us in chunk.data["us"].to_pylist()]
        if time.monotonic() > until:
            stream.cancel()
            return found
    return found


if __name__ == "__main__":
    main()
