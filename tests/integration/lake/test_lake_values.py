"""Values and keys of every type in tables of a lake, of either format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.model.column_types import ColumnKind as K
from sluice.model.tables import Column, TableId, TableSchema
from sluice.operations.check import check
from sluice.testing.targets import Pipe, changed, gone, new

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from tests.support.benches.delta_bench import DeltaBench
from tests.support.benches.iceberg_bench import IcebergBench
from tests.support.pipelines.lake_bundles import lake_pipeline
from tests.support.values import delta_values, pg_values
from tests.support.values.boundary_values import BOTH, LENIENT, MYSQL, leniently
from tests.support.values.lake_keys import KEYS, values_of

TYPES = BOTH | MYSQL
COLUMNS = {"id": "int", "mark": "int", **{name: declared for name, (declared, _) in TYPES.items()}}
BENCHES: dict[str, Any] = {"delta": DeltaBench, "iceberg": IcebergBench}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_every_value_arrives(tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, kind: str) -> None:
    """New rows, rows that change and rows that move; read by the format's own library, and the files by DuckDB."""
    schema = fresh_schema(mysql_source, options="CHARACTER SET utf8mb4")
    columns = ", ".join(f"`{name}` {declared}" for name, (declared, _) in TYPES.items())
    for table in ("k", "v"):
        leniently(
            mysql_source, schema, f"CREATE TABLE {table} (id INT PRIMARY KEY, mark INT, {columns}) COLLATE utf8mb4_bin"
        )
    options = "options: {zero_dates: 'null', wide_decimals: string}"
    with lake_pipeline(kind, tmp_path, mysql_source, zookeeper, schema, options) as made:
        made.make_missing()
        assert not check(made.runtime()).failed
        made.run_until_head()
        count = max(len(values) for _, values in TYPES.values()) + 1
        lines = []
        for row in range(count):
            cells = [values[row % len(values)] if row < count - 1 else "NULL" for _, values in TYPES.values()]
            lines.append(f"({row + 1}, 0, {', '.join(cells)})")
        leniently(mysql_source, schema, *(f"INSERT INTO {table} VALUES {', '.join(lines)}" for table in ("k", "v")))
        made.run_until_head()

        def arrived() -> None:
            sent = pg_values.rows(mysql_source, f"`{schema}`.k", COLUMNS, mysql=True)
            for there in (made.target.rows(schema, "k"), made.target.duckdb_rows(schema, "k")):
                for one, other in zip(sent, delta_values.rows(there, COLUMNS), strict=True):
                    differ = {name: (a, b) for name, a, b in zip(COLUMNS, one, other, strict=True) if a != b}
                    assert not differ, f"row {one[0]}: {differ}"

        arrived()
        every = ", ".join(f"a.`{name}` = b.`{name}`" for name in TYPES)
        with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
            cursor.execute(LENIENT)
            for change in (
                f"UPDATE k a JOIN v b ON b.id = a.id % {count} + 1 SET {every}, a.mark = 1",
                f"UPDATE k a JOIN v b ON b.id = (a.id + 3) % {count} + 1 SET {every}, a.id = a.id + 5000 WHERE a.id % "
                "2",
                "DELETE FROM k WHERE id % 3 = 0",
            ):
                cursor.execute(change)
                made.run_until_head()
                arrived()


JOINED = frozenset({K.BIGINT, K.DECIMAL, K.VARCHAR, K.DATETIME})
"""Iceberg finds keys of two columns by a join: some types of each way in which values are stored."""

FOUND = [
    (kind, key, second)
    for kind in BENCHES
    for key in KEYS
    for second in (False, True)
    if kind == "delta" or not second or key[0].kind in JOINED
]


@pytest.mark.parametrize(
    ("kind", "key", "second"),
    FOUND,
    ids=[f"{kind}-{key[0].sql_type}-{'of-two' if second else 'alone'}" for kind, key, second in FOUND],
)
def test_rows_are_found_again_by_keys_of_every_type(tmp_path: Path, kind: str, key: Any, second: bool) -> None:
    """A key whose bounds are cut, rounded or misread would lose its row from sight, and the row would be doubled."""
    column, values = replace(key[0], nullable=False), values_of(*key)
    columns = (column, Column("n", K.INT, "int", nullable=not second), Column("v", K.INT, "int"))
    table = TableSchema(TableId("shop", "t"), columns, ("k", "n") if second else ("k",))
    bench = BENCHES[kind](tmp_path)
    bench.create_table(table)
    pipe = Pipe(bench)
    for value in values:  # a file each
        pipe.deliver((table, [new(value, 1, 0)]))
    assert len(pipe.state(table)) == len(values)
    for step in range(2):
        pipe.deliver((table, [changed((value, 1, step), (value, 1, step + 1)) for value in values]))
        assert sorted(row[2] for row in pipe.state(table).elements()) == [step + 1] * len(values)
    for number, value in enumerate(values):
        pipe.deliver((table, [gone(value, 1, 2)]))
        assert sum(pipe.state(table).values()) == len(values) - number - 1
