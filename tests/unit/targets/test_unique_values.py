"""Whether two rows of a batch may have one unique value: never no where a collation of the server could say yes."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from sluice.model.tables import TableId
from sluice.targets.sql.tables import TargetTable
from sluice.targets.sql.unique_values import may_meet


def rows(**columns: list[Any]) -> pa.Table:
    return pa.table({"id": pa.array(range(len(next(iter(columns.values()))))), **columns})


def table(*keys: tuple[str, ...]) -> TargetTable:
    return TargetTable(TableId("shop", "items"), ("id", "Code", "part", "made"), ("id",), keys)


@pytest.mark.parametrize(
    ("codes", "may"),
    [
        (["a", "b", None, None], False),
        (["a", "A"], True),
        (["a", "a "], True),
        (["ae", "ä"], True),
        (["a", "b\x01"], True),
        ([], False),
        ([1, 2], False),
        ([1, 1], True),
        ([0.0, -0.0], True),
        ([b"a", b"A"], False),
        ([dt.date(2026, 1, 1), dt.date(2026, 1, 2)], False),
    ],
)
def test_values_of_one_key(codes: list[Any], may: bool) -> None:
    assert may_meet(table(("Code",)), rows(code=codes)) is may


def test_all_columns_of_a_key_have_to_be_equal() -> None:
    some = rows(code=["a", "a", "b"], part=[1, 2, 1])
    assert not may_meet(table(("Code", "part")), some)
    assert may_meet(table(("Code", "part"), ("part",)), some)
    assert not may_meet(table(), some)


def test_of_what_is_not_sent_nothing_is_known() -> None:
    """A generated column, an expression."""
    assert may_meet(table(("made",)), rows(code=["a", "b"]))
    assert may_meet(table(("",)), rows(code=["a", "b"]))
