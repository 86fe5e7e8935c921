"""What PostgreSQL as a source costs: changes a second from its log to durable Parquet, against pg_recvlogical to
/dev/null on the same log. The server decodes on one core for both: pg_recvlogical shows how fast that is.

Run by ``make bench-postgresql`` (``python tests/bench/bench_postgresql.py [changes]``). Prints a line a measurement;
asserts nothing.
"""

from __future__ import annotations

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
from devstack.postgresql import PostgreSQLServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import PipelineConfig  # noqa: E402
from sluice.segments.store import SegmentStore  # noqa: E402
from sluice.segments.writer import SegmentWriter  # noqa: E402
from sluice.sources import open_source  # noqa: E402
from sluice.sources.port import StreamLimits  # noqa: E402
from sluice.sources.table_filter import Selection  # noqa: E402
from tests.bench.figures import figure, save, size  # noqa: E402
from tests.support.running.waiting import wait_until  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "postgresql.json"
RUNS = 3
OPTIONS = {"wal_level": "logical", "max_wal_size": "8GB", "logical_decoding_work_mem": "256MB"}
TABLE = "(id int PRIMARY KEY, k int NOT NULL, c char(120) NOT NULL, pad char(60) NOT NULL)"
ROW = "i, i * 7, repeat(left(md5(i::text), 32), 3), left(md5(i::text), 32)"
OLTP = """DO $$ DECLARE x int; BEGIN
  FOR i IN 1..{n} LOOP
    x := 1 + floor(random() * 20000);
    UPDATE bench.oltp SET k = k + 1 WHERE id = x;
    UPDATE bench.oltp SET c = repeat(left(md5(random()::text), 32), 3) WHERE id = 1 + (x * 7) % 20000;
    DELETE FROM bench.oltp WHERE id = x;
    INSERT INTO bench.oltp VALUES (x, i, repeat(left(md5(random()::text), 32), 3), left(md5(i::text), 32));
    COMMIT;
  END LOOP; END $$"""


def config(slot: str) -> PipelineConfig:
    return PipelineConfig.model_validate({
        "version": 1,
        "pipeline": "bench",
        "source": {"connection": "source", "type": "postgresql", "slot": slot, "publication": "bench"},
        "targets": [{"name": "t", "type": "mysql", "connection": "nowhere"}],
        "capture": {"include": [r"bench\..*"]},
        "coordination": {"connection": "nowhere"},
    })


def copied_slot(server: PostgreSQLServer, workload: str, number: int) -> str:
    """A slot that begins where that of the workload does."""
    name = f"{workload}_{number}"
    server.execute(f"SELECT pg_copy_logical_replication_slot('{workload}', '{name}')")
    return name


def drop_slot(server: PostgreSQLServer, name: str) -> None:
    """Drop a slot once the server has noticed that its reader is gone."""
    active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
    wait_until(lambda: not server.execute(active), f"the end of the reader of slot {name}")
    server.execute(f"SELECT pg_drop_replication_slot('{name}')")


def ours(server: PostgreSQLServer, workload: str, folder: Path, number: int) -> dict[str, float]:
    """One drain of everything from the slot on."""
    slot = copied_slot(server, workload, number)
    made = config(slot)
    source = open_source(made, lambda _: parse_connection("source", server.connection_json()))
    store = SegmentStore(f"file://{folder}/{slot}", "bench")
    with source.open(to_stream=True) as session:
        start, stop = session.resolve_start("earliest"), session.head
        known = session.history.snapshot(start, Selection.compile(made.capture))
        limits = StreamLimits(max_changes=10**9, max_bytes=2**40, max_wait_s=600, idle_wait_s=600, stop_at=stop)
        began, busy = time.perf_counter(), time.process_time()
        result = session.stream(
            start, limits, Selection.compile(made.capture), lambda: SegmentWriter(store, 1, 1),
            definitions=lambda: known,
        )  # fmt: skip
        took, cpu = time.perf_counter() - began, time.process_time() - busy
    drop_slot(server, slot)
    shutil.rmtree(folder / slot, ignore_errors=True)
    return {"changes": result.changes, "seconds": took, "cpu": cpu, "bytes": result.log_bytes}


def theirs(server: PostgreSQLServer, workload: str, number: int) -> float:
    """Seconds of pg_recvlogical up to the same place."""
    slot = copied_slot(server, workload, number)
    [(stop,)] = server.execute("SELECT pg_current_wal_flush_lsn()::text")
    program = server.distribution.programs / "pg_recvlogical"  # type: ignore[union-attr]
    options = {"proto_version": "1", "publication_names": "bench", "messages": "true"}
    began = time.perf_counter()
    subprocess.run(
        [
            *with_own_loader(program), "-h", server.host, "-p", str(server.port), "-U", "postgres", "-d", "postgres",
            "-S", slot, "--start", "--no-loop", "-f", "/dev/null", "-E", stop,
            *(f"-o{name}={value}" for name, value in options.items()),
        ],
        check=True, timeout=600, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    took = time.perf_counter() - began
    drop_slot(server, slot)
    return took


def with_own_loader(program: Path) -> list[str]:
    """The program with the libraries of its own tree."""
    root = next(parent for parent in program.parents if parent.name == "root")
    loader = next(root.glob("lib*/*/ld-linux*"), None) or next(root.glob("usr/lib/*/ld-linux*"))
    folders = [str(path) for path in (root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu")]
    return [str(loader), "--library-path", ":".join(folders), str(program)]


def measure(server: PostgreSQLServer, workload: str, folder: Path, what: str) -> dict[str, Any]:
    ours(server, workload, folder, 0)  # warm-up
    runs = [ours(server, workload, folder, number) for number in range(1, RUNS + 1)]
    seconds = statistics.median(run["seconds"] for run in runs)
    changes = runs[0]["changes"]
    beside = statistics.median(theirs(server, workload, number) for number in range(10, 10 + RUNS))
    cpu = statistics.median(run["cpu"] for run in runs)
    return figure(
        f"pg_capture, {workload}", what, changes / seconds, "changes/s", "pg_recvlogical to /dev/null",
        changes / beside, changes=changes, seconds=round(seconds, 2), cpu_s=round(cpu, 2),
        message_mb=round(runs[0]["bytes"] / 1e6, 1),
    )  # fmt: skip


def main() -> None:
    processes.tether()
    changes = size(1_000_000)
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        with PostgreSQLServer(folder / "server", options=OPTIONS) as server:
            server.execute(
                "CREATE SCHEMA bench", f"CREATE TABLE bench.oltp {TABLE}", f"CREATE TABLE bench.bulk {TABLE}"
            )
            server.execute(
                f"INSERT INTO bench.oltp SELECT {ROW} FROM generate_series(1, 20000) i",
                "CREATE PUBLICATION bench FOR TABLES IN SCHEMA bench",
            )
            slot = "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')"
            server.execute(slot.format("oltp"), OLTP.format(n=changes // 4))
            lines = [measure(server, "oltp", folder, "transactions of 4 single-row changes")]
            drop_slot(server, "oltp")
            server.execute(slot.format("bulk"))
            server.execute(f"INSERT INTO bench.bulk SELECT {ROW} FROM generate_series(1, {changes}) i")
            lines.append(measure(server, "bulk", folder, "one INSERT … SELECT"))
        save(RESULTS, lines)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
