"""The neutral type of a column: what it says, how it is stored, and what an Arrow field says of it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.model.column_types import LONGEST, ColumnKind, ColumnType
from sluice.model.fields import neutral_type
from sluice.model.tables import Column, TableId, TableSchema

K = ColumnKind
TEXT = st.text(max_size=5)
TYPES = st.builds(
    ColumnType,
    kind=st.sampled_from(ColumnKind),
    precision=st.integers(1, 65),
    scale=st.integers(0, 1),
    digits=st.integers(0, 6),
    length=st.integers(0, LONGEST),
    unsigned=st.booleans(),
    labels=st.lists(TEXT, max_size=3).map(tuple),
    charset=TEXT,
    collation=TEXT,
    shape=st.sampled_from(["", "point"]),
)


@given(TYPES)
def test_it_is_stored_and_comes_back(made: ColumnType) -> None:
    assert ColumnType.from_text(made.to_text()) == made
    assert made.plain.plain == made.plain
    assert made.plain.arrow_type == made.arrow_type


@given(TYPES)
def test_a_field_says_it(made: ColumnType) -> None:
    plain = made.plain
    column = Column(
        "c", plain.kind, "whatever", True, plain.unsigned, plain.precision, plain.scale, plain.digits, plain.length,
        plain.charset,
        plain.collation, plain.labels, shape=plain.shape,
    )  # fmt: skip
    assert column.type == plain
    field = TableSchema(TableId("s", "t"), (column,)).field(column)
    assert neutral_type(field) == plain
    assert neutral_type(field.remove_metadata()) is None
    other = pa.month_day_nano_interval()
    assert neutral_type(field.with_type(other)) is None, "a rule put other values there"


@pytest.mark.parametrize("kind", [kind for kind in ColumnKind if kind not in {K.MEDIUMINT, K.BIT, K.YEAR}])
def test_a_column_that_a_rule_made_keeps_its_arrow_type(kind: ColumnKind) -> None:
    made = ColumnType(kind, precision=12, scale=2).plain
    for one in (made, replace(made, unsigned=True).plain):
        assert ColumnType.of_arrow(str(one.arrow_type)).arrow_type == one.arrow_type


def test_what_a_later_version_adds_is_left_out() -> None:
    assert ColumnType.from_text('{"kind":"int","of_later":1}') == ColumnType(K.INT)
