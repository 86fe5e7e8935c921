"""Tables of a memory store after statements of the source: the plan's steps, made in dictionaries."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.targets.memory.schema import follow
from sluice.targets.memory.store import MemoryStore
from tests.support.tables.planned_changes import planned_changes

T = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)"
ROW = {"id": 1, "a": 10, "b": 20}


def after(*statements: str, **given: Any) -> dict[str, tuple[tuple[str, ...], list[dict[str, Any]]]]:
    """Tables after the last statement: (key, rows) by name."""
    store = MemoryStore("unit")
    store.create(TableId("s", "t"), ["id", "a", "b"], ["id"]).rows[1,] = dict(ROW)
    for change in planned_changes(T, *statements, **given):
        follow(store, change)
    return {table.table: (found.key, found.all()) for table, found in store.tables.items()}


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("ALTER TABLE t ADD c INT NOT NULL DEFAULT 5", {"id": 1, "a": 10, "b": 20, "c": 5}),
        ("ALTER TABLE t DROP COLUMN a", {"id": 1, "b": 20}),
        ("ALTER TABLE t RENAME COLUMN a TO c", {"id": 1, "c": 10, "b": 20}),
        ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", {"id": 1, "b": 10, "a": 20}),
        ("ALTER TABLE t DROP COLUMN a, ADD a INT", {"id": 1, "b": 20, "a": None}),
        ("ALTER TABLE t RENAME COLUMN a TO c, ADD a INT DEFAULT 7", {"id": 1, "c": 10, "b": 20, "a": 7}),
    ],
)
def test_columns(statement: str, row: dict[str, Any]) -> None:
    assert after(statement) == {"t": (("id",), [row])}


def test_a_renamed_key() -> None:
    assert after("ALTER TABLE t RENAME COLUMN id TO code") == {"t": (("code",), [{"code": 1, "a": 10, "b": 20}])}


def test_tables() -> None:
    assert after("RENAME TABLE t TO u, u TO v") == {"v": (("id",), [ROW])}
    assert after("TRUNCATE t") == {"t": (("id",), [])}
    assert after("DROP TABLE t") == {}
    assert after("CREATE OR REPLACE TABLE t (k INT PRIMARY KEY)", mariadb=True) == {"t": (("k",), [])}


def test_a_cut_over_keeps_the_rows() -> None:
    ghost = (
        "CREATE TABLE _t_gho LIKE t",
        "ALTER TABLE _t_gho ADD c INT DEFAULT 5",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
    )
    assert after(*ghost) == {"t": (("id",), [{**ROW, "c": 5}])}


def test_a_table_that_comes_into_capture_has_rows_that_were_never_seen() -> None:
    with pytest.raises(LoadError, match="never seen"):
        after("CREATE TABLE x (id INT)", "RENAME TABLE x TO n", exclude=["s\\.x"])
