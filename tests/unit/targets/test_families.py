"""Parents before children, whatever refers to whatever."""

from __future__ import annotations

import pytest

from sluice.model.tables import TableId
from sluice.targets.sql.foreign_keys import generations

A, B, C, D = (TableId("s", name) for name in "abcd")


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ({A: [], B: [A], C: [A, B], D: []}, {A: 0, B: 1, C: 2, D: 0}),
        ({A: [TableId("s", "elsewhere")]}, {A: 0}),
        ({A: [A], B: [A]}, {A: None, B: 1}),
        ({A: [B], B: [A], C: [B], D: [C]}, {A: None, B: None, C: 1, D: 2}),
        ({}, {}),
    ],
    ids=["chain", "outside", "itself", "circle", "nothing"],
)
def test_generations(parents: dict[TableId, list[TableId]], expected: dict[TableId, int | None]) -> None:
    assert generations(parents) == expected


def test_a_long_chain() -> None:
    tables = [TableId("s", f"t{n}") for n in range(400)]
    parents = {table: tables[max(n - 1, 0) : n] for n, table in enumerate(tables)}
    assert generations(parents) == {table: n for n, table in enumerate(tables)}
