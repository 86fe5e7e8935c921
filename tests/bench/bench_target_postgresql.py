"""Merged rows a second into a PostgreSQL table with a primary key, beside a plain binary COPY of the same rows.

Run by ``make bench-targets`` (``python tests/bench/bench_target_postgresql.py [rows]``). Prints a line a measurement,
writes tests/bench/results/target_postgresql.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.postgresql import PostgreSQLServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.model.column_types import ColumnKind  # noqa: E402
from sluice.model.offset import Offset  # noqa: E402
from sluice.model.tables import Column, TableId, TableSchema  # noqa: E402
from sluice.targets.port import BatchInput, TableInput  # noqa: E402
from sluice.targets.postgresql import wire  # noqa: E402
from sluice.targets.postgresql.staging import StagedColumn  # noqa: E402
from sluice.targets.postgresql.target import PostgreSQLTarget  # noqa: E402
from sluice.targets.rows_in_memory import MemoryReader, RowsInMemory, planned_table  # noqa: E402
from sluice.targets.sql.rows import sent_fields  # noqa: E402
from tests.bench.figures import figure, measured, save, size  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/target_postgresql.json"
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
CREATE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer integer, status varchar(20), amount numeric(12,2), "
    "note varchar(200), at timestamp(6))"
)
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off"}


def rows_of(ids: np.ndarray[Any, Any], ops: list[str], salt: int) -> pa.Table:
    """Merged rows of these keys."""
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
    before = pa.nulls(count, pa.struct(fields)) if ops[0] == "i" else was
    zero = pa.array(np.zeros(count, "i8")).cast(pa.timestamp("us", tz="UTC"))
    meta = {"_op": pa.array(ops), "_seq": pa.array(np.arange(count, dtype="u8")), "_commit_ts": zero, "_before": before}
    for name, values in meta.items():
        data = data.append_column(name, values)
    return data


@dataclass(frozen=True)
class Measured:
    """Rows a second, and seconds of processor time for a million rows: of this process and of the server."""

    rate: float
    cpu_s: float


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


def copied(connection: Any, pieces: list[bytes]) -> None:
    """A plain COPY into the table itself, of rows that are encoded already."""
    with connection.cursor() as cursor, cursor.copy("COPY orders FROM STDIN (FORMAT binary)") as copy:
        for piece in pieces:
            copy.write(piece)


def encoded(target: PostgreSQLTarget, data: pa.Table) -> list[bytes]:
    info = target.check([planned_table(SCHEMA)])[SCHEMA.table]
    columns = [StagedColumn.of(n, field) for n, (field, _) in enumerate(sent_fields(data.schema, info))]
    pieces = [wire.copy_head()]
    for start in range(0, data.num_rows, 50_000):
        some = data.slice(start, 50_000)
        made = [wire.encode(c.field, some[c.field.name].combine_chunks(), c.target) for c in columns]
        pieces.append(bytes(wire.copy_rows(made)))
    return [*pieces, wire.copy_end()]


def main(rows: int) -> None:
    processes.tether()
    ids = np.arange(rows, dtype=np.int64) * 3
    new = rows_of(ids, ["i"] * rows, 1)
    choose = np.random.default_rng(5)
    ops = np.array(["u", "d"])[(choose.random(rows) < 0.1).astype(int)]
    mixed_ids = np.where(choose.random(rows) < 0.3, ids + 1, ids)  # three of ten are not there yet
    mixed = rows_of(mixed_ids, ops.tolist(), 2)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        PostgreSQLServer(Path(folder) / "pg", options=SETTINGS) as server,
    ):
        assert server.handle is not None
        pid = server.handle.pid
        server.execute(CREATE)
        endpoint = parse_connection("target", server.connection_json())
        version = server.execute("SHOW server_version")[0][0]

        def target(name: str) -> PostgreSQLTarget:
            config = {"name": name, "type": "postgresql", "connection": "target", "parallelism": 4}
            return PostgreSQLTarget(TargetConfig.model_validate(config), endpoint, "bench")

        loaded(target("warm"), 1, new.slice(0, 20_000), 2)
        pieces = encoded(target("warm"), new)
        for connections in (1, 2, 4):
            server.execute("TRUNCATE orders", "CHECKPOINT")
            with server.connect() as connection:  # its processor time is counted while it lives
                plain = Measured(*measured(pid, rows, lambda: copied(connection, pieces)))
            server.execute("TRUNCATE orders", "CHECKPOINT")
            one = target(f"new{connections}")
            ours = Measured(*measured(pid, rows, lambda: loaded(one, 1, new, connections)))  # noqa: B023 - called at once
            server.execute("VACUUM ANALYZE orders", "CHECKPOINT")
            merged = Measured(*measured(pid, rows, lambda: loaded(one, 2, mixed, connections)))  # noqa: B023
            for name, one, about in (
                ("new", ours, "new rows"),
                ("merged", merged, "merged rows, of which three of ten are new and one of ten goes"),
            ):
                line = figure(
                    f"target_postgresql_{name}_rows",
                    f"{rows} {about}, six columns, {connections} connections, PostgreSQL {version}",
                    one.rate,
                    "rows/s",
                    "a plain binary COPY of as many ready rows",
                    plain.rate,
                    variant=str(connections),
                    wanted="250,000 rows/s or 70 % of the baseline",
                    cpu_s_per_million=round(one.cpu_s, 2),
                    baseline_cpu_s_per_million=round(plain.cpu_s, 2),
                )
                save(RESULTS, [line])


if __name__ == "__main__":
    main(size(1_000_000))
