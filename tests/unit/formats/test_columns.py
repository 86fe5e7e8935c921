"""JSON texts of columns: those that Python's own encoder and the formats' functions make, value by value."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.formats import columns, debezium
from sluice.formats.common import columns_of, json_text
from sluice.model.column_types import ColumnKind as K
from sluice.model.tables import Column, TableId, TableSchema


def _same(column: Column, values: list[Any]) -> None:
    field = TableSchema(TableId("s", "t"), (column,)).field(column)
    known = columns_of((field,))[column.name]
    made = columns.json_column(pa.array(values, field.type), known).to_pylist()
    given = pa.array(values, field.type).to_pylist()
    assert made == [None if v is None else json_text(debezium.value_of(v, known)) for v in given]


def _lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, min_size=1, max_size=30)


@given(_lists(st.text()))
def test_text(values: list[Any]) -> None:
    _same(Column("c", K.TEXT, "text", charset="utf8mb4"), values)


@given(
    _lists(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.integers(-(10**16), 10**16).map(float)
        | st.sampled_from([-0.0, 1e10, 9999999999.5])
    )
)
def test_floats(values: list[Any]) -> None:
    _same(Column("c", K.DOUBLE, "double"), values)
    narrow = [None if v is None or abs(v) > 3e38 else struct.unpack("f", struct.pack("f", v))[0] for v in values]
    _same(Column("c", K.FLOAT, "float"), narrow)


@given(_lists(st.integers(-(10**30) + 1, 10**30 - 1)))
def test_decimals(values: list[Any]) -> None:
    for precision in (30, 60):
        scaled = [None if v is None else Decimal(f"{v}e-4") for v in values]
        _same(Column("c", K.DECIMAL, f"decimal({precision},4)", precision=precision, scale=4), scaled)


@given(_lists(st.binary(max_size=40)))
def test_bytes(values: list[Any]) -> None:
    _same(Column("c", K.VARBINARY, "varbinary(40)"), values)


@given(_lists(st.datetimes(dt.datetime(1, 1, 1))))
def test_times(values: list[Any]) -> None:
    for digits in range(7):
        unit = 10 ** (6 - digits)
        cut = [None if v is None else v.replace(microsecond=v.microsecond // unit * unit) for v in values]
        _same(Column("c", K.DATETIME, f"datetime({digits})", fsp=digits), cut)
        _same(
            Column("c", K.TIMESTAMP, f"timestamp({digits})", fsp=digits), [v and v.replace(tzinfo=dt.UTC) for v in cut]
        )
    _same(Column("c", K.DATE, "date"), [v and v.date() for v in values])
    _same(Column("c", K.TIME, "time(6)", fsp=6), [v and v - dt.datetime(1970, 1, 1) for v in values])


def test_slices_and_nulls() -> None:
    whole = pa.array(
        [Decimal("1.00"), None, Decimal("-1.28"), Decimal("1.27"), Decimal("1.28"), Decimal("0.00")],
        pa.decimal128(10, 2),
    )
    assert columns.unscaled(whole.slice(1, 4)).to_pylist() == [None, b"\x80", b"\x7f", b"\x00\x80"]


def test_columns_that_a_rule_made() -> None:
    fields = (pa.field("at", pa.timestamp("us")), pa.field("day", pa.date32()), pa.field("yes", pa.bool_()))
    known = columns_of(fields)
    given = [dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.date(1970, 1, 3), True]
    made = [
        columns.json_column(pa.array([v], f.type), known[f.name])[0].as_py() for v, f in zip(given, fields, strict=True)
    ]
    assert made == [json_text(debezium.value_of(v, known[f.name])) for v, f in zip(given, fields, strict=True)]
    assert made == ["1767323045000006", "2", "true"]
