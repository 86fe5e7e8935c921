"""Capture beside what other people read MySQL's log with: the same log, the same place to begin, one after the other.

Run by ``make bench-peers`` (``python tests/bench/bench_peers.py [changes]``). Each peer runs in turns with Sluice, three
times. A peer counts what it hands over and stores nothing; Sluice's figure contains the durable Parquet. The start of a
peer's process does not count: its clock runs from its first change to its last one. Debezium's rate is that of its last
third, when its Java process is warm. Debezium comes from Maven's repository; go-mysql is left out where there is no Go.
Asserts nothing.
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
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import maven, paths, processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from tests.bench.bench_capture import FAST, baseline, oltp  # noqa: E402
from tests.bench.figures import Line, figure, save, size  # noqa: E402
from tests.support.capture.capturing import draining, head  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/peers.json"
PEERS = Path(__file__).with_name("peers")
JARS = Path(__file__).with_name("jars") / "debezium_engine.lock"
ROUNDS = 3
PATIENCE_S = 600


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of the log."""

    changes_per_s: float
    cpu_us: float
    """Microseconds of CPU a change, of the reader's own process."""


Peer = Callable[[], Read]


def ours(server: MySQLServer, folder: Path, start: Any) -> Read:
    """Read all of the log into durable Parquet."""
    with draining(server, folder / "sluice", "bench") as drain:
        drain.position = start
        stop = head(drain.endpoint)
        began, busy = time.perf_counter(), time.process_time()
        result = drain.once(max_changes=10**9, max_bytes=2**40, max_wait_s=PATIENCE_S, stop_at=stop.as_offset())
        seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    shutil.rmtree(folder / "sluice", ignore_errors=True)
    return Read(result.changes / seconds, cpu / result.changes * 1e6)


def go_mysql(server: MySQLServer, folder: Path, start: Any, changes: int) -> dict[str, Peer]:
    """Build go-mysql's reader, and return its two ways to read."""
    go = shutil.which("go")
    if go is None:
        print("go-mysql: left out, as there is no go on the PATH", flush=True)
        return {}
    program = folder / "gomysql"
    subprocess.run([go, "build", "-o", str(program), "."], cwd=PEERS / "gomysql", check=True, timeout=PATIENCE_S)
    [module] = [
        line.split()
        for line in (PEERS / "gomysql/go.mod").read_text().splitlines()
        if line.startswith("require github")
    ]
    name = f"go-mysql {module[2].removeprefix('v')}"

    def run(mode: str) -> Read:
        argv = [str(program), mode, server.host, str(server.port), start.file, str(start.offset), r"bench\.sbtest",
                str(changes)]  # fmt: skip
        return _read(argv)

    return {f"{name}, BinlogSyncer": lambda: run("decode"), f"{name}, canal": lambda: run("canal")}


