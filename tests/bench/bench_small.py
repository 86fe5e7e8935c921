"""The small end: two MySQL servers and ``sluice run`` with its positions in a file, beside the same with a ZooKeeper,
go-mysql's canal and Debezium's engine.

Sluice runs in an environment of its own that has its wheel and what that needs, as a user's. Run by ``make bench-small`` (``python tests/bench/bench_small.py [seconds]``): from the first command to rows at the
target with and without compiled kernels, a later start, what the process takes while nothing changes and at 1,000 changes a second, and how old a row is
when it arrives. The peers read the same log at the same time and store nothing; canal is left out where there is no Go.
Asserts nothing.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from tests.bench.bench_peers import PEERS, Debezium  # noqa: E402
from tests.bench.figures import Line, figure, processor_s, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/small.json"
CHANGES_PER_S = 1000
PATIENCE_S = 120
UNLIMITED = str(10**9)


@dataclass
class Taken:
    """Memory of a process at the end of a time, in megabytes, and its share of a core in it."""

    idle_mb: float = 0.0
    idle_core: float = 0.0
    busy_mb: float = 0.0
    busy_core: float = 0.0
    ages_s: list[float] = field(default_factory=list)


def main() -> None:
    processes.tether()
    seconds = size(30)
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        _install(folder)
        with (
            MySQLServer(folder / "source", name="source", server_id=101) as source,
            MySQLServer(folder / "target", name="target", server_id=102) as target,
            ZooKeeperServer(folder / "zookeeper") as zookeeper,
        ):
            for server in (source, target):
                server.execute("CREATE DATABASE bench")
            source.execute(
                "CREATE TABLE bench.probe (v INT PRIMARY KEY)",
                "INSERT INTO bench.probe VALUES (1)",
                "CREATE TABLE bench.t (id INT PRIMARY KEY AUTO_INCREMENT, v INT NOT NULL, at DOUBLE NOT NULL)",
                "INSERT INTO bench.t (v, at) VALUES (0, 0)",
            )
            stores = {"file": {}, "zookeeper": {"AIRFLOW_CONN_ZOOKEEPER_DEFAULT": f"zookeeper://{zookeeper.hosts}"}}
            first, later, taken = {}, {}, {}
            first["uncompiled"] = _first_rows(folder / "uncompiled", source, target, {})
            for store, variables in stores.items():
                target.execute("DROP DATABASE bench", "CREATE DATABASE bench")
                home = folder / f"with-{store}"
                first[store] = _first_rows(home, source, target, variables)
                later[store] = _later_start(home, source, target, variables)
                with _running(home, variables) as process:
                    taken[store] = _taken(process, source, target, seconds)
            peers = {name: _taken(process, source, None, seconds) for name, process in _peers(folder, source)}
        save(RESULTS, _lines(seconds, first, later, taken, peers))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lines(
    seconds: int,
    first: Mapping[str, float],
    later: Mapping[str, float],
    taken: Mapping[str, Taken],
    peers: Mapping[str, Taken],
) -> list[Line]:
    pair = "two MySQL servers, one table, MySQL to MySQL"
    lines = [
        figure("small_first_rows", f"sluice new, then sluice run, kernels compiled, {pair}", first["file"], "s",
               "positions in ZooKeeper", first["zookeeper"]),
        figure("small_first_rows_uncompiled", f"sluice new, then sluice run, no kernel compiled, {pair}",
               first["uncompiled"], "s", "kernels compiled", first["file"], variant="no kernel compiled"),
        figure("small_later_start", f"sluice run to the first row at the target, {pair}", later["file"], "s",
               "positions in ZooKeeper", later["zookeeper"]),
    ]  # fmt: skip
    own = taken["file"]
    for percentile, rank in (("p50", 0.5), ("p95", 0.95)):
        ages = {store: sorted(what.ages_s) for store, what in taken.items()}
        value, baseline = (ages[store][int(rank * len(ages[store]))] for store in ("file", "zookeeper"))
        lines.append(figure(f"small_freshness_{percentile}", f"{CHANGES_PER_S} changes/s for {seconds} s, {pair}", value,
                            "s", "positions in ZooKeeper", baseline))  # fmt: skip
    for name, other in {"positions in ZooKeeper": taken["zookeeper"], **peers}.items():
        for what, workload, unit in (
            ("idle_mb", f"nothing changes for {seconds} s", "MB"),
            ("idle_core", f"nothing changes for {seconds} s", "% of a core"),
            ("busy_mb", f"{CHANGES_PER_S} changes/s for {seconds} s", "MB"),
            ("busy_core", f"{CHANGES_PER_S} changes/s for {seconds} s", "% of a core"),
        ):
            lines.append(figure(f"small_{what}", f"{workload}, {pair}", getattr(own, what), unit, name,
                                getattr(other, what), variant=name))  # fmt: skip
    return lines


# -- Sluice ------------------------------------------------------------------------------------------------------------


def _install(folder: Path) -> None:
    """Make an environment with the wheel of this checkout."""
    built = subprocess.run(
        [sys.executable, _ROOT / ".ci/package", folder, "--wheel-only"], check=True, capture_output=True, text=True
    )
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "env"], check=True)
    wheel = built.stdout.splitlines()[-1]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", folder / "env/bin/python", wheel], check=True)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    strange = ("SLUICE_", "AIRFLOW_CONN_", "PYTHONPATH", "NUMBA_")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(strange)}, **variables}


def _sluice(home: Path, *arguments: str) -> list[str]:
    return [str(home.parent / "env/bin/sluice"), *arguments]


def _first_rows(home: Path, source: MySQLServer, target: MySQLServer, variables: Mapping[str, str]) -> float:
    """Seconds from the first command to the source's row at the target."""
    home.mkdir()
    began = time.monotonic()
    ends = [f"mysql://root@{server.host}:{server.port}/bench" for server in (source, target)]
    command = _sluice(home, "new", *ends, "--name", "small", "--folder", str(home), "--yes")
    subprocess.run(command, env=_environment(variables), check=True, capture_output=True, timeout=PATIENCE_S)
    with _running(home, variables):
        _until(
            lambda: (
                target.execute("SELECT COUNT(*) FROM bench.t")[0][0]
                == source.execute("SELECT COUNT(*) FROM bench.t")[0][0]
            )
        )
        return time.monotonic() - began


