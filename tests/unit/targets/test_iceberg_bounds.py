"""Rows whose largest text the library cannot cut to a bound, as the next character is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.testing.targets import Pipe, changed, new
from tests.support.benches.iceberg_bench import IcebergBench

CASES = ["a" * 15 + "\ud7ff" + "b", "a" * 15 + "\U0010ffff" + "b", "a" * 14 + "\ud7ff\U0010ffff" + "b"]


@pytest.mark.parametrize("text", CASES, ids=lambda text: text.encode("unicode_escape").decode())
def test_rows_with_such_texts_arrive_and_are_found_again(tmp_path: Path, text: str) -> None:
    """As the largest value of a file, in a key and in another column."""
    columns = (
        Column("k", ColumnKind.VARCHAR, "varchar(40)", nullable=False, charset="utf8mb4", length=40),
        Column("v", ColumnKind.VARCHAR, "varchar(40)", charset="utf8mb4", length=40),
    )
    table = TableSchema(TableId("shop", "t"), columns, ("k",))
    bench = IcebergBench(tmp_path)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new("a", text), new(text, "a")]))
    pipe.deliver((table, [new("b", "b")]))
    pipe.deliver((table, [changed((text, "a"), (text, "c"))]))
    assert set(pipe.state(table)) == {("a", text), (text, "c"), ("b", "b")}
