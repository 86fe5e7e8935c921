"""Merged rows a second into an index, beside the same rows as ready ``_bulk`` requests in the same run.

Run by ``make bench-targets`` (``python tests/bench/bench_target_elasticsearch.py [rows]``). Prints a line a
measurement, writes tests/bench/results/target_elasticsearch.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import httpx  # noqa: E402
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
from tests.bench.figures import size  # noqa: E402
from tests.bench.target_rates import SCHEMA, keep_rates, made  # noqa: E402

_AT_ONCE = 5_000


def requests_of(target: ElasticsearchTarget, data: pa.Table) -> list[bytes]:
    """The same rows as bodies of ``_bulk`` requests."""
    documents, found = TableDocuments(target.place, planned_table(SCHEMA)), []
    with connected(target.place) as client:
        for start in range(0, data.num_rows, _AT_ONCE):
            part = data.slice(start, _AT_ONCE).combine_chunks()
            ids, routings = documents.places(part)
            lines = index_lines(ids, routings, documents.documents(client, part, copied=True), 1)
            found.append("".join(lines.to_pylist()).encode())
    return found


def main(rows: int) -> None:
    processes.tether()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, SearchServer(Path(folder) / "server") as server:
        assert server.handle is not None
        endpoint = parse_connection("target", server.connection_json())

        def fresh(name: str) -> ElasticsearchTarget:
            options = {"settings": {"number_of_replicas": 0, "refresh_interval": "-1"}}
            given = {
                "name": name,
                "type": "elasticsearch",
                "connection": "target",
                "parallelism": 4,
                "options": options,
            }
            target = ElasticsearchTarget(TargetConfig.model_validate(given), endpoint, "bench")
            httpx.delete(f"{server.url}/{target.place.index_of(SCHEMA.table)}", timeout=60)
            made(target)
            return target

        def plainly(new: pa.Table, connections: int) -> Callable[[], None]:
            one = fresh("none")
            ready, path = requests_of(one, new), f"{server.url}/{one.place.index_of(SCHEMA.table)}/_bulk"

            def posted() -> None:
                headers = {"Content-Type": "application/x-ndjson"}
                with httpx.Client(timeout=600) as client, ThreadPoolExecutor(connections) as pool:

                    def post(body: bytes) -> None:
                        while (answer := client.post(path, content=body, headers=headers)).status_code == 429:
                            time.sleep(0.05)  # more requests at a time than its heap takes
                        answer.raise_for_status()

                    list(pool.map(post, ready))

            return posted

        keep_rates(
            "elasticsearch",
            rows,
            server.handle.pid,
            fresh,
            plainly,
            connections=(1, 2, 4),
            about=f"Elasticsearch {VERSIONS['elasticsearch']}, one shard",
            baseline="ready _bulk requests of as many rows",
            wanted="70 % of the baseline",
        )


if __name__ == "__main__":
    main(size(200_000))
