"""Keys as PostgreSQL shows them are read as the source's values, and values are written as texts that it reads."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.exact_values import AS_TYPED
from sluice.targets.postgresql.keys import read_keys, texts

K = ColumnKind
LARGE = "9" * 40
SHOWN: list[tuple[ColumnType, str, Any, str]] = [
    (ColumnType(K.INT), "-5", -5, "-5"),
    (ColumnType(K.BIGINT, unsigned=True), str(2**64 - 1), 2**64 - 1, str(2**64 - 1)),
    (ColumnType(K.INT), "5.00", 5, "5"),
    (ColumnType(K.DECIMAL, 10, 2), "1.5000", Decimal("1.50"), "1.50"),
    (ColumnType(K.DATE), "2024-02-29", dt.date(2024, 2, 29), "2024-02-29"),
    (ColumnType(K.DATETIME, digits=3), "2024-02-29 01:02:03.004000", dt.datetime(2024, 2, 29, 1, 2, 3, 4000), ""),
    (ColumnType(K.VARBINARY), "00ff", b"\x00\xff", "\\x00ff"),
    (ColumnType(K.VARCHAR), "c3a92027", "é '", "é '"),
]


@pytest.mark.parametrize(("made", "shown", "value", "text"), SHOWN)
def test_a_key_is_read_in_the_type_of_the_source(made: ColumnType, shown: str, value: Any, text: str) -> None:
    keys = read_keys({"k": made}, [(shown,)])
    assert (keys.schema.types, keys.to_pylist()) == ([made.arrow_type], [{"k": value}])
    assert texts(keys) == [(text or shown,)]


@pytest.mark.parametrize(
    ("made", "shown", "type_", "value"),
    [
        (ColumnType(K.TINYINT), "300", pa.decimal128(3, 0), Decimal(300)),
        (ColumnType(K.BIGINT), LARGE, pa.decimal256(40, 0), Decimal(LARGE)),
        (ColumnType(K.INT), "5.5", pa.decimal128(2, 1), Decimal("5.5")),
        (ColumnType(K.DECIMAL, 10, 2), "1.555", pa.decimal128(4, 3), Decimal("1.555")),
        (ColumnType(K.DECIMAL, 10, 2), "NaN", AS_TYPED, "NaN"),
        (ColumnType(K.DATE), "infinity", AS_TYPED, "infinity"),
        (ColumnType(K.DATE), "10000-01-01", AS_TYPED, "10000-01-01"),
    ],
)
def test_a_key_that_the_source_cannot_have_is_not_rounded(
    made: ColumnType, shown: str, type_: pa.DataType, value: Any
) -> None:
    keys = read_keys({"k": made}, [(shown,)])
    assert (keys.schema.types, keys.to_pylist()) == ([type_], [{"k": value}])
    assert texts(keys) == [(shown,)]


def test_no_keys_are_columns_without_rows() -> None:
    assert read_keys({"a": ColumnType(K.INT), "b": ColumnType(K.DATE)}, []).schema.types == [pa.int32(), pa.date32()]
