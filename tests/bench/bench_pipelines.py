"""Many pipelines on one Airflow: how many keep up, what they cost, what they leave behind.

Run by ``make bench-pipelines`` (``python tests/bench/bench_pipelines.py [idle] [growth] [pipelines] [crowds]``, all by
default).
A MySQL source, a MySQL target, a ZooKeeper and an Airflow (LocalExecutor; eight workers as the demo has, or one for
each busy pipeline) on this machine. Airflow's database is PostgreSQL, or SQLite with SLUICE_BENCH_METADATA=sqlite.

- *idle*: the triggers of 200 pipelines that wait, in a process of their own, beside 100 transactions/s that are for
  none of them.
- *growth*: one pipeline with 100 changes/s, what it leaves an hour.
- *pipelines*: pipelines of 10 changes/s each, idle ones beside them, more and more until p95 of the freshness is above
  10 s; with the default ``max_wait`` of a batch, and with 5 s, as whoever has many pipelines sets it
  (SLUICE_BENCH_WAITS; SLUICE_BENCH_LEVELS and SLUICE_BENCH_OLD_LEVELS: how many). SLUICE_BENCH_RUN: how long their runs
  are (``run: {max_time: 10m}``); SLUICE_BENCH_HEARTBEAT: seconds between heartbeats of Airflow's tasks.
- *crowds*: as many pipelines as slots, and more, with a task per stage, beside ``run: {tasks: one}``; 2 changes/s each.

Baseline: ``run: {max_batches: 1}``, a run a batch, the shape of 1dbb49b, with the same ``max_wait``; for *idle*, where
there is a folder with an older version (SLUICE_BENCH_OLD), its triggers. Prints a line a measure with the load of the
machine; asserts nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer, run_setup  # noqa: E402
from devstack.postgresql import PostgreSQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from tests.support.pipelines.many_pipelines import ManyPipelines, many_pipelines  # noqa: E402
from tests.support.servers.airflows import TestAirflow, airflow, wait_until  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/pipelines.json"
METADATA = os.environ.get("SLUICE_BENCH_METADATA", "postgresql")
IDLE = int(os.environ.get("SLUICE_BENCH_IDLE", "200"))
LEVELS = tuple(int(one) for one in os.environ.get("SLUICE_BENCH_LEVELS", "2,4,8,16,32").split(","))
OLD_LEVELS = tuple(int(one) for one in os.environ.get("SLUICE_BENCH_OLD_LEVELS", "").split(",") if one) or LEVELS
SECONDS = float(os.environ.get("SLUICE_BENCH_SECONDS", "40"))
GROWTH_S = float(os.environ.get("SLUICE_BENCH_GROWTH_SECONDS", "190"))
SETTLED_S = 15.0
P95_S = 10.0
OLD_SHAPE = "run: {max_batches: 1}"
SHAPE = os.environ.get("SLUICE_BENCH_RUN", "")
HEARTBEAT_S = os.environ.get("SLUICE_BENCH_HEARTBEAT", "1")
WAITS = tuple(os.environ.get("SLUICE_BENCH_WAITS", "500ms,5s").split(","))
TABLES = (
    "dag_run", "task_instance", "task_instance_history", "xcom", "log", "rendered_task_instance_fields", "trigger",
    "dag_version", "serialized_dag",
)  # fmt: skip

Line = dict[str, Any]


def main() -> None:
    processes.tether()
    asked = sys.argv[1:] or list(PARTS)
    kept = [one for one in _known() if one.get("part") not in asked]
    lines: list[Line] = []
    for part in asked:
        lines += [{**line, "part": part} for line in PARTS[part]()]
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(kept + lines, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.relative_to(_ROOT)}")


def _known() -> list[Line]:
    with contextlib.suppress(OSError, ValueError):
        found: list[Line] = json.loads(RESULTS.read_text(encoding="utf-8"))
        return found
    return []


def _line(measure: str, workload: str, value: float, unit: str, old: float | None = None, baseline: str = "") -> Line:
    load = os.getloadavg()[0]
    ratio = round(old / value, 4) if old is not None and value else None
    beside = f"  {baseline} {old:.4g}  ratio {ratio}" if old is not None else ""
    print(f"{measure:<34} {value:>12.4g} {unit:<16}{beside}   ({workload}; load {load:.1f})", flush=True)
    return {
        "measure": measure, "workload": f"{workload}; load average {load:.1f}", "value": round(value, 4), "unit": unit,
        "baseline": baseline or None, "baseline_value": None if old is None else round(old, 4), "ratio": ratio,
    }  # fmt: skip


# -- the servers -------------------------------------------------------------------------------------------------------


class Metadata:
    """Airflow's database of SQLite, a file in its home."""

    def settings(self, schema: str) -> dict[str, str]:
        """Of an Airflow with a database of its own."""
        return {}

    def size(self, schema: str, home: Path) -> tuple[dict[str, float], float]:
        """Rows by table, and bytes in use."""
        with contextlib.closing(sqlite3.connect(f"file:{home / 'airflow.db'}?mode=ro", uri=True)) as opened:
            rows = {name: float(opened.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]) for name in TABLES}
            pages, free, size = (
                opened.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
            )
        return rows, float((pages - free) * size)


