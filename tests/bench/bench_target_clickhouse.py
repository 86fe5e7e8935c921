"""Merged rows a second into a ReplacingMergeTree, beside plain INSERTs of the same blocks in the same run.

Run by ``make bench-targets`` (``python tests/bench/bench_target_clickhouse.py [rows]``). The server is ClickHouse's
engine behind an interface of ours, which runs one statement after the other. Prints a line a measurement, writes
tests/bench/results/target_clickhouse.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import httpx  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.clickhouse import VERSION, ClickHouseServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.clickhouse.checkpoint import Record  # noqa: E402
from sluice.targets.clickhouse.client import connected, stream_of  # noqa: E402
from sluice.targets.clickhouse.rows import TableRows  # noqa: E402
from sluice.targets.clickhouse.sql import names, table_name  # noqa: E402
from sluice.targets.clickhouse.tables import held_tables, require  # noqa: E402
from sluice.targets.clickhouse.target import ClickHouseTarget  # noqa: E402
from sluice.targets.clickhouse.writer import years_of  # noqa: E402
from sluice.targets.port import Checkpoint  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench.bench_target_postgresql import FILES, SCHEMA, loaded, rows_of  # noqa: E402
from tests.bench.figures import figure, measured, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_clickhouse.json"


def blocks_of(target: ClickHouseTarget, data: pa.Table) -> list[tuple[str, bytes]]:
    """The same rows as statements with their data, in the pieces of the units."""
    plan, found, step = planned_table(SCHEMA), [], -(-data.num_rows // FILES)
    with connected(target.place) as client:
        held = require(target.place, held_tables(client, [plan.target], every=False), plan)
        made = TableRows(target.place, plan, held, years_of(client))
        for start in range(0, data.num_rows, step):
            part = data.slice(start, step).combine_chunks()
            block, _ = made.merged(part, Record(Checkpoint(1, 0), term=1), 1, client, copied=True)
            statement = f"INSERT INTO {table_name(held.table)} ({names(block.schema.names)}) FORMAT ArrowStream"
            found.append((statement, stream_of(block, target.options.compression)))
    return found


def main(rows: int) -> None:
    processes.tether()
    ids = np.arange(rows, dtype=np.int64) * 3
    new, choose = rows_of(ids, ["i"] * rows, 1), np.random.default_rng(5)
    ops = np.array(["u", "d"])[(choose.random(rows) < 0.1).astype(int)]
    mixed = rows_of(np.where(choose.random(rows) < 0.3, ids + 1, ids), ops.tolist(), 2)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        ClickHouseServer(Path(folder) / "server") as server,
    ):
        assert server.handle is not None
        pid = server.handle.pid
        endpoint = parse_connection("target", server.connection_json())

        def fresh(name: str) -> ClickHouseTarget:
            config = {"name": name, "type": "clickhouse", "connection": "target", "parallelism": 4}
            made = ClickHouseTarget(TargetConfig.model_validate(config), endpoint, "bench")
            server.query(f"DROP TABLE IF EXISTS {table_name(SCHEMA.table)} SYNC")
            schema = made.schema()
            for finding in schema.compare([planned_table(SCHEMA)]):
                if finding.absent:
                    schema.apply(finding.statement)
            return made

        loaded(fresh("warm"), 1, new.slice(0, 20_000), 2)
        for connections in (1, 2):
            ready = blocks_of(fresh("none"), new)

            def plainly(ready: list[tuple[str, bytes]] = ready, connections: int = connections) -> None:
                with (
                    httpx.Client(timeout=600, headers=server.headers) as client,
                    ThreadPoolExecutor(connections) as pool,
                ):

                    def send(block: tuple[str, bytes]) -> httpx.Response:
                        given = {"query": block[0], "async_insert": "0"}
                        return client.post(f"{server.url}/", params=given, content=block[1])

                    for answer in pool.map(send, ready):
                        answer.raise_for_status()

            plain, plain_cpu = measured(pid, rows, plainly)
            one = fresh(f"new{connections}")
            ours, cpu = measured(pid, rows, lambda: loaded(one, 1, new, connections))  # noqa: B023 - called at once
            merged, merged_cpu = measured(pid, rows, lambda: loaded(one, 2, mixed, connections))  # noqa: B023
            for name, rate, used, about in (
                ("new", ours, cpu, "new rows"),
                ("merged", merged, merged_cpu, "merged rows, of which three of ten are new and one of ten goes"),
            ):
                line = figure(
                    f"target_clickhouse_{name}_rows",
                    f"{rows} {about}, six columns, {connections} connections, ClickHouse's engine {VERSION}",
                    rate,
                    "rows/s",
                    "plain INSERTs of the same blocks",
                    plain,
                    variant=str(connections),
                    wanted="500,000 rows/s, or 80 % of the baseline",
                    cpu_s_per_million=round(used, 2),
                    baseline_cpu_s_per_million=round(plain_cpu, 2),
                )
                save(RESULTS, [line])


if __name__ == "__main__":
    main(size(2_000_000))
