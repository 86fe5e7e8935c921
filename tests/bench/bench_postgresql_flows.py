"""What PostgreSQL as a source costs beyond its log: catching up with a backlog at another PostgreSQL, and freshness,
against the server's own subscription on the same log; a copy, against COPY and pg_dump.

Run by ``make bench-postgresql`` (``python tests/bench/bench_postgresql_flows.py [changes]``). Prints a line a
measurement; asserts that both sides are equal, and nothing else.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.postgresql import PostgreSQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.flows.dump.progress import one_view  # noqa: E402
from sluice.flows.dump.start import start  # noqa: E402
from sluice.flows.dump.worker import work  # noqa: E402
from tests.bench.bench_dump import draining  # noqa: E402
from tests.bench.bench_postgresql import OLTP, OPTIONS, ROW, TABLE, with_own_loader  # noqa: E402
from tests.bench.figures import figure, save, scaled, size  # noqa: E402
from tests.support.pipelines.pg_source import PgCase, pg_case  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "postgresql.json"
RUNS = 3
NATIVE = "native"
"""The database of the subscription, and the name of its slot."""
HOT_ROWS = 20_000
BEAT_S, STEADY = 0.1, 100
"""A heartbeat and this many other changes, so often: 1,000 changes a second."""
SECONDS = 2.0 if os.environ.get("SLUICE_BENCH_DRY") else 40.0
PATIENCE_S = 900.0


def wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not happen within {PATIENCE_S:.0f} s")
        time.sleep(0.01)


# -- the server's own subscription -------------------------------------------------------------------------------------
def begin_native(source: PostgreSQLServer) -> None:
    """Keep the log from here on for the subscription."""
    source.execute(f"SELECT pg_create_logical_replication_slot('{NATIVE}', 'pgoutput')")


@contextmanager
def subscribed(source: PostgreSQLServer, target: PostgreSQLServer, publication: str) -> Iterator[None]:
    """The subscription at work, from the slot on; the slot is gone at the end."""
    place = f"host={source.host} port={source.port} user=postgres dbname=postgres"
    target.execute(
        f"CREATE SUBSCRIPTION {NATIVE} CONNECTION '{place}' PUBLICATION {publication} "
        f"WITH (create_slot = false, slot_name = '{NATIVE}', copy_data = false)",
        database=NATIVE,
    )
    try:
        yield
    finally:
        target.execute(f"DROP SUBSCRIPTION {NATIVE}", database=NATIVE)


def native_reached(source: PostgreSQLServer, head: str) -> bool:
    return bool(
        source.execute(
            f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{NATIVE}' AND confirmed_flush_lsn >= '{head}'"
        )
    )


def head_of(source: PostgreSQLServer) -> str:
    return str(source.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def digest(server: PostgreSQLServer, database: str = "postgres") -> Any:
    return server.execute(
        "SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM bench.oltp t", database=database
    )


# -- measurements ------------------------------------------------------------------------------------------------------
def pg_apply(made: PgCase, source: PostgreSQLServer, target: PostgreSQLServer, changes: int) -> dict[str, Any]:
    """Seconds from a backlog to the same rows, of both on the same log, in turn."""
    ours, theirs = [], []
    for _ in range(RUNS):
        begin_native(source)
        source.execute(OLTP.format(n=changes // 4))
        head = head_of(source)
        began = time.perf_counter()
        made.run_until_head()
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        with subscribed(source, target, made.slot):
            wait(lambda head=head: native_reached(source, head), "the end of the subscription's backlog")
            theirs.append(time.perf_counter() - began)
        assert digest(source) == digest(target) == digest(target, NATIVE)
    seconds, beside = statistics.median(ours), statistics.median(theirs)
    return figure(
        "pg_apply", "transactions of 4 single-row changes on 20,000 rows, to another PostgreSQL", changes / seconds,
        "changes/s", "the server's own subscription", changes / beside, changes=changes, seconds=round(seconds, 2),
        wanted="5x",
    )  # fmt: skip


@contextmanager
def beating(source: PostgreSQLServer) -> Iterator[dict[int, float]]:
    """1,000 changes a second; the moment after the commit of each heartbeat, by number."""
    moments: dict[int, float] = {}
    stop = threading.Event()

    def run() -> None:
        [(first,)] = source.execute("SELECT coalesce(max(id), 0) + 1 FROM bench.beat")
        began = time.monotonic()
        with source.connect() as connection:
            for number in itertools.count():
                if stop.wait(max(began + number * BEAT_S - time.monotonic(), 0)):
                    return
                low = number * STEADY % HOT_ROWS
                connection.execute(f"UPDATE bench.oltp SET k = k + 1 WHERE id > {low} AND id <= {low + STEADY}")
                connection.execute(f"INSERT INTO bench.beat VALUES ({first + number})")
                moments[first + number] = time.time()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield moments
    finally:
        stop.set()
        thread.join()


def ages(source: PostgreSQLServer, target: PostgreSQLServer, database: str) -> list[float]:
    """Seconds from the commit of each heartbeat to the first look that finds it at the target."""
    found: list[float] = []
    with beating(source) as moments, target.connect(database) as connection:

        def seen() -> int:
            [(number,)] = connection.execute("SELECT coalesce(max(id), 0) FROM bench.beat").fetchall()
            return int(number)

        before = seen()
        wait(lambda: seen() > before, "the first heartbeat")
        time.sleep(5)
        last, end = seen(), time.monotonic() + SECONDS
        while time.monotonic() < end:
            number, now = seen(), time.time()
            found += [now - moments[one] for one in range(last + 1, number + 1) if one in moments]
            last = number
            time.sleep(0.005)
    return found


def pg_freshness(made: PgCase, source: PostgreSQLServer, target: PostgreSQLServer) -> list[dict[str, Any]]:
    """Measure `sluice run` in a process, then the subscription."""
    process = subprocess.Popen(
        made.command("run", made.name), env=made.environment, cwd=made.folder, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ours = ages(source, target, "postgres")
    finally:
        process.terminate()
        process.wait()
    begin_native(source)
    with subscribed(source, target, made.slot):
        theirs = ages(source, target, NATIVE)
    lines = []
    for name, part in (("p50", 0.5), ("p95", 0.95)):
        values = [sorted(one)[int(len(one) * part)] for one in (ours, theirs)]
        lines.append(
            figure(
                f"pg_freshness_{name}", "1,000 changes/s, sluice run with max_wait 200ms, commit to visible", values[0],
                "s", "the server's own subscription", values[1], heartbeats=len(ours),
            )
        )  # fmt: skip
    return lines


def pg_dump_rows(made: PgCase, source: PostgreSQLServer, rows: int) -> dict[str, Any]:
    """Rows a second into segments, placed in the log; nothing else is written.

    VACUUM reads the table before all three, since the first reader of new rows writes every page.
    """
    source.execute(f"INSERT INTO bench.bulk SELECT {ROW} FROM generate_series(1, {rows}) i")
    source.execute("VACUUM ANALYZE bench.bulk")
    made.run_until_head()
    source.execute("INSERT INTO bench.beat SELECT coalesce(max(id), 0) + 1 FROM bench.beat")
    with draining(made):  # once it has captured a batch
        began = time.perf_counter()
        asked = start(made.runtime(), tables=["bench.bulk"])
        work(made.runtime(), asked.id)
        seconds = time.perf_counter() - began
        seen = one_view(made.runtime(), asked.id)
        assert seen.rows + sum(table.overtaken for table in seen.tables) == rows, seen
    began = time.perf_counter()
    with (
        source.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY bench.bulk TO STDOUT") as copy,
    ):
        for _ in copy:
            pass
    copied = time.perf_counter() - began
    program = source.distribution.programs / "pg_dump"  # type: ignore[union-attr]
    began = time.perf_counter()
    subprocess.run(
        [*with_own_loader(program), "-h", source.host, "-p", str(source.port), "-U", "postgres", "-t", "bench.bulk",
         "postgres"],
        stdout=subprocess.DEVNULL, check=True, timeout=600, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    dumped = time.perf_counter() - began
    return figure(
        "pg_dump_rows", "sysbench's table into segments, placed in the log", rows / seconds, "rows/s",
        "COPY … TO STDOUT", rows / copied, rows=rows, seconds=round(seconds, 2), pg_dump=round(rows / dumped),
    )  # fmt: skip


def main() -> None:
    processes.tether()
    changes = size(400_000)
    tables = [f"CREATE TABLE oltp {TABLE}", f"CREATE TABLE bulk {TABLE}", "CREATE TABLE beat (id int PRIMARY KEY)"]
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as name,
        PostgreSQLServer(Path(name) / "source", options=OPTIONS) as source,
        PostgreSQLServer(Path(name) / "target", name="target", options={"max_wal_size": "8GB"}) as target,
        ZooKeeperServer(Path(name) / "zookeeper") as zookeeper,
        pg_case(Path(name) / "case", source, zookeeper, schema="bench", target=target, tables=tables) as made,
    ):
        first = f"INSERT INTO bench.oltp SELECT {ROW} FROM generate_series(1, {HOT_ROWS}) i"
        there = ["CREATE SCHEMA bench", *(one.replace("TABLE ", "TABLE bench.", 1) for one in tables), first]
        source.execute(first)
        target.execute(f"CREATE DATABASE {NATIVE}", *there)
        target.execute(*there, database=NATIVE)
        made.prepare()
        made.run_until_head()
        lines = [pg_apply(made, source, target, changes)]
        lines += pg_freshness(made, source, target)
        lines.append(pg_dump_rows(made, source, scaled(1_500_000)))
    save(RESULTS, lines)


if __name__ == "__main__":
    main()
