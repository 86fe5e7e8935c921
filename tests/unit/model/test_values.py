"""Positions, sentinels of impossible dates, names of stored columns."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import ConfigError, LoadError
from sluice.model import temporal
from sluice.model.column_types import ColumnKind
from sluice.model.log_files import split_file
from sluice.model.offset import Offset
from sluice.model.tables import Column, TableId, TableSchema, stored_name
from sluice.sources.mysql.position import Position


def test_file_numbers_compare_as_numbers() -> None:
    before = Offset.at("u", "binlog.999999", 500)
    after = Offset.at("u", "binlog.1000000", 4)
    assert after.follows(before)
    assert not before.follows(after)
    assert split_file("my.host-bin.000042") == ("my.host-bin", 42)


@pytest.mark.parametrize("other", [Offset.at("v", "binlog.000001", 4), Offset.at("u", "mysql-bin.000001", 4)])
def test_positions_of_different_logs_do_not_compare(other: Offset) -> None:
    with pytest.raises(ConfigError, match="different logs"):
        Offset.at("u", "binlog.000001", 4).follows(other)


def test_position_survives_json() -> None:
    position = Position("u", "binlog.000001", 4, "u:1-5", 17)
    assert Position.of(Offset.from_json(position.as_offset().to_json())) == position


@given(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), st.integers(0, 86_399_999_999))
def test_special_dates_and_moments_keep_their_text(year: int, month: int, day: int, micros: int) -> None:
    date = pa.array([temporal.special_date(year, month, day), None], pa.int32()).view(pa.date32())
    assert temporal.to_text(date).to_pylist() == [f"{year:04d}-{month:02d}-{day:02d}", None]
    moment = pa.array([temporal.special_timestamp(year, month, day, micros), None, 0], pa.int64()).view(
        pa.timestamp("us")
    )
    seconds, fraction = divmod(micros, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    assert temporal.to_text(moment, fsp=6).to_pylist() == [
        f"{year:04d}-{month:02d}-{day:02d} {clock}",
        None,
        "1970-01-01 00:00:00.000000",
    ]
    assert temporal.is_special(moment).tolist() == [True, False, False]


@given(st.dates(), st.datetimes())
def test_calendar_dates_are_never_special(date, moment) -> None:
    assert not temporal.is_special(pa.array([date], pa.date32())).any()
    assert not temporal.is_special(pa.array([moment], pa.timestamp("us"))).any()
    assert temporal.to_python(pa.array([moment], pa.timestamp("us"))) == [moment]


@pytest.mark.parametrize(
    ("micros", "fsp", "text"),
    [
        (-1, 6, "-00:00:00.000001"),
        (-120_000, 2, "-00:00:00.12"),
        (3_020_399_000_000, 0, "838:59:59"),
        (-3_020_399_000_000, 0, "-838:59:59"),
        (0, 3, "00:00:00.000"),
    ],
)
def test_time_text(micros: int, fsp: int, text: str) -> None:
    assert temporal.time_text(micros, fsp) == text


def test_columns_never_hide_ours() -> None:
    assert stored_name("_seq") == "$_seq"
    assert stored_name("_SEQ") == "$_SEQ"
    assert stored_name("$x") == "$$x"
    assert stored_name("seq") == "seq"


def test_a_schema_version_changes_with_the_definition() -> None:
    def schema(sql_type: str) -> TableSchema:
        return TableSchema(TableId("s", "t"), (Column("a", ColumnKind.INT, sql_type),), ("a",))

    assert schema("int").version == schema("int").version
    assert schema("int").version != schema("int unsigned").version
    assert schema("int").arrow_schema.field("a").metadata[b"sluice.key"] == b"1"


def test_errors_survive_pickling_with_their_fields() -> None:
    error = pickle.loads(pickle.dumps(LoadError("loading failed", where="shop.orders", hint="look")))
    assert (error.message, error.where, error.hint) == ("loading failed", "shop.orders", "look")
    assert str(error) == "loading failed [SLUICE-LOAD-ERROR at shop.orders] -> look"
