"""consistency: schema: which tables are one transaction."""

from __future__ import annotations

import pytest

from sluice.model.tables import TableId
from sluice.targets.sql.phases import _connected
from sluice.targets.sql.tables import Reference, TargetTable


def referring(child: str, parent: str) -> TargetTable:
    one, other = (TableId(name, "t") for name in (child, parent))
    return TargetTable(one, ("id", "other"), ("id",), references=(Reference("f", one, ("other",), other, ("id",)),))


@pytest.mark.parametrize(
    ("references", "groups"),
    [
        ([], [["a"], ["b"], ["c"], ["d"]]),
        ([("a", "a"), ("b", "elsewhere")], [["a"], ["b"], ["c"], ["d"]]),
        ([("d", "b")], [["a"], ["b", "d"], ["c"]]),
        ([("d", "c"), ("b", "a"), ("c", "b")], [["a", "b", "c", "d"]]),
    ],
    ids=["none", "inside", "two", "chain"],
)
def test_schemas_that_foreign_keys_connect_are_one(references: list[tuple[str, str]], groups: list[list[str]]) -> None:
    tables = [TableId(name, "t") for name in "abcd"]
    known = {TableId(f"{child}{n}", "t"): referring(child, parent) for n, (child, parent) in enumerate(references)}
    found = _connected(tables, known)
    assert sorted([name for name in found if found[name] == group] for group in set(found.values())) == groups
