"""Whether several slots of one PostgreSQL, each with a publication of its own tables, decode a log faster than one slot.

Run by ``make bench-postgresql`` (``python tests/bench/bench_postgresql_slots.py [changes]``). Each slot is read by
pg_recvlogical to /dev/null. Also measured is the processor time of the server's processes that decode: on a machine
that does something else, too, two processes get more of it than one, whatever they do. Prints a line a measurement;
asserts nothing.
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
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.postgresql import PostgreSQLServer  # noqa: E402
from tests.bench.bench_postgresql import OPTIONS, ROW, TABLE, drop_slot, with_own_loader  # noqa: E402
from tests.bench.figures import figure, save, size  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "postgresql_slots.json"
RUNS = 3
TABLES = ("one", "two")
WRITES = """DO $$ DECLARE x int; BEGIN
  FOR i IN 1..{n} LOOP
    x := 1 + floor(random() * 20000);
    UPDATE bench.one SET k = k + 1 WHERE id = x;
    UPDATE bench.two SET k = k + 1 WHERE id = x;
    UPDATE bench.one SET c = repeat(left(md5(random()::text), 32), 3) WHERE id = 1 + (x * 7) % 20000;
    UPDATE bench.two SET c = repeat(left(md5(random()::text), 32), 3) WHERE id = 1 + (x * 7) % 20000;
    COMMIT;
  END LOOP; END $$"""
_LEAST_S = 0.01
"""The least processor time that is told."""
_TICKS = os.sysconf("SC_CLK_TCK")


def spent(pid: int) -> float:
    """Seconds of processor time that a process has used; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def read(server: PostgreSQLServer, publications: tuple[str, ...], run: int) -> tuple[float, list[float]]:
    """Read the log by a slot for each publication, side by side: seconds, and processor seconds of each decoder."""
    [(stop,)] = server.execute("SELECT pg_current_wal_flush_lsn()::text")
    slots = {f"{name}_{run}_{len(publications)}": name for name in publications}
    for slot in slots:
        server.execute(f"SELECT pg_copy_logical_replication_slot('first', '{slot}')")
    program = with_own_loader(server.distribution.programs / "pg_recvlogical")  # type: ignore[union-attr]
    began = time.perf_counter()
    readers = [
        subprocess.Popen(
            [
                *program, "-h", server.host, "-p", str(server.port), "-U", "postgres", "-d", "postgres", "-S", slot,
                "--start", "--no-loop", "-f", "/dev/null", "-E", stop, "-oproto_version=1",
                f"-opublication_names={name}",
            ],
            env={**os.environ, "LC_ALL": "C"},
        )
        for slot, name in slots.items()
    ]  # fmt: skip
    used: dict[int, float] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for (pid,) in server.execute("SELECT active_pid FROM pg_replication_slots WHERE active_pid IS NOT NULL"):
                used[pid] = max(used.get(pid, 0.0), spent(pid))

    watching = threading.Thread(target=watch)
    watching.start()
    for reader in readers:
        assert reader.wait(600) == 0
    took = time.perf_counter() - began
    done.set()
    watching.join()
    for slot in slots:
        drop_slot(server, slot)
    return took, sorted(used.values())


def main() -> None:
    processes.tether()
    changes = size(400_000)
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        with PostgreSQLServer(folder / "server", options=OPTIONS) as server:
            server.execute("CREATE SCHEMA bench", *(f"CREATE TABLE bench.{name} {TABLE}" for name in TABLES))
            server.execute(
                *(f"INSERT INTO bench.{name} SELECT {ROW} FROM generate_series(1, 20000) i" for name in TABLES)
            )
            server.execute(
                "CREATE PUBLICATION whole FOR TABLES IN SCHEMA bench",
                *(f"CREATE PUBLICATION {name} FOR TABLE bench.{name}" for name in TABLES),
                "SELECT pg_create_logical_replication_slot('first', 'pgoutput')",
                WRITES.format(n=changes // 4),
            )
            found: dict[int, list[tuple[float, list[float]]]] = {1: [], 2: []}
            for run in range(RUNS):
                found[1].append(read(server, ("whole",), run))
                found[2].append(read(server, TABLES, run))
            report(changes, found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(changes: int, found: dict[int, list[tuple[float, list[float]]]]) -> None:
    took = {count: statistics.median(seconds for seconds, _ in runs) for count, runs in found.items()}
    longest = {
        count: statistics.median(max(used, default=_LEAST_S) or _LEAST_S for _, used in runs)
        for count, runs in found.items()
    }
    total = {count: statistics.median(sum(used) or _LEAST_S for _, used in runs) for count, runs in found.items()}
    what = f"{changes} changes of two tables, transactions of 4, median of {RUNS} runs in turn"
    lines: list[Any] = [
        figure("pg_slots, decoding", f"{what}; the slower decoder, on a core of its own", changes / longest[2],
               "changes/s", "one slot, on a core of its own", changes / longest[1], runs=RUNS),
        figure("pg_slots, processor time", what, total[2], "s of both decoders", "one slot", total[1], runs=RUNS),
        figure("pg_slots, elapsed", what, changes / took[2], "changes/s", "one slot", changes / took[1], runs=RUNS),
    ]  # fmt: skip
    save(RESULTS, lines)


if __name__ == "__main__":
    main()
