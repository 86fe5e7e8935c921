"""Debezium's dates and times of every year a source has, and infinite ones, read back as what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.formats import columns
from sluice.formats.common import columns_of
from sluice.formats.debezium import time_number, zoned_number
from sluice.model.column_types import ColumnKind as K
from sluice.model.tables import Column, TableId, TableSchema
from sluice.model.temporal import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    date_number,
    timestamp_number,
)

DAYS = st.integers(date_number("4713-01-01 BC"), date_number("294246-12-31")) | st.sampled_from([
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
])
TIMES = st.integers(
    timestamp_number("4713-01-01 00:00:00 BC"), timestamp_number("294246-12-31 23:59:59.999999")
) | st.sampled_from([TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY])


def written(kind: K, declared: str, number: int, digits: int = 0) -> Any:
    column = Column("c", kind, declared, fsp=digits)
    field = TableSchema(TableId("s", "t"), (column,)).field(column)
    [text] = columns.json_column(pa.array([number], field.type), columns_of((field,))["c"]).to_pylist()
    return json.loads(text)


@given(DAYS)
def test_days(number: int) -> None:
    assert written(K.DATE, "date", number) == number


@pytest.mark.parametrize(
    ("kind", "declared", "digits", "read"),
    [
        (K.DATETIME, "datetime(3)", 3, lambda value: time_number(value, 3)),
        (K.DATETIME, "datetime(6)", 6, lambda value: time_number(value, 6)),
        (K.TIMESTAMP, "timestamp(6)", 6, zoned_number),
    ],
)
@given(number=TIMES)
@example(number=timestamp_number("0001-06-30 00:00:00 BC"))
@example(number=timestamp_number("0002-06-30 00:00:00 BC"))
def test_times(kind: K, declared: str, digits: int, read: Callable[[Any], int], number: int) -> None:
    if abs(number) < TIMESTAMP_INFINITY:
        number -= number % 10 ** (6 - digits)
    assert read(written(kind, declared, number, digits)) == number
