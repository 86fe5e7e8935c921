"""Schema changes at tables of both lake formats, in a folder: cut-overs, tables that another replaces, a statement that
is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.contract import Pipe, new
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
