"""Schema changes at tables of both lake formats, in a folder: cut-overs, tables that another replaces, a statement that
is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ConfigError, LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, new
from tests.support.tables.planned_changes import planned_changes

T = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)"
GHOST, SWAP = "CREATE TABLE _t_gho LIKE t", "RENAME TABLE t TO _t_del, _t_gho TO t"
TABLE = TableSchema(
    TableId("s", "t"),
    (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("a", ColumnKind.INT, "int"),
        Column("b", ColumnKind.INT, "int"),
    ),
    ("id",),
)


def _delta(folder: Path, changes: str) -> Any:
    from tests.support.benches.delta_bench import DeltaBench

    return DeltaBench(folder, changes)


def _iceberg(folder: Path, changes: str) -> Any:
    from tests.support.benches.iceberg_bench import IcebergBench

    return IcebergBench(folder, changes)


FORMATS = {"delta": _delta, "iceberg": _iceberg}


@pytest.fixture(params=FORMATS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., tuple[Pipe, Any]]:
    """Makes a pipe to a table with a row, ``changes`` as in the pipeline file."""

    def pipe(changes: str = "latest") -> tuple[Pipe, Any]:
        bench = FORMATS[request.param](tmp_path, changes)
        bench.create_table(TABLE)
        found = Pipe(bench)
        found.deliver((TABLE, [new(1, 10, 20)]))
        return found, bench

    return pipe


def follow(pipe: Pipe, *statements: str, repeat: bool = False, **given: Any) -> None:
    """Deliver a batch with the last statement. ``repeat``: as after a crash between the change and the checkpoint."""
    changes = planned_changes(T, *statements, offered=pipe.target.capabilities, **given)
    batch = pipe.given([], schema_changes=changes)
    if repeat:
        pipe.take_over()
        session = pipe.writer(batch)
        session._follow(before_rows=False)
        pipe.epoch += 1
    pipe.write(batch)


def rows(bench: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bench.read(TABLE.table).to_pylist()
    return found


@pytest.mark.parametrize(
    ("alter", "row"),
    [
        ("ADD c INT NOT NULL DEFAULT 5", {"id": 1, "a": 10, "b": 20, "c": 5}),
        ("DROP COLUMN a", {"id": 1, "b": 20}),
        ("MODIFY a BIGINT, ADD KEY (b), COMMENT 'x'", {"id": 1, "a": 10, "b": 20}),
    ],
)
def test_a_cut_over_is_followed_like_an_alter(made: Any, alter: str, row: dict[str, Any]) -> None:
    pipe, bench = made()
    follow(pipe, GHOST, f"ALTER TABLE _t_gho {alter}", SWAP, repeat=True)
    assert rows(bench) == [row]


def test_a_cut_over_in_a_table_of_changes(made: Any) -> None:
    pipe, bench = made("all")
    follow(pipe, GHOST, "ALTER TABLE _t_gho ADD c INT, DROP COLUMN a", SWAP)
    [row] = rows(bench)
    assert (row["a"], row["c"]) == (10, None)


@pytest.mark.parametrize(
    ("statements", "given", "why"),
    [
        ((GHOST, "ALTER TABLE _t_gho ADD c INT, DROP COLUMN a", SWAP), {}, "may have been renamed, or dropped and "
        "added"),
        (("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY)",), {"mariadb": True}, "no table is dropped or renamed"),
        (("ALTER TABLE t DROP COLUMN a, ADD a INT",), {}, "a column is dropped and another of its name is added"),
        (
            ("ALTER TABLE t RENAME COLUMN a TO c",),
            {"mapping": [{"from": "s.t", "to": "s.t", "columns": {"exclude": ["c"]}}]},
            "the mapping leaves the new one out",
        ),
    ],
)  # fmt: skip
def test_what_stops_leaves_the_rows(made: Any, statements: Any, given: Any, why: str) -> None:
    pipe, bench = made()
    with pytest.raises(LoadError, match=why):
        follow(pipe, *statements, **given)
    assert rows(bench) == [{"id": 1, "a": 10, "b": 20}]


def test_names_in_a_chain_are_given_once(made: Any) -> None:
    """The repeat finds columns by the names after the statement."""
    pipe, bench = made()
    follow(pipe, "ALTER TABLE t RENAME COLUMN b TO c, RENAME COLUMN a TO b", repeat=True)
    assert rows(bench) == [{"id": 1, "b": 10, "c": 20}]


def test_a_table_of_changes_has_the_columns_of_a_table_that_replaces_another(made: Any) -> None:
    pipe, bench = made("all")
    follow(pipe, "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, z INT)", mariadb=True)
    [row] = rows(bench)
    assert (row["a"], row["z"]) == (10, None)


LAYOUTS = {
    "partition of no column": ({"partition_by": {"s.u": ["g"]}}, "options.partition_by names 'g', which the table"),
    "partition by a float": ({"partition_by": {"s.u": ["f"]}}, "a table cannot be partitioned by 'f'"),
    "partition by bytes": ({"partition_by": {"s.u": ["z"]}}, "a table cannot be partitioned by 'z'"),
    "clusters of no column": ({"cluster_by": {"s.u": ["g"]}}, "options.cluster_by names 'g', which the table"),
    "all columns": ({"partition_by": {"s.u": ["id", "f", "z"]}}, "options.partition_by names all columns"),
}


@pytest.mark.parametrize(
    ("kind", "layout", "changes"),
    [
        (kind, layout, changes)
        for kind in FORMATS
        for layout in LAYOUTS
        for changes in ("latest", "all")
        if layout != "all columns" or (kind, changes) == ("delta", "latest")  # others have them in their files
    ],
)
def test_a_table_is_not_made_in_another_layout_than_asked_for(
    tmp_path: Path, kind: str, layout: str, changes: str
) -> None:
    """Neither by `sluice check --apply` nor by a CREATE TABLE of the source that the load follows."""
    options, why = LAYOUTS[layout]
    everything = layout == "all columns"
    bench = FORMATS[kind](tmp_path, changes)
    pipe = Pipe(bench, config={"options": options})
    kinds = ("INT", "INT", "DATE") if everything else ("INT", "DOUBLE", "BLOB")
    create = f"CREATE TABLE u (id {kinds[0]} PRIMARY KEY, f {kinds[1]}, z {kinds[2]})"
    with pytest.raises(LoadError, match=why):
        follow(pipe, create)
    made = TableId("s", "u")
    assert pipe.target.tables.open(made) is None  # type: ignore[attr-defined]
    types = {"id": kinds[0], "f": kinds[1], "z": kinds[2]}
    columns = tuple(Column(name, ColumnKind[kind], kind.lower(), nullable=name != "id") for name, kind in types.items())
    target: Any = pipe.target
    [finding] = target.schema().compare([planned_table(TableSchema(made, columns, ("id",)))])
    assert (finding.severity, finding.statement) == ("error", "")
    assert why in finding.why


def test_a_column_is_named_once(tmp_path: Path) -> None:
    for kind, bench in FORMATS.items():
        for option in ("partition_by", "cluster_by"):
            with pytest.raises(ConfigError, match="a column is named twice"):
                bench(tmp_path / kind, "latest").target(options={option: {"s.u": ["g", "G"]}})
