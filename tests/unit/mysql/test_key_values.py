"""Literals of keys are read back exactly as the values that they were written from, and values as their literals."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import UnsupportedType
from sluice.model.column_types import ColumnKind
from sluice.model.exact_values import AS_TYPED
from sluice.model.tables import ENUM_ERROR_VALUE, Column
from sluice.model.temporal import special_date, special_timestamp, to_text
from sluice.mysql.column_types import TYPES
from sluice.mysql.key_sql import key_literals, key_table, literals, read_literals, typed_literal

K = ColumnKind
MOMENTS = st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DAYS = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31))
COLUMNS = {
    Column("a", K.TINYINT, "tinyint"): st.integers(-128, 127),
    Column("a", K.SMALLINT, "smallint unsigned", unsigned=True): st.integers(0, 65535),
    Column("a", K.MEDIUMINT, "mediumint"): st.integers(-(2**23), 2**23 - 1),
    Column("a", K.INT, "int unsigned", unsigned=True): st.integers(0, 2**32 - 1),
    Column("a", K.BIGINT, "bigint"): st.integers(-(2**63), 2**63 - 1),
    Column("a", K.BIGINT, "bigint unsigned", unsigned=True): st.integers(0, 2**64 - 1),
    Column("a", K.YEAR, "year"): st.integers(1901, 2155),
    Column("a", K.BIT, "bit(64)", length=64): st.integers(0, 2**64 - 1),
    Column("a", K.DECIMAL, "decimal(20,4)", precision=20, scale=4): st.decimals(-(10**15), 10**15, places=4),
    Column("a", K.DECIMAL, "decimal(65,30)", precision=65, scale=30): st.integers(-(10**65) + 1, 10**65 - 1).map(
        lambda digits: Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -30))
    ),
    Column("a", K.FLOAT, "float"): st.floats(allow_nan=False, allow_infinity=False, width=32),
    Column("a", K.DOUBLE, "double"): st.floats(allow_nan=False, allow_infinity=False),
    Column("a", K.CHAR, "char(20)", charset="latin1"): TEXTS,
    Column("a", K.VARCHAR, "varchar(20)", charset="utf8mb4"): TEXTS,
    Column("a", K.TEXT, "text", charset="utf8mb4"): TEXTS,
    Column("a", K.BINARY, "binary(20)"): st.binary(max_size=20),
    Column("a", K.VARBINARY, "varbinary(20)"): st.binary(max_size=20),
    Column("a", K.BLOB, "blob"): st.binary(max_size=20),
    Column("a", K.DATE, "date"): st.dates(dt.date(1000, 1, 1)),
    Column("a", K.DATETIME, "datetime(6)", fsp=6): MOMENTS,
    Column("a", K.TIMESTAMP, "timestamp(6)", fsp=6): MOMENTS,
    Column("a", K.TIME, "time(6)", fsp=6): st.timedeltas(dt.timedelta(hours=-838), dt.timedelta(hours=838)),
    Column("a", K.ENUM, "enum('z','y','x')", labels=("z", "y", "x")): st.sampled_from(["z", "y", "x", ""]),
    Column("a", K.ENUM, "enum('z','')", labels=("z", "")): st.sampled_from(["z", "", ENUM_ERROR_VALUE]),
    Column("a", K.SET, "set('p','q','r')", labels=("p", "q", "r")): st.sampled_from(["", "p", "q,r", "p,q,r"]),
    Column("a", K.UUID, "uuid"): st.uuids().map(str),
    Column("a", K.INET4, "inet4"): st.ip_addresses(v=4).map(str),
    Column("a", K.INET6, "inet6"): st.ip_addresses(v=6).map(str),
}


def test_every_type_that_a_key_may_have_is_among_them() -> None:
    assert {column.kind for column in COLUMNS} == {row.kind for row in TYPES if row.key}


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.sql_type)
@given(data=st.data())
def test_what_is_written_is_read(column: Column, data: st.DataObject) -> None:
    values = pa.array(data.draw(st.lists(COLUMNS[column], max_size=5)), column.arrow_type)
    texts = literals(column, values)
    read = read_literals(column.type, texts)
    assert read.equals(values)
    assert literals(column, read) == texts


@given(st.lists(DAYS, max_size=5), st.integers(0, 86_399_999_999))
def test_days_that_no_calendar_has_are_read(days: list[tuple[int, int, int]], micros: int) -> None:
    """Dates that a calendar has are written by Python: the numbers of the others are no days since 1970."""

    def number(day: tuple[int, int, int], *, dates: bool) -> int:
        try:
            since = (dt.date(*day) - dt.date(1970, 1, 1)).days
        except ValueError:
            return special_date(*day) if dates else special_timestamp(*day, micros)
        return since if dates else since * 86_400_000_000 + micros

    for column, dates in ((Column("a", K.DATE, "date"), True), (Column("a", K.DATETIME, "datetime(6)", fsp=6), False)):
        stored = pa.array([number(day, dates=dates) for day in days], pa.int32() if dates else pa.int64())
        values = stored.view(column.arrow_type)
        texts = literals(column, values)
        assert texts == [f"'{text}'" for text in to_text(values, fsp=0 if dates else 6).to_pylist()]
        assert read_literals(column.type, texts).view(stored.type).equals(stored)


def test_points_in_time_are_in_utc() -> None:
    column = Column("a", K.TIMESTAMP, "timestamp(6)", fsp=6)
    values = pa.array([dt.datetime(2024, 2, 29, 12, 0, 0, 1)], column.arrow_type)
    assert read_literals(column.type, literals(column, values)).equals(values)


TYPED: list[tuple[Column, str, pa.DataType, Any, str]] = [
    (Column("a", K.TINYINT, "tinyint"), "300", pa.decimal128(3, 0), Decimal(300), "300"),
    (Column("a", K.BIGINT, "bigint"), str(2**64), pa.decimal128(20, 0), Decimal(2**64), str(2**64)),
    (Column("a", K.BIGINT, "bigint unsigned", unsigned=True), "-1", pa.decimal128(1, 0), Decimal(-1), "-1"),
    (Column("a", K.DECIMAL, "decimal(10,1)", precision=10, scale=1), "1.55", pa.decimal128(3, 2), Decimal("1.55"),
        "1.55"),
    (Column("a", K.DECIMAL, "decimal(10,2)", precision=10, scale=2), "1.5", pa.decimal128(10, 2), Decimal("1.5"),
        "1.50"),
    (Column("a", K.FLOAT, "float"), "0.1", pa.float64(), 0.1, "0.1e0"),
    (Column("a", K.FLOAT, "float"), "0.5", pa.float32(), 0.5, "0.5e0"),
    (Column("a", K.DATE, "date"), "2024-02-29", pa.date32(), dt.date(2024, 2, 29), "'2024-02-29'"),
    (Column("a", K.DATE, "date"), "2024-2-9", AS_TYPED, "2024-2-9", ""),
    (Column("a", K.DATE, "date"), "2024-02-29 12:00:00", AS_TYPED, "2024-02-29 12:00:00", ""),
    (Column("a", K.DATETIME, "datetime"), "2024-02-29T12:00:00", AS_TYPED, "2024-02-29T12:00:00", ""),
    (
        Column("a", K.DATETIME, "datetime"), "2024-02-29 12:00:00.5", pa.timestamp("us"),
        dt.datetime(2024, 2, 29, 12, 0, 0, 500_000),
        "'2024-02-29 12:00:00.500000'",
    ),
    (Column("a", K.DATETIME, "datetime"), "2024-02-29", pa.timestamp("us"), dt.datetime(2024, 2, 29),
        "'2024-02-29 00:00:00.000000'"),
    (Column("a", K.TIME, "time"), "12:00", AS_TYPED, "12:00", ""),
    (Column("a", K.TIME, "time"), "-12:00:01", pa.duration("us"), -dt.timedelta(hours=12, seconds=1),
        "'-12:00:01.000000'"),
    (Column("a", K.ENUM, "enum('z','y')", labels=("z", "y")), "Y", pa.string(), "y", "2"),
    (Column("a", K.SET, "set('p','q')", labels=("p", "q")), "p,q", AS_TYPED, "p,q", ""),
    (Column("a", K.VARBINARY, "varbinary(9)"), "abc", pa.binary(), b"abc", "x'616263'"),
    (Column("a", K.VARBINARY, "varbinary(9)"), "0xAbC0", pa.binary(), b"\xab\xc0", "x'abc0'"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "text", "type_", "value", "written"), TYPED)
def test_what_a_person_typed_stays_exact(
    column: Column, text: str, type_: pa.DataType, value: Any, written: str
) -> None:
    """A bound that is no value of its column is not rounded to one, and a text that only a server reads stays one."""
    typed = typed_literal(column, text)
    read = read_literals(column.type, [typed])
    assert (read.type, read.to_pylist()) == (type_, [value])
    assert literals(column, read) == [written or typed]


def test_labels_that_do_not_tell_values_apart_are_numbers() -> None:
    twice = Column("a", K.ENUM, "enum('z','z')", labels=("z", "z"))
    assert read_literals(twice.type, ["1", "2"]).equals(pa.array([1, 2], pa.uint64()))
    other = Column("a", K.ENUM, "enum('z')", labels=("z",))
    assert literals(other, read_literals(other.type, ["7", "1"])) == ["7", "1"]


def test_a_list_of_keys_is_a_table() -> None:
    columns = [Column("a", K.INT, "int"), Column("b", K.VARCHAR, "varchar(9)", charset="utf8mb4")]
    keys = pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]})
    types = {column.name: column.type for column in columns}
    assert key_table(types, key_literals(columns, keys)).equals(keys)
    assert key_table(types, []).schema.equals(keys.schema)
    assert key_table(types, [("5",)]).schema.names == ["a"]


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        (K.DATE, "'0000-13-00'"),
        (K.DATE, "NULL"),
        (K.INT, "'abc'"),
        (K.INT, "NULL"),
        (K.DECIMAL, "x"),
        (K.DECIMAL, "NaN"),
    ],
)
def test_what_is_not_understood_is_refused(kind: ColumnKind, literal: str) -> None:
    column = Column("a", kind, str(kind), precision=5)
    with pytest.raises(UnsupportedType, match="are not understood"):
        read_literals(column.type, [literal])
