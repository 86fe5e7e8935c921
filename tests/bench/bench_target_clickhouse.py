"""Merged rows a second into a ReplacingMergeTree, beside plain INSERTs of the same blocks in the same run.

Run by ``make bench-targets`` (``python tests/bench/bench_target_clickhouse.py [rows]``). The server is ClickHouse's
engine behind an interface of ours, which runs one statement after the other. Prints a line a measurement, writes
tests/bench/results/target_clickhouse.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import httpx  # noqa: E402
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
from tests.bench.figures import size  # noqa: E402
from tests.bench.target_rates import FILES, SCHEMA, keep_rates, made  # noqa: E402


def blocks_of(target: ClickHouseTarget, data: pa.Table) -> list[tuple[str, bytes]]:
    """The same rows as statements with their data, in the pieces of the units."""
    plan, found, step = planned_table(SCHEMA), [], -(-data.num_rows // FILES)
    with connected(target.place) as client:
        held = require(target.place, held_tables(client, [plan.target], every=False), plan)
        writer = TableRows(target.place, plan, held, years_of(client))
        for start in range(0, data.num_rows, step):
            part = data.slice(start, step).combine_chunks()
            block, _ = writer.merged(part, Record(Checkpoint(1, 0), term=1), 1, client, copied=True)
            statement = f"INSERT INTO {table_name(held.table)} ({names(block.schema.names)}) FORMAT ArrowStream"
            found.append((statement, stream_of(block, target.options.compression)))
    return found


def main(rows: int) -> None:
    processes.tether()
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        ClickHouseServer(Path(folder) / "server") as server,
    ):
        assert server.handle is not None
        endpoint = parse_connection("target", server.connection_json())

        def fresh(name: str) -> ClickHouseTarget:
            config = {"name": name, "type": "clickhouse", "connection": "target", "parallelism": 4}
            server.query(f"DROP TABLE IF EXISTS {table_name(SCHEMA.table)} SYNC")
            target: ClickHouseTarget = made(ClickHouseTarget(TargetConfig.model_validate(config), endpoint, "bench"))
            return target

        def plainly(new: pa.Table, connections: int) -> Callable[[], None]:
            ready = blocks_of(fresh("none"), new)

            def posted() -> None:
                with (
                    httpx.Client(timeout=600, headers=server.headers) as client,
                    ThreadPoolExecutor(connections) as pool,
                ):

                    def send(block: tuple[str, bytes]) -> httpx.Response:
                        given = {"query": block[0], "async_insert": "0"}
                        return client.post(f"{server.url}/", params=given, content=block[1])

                    for answer in pool.map(send, ready):
                        answer.raise_for_status()

            return posted

        keep_rates(
            "clickhouse",
            rows,
            server.handle.pid,
            fresh,
            plainly,
            connections=(1, 2),
            about=f"ClickHouse's engine {VERSION}",
            baseline="plain INSERTs of the same blocks",
            wanted="500,000 rows/s, or 80 % of the baseline",
        )


if __name__ == "__main__":
    main(size(2_000_000))
