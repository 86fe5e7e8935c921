"""Rows a second into a Delta table: new ones and merged ones, beside delta-rs alone with the same rows, in a folder of
this machine; and changes merged into a table with ten times as many rows, near each other and all over it, beside a
plain write of the same rows.

Run by ``make bench-targets`` (``python tests/bench/bench_target_delta.py [rows]``). Prints a line a measurement, writes
tests/bench/results/target_delta.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import deltalake  # noqa: E402
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from sluice.config.connections import Endpoint  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.model.offset import Offset  # noqa: E402
from sluice.model.tables import TableId  # noqa: E402
from sluice.targets.delta.target import DeltaTarget  # noqa: E402
from sluice.targets.port import BatchInput, TableInput  # noqa: E402
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory, planned_table  # noqa: E402
from tests.bench.figures import Line, figure, save, size  # noqa: E402
from tests.bench.target_rates import SCHEMA as ROWS  # noqa: E402
from tests.bench.target_rates import batches  # noqa: E402
from tests.bench.target_rates import rows_of as rows_of_targets  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_delta.json"
SMALL = 2_000
SCHEMA = replace(ROWS, table=TableId("shop", "orders"))
NAMES = [column.name for column in SCHEMA.columns]


rows_of = partial(rows_of_targets, old=False)


@dataclass(frozen=True)
class Measured:
    """Rows a second, and seconds of this process's processor time for a million rows: the libraries work in it."""

    rate: float
    cpu_s: float


def measured(rows: int, work: Callable[[], None]) -> Measured:
    cpu, began = time.process_time(), time.perf_counter()
    work()
    return Measured(rows / (time.perf_counter() - began), (time.process_time() - cpu) / rows * 1e6)


def compared(measure: str, workload: str, own: Measured, baseline: str, plain: Measured) -> Line:
    """The line of both."""
    return figure(
        measure, workload, own.rate, "rows/s", baseline, plain.rate, cpu_s_per_million=round(own.cpu_s, 2),
        baseline_cpu_s_per_million=round(plain.cpu_s, 2),
    )  # fmt: skip


def loaded(target: Any, number: int, data: pa.Table, spark: Any = None) -> None:
    """One batch by the port. ``spark``: a StatementRunner."""
    tables = (TableInput(planned_table(SCHEMA), (RowsInMemory(SCHEMA.table, data),)),)
    held = target.checkpoints.take_over(1).batch
    batch = BatchInput(number, Offset.at("uuid", "log.000001", 100 * number), held, MemoryReader(), tables, spark=spark)
    with target.open(1) as session:
        writer = session.begin(batch)
    writer.prepare()
    writer.commit([unit.write() for phase in writer.plan(1) for unit in phase])


def merged_alone(place: str, data: pa.Table) -> None:
    """The same rows with the library alone."""
    rows = data.select([*NAMES, "_op"])
    (
        deltalake
        .DeltaTable(place)
        .merge(rows, "t.id = s.id", source_alias="s", target_alias="t", streamed_exec=False)
        .when_matched_delete("s._op = 'd'")
        .when_matched_update({name: f"s.{name}" for name in NAMES if name != "id"}, "s._op <> 'd'")
        .when_not_matched_insert({name: f"s.{name}" for name in NAMES}, "s._op <> 'd'")
        .execute()
    )


def changes_to_many(
    kind: str, rows: int, load: Callable[[int, pa.Table], None], write: Callable[[pa.Table], None]
) -> Iterator[Line]:
    """``rows`` changes merged into ten times as many rows (keys are 3 apart), and written as they are.

    ``load``: a batch by the port.
    """
    choose = np.random.default_rng(7)
    keys = {
        "newest_tenth": np.arange(9 * rows, 10 * rows, dtype=np.int64),
        "all_over": np.sort(choose.choice(10 * rows, rows, replace=False)).astype(np.int64),
    }
    for batch, (name, chosen) in enumerate(keys.items(), 1):
        ops = np.array(["u", "d"])[(choose.random(rows) < 0.1).astype(int)]
        data = rows_of(chosen * 3 + (choose.random(rows) < 0.1), ops.tolist(), 10 + batch)  # one of ten is new
        plain = measured(rows, lambda data=data: write(data))
        own = measured(rows, lambda data=data, batch=batch: load(batch, data))
        workload = f"{rows} changes to a table of {10 * rows} rows, six columns: {name.replace('_', ' ')}"
        yield compared(f"target_{kind}_changes_{name}", workload, own, "a plain write of the same rows", plain)


def pieces(rows: int) -> Iterator[pa.Table]:
    """Ten times ``rows`` rows."""
    for number in range(10):
        ids = np.arange(number * rows, (number + 1) * rows, dtype=np.int64) * 3
        yield rows_of(ids, ["i"] * rows, 20 + number).select(NAMES)


def main(rows: int) -> None:
    processes.tether()
    new, mixed = batches(rows, old=False)
    few = rows_of(np.arange(rows - SMALL, rows, dtype=np.int64) * 3, ["u"] * SMALL, 3)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:

        def target(name: str) -> DeltaTarget:
            config = {
                "name": name,
                "type": "delta",
                "connection": "lake",
                "options": {"table": f"{name}/{{schema}}/{{table}}"},
            }
            made = DeltaTarget(
                TargetConfig.model_validate(config), Endpoint("lake", "fs", "", extra={"path": folder}), "bench"
            )
            [finding] = made.schema().compare([planned_table(SCHEMA)])
            made.schema().apply(finding.statement)
            return made

        loaded(target("warm"), 1, new.slice(0, SMALL))
        alone, ours = f"{folder}/alone", target("ours")
        steps: list[tuple[str, pa.Table, Callable[[], None], Callable[[], None]]] = [
            (
                "new_rows",
                new,
                lambda: deltalake.write_deltalake(alone, new.select(NAMES)),
                lambda: loaded(ours, 1, new),
            ),
            ("merged_rows", mixed, lambda: merged_alone(alone, mixed), lambda: loaded(ours, 2, mixed)),
            ("small_batch", few, lambda: merged_alone(alone, few), lambda: loaded(ours, 3, few)),
        ]
        for name, data, plain, own in steps:
            alone_took, own_took = measured(data.num_rows, plain), measured(data.num_rows, own)
            workload = f"{data.num_rows} rows, six columns, deltalake {deltalake.__version__}"
            save(RESULTS, [compared(f"target_delta_{name}", workload, own_took, "delta-rs alone", alone_took)])
        large = target("large")
        place = f"{folder}/large/shop/orders"
        for piece in pieces(rows):
            deltalake.write_deltalake(place, piece, mode="append")
        lines = changes_to_many(
            "delta",
            rows,
            lambda number, data: loaded(large, number, data),
            lambda data: deltalake.write_deltalake(f"{folder}/plain{time.monotonic_ns()}", data.select(NAMES)),
        )
        for line in lines:
            save(RESULTS, [line])


if __name__ == "__main__":
    main(size(1_000_000))
