"""Merged rows a second into an index, beside the same rows as ready ``_bulk`` requests in the same run.

Run by ``make bench-targets`` (``python tests/bench/bench_target_elasticsearch.py [rows]``). Prints a line a
measurement, writes tests/bench/results/target_elasticsearch.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import httpx  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.elasticsearch import VERSIONS, SearchServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.elasticsearch.bulk import index_lines  # noqa: E402
from sluice.targets.elasticsearch.client import connected  # noqa: E402
from sluice.targets.elasticsearch.documents import TableDocuments  # noqa: E402
from sluice.targets.elasticsearch.target import ElasticsearchTarget  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench.bench_target_postgresql import SCHEMA, loaded, rows_of  # noqa: E402
from tests.bench.figures import figure, measured, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_elasticsearch.json"
_AT_ONCE = 5_000


def requests_of(target: ElasticsearchTarget, data: pa.Table) -> list[bytes]:
    """The same rows as bodies of ``_bulk`` requests."""
    made, found = TableDocuments(target.place, planned_table(SCHEMA)), []
    with connected(target.place) as client:
        for start in range(0, data.num_rows, _AT_ONCE):
            part = data.slice(start, _AT_ONCE).combine_chunks()
            ids, routings = made.places(part)
            lines = index_lines(ids, routings, made.documents(client, part, copied=True), 1)
            found.append("".join(lines.to_pylist()).encode())
    return found


def main(rows: int) -> None:
    processes.tether()
    ids = np.arange(rows, dtype=np.int64) * 3
    new, choose = rows_of(ids, ["i"] * rows, 1), np.random.default_rng(5)
    ops = np.array(["u", "d"])[(choose.random(rows) < 0.1).astype(int)]
    mixed = rows_of(np.where(choose.random(rows) < 0.3, ids + 1, ids), ops.tolist(), 2)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, SearchServer(Path(folder) / "server") as server:
        assert server.handle is not None
        pid = server.handle.pid
        endpoint = parse_connection("target", server.connection_json())

        def fresh(name: str) -> ElasticsearchTarget:
            options = {"settings": {"number_of_replicas": 0, "refresh_interval": "-1"}}
            config = {
                "name": name,
                "type": "elasticsearch",
                "connection": "target",
                "parallelism": 4,
                "options": options,
            }
            made = ElasticsearchTarget(TargetConfig.model_validate(config), endpoint, "bench")
            httpx.delete(f"{server.url}/{made.place.index_of(SCHEMA.table)}", timeout=60)
            schema = made.schema()
            for finding in schema.compare([planned_table(SCHEMA)]):
                if finding.absent:
                    schema.apply(finding.statement)
            return made

        loaded(fresh("warm"), 1, new.slice(0, 20_000), 2)
        for connections in (1, 2, 4):
            one = fresh("none")
            ready, path = requests_of(one, new), f"{server.url}/{one.place.index_of(SCHEMA.table)}/_bulk"

            def plainly(ready: list[bytes] = ready, path: str = path, connections: int = connections) -> None:
                headers = {"Content-Type": "application/x-ndjson"}
                with httpx.Client(timeout=600) as client, ThreadPoolExecutor(connections) as pool:

                    def post(body: bytes) -> None:
                        while (answer := client.post(path, content=body, headers=headers)).status_code == 429:
                            time.sleep(0.05)  # more requests at a time than its heap takes
                        answer.raise_for_status()

                    list(pool.map(post, ready))

            plain, plain_cpu = measured(pid, rows, plainly)
            one = fresh(f"new{connections}")
            ours, cpu = measured(pid, rows, lambda: loaded(one, 1, new, connections))  # noqa: B023 - called at once
            merged, merged_cpu = measured(pid, rows, lambda: loaded(one, 2, mixed, connections))  # noqa: B023
            for name, rate, used, about in (
                ("new", ours, cpu, "new rows"),
                ("merged", merged, merged_cpu, "merged rows, of which three of ten are new and one of ten goes"),
            ):
                line = figure(
                    f"target_elasticsearch_{name}_rows",
                    f"{rows} {about}, six columns, {connections} connections, Elasticsearch "
                    f"{VERSIONS['elasticsearch']}, one shard",
                    rate,
                    "rows/s",
                    "ready _bulk requests of as many rows",
                    plain,
                    variant=str(connections),
                    wanted="70 % of the baseline",
                    cpu_s_per_million=round(used, 2),
                    baseline_cpu_s_per_million=round(plain_cpu, 2),
                )
                save(RESULTS, [line])


if __name__ == "__main__":
    main(size(200_000))
