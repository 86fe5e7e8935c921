"""Merged rows a second into a collection, beside pymongo's own ``bulk_write`` of the same documents ready made in the same run.

The server is a FerretDB, which is slow and takes few updates at a time: the ratio says what the target adds, and the
rates say nothing of MongoDB. Run by ``make bench-targets`` (``python tests/bench/bench_target_mongodb.py [rows]``).
Prints a line a measurement, writes tests/bench/results/target_mongodb.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from pymongo import ReplaceOne  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mongodb import VERSION, FerretDBServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.mongodb.documents import TableDocuments, Write  # noqa: E402
from sluice.targets.mongodb.target import MongoTarget  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench.bench_target_postgresql import SCHEMA, loaded, rows_of  # noqa: E402
from tests.bench.figures import figure, measured, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_mongodb.json"
_AT_ONCE = 20
_OPTIONS = {"bulk_rows": _AT_ONCE, "types": {"decimal": "text", "bigint unsigned": "text"}}


def ready_made(target: MongoTarget, data: pa.Table) -> list[list[ReplaceOne[dict[str, Any]]]]:
    """The same documents, to be replaced or made by their ids, as many at a time as the target sends."""
    writes = TableDocuments(target.place, planned_table(SCHEMA)).writes(data.combine_chunks(), 1, copied=False)
    found = [
        ReplaceOne({"_id": one.id}, dict(one.update["u"]), upsert=True) for one in writes if isinstance(one, Write)
    ]
    return [found[first : first + _AT_ONCE] for first in range(0, len(found), _AT_ONCE)]


def main(rows: int) -> None:
    processes.tether()
    ids = np.arange(rows, dtype=np.int64) * 3
    new, choose = rows_of(ids, ["i"] * rows, 1), np.random.default_rng(5)
    ops = np.array(["u", "d"])[(choose.random(rows) < 0.1).astype(int)]
    mixed = rows_of(np.where(choose.random(rows) < 0.3, ids + 1, ids), ops.tolist(), 2)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, FerretDBServer(Path(folder) / "db") as server:
        assert server.handle is not None
        pid = server.handle.pid
        endpoint = parse_connection("target", server.connection_json())

        def fresh(name: str) -> MongoTarget:
            options = {**_OPTIONS, "collection": f"{name}-{{table}}"}
            config = {"name": name, "type": "mongodb", "connection": "target", "parallelism": 4, "options": options}
            made = MongoTarget(TargetConfig.model_validate(config), endpoint, "bench")
            schema = made.schema()
            for finding in schema.compare([planned_table(SCHEMA)]):
                if finding.absent:
                    schema.apply(finding.statement)
            return made

        loaded(fresh("warm"), 1, new.slice(0, 200), 2)
        for connections in (1, 2):
            one = fresh(f"plain{connections}")
            parts, at = ready_made(one, new), one.place.namespace(SCHEMA.table)

            def plainly(parts: list[Any] = parts, at: Any = at, connections: int = connections) -> None:
                with server.client() as client, ThreadPoolExecutor(connections) as pool:
                    list(
                        pool.map(lambda part: client[at.database][at.collection].bulk_write(part, ordered=False), parts)
                    )

            plain, plain_cpu = measured(pid, rows, plainly)
            one = fresh(f"new{connections}")
            ours, cpu = measured(pid, rows, lambda: loaded(one, 1, new, connections))  # noqa: B023 - called at once
            merged, merged_cpu = measured(pid, rows, lambda: loaded(one, 2, mixed, connections))  # noqa: B023
            for name, rate, used, about in (
                ("new", ours, cpu, "new rows"),
                ("merged", merged, merged_cpu, "merged rows, of which three of ten are new and one of ten goes"),
            ):
                line = figure(
                    f"target_mongodb_{name}_rows",
                    f"{rows} {about}, six columns, {connections} connections, FerretDB {VERSION}, {_AT_ONCE} rows a command",
                    rate,
                    "rows/s",
                    "bulk_write of as many ready documents",
                    plain,
                    variant=str(connections),
                    wanted="70 % of the baseline",
                    cpu_s_per_million=round(used, 2),
                    baseline_cpu_s_per_million=round(plain_cpu, 2),
                )
                save(RESULTS, [line])


if __name__ == "__main__":
    main(size(500))
