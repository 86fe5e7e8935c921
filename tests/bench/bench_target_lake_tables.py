"""Seconds for a batch with a few rows for each of 1,000 tables of a lake: Delta by delta-rs and by Spark, Iceberg; and
for batches that are written together, as ``commit_every`` does it: three as one.

Run by ``make bench-targets`` (``python tests/bench/bench_target_lake_tables.py [tables]``). Spark, which takes seconds
a table, gets 20 tables (SLUICE_BENCH_SPARK_TABLES). Merges figures into tests/bench/results/target_delta.json and
target_iceberg.json; asserts nothing.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT), str(_ROOT / "tests/bench")]

import numpy as np  # noqa: E402
from bench_target_delta import NAMES, SCHEMA, rows_of  # noqa: E402

from devstack import delta_spark, processes  # noqa: E402
from devstack.spark import SparkConnectServer  # noqa: E402
from sluice.config.connections import Endpoint, parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.flows.load.load import SparkStatements  # noqa: E402
from sluice.model.changes import Change  # noqa: E402
from sluice.model.offset import Offset  # noqa: E402
from sluice.model.tables import TableId, TableSchema  # noqa: E402
from sluice.spark.connect import ConnectRunner  # noqa: E402
from sluice.spark.local import LocalRunner  # noqa: E402
from sluice.targets.bundles import joined  # noqa: E402
from sluice.targets.delta.target import DeltaTarget  # noqa: E402
from sluice.targets.iceberg.target import IcebergTarget  # noqa: E402
from sluice.targets.port import BatchInput, TableInput  # noqa: E402
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory, planned_table  # noqa: E402
from tests.bench.figures import Line, figure, save, scaled, size  # noqa: E402

FEW = 20
"""Rows of a table in a batch."""
BATCHES = 3
WRITERS = 4
CLASSES: dict[str, Any] = {"delta": DeltaTarget, "iceberg": IcebergTarget}


@dataclass
class Lake:
    """A target whose tables are there; batches are written to it one after the other. ``number``: of the last one."""

    target: Any
    tables: tuple[TableSchema, ...]
    number: int = 0
    spark: SparkStatements | None = None

    @classmethod
    def made(
        cls, kind: str, folder: Path, tables: int, changes: str = "latest", spark: SparkStatements | None = None
    ) -> Lake:
        """In ``folder``, which is made."""
        folder.mkdir(parents=True)
        options = {"execution": "frame", "frame_from": 1} if spark is not None else {}
        config = {"name": "lake", "type": kind, "connection": "lake", "changes": changes, "options": options}
        endpoint = Endpoint("lake", "fs", "", extra={"path": str(folder)})
        target = CLASSES[kind](TargetConfig.model_validate(config), endpoint, "bench")
        schemas = tuple(replace(SCHEMA, table=TableId("shop", f"t{number}")) for number in range(tables))
        for finding in target.schema().compare([planned_table(one) for one in schemas]):
            target.schema().apply(finding.statement)
        target.checkpoints.take_over(1)
        return cls(target, schemas, spark=spark)

    def merged(self, first: int, batches: int = 1, writers: int = WRITERS) -> float:
        """Seconds of ``batches`` batches, written as one, with FEW rows each for each table, from key ``first`` on."""
        plans = [planned_table(one) for one in self.tables]
        given = []
        for number in range(batches):
            begin = first + number * FEW
            data = rows_of(np.arange(begin, begin + FEW, dtype=np.int64), ["i"] * FEW, 1)
            inputs = tuple(TableInput(plan, (RowsInMemory(plan.target, data),)) for plan in plans)
            given.append(self._batch(MemoryReader(), tables=inputs))
        return self._written(joined(given), writers)

    def every_change(self) -> float:
        """Seconds of a batch with FEW inserts for each table, appended."""
        fields = tuple(SCHEMA.field(column) for column in SCHEMA.columns)
        images = rows_of(np.arange(FEW, dtype=np.int64), ["i"] * FEW, 1).select(NAMES).to_pylist()
        log = tuple(
            Change(one.table, "i", seq, "log.000001", 4 + seq, 0, 0, "uuid:1", 1, 7, None, image, fields, ("id",),
                txn_row=seq)
            for seq, (one, image) in enumerate((one, image) for one in self.tables for image in images)
        )  # fmt: skip
        return self._written(self._batch(MemoryReader(log), changes=len(log)), 1)

    def _batch(self, reader: MemoryReader, **given: Any) -> BatchInput:
        self.number += 1
        position = Offset.at("uuid", "log.000001", 100 * self.number)
        return BatchInput(self.number, position, self.number - 1, reader, spark=self.spark, **given)

    def _written(self, batch: BatchInput, writers: int) -> float:
        with self.target.open(1) as session:
            writer = session.begin(batch)
        began = time.perf_counter()
        writer.prepare()
        results = [
            result
            for phase in writer.plan(writers)
            for result in LocalRunner().run(lambda unit: unit.write(), phase, parallelism=writers)
        ]
        writer.commit(results)
        return time.perf_counter() - began


def of_kind(kind: str, folder: Path, tables: int) -> Iterator[Line]:
    """Merged rows by one writer and by several, in turns; bundled; and every change."""
    each = f"{tables} tables"
    lake = Lake.made(kind, folder / f"{kind}-merged", tables)
    lake.merged(0)  # the first files of the tables
    pairs = [  # in turns: a table has one more file and snapshot after each batch
        [lake.merged((1 + 2 * batch + place) * FEW, writers=writers) for place, writers in enumerate((1, WRITERS))]
        for batch in range(BATCHES)
    ]
    alone, took = statistics.median(one for one, _ in pairs), [several for _, several in pairs]
    bundled = lake.merged((1 + 2 * BATCHES) * FEW, BATCHES)
    yield figure(
        f"target_{kind}_tables",
        f"a batch of {FEW} rows for each of {each}, {WRITERS} writers, median of {BATCHES}",
        statistics.median(took),
        "s",
        "one writer",
        alone,
    )
    yield figure(
        f"target_{kind}_tables_bundled",
        f"{BATCHES} such batches, written as one (commit_every)",
        bundled,
        "s",
        "one after the other",
        sum(took),
    )
    log = Lake.made(kind, folder / f"{kind}-all", tables, "all")
    log.every_change()
    yield figure(
        f"target_{kind}_tables_every_change",
        f"a batch of {FEW} changes for each of {each}, appended (changes: all)",
        log.every_change(),
        "s",
        f"{FEW} merged rows for each",
        statistics.median(took),
    )


def by_spark(folder: Path, tables: int) -> Line:
    """Spark's MERGE for each table, side by side, beside delta-rs."""
    settings = {
        **delta_spark.spark_settings(),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
        # compiled in full, as a server that runs for days
    }
    with SparkConnectServer(folder / "spark", "spark", driver_memory="3g", conf=settings) as server:
        spark = SparkStatements(ConnectRunner(parse_connection("spark", server.connection_json())), "bench")
        frame = Lake.made("delta", folder / "frame", tables, spark=spark)
        units = Lake.made("delta", folder / "units", tables)
        for lake in (frame, units):
            lake.merged(0)
        return figure(
            "target_delta_tables_spark",
            f"a batch of {FEW} rows for each of {tables} tables, a MERGE of Spark for each, Delta "
            f"{delta_spark.VERSION}",
            frame.merged(FEW),
            "s",
            f"delta-rs, {WRITERS} writers",
            units.merged(FEW),
        )


def main(tables: int) -> None:
    processes.tether()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        for kind in CLASSES:
            for line in of_kind(kind, Path(folder), tables):
                save(_ROOT / f"tests/bench/results/target_{kind}.json", [line])
        by = int(os.environ.get("SLUICE_BENCH_SPARK_TABLES", scaled(20)))
        save(_ROOT / "tests/bench/results/target_delta.json", [by_spark(Path(folder), by)])


if __name__ == "__main__":
    main(size(1_000))