class PostgreSQLMetadata(Metadata):
    """A database of a server for each Airflow, copied from one that was migrated."""

    def __init__(self, server: PostgreSQLServer) -> None:
        self.server = server
        server.execute("CREATE DATABASE migrated")
        environment = {**os.environ, **self._settings("migrated"), "AIRFLOW_HOME": str(server.folder / "home")}
        run_setup([sys.executable, "-m", "airflow", "db", "migrate"], "migrating Airflow's database", env=environment)

    def settings(self, schema: str) -> dict[str, str]:
        self.server.execute(f"CREATE DATABASE {schema} TEMPLATE migrated")
        return self._settings(schema)

    def _settings(self, database: str) -> dict[str, str]:
        uri = f"postgresql+psycopg://postgres@{self.server.host}:{self.server.port}/{database}"
        return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": uri, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": uri}

    def size(self, schema: str, home: Path) -> tuple[dict[str, float], float]:
        def one(question: str) -> float:
            return float(self.server.execute(question, database=schema)[0][0])

        rows = {name: one(f"SELECT COUNT(*) FROM {name}") for name in TABLES}
        return rows, one("SELECT pg_database_size(current_database())")


@dataclass
class World:
    folder: Path
    source: MySQLServer
    target: MySQLServer
    zookeeper: ZooKeeperServer
    metadata: Metadata
    schemas: int = 0

    def schema(self) -> str:
        self.schemas += 1
        name = f"many{self.schemas}"
        for server in (self.source, self.target):
            server.execute(f"CREATE DATABASE {name}")
        return name


@contextlib.contextmanager
def _world() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        with (
            MySQLServer(folder / "source", name="source", server_id=1) as source,
            MySQLServer(folder / "target", name="target", server_id=2) as target,
            ZooKeeperServer(folder / "zookeeper") as zookeeper,
            _metadata(folder) as metadata,
        ):
            yield World(folder, source, target, zookeeper, metadata)
    finally:
        if os.environ.get("SLUICE_BENCH_KEEP") == "1":
            print(f"kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _metadata(folder: Path) -> Iterator[Metadata]:
    if METADATA == "sqlite":
        yield Metadata()
        return
    with PostgreSQLServer(folder / "metadata", name="metadata", options={"max_connections": 300}) as server:
        yield PostgreSQLMetadata(server)


@dataclass
class Writer:
    """Writes ``rate`` rows a second into each of ``tables``, and notes when each was committed and first seen at the
    target.
    """

    world: World
    schema: str
    tables: list[str]
    rate: float
    committed: dict[str, list[float]] = field(default_factory=dict)
    lags_s: dict[str, list[float]] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Writer:
        self.committed = {table: [] for table in self.tables}
        self.lags_s = {table: [] for table in self.tables}
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._write, self._read)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        due = time.monotonic()
        with (
            contextlib.closing(self.world.source.connect(autocommit=True)) as connection,
            connection.cursor() as cursor,
        ):
            while not self._over.wait(max(due - time.monotonic(), 0)):
                due += 1 / self.rate
                for table in self.tables:
                    cursor.execute(f"INSERT INTO `{self.schema}`.`{table}` (v) VALUES ('x')")
                    self.committed[table].append(time.monotonic())

    def _read(self) -> None:
        question = " UNION ALL ".join(
            f"SELECT {n}, MAX(id) FROM `{self.schema}`.`{t}`" for n, t in enumerate(self.tables)
        )
        with (
            contextlib.closing(self.world.target.connect(autocommit=True)) as connection,
            connection.cursor() as cursor,
        ):
            while not self._over.wait(0.1):
                cursor.execute(question)
                now = time.monotonic()
                for number, last in cursor.fetchall():
                    table = self.tables[number]
                    for at in range(len(self.lags_s[table]), min(int(last or 0), len(self.committed[table]))):
                        self.lags_s[table].append(now - self.committed[table][at])

    def ages_s(self, table: str, since: float) -> list[float]:
        """Return the sorted ages of the rows committed since; one that has not arrived counts with its age now."""
        now, seen = time.monotonic(), self.lags_s[table]
        return sorted(
            seen[n] if n < len(seen) else now - at for n, at in enumerate(list(self.committed[table])) if at >= since
        )

    def p95(self, table: str, since: float) -> float:
        return _percentile(self.ages_s(table, since), 0.95)


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0


