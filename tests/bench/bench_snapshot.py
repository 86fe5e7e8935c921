"""What a snapshot gives, and what it costs: a cold start of a target and of a reader from it, and the load of a batch
into it.

``cold_start``: seconds until a new MySQL target has all rows of one table, with 200 changes a second at the source
meanwhile: from the snapshot, by a copy of the source (``start: dump``), and, as their baseline, by ``mysqldump`` into a
new replica that then reads the log. CHECKSUM TABLE of both sides is compared before a figure counts. ``flight_rows`` of
the snapshot: rows a second to one Arrow Flight client that begins with it. ``snapshot_upkeep``: seconds for a batch of
100,000 changes to a table of 10,000,000 rows, against the same to one of 1,000,000: changes of the newest tenth of its
keys, and changes all over it.

Run by ``make bench-snapshot`` (``python tests/bench/bench_snapshot.py [rows]``). Prints a line a measurement, writes
tests/bench/results/snapshot.json.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import numpy as np  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from sluice.config.connections import Endpoint  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.flows.capture.drain import drain, head_of  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from sluice.targets.delta.target import DeltaTarget  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench import applying as ap  # noqa: E402
from tests.bench.bench_dump import CHANGES_A_SECOND, fill, program, writing  # noqa: E402
from tests.bench.bench_subscribe import by_flight, by_pyarrow, serving  # noqa: E402
from tests.bench.bench_target_delta import NAMES, SCHEMA, loaded, rows_of  # noqa: E402
from tests.bench.figures import figure, save, scaled, size  # noqa: E402
from tests.support.pipelines.case import Case, case  # noqa: E402
from tests.support.readers.lakes import Lake  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/snapshot.json"
ROUNDS = 3
CHANGED = 100_000
FILE_ROWS = 100_000
"""Rows of a file, in both tables alike."""
TABLES = (1_000_000, 10_000_000)


def main() -> None:
    processes.tether()
    compile_kernels()
    upkeep()
    rows = size(5_000_000)
    with ap.servers(spark=False) as on:
        on.source.execute("CREATE DATABASE bench")
        on.target.execute("CREATE DATABASE bench")
        lake = f'snapshot: {{uri: "{(on.folder / "lake").as_uri()}"}}'
        first = Lake(on.folder / "first")  # a pipeline has a target, whatever it is
        with case(on.folder / "case", on.source, first, on.zookeeper, "bench", extra=lake, kind="delta") as made:
            keep(made, on.source, rows)
            by_reader(made, rows)
            with writing(on.source, "bench", rows):
                took = {"snapshot": joined(made, on), "dump": copied(on), "replica": replicated(on)}
    workload = f"sysbench's table, {rows} rows, {CHANGES_A_SECOND} changes/s at the source"
    baseline = "mysqldump into a new replica, until it has the log"
    words = {"snapshot": "from the snapshot", "dump": "by a copy of the source"}
    save(
        RESULTS,
        [
            figure("cold_start", f"{workload}; {how}", took[name], "s", baseline, took["replica"], variant=name)
            for name, how in words.items()
        ],
    )


def keep(made: Case, source: MySQLServer, rows: int) -> None:
    """All rows go to the snapshot by the log."""
    drain(made.runtime(), claim="bench:first", idle_wait_s=0.1)
    fill(source, "bench", rows)
    made.run_until_head()


def by_reader(made: Case, rows: int) -> None:
    """Rows of the snapshot to one client; pyarrow reads the same rows of the segments."""
    with serving(made) as (reader, _):
        by_flight(reader, columns=["id"])  # the first read of a process loads code
        rates: dict[str, list[float]] = {"snapshot": [], "some": [], "pyarrow": []}
        for _ in range(ROUNDS):
            for name, (count, seconds) in {
                "snapshot": by_flight(reader, from_="snapshot"),
                "some": by_flight(reader, from_="snapshot", columns=["id", "k"]),
                "pyarrow": by_pyarrow(made),
            }.items():
                assert count == rows, f"{name}: {count} rows of {rows}"
                rates[name].append(count / seconds)
    middle = {name: round(statistics.median(values)) for name, values in rates.items()}
    words = {"snapshot": "all columns", "some": "columns id and k"}
    save(
        RESULTS,
        [
            figure(
                "flight_rows", f"sysbench's table, {rows} rows of the snapshot; {how}", middle[name], "rows/s",
                "pyarrow reads the segments of the same rows in process", middle["pyarrow"], variant=name,
                wanted="2,000,000 rows/s", samples=ROUNDS,
            )
            for name, how in words.items()
        ],
    )  # fmt: skip


def joined(made: Case, on: ap.Servers) -> float:
    """Seconds of a target that joins the pipeline and starts from the snapshot."""
    made.connections["late"] = on.target.connection_json(schema="bench")
    late = f"targets:\n  - {{name: late, type: mysql, connection: late, start: snapshot, parallelism: {ap.WORKERS}}}\n"
    made.path.write_text(made.path.read_text(encoding="utf-8").replace("targets:\n", late), encoding="utf-8")
    return _until_it_has_all(made, on, "late")


def copied(on: ap.Servers) -> float:
    """Seconds of a new pipeline that copies the source."""
    on.target.execute("DROP DATABASE bench", "CREATE DATABASE bench")
    parallel = f"    parallelism: {ap.WORKERS}"
    with case(
        on.folder / "second",
        on.source,
        on.target,
        on.zookeeper,
        "bench",
        name="second",
        start="dump",
        target_extra=parallel,
    ) as made:
        return _until_it_has_all(made, on)


def _until_it_has_all(made: Case, on: ap.Servers, joined: str = "") -> float:
    """Seconds until the head of the log is delivered: to the target that joined, or "" to all.

    A target that joined has the snapshot's rows when it has any batch. A new pipeline may have the head before its copy.
    """
    made.make_missing()
    runtime = made.runtime()
    head = head_of(runtime)
    with runtime.state() as state, ThreadPoolExecutor(1) as pool:
        began = time.perf_counter()
        running = pool.submit(made.run_until_head)
        while not running.done():
            held = state.acks.get(joined) if joined else None
            if held is not None and held.batch > held.began and held.position.order >= head.order:
                break
            time.sleep(0.05)
        took = time.perf_counter() - began
        running.result()
    wanted, found = (server.execute("SELECT COUNT(*) FROM bench.sbtest")[0][0] for server in (on.source, on.target))
    assert wanted == found, f"{found} rows of {wanted}"
    return took


def replicated(on: ap.Servers) -> float:
    """Seconds of mysqldump into an empty replica, and of the replica until it has what the source has then."""
    on.replica.execute("RESET BINARY LOGS AND GTIDS")
    environment = {**os.environ, "MYSQL_PWD": on.source.root_password}
    ends = [f"-h127.0.0.1 -P{server.port} -uroot".split() for server in (on.source, on.replica)]
    began = time.perf_counter()
    dump = [*program("mysqldump"), "--no-defaults", *ends[0], "--single-transaction", "--databases", "bench"]
    apply = [*program("mysql"), "--no-defaults", *ends[1]]
    with subprocess.Popen(dump, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as reading:
        environment = {**os.environ, "MYSQL_PWD": on.replica.root_password}
        subprocess.run(apply, stdin=reading.stdout, check=True, env=environment)
    assert reading.returncode == 0, "mysqldump failed"
    ap.replicate(on)
    took = time.perf_counter() - began
    [(rows,)] = on.replica.execute("SELECT COUNT(*) FROM bench.sbtest")
    assert rows == on.source.execute("SELECT COUNT(*) FROM bench.sbtest")[0][0]
    return took


def upkeep() -> None:
    """Batches into a small table and a large one, in turn."""
    changed = scaled(CHANGED)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        tables = {rows: _filled(folder, rows) for rows in map(scaled, TABLES)}
        small, large = tables
        for kind in ("newest_tenth", "all_over"):
            took: dict[int, list[float]] = {rows: [] for rows in tables}
            for batch in range(1, ROUNDS + 1):
                for rows, target in tables.items():
                    took[rows].append(_batch(target, rows, changed, kind, batch))
            middle = {rows: statistics.median(values) for rows, values in took.items()}
            workload = f"{changed} changes, {kind.replace('_', ' ')} of the table's keys, one table of {large} rows"
            save(
                RESULTS,
                [
                    figure(
                        "snapshot_upkeep", workload, middle[large], "s", f"the same to a table of {small} rows",
                        middle[small], variant=kind, wanted="at most 1.5 times the seconds", samples=ROUNDS,
                    )
                ],
            )  # fmt: skip


def _filled(folder: str, rows: int) -> DeltaTarget:
    import deltalake

    name = f"of{rows}"
    options = {"table": f"{name}/{{schema}}/{{table}}"}
    config = {"name": name, "type": "delta", "connection": "lake", "options": options}
    made = DeltaTarget(TargetConfig.model_validate(config), Endpoint("lake", "fs", "", extra={"path": folder}), "bench")
    [finding] = made.schema().compare([planned_table(SCHEMA)])
    made.schema().apply(finding.statement)
    for part in np.array_split(np.arange(rows, dtype=np.int64), max(1, rows // scaled(FILE_ROWS))):
        data = rows_of(part * 3, ["i"] * len(part), int(part[0]) + 20)
        deltalake.write_deltalake(f"{folder}/{name}/shop/orders", data.select(NAMES), mode="append")
    return made


def _batch(target: DeltaTarget, rows: int, changed: int, kind: str, batch: int) -> float:
    """Seconds of a batch: nine of ten changes are updates, one is a delete; one of ten has a new key."""
    choose = np.random.default_rng(100 * batch + (kind == "all_over"))
    first = rows - min(changed, rows // 10) if kind == "newest_tenth" else 0
    count = min(changed, rows - first)
    keys = np.sort(choose.choice(np.arange(first, rows), count, replace=False)).astype(np.int64)
    ops = np.array(["u", "d"])[(choose.random(count) < 0.1).astype(int)]
    data = rows_of(keys * 3 + (choose.random(count) < 0.1), ops.tolist(), batch)
    number = batch + (ROUNDS if kind == "all_over" else 0)
    began = time.perf_counter()
    loaded(target, number, data)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
