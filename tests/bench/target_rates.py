"""The same rows for each kind of target, new ones and merged ones, and the figures that come of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.model.column_types import ColumnKind
from sluice.model.offset import Offset
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.port import BatchInput, TableInput
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory, planned_table
from tests.bench.figures import figure, measured, save

FILES = 8
K = ColumnKind
SCHEMA = TableSchema(
    TableId("public", "orders"),
    (
        Column("id", K.BIGINT, "bigint", nullable=False), Column("customer", K.INT, "int"),
        Column("status", K.VARCHAR, "varchar(20)", length=20),
        Column("amount", K.DECIMAL, "decimal(12,2)", precision=12, scale=2),
        Column("note", K.VARCHAR, "varchar(200)", length=200),
        Column("at", K.DATETIME, "datetime(6)", fsp=6),
    ),
    ("id",),
)  # fmt: skip


def rows_of(ids: np.ndarray[Any, Any], ops: list[str], salt: int, *, old: bool = True) -> pa.Table:
    """Merged rows of these keys. ``old``: with the rows before them, unless they are new."""
    count, choose = len(ids), np.random.default_rng(salt)
    status = pa.array(["new", "paid", "shipped"]).take(pa.array(choose.integers(0, 3, count)))
    cents = pa.array(choose.integers(0, 10**9, count)).cast(pa.decimal128(19, 0))
    words = np.char.add("a note of some length, as people write them: ", ids.astype(str))
    columns = [
        pa.array(ids),
        pa.array(choose.integers(0, 50_000, count).astype("i4")),
        status,
        pa.Array.from_buffers(pa.decimal128(12, 2), count, cents.buffers()),
        pa.array(words.tolist()),
        pa.array((1_700_000_000_000_000 + ids * 1_000).astype("datetime64[us]")),
    ]
    fields = [SCHEMA.field(column) for column in SCHEMA.columns]
    data = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    was = pa.StructArray.from_arrays([data[f.name].combine_chunks() for f in fields], fields=fields)
    before = pa.nulls(count, pa.struct(fields)) if ops[0] == "i" or not old else was
    zero = pa.array(np.zeros(count, "i8")).cast(pa.timestamp("us", tz="UTC"))
    meta = {"_op": pa.array(ops), "_seq": pa.array(np.arange(count, dtype="u8")), "_commit_ts": zero, "_before": before}
    for name, values in meta.items():
        data = data.append_column(name, values)
    return data


def loaded(target: Any, number: int, data: pa.Table, connections: int = 1) -> None:
    """One batch by the port, units side by side."""
    size = -(-data.num_rows // FILES)
    files = tuple(RowsInMemory(SCHEMA.table, data.slice(n * size, size)) for n in range(FILES))
    tables = (TableInput(planned_table(SCHEMA), files),)
    batch = BatchInput(number, Offset.at("uuid", "log.000001", 100 * number), number - 1, MemoryReader(), tables)
    if target.checkpoints is not None:
        target.checkpoints.take_over(1)
    with target.open(1) as session:
        writer = session.begin(batch)
    writer.prepare()
    with ThreadPoolExecutor(connections) as pool:
        results = [
            result for phase in writer.plan(connections) for result in pool.map(lambda unit: unit.write(), phase)
        ]
    writer.commit(results)


def batches(rows: int, *, old: bool = True) -> tuple[pa.Table, pa.Table]:
    """New rows; and merged ones, of which three of ten are new and one of ten goes."""
    ids, choose = np.arange(rows, dtype=np.int64) * 3, np.random.default_rng(5)
    ops = np.array(["u", "d"])[(choose.random(rows) < 0.1).astype(int)]
    mixed = rows_of(np.where(choose.random(rows) < 0.3, ids + 1, ids), ops.tolist(), 2, old=old)
    return rows_of(ids, ["i"] * rows, 1), mixed


def made(target: Any) -> Any:
    """``target``, with its table."""
    schema = target.schema()
    for finding in schema.compare([planned_table(SCHEMA)]):
        if finding.absent:
            schema.apply(finding.statement)
    return target


def keep_rates(
    kind: str,
    rows: int,
    pid: int,
    fresh: Callable[[str], Any],
    plainly: Callable[[pa.Table, int], Callable[[], None]],
    *,
    connections: Sequence[int],
    about: str,
    baseline: str,
    wanted: str,
    warm: int = 20_000,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Measure new and merged rows over each number of connections, print and save the figures.

    ``pid``: of the server. ``fresh``: a target without rows. ``plainly``: makes ready what the baseline sends, and
    returns what sends it. ``about``: of the server, for the workload. ``between``: new rows and merged ones.
    """
    new, mixed = batches(rows)
    loaded(fresh("warm"), 1, new.slice(0, warm), 2)
    for count in connections:
        plain, plain_cpu = measured(pid, rows, plainly(new, count))
        target = fresh(f"new{count}")
        ours = measured(pid, rows, lambda: loaded(target, 1, new, count))  # noqa: B023 - called at once
        between()
        merged = measured(pid, rows, lambda: loaded(target, 2, mixed, count))  # noqa: B023
        for name, (rate, used), words in (
            ("new", ours, "new rows"),
            ("merged", merged, "merged rows, of which three of ten are new and one of ten goes"),
        ):
            line = figure(
                f"target_{kind}_{name}_rows", f"{rows} {words}, six columns, {count} connections, {about}", rate,
                "rows/s", baseline, plain, variant=str(count), wanted=wanted, cpu_s_per_million=round(used, 2),
                baseline_cpu_s_per_million=round(plain_cpu, 2),
            )  # fmt: skip
            save(Path(__file__).with_name("results") / f"target_{kind}.json", [line])