def _later_start(home: Path, source: MySQLServer, target: MySQLServer, variables: Mapping[str, str]) -> float:
    """Seconds from a later start to a row at the target that was written before it; the median of three."""
    times = []
    for _ in range(3):
        source.execute("INSERT INTO bench.t (v, at) VALUES (0, 0)")
        newest = source.execute("SELECT MAX(id) FROM bench.t")[0][0]
        began = time.monotonic()
        with _running(home, variables):
            _until(lambda newest=newest: target.execute("SELECT MAX(id) FROM bench.t")[0][0] == newest)
            times.append(time.monotonic() - began)
    return statistics.median(times)


@contextmanager
def _running(home: Path, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        _sluice(home, "--env-file", str(home / "sluice.env"), "run", "small"),
        env=_environment(variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("the rows did not come")
        time.sleep(0.01)


# -- what a process takes ----------------------------------------------------------------------------------------------


def _taken(process: subprocess.Popen[bytes], source: MySQLServer, target: MySQLServer | None, seconds: int) -> Taken:
    """Look at a process while nothing changes, then under load; with ``target``, at the age of rows, too."""
    time.sleep(5)
    taken = Taken()
    taken.idle_core = _share(process.pid, lambda: time.sleep(seconds))
    taken.idle_mb = _resident_mb(process.pid)
    stop = threading.Event()
    watching = threading.Thread(target=_watch, args=(target, taken.ages_s, stop), daemon=True)
    if target is not None:
        watching.start()
    taken.busy_core = _share(process.pid, lambda: _write(source, seconds))
    taken.busy_mb = _resident_mb(process.pid)
    stop.set()
    if target is not None:
        watching.join(PATIENCE_S)
    return taken


def _share(pid: int, work: Callable[[], None]) -> float:
    busy, began = processor_s(pid), time.monotonic()
    work()
    return (processor_s(pid) - busy) / (time.monotonic() - began) * 100


def _resident_mb(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 2**20


def _write(source: MySQLServer, seconds: int) -> None:
    """A thousand single-row changes a second, in transactions of ten; each row has the time of its insert."""
    with source.connect("bench") as connection, connection.cursor() as cursor:
        began = time.monotonic()
        for number in range(seconds * CHANGES_PER_S // 10):
            time.sleep(max(0.0, began + number * 10 / CHANGES_PER_S - time.monotonic()))
            connection.begin()
            cursor.executemany("INSERT INTO t (v, at) VALUES (%s, %s)", [(number, time.time())] * 10)
            connection.commit()


def _watch(target: MySQLServer, ages_s: list[float], stop: threading.Event) -> None:
    """Note how old the newest row is whenever another one is seen."""
    newest = 0
    with target.connect("bench") as connection, connection.cursor() as cursor:
        while not stop.wait(0.01):
            cursor.execute("SELECT id, at FROM t ORDER BY id DESC LIMIT 1")
            row = cursor.fetchone()
            connection.commit()
            if row is not None and row[0] != newest and row[1]:
                newest = row[0]
                ages_s.append(time.time() - row[1])


# -- peers -------------------------------------------------------------------------------------------------------------


def _peers(folder: Path, source: MySQLServer) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield each peer at work on the source's log."""
    go = shutil.which("go")
    if go is None:
        print("go-mysql: left out, as there is no go on the PATH", flush=True)
    else:
        program = folder / "gomysql"
        subprocess.run([go, "build", "-o", str(program), "."], cwd=PEERS / "gomysql", check=True, timeout=600)
        file, offset = source.execute("SHOW BINARY LOG STATUS")[0][:2]
        argv = [str(program), "canal", source.host, str(source.port), file, str(offset), r"bench\.t", UNLIMITED]
        with _ended(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)) as process:
            yield "go-mysql's canal", process
    engine = Debezium(source, folder)
    engine.begin()
    state = folder / "debezium"
    with _ended(engine._start("records", state, int(UNLIMITED))) as process:
        yield (
            f"Debezium's engine {engine.version.removeprefix('debezium-embedded-').removesuffix('.Final.jar')}",
            process,
        )


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    main()