# -- idle --------------------------------------------------------------------------------------------------------------


def idle() -> list[Line]:
    """The triggers of pipelines that wait."""
    versions = {"now": _ROOT}
    if os.environ.get("SLUICE_BENCH_OLD"):
        versions["old"] = Path(os.environ["SLUICE_BENCH_OLD"])
    found = {}
    with _world() as world:
        for version, root in versions.items():
            schema = world.schema()
            world.source.execute(f"CREATE TABLE {schema}.other (id BIGINT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(9))")
            with many_pipelines(
                world.folder / version, world.source, world.target, world.zookeeper, schema, IDLE
            ) as many:
                many.begin()
                found[version] = _idle(world, many, root, schema)
    now, old = found["now"], found.get("old", {})
    what, base = f"{IDLE} pipelines of one MySQL wait, 100 transactions/s for others", "1dbb49b" if old else ""
    return [
        _line("idle_triggerer_cpu", what, now["cpu"], "cores", old.get("cpu"), base),
        _line("idle_still_waiting", what, now["waiting"], "pipelines", old.get("waiting"), base),
        _line("idle_zookeeper_connections", what, now["sessions"], "connections", old.get("sessions"), base),
        _line("idle_zookeeper_requests", what, now["requests"], "requests/s", old.get("requests"), base),
        _line("idle_triggerer_threads", what, now["threads"], "threads", old.get("threads"), base),
        _line("idle_triggerer_memory", what, now["rss_mb"], "MB", old.get("rss_mb"), base),
    ]


def _idle(world: World, many: ManyPipelines, root: Path, schema: str) -> dict[str, float]:
    env = {
        **many.made.environment,
        "PYTHONPATH": f"{root / 'include'}:{root}",
        "AIRFLOW_HOME": str(world.folder / "home"),
    }
    argv = [sys.executable, str(_ROOT / "tests/bench/idle_triggers.py"), str(many.made.folder), str(SECONDS)]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        answers = (json.loads(line) for line in child.stdout if line.startswith("{"))
        with Writer(world, schema, ["other"], 100.0) as writer:
            writer._over.wait(0)
            next(answers)
            asked, began = world.zookeeper.counters(), time.monotonic()
            time.sleep(SECONDS / 2)
            after, took = world.zookeeper.counters(), time.monotonic() - began
            found: dict[str, float] = next(answers)
        child.wait()
    found["requests"] = (after["packets_received"] - asked["packets_received"]) / took
    found["sessions"] = after["num_alive_connections"] - 1
    return found


# -- on Airflow --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _on_airflow(
    world: World, count: int, extra: str = "", *, busy: int = 1, max_wait: str = "500ms", slots: int = 0
) -> Iterator[tuple[ManyPipelines, TestAirflow, str]]:
    schema = world.schema()
    folder = world.folder / f"airflow-{schema}"
    with many_pipelines(
        folder / "pipelines", world.source, world.target, world.zookeeper, schema, count, extra, max_wait=max_wait
    ) as many:
        many.begin()
        settings = {
            "SLUICE_INSTALLATION": schema,
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            "AIRFLOW__CORE__PARALLELISM": str(slots or max(8, busy + 2)),
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": HEARTBEAT_S,
            **world.metadata.settings(schema),
        }
        with airflow(folder, folder / "pipelines", many.made.connections, settings) as started:
            for path in many.paths:
                started.api.wait_for_dag(f"sync__{path.stem}", 300)
            yield many, started, schema


