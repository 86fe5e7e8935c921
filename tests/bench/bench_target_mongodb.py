"""Merged rows a second into a collection, beside pymongo's own ``bulk_write`` of the same documents ready made in the same run.

The server is a FerretDB, which is slow and takes few updates at a time: the ratio says what the target adds, and the
rates say nothing of MongoDB. Run by ``make bench-targets`` (``python tests/bench/bench_target_mongodb.py [rows]``).
Prints a line a measurement, writes tests/bench/results/target_mongodb.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import pyarrow as pa  # noqa: E402
from pymongo import ReplaceOne  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mongodb import VERSION, FerretDBServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.mongodb.documents import TableDocuments, Write  # noqa: E402
from sluice.targets.mongodb.target import MongoTarget  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench.figures import size  # noqa: E402
from tests.bench.target_rates import SCHEMA, keep_rates, made  # noqa: E402

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
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, FerretDBServer(Path(folder) / "db") as server:
        assert server.handle is not None
        endpoint = parse_connection("target", server.connection_json())

        def fresh(name: str) -> MongoTarget:
            options = {**_OPTIONS, "collection": f"{name}-{{table}}"}
            config = {"name": name, "type": "mongodb", "connection": "target", "parallelism": 4, "options": options}
            target: MongoTarget = made(MongoTarget(TargetConfig.model_validate(config), endpoint, "bench"))
            return target

        def plainly(new: pa.Table, connections: int) -> Callable[[], None]:
            one = fresh(f"plain{connections}")
            parts, at = ready_made(one, new), one.place.namespace(SCHEMA.table)

            def written() -> None:
                with server.client() as client, ThreadPoolExecutor(connections) as pool:
                    into = client[at.database][at.collection]
                    list(pool.map(lambda part: into.bulk_write(part, ordered=False), parts))

            return written

        keep_rates(
            "mongodb",
            rows,
            server.handle.pid,
            fresh,
            plainly,
            connections=(1, 2),
            about=f"FerretDB {VERSION}, {_AT_ONCE} rows a command",
            baseline="bulk_write of as many ready documents",
            wanted="70 % of the baseline",
            warm=200,
        )


if __name__ == "__main__":
    main(size(500))
