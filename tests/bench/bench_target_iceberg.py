"""Rows a second into an Iceberg table: new ones, and changes merged into a table with ten times as many rows, beside a
plain append of pyiceberg with the same rows, in a folder of this machine with a SQL catalog; and seconds of the same
number of changes all over a large table and a table of a tenth of its rows, by both write modes.

Run by ``make bench-targets`` (``python tests/bench/bench_target_iceberg.py [rows]``). Prints a line a measurement,
writes tests/bench/results/target_iceberg.json; asserts nothing.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
from tests.bench.figures import Line, figure, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_iceberg.json"
BATCHES = 3
MODES = ("copy-on-write", "merge-on-read")


def main(rows: int) -> None:
    processes.tether()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:

        def target(name: str, mode: str = MODES[0]) -> IcebergTarget:
            (Path(folder) / name).mkdir()
            config = {"name": name, "type": "iceberg", "connection": "lake", "options": {"write_mode": mode}}
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
        for name in made:
            shutil.rmtree(f"{folder}/{name}")
        for line in by_size(folder, rows // 10, target):
            save(RESULTS, [line])


def by_size(folder: str, changes: int, target: Callable[[str, str], IcebergTarget]) -> Iterator[Line]:
    """``changes`` changes all over a table of a hundred times as many rows, beside one of ten times as many."""
    took: dict[str, list[float]] = {}
    for mode in MODES:
        took[mode] = []
        for count in (10, 100):
            name = f"{mode.replace('-', '_')}_{count}"
            took[mode].append(all_over(target(name, mode), changes, count))
            shutil.rmtree(f"{folder}/{name}")
        small, large = took[mode]
        workload = f"{changes} changes all over {100 * changes} rows, six columns, median of {BATCHES} batches: {mode}"
        yield figure(
            f"target_iceberg_changes_by_size_{mode.replace('-', '_')}",
            workload,
            large,
            "s",
            f"all over {10 * changes} rows",
            small,
        )
    copied, merged = (took[mode][1] for mode in MODES)
    workload = f"{changes} changes all over {100 * changes} rows, six columns: {MODES[1]}"
    yield figure("target_iceberg_changes_by_mode", workload, merged, "s", MODES[0], copied)


def all_over(lake: IcebergTarget, changes: int, count: int) -> float:
    """Seconds of a batch of ``changes`` changes, one of ten a delete, in a table of ``count`` times as many rows."""
    table = lake.tables.open(SCHEMA.table)
    for first in range(0, count * changes, 10 * changes):
        ids = np.arange(first, first + 10 * changes, dtype=np.int64) * 3
        table.append(rows_of(ids, ["i"] * len(ids), 20).select(NAMES).cast(arrow_schema(table.metadata)))
    choose, took = np.random.default_rng(7), []
    for batch in range(1, BATCHES + 1):
        chosen = np.sort(choose.choice(count * changes, changes, replace=False)).astype(np.int64)
        ops = np.array(["u", "d"])[(choose.random(changes) < 0.1).astype(int)]
        data = rows_of(chosen * 3, ops.tolist(), 30 + batch)
        began = time.perf_counter()
        loaded(lake, batch, data)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


if __name__ == "__main__":
    main(size(1_000_000))