def growth() -> list[Line]:
    """One busy pipeline, in both shapes."""
    found = {}
    with _world() as world:
        for shape in (OLD_SHAPE, ""):
            with (
                _on_airflow(world, 1, shape) as (many, started, schema),
                Writer(world, schema, ["p0"], 100.0) as writer,
            ):
                _wait_for_first(writer)
                before, asked, began, used = (
                    _size(started, many, world, schema),
                    world.zookeeper.counters(),
                    time.monotonic(),
                    _cpu(started),
                )
                time.sleep(SECONDS if shape else max(SECONDS, GROWTH_S))  # whole runs of a minute
                took, after = time.monotonic() - began, _size(started, many, world, schema)
                told, spent = world.zookeeper.counters(), _cpu(started)
                hourly = {name: (after[name] - before[name]) / took * 3600 for name in after}
                batches = max(after["batches"] - before["batches"], 1)
                hourly["zookeeper requests a batch"] = (told["packets_received"] - asked["packets_received"]) / batches
                hourly["zookeeper writes a batch"] = (told["transactions"] - asked["transactions"]) / batches
                hourly["segment files a batch"] = (after["segment files"] - before["segment files"]) / batches
                for kind, cpu_s in spent.items():
                    hourly[f"cpu {kind}"] = (cpu_s - used.get(kind, 0.0)) / took * 3600
                found[shape] = hourly
    what, base = f"one pipeline, 100 changes/s, metadata in {METADATA}", f"with {OLD_SHAPE}"
    units = {"database bytes": "bytes/h", "log bytes": "bytes/h", "segment bytes": "bytes/h"}
    return [
        _line(
            f"airflow_growth_{name.replace(' ', '_')}", what, value,
            units.get(name, "a batch" if name.endswith("a batch") else "an hour"),
            found[OLD_SHAPE][name], base,
        )
        for name, value in found[""].items()
    ]  # fmt: skip


def _size(started: TestAirflow, many: ManyPipelines, world: World, schema: str) -> dict[str, float]:
    home = started.folder / "home"
    rows, used = world.metadata.size(schema, home)
    logs = [path for path in (home / "logs").rglob("*") if path.is_file()]
    store = [path for path in (many.made.folder / "store").rglob("*") if path.is_file()]
    with many.runtime(0).state() as state:
        cursor = state.cursor()
    return {
        "batches": float(cursor.next_batch if cursor else 0),
        **{f"rows in {name}": count for name, count in rows.items()},
        "database bytes": used,
        "log files": float(len(logs)),
        "log bytes": float(sum(path.stat().st_size for path in logs)),
        "segment files": float(len(store)),
        "segment bytes": float(sum(path.stat().st_size for path in store)),
        "znodes": world.zookeeper.counters()["znode_count"],
    }


def pipelines() -> list[Line]:
    """More and more busy pipelines, until they lag."""
    with _world() as world:
        return [line for max_wait in WAITS for line in _until_they_lag(world, max_wait)]


def _until_they_lag(world: World, max_wait: str) -> list[Line]:
    """Both shapes."""
    lines: list[Line] = []
    best: dict[str, float] = {}
    for shape, levels in ((OLD_SHAPE, OLD_LEVELS), (SHAPE, LEVELS)):
        for count in levels:
            worst, cpu = _level(world, count, shape, max_wait)
            what = ", ".join(
                filter(None, [f"{count} pipelines of 10 changes/s, max_wait {max_wait}, {_beside()} idle", shape])
            )
            lines.append(_line("pipelines_p95", what, worst, "s"))
            lines += [_line(f"pipelines_cpu_{name}", what, used, "cores") for name, used in cpu.items()]
            if worst > P95_S:
                break
            best[shape] = count
    settings = ", ".join(filter(None, [f"max_wait {max_wait}", SHAPE, f"a heartbeat every {HEARTBEAT_S} s"]))
    what = (
        f"10 changes/s each, p95 of the freshness of the slowest at most {P95_S:.0f} s, {_beside()} idle ones beside "
        f"them, {settings}, of {', '.join(map(str, LEVELS))} (the baseline of {', '.join(map(str, OLD_LEVELS))}), "
        f"metadata in {METADATA}"
    )
    found, old = best.get(SHAPE, 0), best.get(OLD_SHAPE, 0)
    lines.append(_line("pipelines_on_one_airflow", what, found, "pipelines", old, f"with {OLD_SHAPE}"))
    lines[-1]["ratio"] = round(found / old, 4) if old else None
    return lines