class Debezium:
    """Debezium's engine, which begins where it was asked to stop before the log was written."""

    def __init__(self, server: MySQLServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        jars = maven.read_list(JARS)
        self._jars = maven.fetch(paths.home() / "debezium-engine", jars, what="Debezium's engine")
        [self.version] = [jar.name for jar in jars if jar.name.startswith("debezium-embedded-")]
        self._classes = folder / "classes"
        javac = shutil.which("javac") or str(paths.java().with_name("javac"))
        subprocess.run(
            [javac, "-cp", f"{self._jars}/*", "-d", str(self._classes), str(PEERS / "EngineCount.java")],
            check=True, timeout=PATIENCE_S,
        )  # fmt: skip

    def begin(self) -> None:
        """Note the end of the log as the place to begin, which takes a change."""
        started = self._start("records", self._folder / "debezium", 1, quick=True)
        deadline = time.monotonic() + PATIENCE_S
        while started.poll() is None and time.monotonic() < deadline:
            self._server.execute("UPDATE bench.probe SET v = v + 1")
            time.sleep(0.5)
        said, wrong = started.communicate(timeout=60)
        if started.returncode:
            raise RuntimeError(f"Debezium's engine saw no change: {said}{wrong[-2000:]}")

    def peers(self, changes: int) -> dict[str, Peer]:
        """Return its two forms of a change."""
        name = f"Debezium engine {self.version.removeprefix('debezium-embedded-').removesuffix('.Final.jar')}"
        return {
            f"{name}, source records": lambda: self._read("records", changes),
            f"{name}, JSON": lambda: self._read("json", changes),
        }

    def _read(self, form: str, changes: int) -> Read:
        state = self._folder / "debezium-run"
        shutil.rmtree(state, ignore_errors=True)
        shutil.copytree(self._folder / "debezium", state)
        started = self._start(form, state, changes)
        said, wrong = started.communicate(timeout=PATIENCE_S)
        if started.returncode:
            raise RuntimeError(f"Debezium's engine did not get to the end: {said}{wrong[-2000:]}")
        return _said(said)

    def _start(self, form: str, state: Path, changes: int, *, quick: bool = False) -> subprocess.Popen[str]:
        state.mkdir(exist_ok=True)
        settings = {
            "name": "peer",
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": state / "offsets",
            "offset.flush.interval.ms": 0 if quick else 10_000,
            "database.hostname": self._server.host,
            "database.port": self._server.port,
            "database.user": "root",
            "database.password": "",
            "database.ssl.mode": "disabled",
            "database.server.id": 7103,
            "database.include.list": "bench",
            "topic.prefix": "peer",
            "include.schema.changes": "false",
            "tombstones.on.delete": "false",
            "snapshot.mode": "no_data",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": state / "history",
            "max.batch.size": 20_480,
            "max.queue.size": 81_920,
            "poll.interval.ms": 10,
        }
        file = state / "engine.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        argv = [
            str(paths.java()), "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Dpatience_s={PATIENCE_S}",
            "-cp", f"{self._classes}{os.pathsep}{self._jars}/*", "EngineCount", form, str(file), str(changes),
        ]  # fmt: skip
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _read(argv: list[str]) -> Read:
    return _said(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout)


def _said(text: str) -> Read:
    answer = json.loads(text.splitlines()[-1])
    rate = answer.get("warm") or answer["changes"] / answer["seconds"]
    return Read(rate, answer["cpu_s"] / answer["changes"] * 1e6)


def beside(name: str, peer: Peer, mine: Callable[[], Read], workload: str) -> Line:
    """Run a peer and Sluice in turns; return the medians."""
    pairs = [(peer(), mine()) for _ in range(ROUNDS)]
    theirs, own = (
        [statistics.median(getattr(pair[side], what) for pair in pairs) for what in ("changes_per_s", "cpu_us")]
        for side in (0, 1)
    )
    return figure(
        "peer_capture", workload, own[0], "changes/s", name, theirs[0],
        variant=name, cpu_us=round(own[1], 2), baseline_cpu_us=round(theirs[1], 2), cpu_ratio=round(theirs[1] / own[1], 1),
    )  # fmt: skip


def main() -> None:
    processes.tether()
    changes = size(1_200_000) // 4 * 4
    compile_kernels()
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        with MySQLServer(folder / "server", server_id=99, options=FAST) as server:
            oltp(server, changes)
            server.execute("CREATE TABLE bench.probe (v INT PRIMARY KEY)", "INSERT INTO bench.probe VALUES (1)")
            engine = Debezium(server, folder)
            engine.begin()
            server.execute("FLUSH BINARY LOGS")
            with draining(server, folder, "bench") as first:
                start = head(first.endpoint)
            with server.connect("bench") as connection, connection.cursor() as cursor:
                for _ in range(4):
                    cursor.execute("CALL oltp(%s)", (changes // 16,))
                    cursor.execute("FLUSH BINARY LOGS")
            written = changes // 16 * 16
            workload = f"{written} single-row changes in transactions of four, MySQL {server.execute('SELECT VERSION()')[0][0]}"

            def mine() -> Read:
                return ours(server, folder, start)

            mine()  # warm-up
            peers: dict[str, Peer] = {**go_mysql(server, folder, start, written), **engine.peers(written)}
            lines = [beside(name, peer, mine, workload) for name, peer in peers.items()]
            sample = f"mysql-replication {version('mysql-replication')}, a sample of six seconds"
            lines.append(
                figure(
                    "peer_capture",
                    workload,
                    mine().changes_per_s,
                    "changes/s",
                    sample,
                    baseline(server, start),
                    variant="mysql-replication",
                )
            )
        save(RESULTS, lines)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
