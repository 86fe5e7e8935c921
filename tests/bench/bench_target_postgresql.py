"""Merged rows a second into a PostgreSQL table with a primary key, beside a plain binary COPY of the same rows.

Run by ``make bench-targets`` (``python tests/bench/bench_target_postgresql.py [rows]``). Prints a line a measurement,
writes tests/bench/results/target_postgresql.json; asserts nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import pyarrow as pa  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.postgresql import PostgreSQLServer  # noqa: E402
from sluice.config.connections import parse_connection  # noqa: E402
from sluice.config.pipeline import TargetConfig  # noqa: E402
from sluice.targets.postgresql import wire  # noqa: E402
from sluice.targets.postgresql.staging import StagedColumn  # noqa: E402
from sluice.targets.postgresql.target import PostgreSQLTarget  # noqa: E402
from sluice.targets.rows_in_memory import planned_table  # noqa: E402
from sluice.targets.sql.rows import sent_fields  # noqa: E402
from tests.bench.figures import size  # noqa: E402
from tests.bench.target_rates import SCHEMA, keep_rates  # noqa: E402

CREATE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer integer, status varchar(20), amount numeric(12,2), "
    "note varchar(200), at timestamp(6))"
)
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off"}


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
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        PostgreSQLServer(Path(folder) / "pg", options=SETTINGS) as server,
    ):
        assert server.handle is not None
        server.execute(CREATE)
        endpoint = parse_connection("target", server.connection_json())

        def fresh(name: str) -> PostgreSQLTarget:
            server.execute("TRUNCATE orders", "CHECKPOINT")
            config = {"name": name, "type": "postgresql", "connection": "target", "parallelism": 4}
            return PostgreSQLTarget(TargetConfig.model_validate(config), endpoint, "bench")

        def plainly(new: pa.Table, connections: int) -> Callable[[], None]:
            pieces = encoded(fresh("none"), new)
            return lambda: copied(connection, pieces)

        with server.connect() as connection:  # its processor time is counted while it lives
            keep_rates(
                "postgresql",
                rows,
                server.handle.pid,
                fresh,
                plainly,
                connections=(1, 2, 4),
                about=f"PostgreSQL {server.execute('SHOW server_version')[0][0]}",
                baseline="a plain binary COPY of as many ready rows",
                wanted="250,000 rows/s or 70 % of the baseline",
                between=lambda: server.execute("VACUUM ANALYZE orders", "CHECKPOINT"),
            )


if __name__ == "__main__":
    main(size(1_000_000))
