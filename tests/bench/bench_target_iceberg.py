"""Rows a second into an Iceberg table: new ones, and changes merged into a table with ten times as many rows, beside a
plain append of pyiceberg with the same rows, in a folder of this machine with a SQL catalog.

Run by ``make bench-targets`` (``python tests/bench/bench_target_iceberg.py [rows]``). Prints a line a measurement,
writes tests/bench/results/target_iceberg.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT), str(_ROOT / "tests/bench")]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyiceberg  # noqa: E402
from bench_target_delta import NAMES, SCHEMA, changes_to_many, compared, loaded, measured, pieces, rows_of  # noqa: E402

from devstack import processes  # noqa: E402
from sluice.config.connections import Endpoint  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.iceberg.target import IcebergTarget  # noqa: E402
from sluice.targets.iceberg.types import arrow_schema  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from tests.bench.figures import save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_iceberg.json"


def main(rows: int) -> None:
    processes.tether()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:

        def target(name: str) -> IcebergTarget:
            (Path(folder) / name).mkdir()
            config = {"name": name, "type": "iceberg", "connection": "lake"}
            endpoint = Endpoint("lake", "fs", "", extra={"path": f"{folder}/{name}"})
            made = IcebergTarget(TargetConfig.model_validate(config), endpoint, "bench")
            [finding] = made.schema().compare([planned_table(SCHEMA)])
            made.schema().apply(finding.statement)
            return made

        def append(name: str, data: pa.Table) -> None:
            table = made[name].tables.open(SCHEMA.table)
            table.append(data.select(NAMES).cast(arrow_schema(table.metadata)))

        made = {name: target(name) for name in ("warm", "ours", "plain", "large")}
        new = rows_of(np.arange(rows, dtype=np.int64) * 3, ["i"] * rows, 1)
        loaded(made["warm"], 1, new.slice(0, 2_000))
        plain = measured(rows, lambda: append("plain", new))
        own = measured(rows, lambda: loaded(made["ours"], 1, new))
        workload = f"{rows} rows, six columns, pyiceberg {pyiceberg.__version__}"
        save(RESULTS, [compared("target_iceberg_new_rows", workload, own, "pyiceberg alone", plain)])
        for piece in pieces(rows):
            append("large", piece)
        lines = changes_to_many(
            "iceberg",
            rows,
            lambda number, data: loaded(made["large"], number, data),
            lambda data: append("plain", data),
        )
        for line in lines:
            save(RESULTS, [line])


if __name__ == "__main__":
    main(size(1_000_000))