CROWDS = ((1, 1, "window: 1", 60), (6, 6, "", 330), (24, 4, "", 240))
"""Pipelines, task slots of Airflow, further settings, seconds of measuring (six pipelines: more than a run takes)."""


def crowds() -> list[Line]:
    """The age of rows where pipelines share few workers, in both shapes."""
    lines = []
    with _world() as world:
        for count, slots, settings, seconds in CROWDS:
            ages_s = {tasks: _ages_s(world, count, slots, f"run: {{tasks: {tasks}}}\n{settings}", seconds)
                      for tasks in ("own", "one")}  # fmt: skip
            what = ", ".join(filter(None, [f"{count} pipelines of 2 changes/s on {slots} slots", settings]))
            for name, share in (("p50", 0.5), ("p95", 0.95), ("worst", 1.0)):
                own, one = (_percentile(ages_s[tasks], share) for tasks in ("own", "one"))
                lines.append(_line(f"crowd_{name}", what, own, "s", one, "with run: {tasks: one}"))
    return lines


def _ages_s(world: World, count: int, slots: int, extra: str, seconds: int) -> list[float]:
    """The ages of the rows of all pipelines, sorted."""
    with _on_airflow(world, count, extra, slots=slots) as (_, _, schema):
        tables = [f"p{number}" for number in range(count)]
        with Writer(world, schema, tables, 2.0) as writer:
            _wait_for_first(writer)
            time.sleep(SETTLED_S)
            since = time.monotonic()
            time.sleep(seconds)
            return sorted(age for table in tables for age in writer.ages_s(table, since))


def _beside() -> int:
    return int(os.environ.get("SLUICE_BENCH_BESIDE", str(IDLE)))


def _level(world: World, count: int, shape: str, max_wait: str) -> tuple[float, dict[str, float]]:
    """The p95 of the slowest pipeline, and cores by component of Airflow."""
    with _on_airflow(world, count + _beside(), shape, busy=count, max_wait=max_wait) as (_, started, schema):
        tables = [f"p{number}" for number in range(count)]
        with Writer(world, schema, tables, 10.0) as writer:
            _wait_for_first(writer)
            _wait_for_idle_ones(started)
            time.sleep(SETTLED_S)
            since, before = time.monotonic(), _cpu(started)
            time.sleep(SECONDS)
            took, after = time.monotonic() - since, _cpu(started)
            worst = max(writer.p95(table, since) for table in tables)
        return worst, {name: (after[name] - before.get(name, 0.0)) / took for name in after}


def _wait_for_first(writer: Writer, patience_s: float = 240.0) -> None:
    end = time.monotonic() + patience_s
    while time.monotonic() < end and not all(writer.lags_s.values()):
        time.sleep(0.5)


def _wait_for_idle_ones(started: TestAirflow) -> None:
    """Until all of them have a run that waits: what their first runs cost is not what they cost."""
    waiting = "/dags/~/dagRuns/~/taskInstances?state=deferred&limit=1"
    wait_until(lambda: started.api.call("GET", waiting)["total_entries"] >= _beside(), "the start of the idle ones")


def _cpu(started: TestAirflow) -> dict[str, float]:
    """CPU seconds so far of each component with its children; the scheduler's are the workers."""
    used: dict[str, float] = {}
    for kind, component in started.components.items():
        if component.handle is None:
            continue
        total = 0.0
        for process in processes.family(component.handle):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        used[kind] = total
    return used


PARTS = {"idle": idle, "growth": growth, "pipelines": pipelines, "crowds": crowds}

if __name__ == "__main__":
    main()
