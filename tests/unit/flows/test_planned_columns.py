"""Targets are told what the values of each column are, also of files that say it in the source's words only."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.flows.planned_columns import planned_columns, wanted_type, with_definition
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.definitions import ColumnDefinition
from sluice.model.planned import PlannedColumn
from sluice.segments.changeset import ChangesetColumn

K = ColumnKind
WHEN = ColumnType(K.DATETIME, digits=3)


@pytest.mark.parametrize(
    ("column", "made"),
    [
        (ChangesetColumn(name="c", type="decimal(12,2)", arrow_type="decimal128(12, 2)"), ColumnType(K.DECIMAL, 12, 2)),
        (
            ChangesetColumn(
                name="c", type="varchar(9)", charset="utf8mb4", collation="utf8mb4_bin", arrow_type="string"
            ),
            ColumnType(K.VARCHAR, length=9, charset="utf8mb4", collation="utf8mb4_bin"),
        ),
        (ChangesetColumn(name="c", type="enum('a','b')", arrow_type="string"), ColumnType(K.ENUM, labels=("a", "b"))),
        (ChangesetColumn(name="c", arrow_type="int64"), ColumnType(K.BIGINT)),
        (ChangesetColumn(name="c", type="nonsense", arrow_type="int64"), ColumnType(K.BIGINT)),
        (ChangesetColumn(name="c", type="bigint", arrow_type="int64", kind='{"kind":"year"}'), ColumnType(K.YEAR)),
    ],
)
def test_what_values_are(column: ChangesetColumn, made: ColumnType) -> None:
    [planned] = planned_columns((column,))
    assert planned.value_type == planned.sent_type == made
    assert (planned.sql_type, planned.arrow_type) == (column.type, column.arrow_type)


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        ("timestamp(3)", K.TIMESTAMP),
        ("timestamp(3) with time zone", K.TIMESTAMP),
        ("datetime", K.DATETIME),
        ("varchar(40)", K.DATETIME),
        ("text[]", K.DATETIME),
        ("timestamptz", K.DATETIME),
        ("", K.DATETIME),
    ],
)
def test_a_time_zone_that_the_mapping_gives_changes_what_is_sent(wanted: str, sent: ColumnKind) -> None:
    column = PlannedColumn(
        "c",
        "datetime(3)",
        arrow_type=str(pa.timestamp("us")),
        wanted=wanted,
        type=WHEN,
        wanted_type=wanted_type(wanted),
    )
    assert column.value_type == WHEN
    assert column.sent_type == ColumnType(sent, digits=3)


def test_a_definition_comes_with_the_value_of_its_default() -> None:
    column = PlannedColumn("c", "int", type=ColumnType(K.INT))
    known = with_definition(column, ColumnDefinition("c", "int", default="7")).default
    assert known is not None
    assert known.value == pa.scalar(7, pa.int32())
    assert with_definition(column, None).default is None
