"""Wall time of a zone becomes a moment, and back; dates that no calendar has stay what they are."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from sluice.config.pipeline import ColumnConversion
from sluice.errors import MappingError
from sluice.mapping.convert import converted, declared, remark
from sluice.model import temporal

BERLIN = ColumnConversion(time_zone="Europe/Berlin")


def field(sql_type: str, **more: str) -> pa.Field:
    kind = pa.timestamp("us", tz="UTC") if sql_type.startswith("timestamp") else pa.timestamp("us")
    return pa.field("at", kind, metadata={"sluice.type": sql_type, **more})


def text(values: pa.Array) -> list[Any]:
    return temporal.to_text(values).to_pylist()


def test_there_and_back() -> None:
    zero = temporal.special_timestamp(0, 0, 0, 0)
    moments = [
        dt.datetime(2024, 7, 1, 12),
        dt.datetime(2024, 1, 1, 0, 30),
        None,
        dt.datetime(2024, 10, 27, 2, 30),
        dt.datetime(2024, 3, 31, 2, 30),
    ]
    wall = pa.concat_arrays([
        pa.array(moments, pa.timestamp("us")),
        pa.array([zero], pa.int64()).view(pa.timestamp("us")),
    ])
    made, moved = converted(field("datetime(3)"), wall, BERLIN, "s.t")
    assert made.metadata[b"sluice.type"] == b"timestamp(3)"
    assert made.type == moved.type == pa.timestamp("us", tz="UTC")
    assert text(moved) == [
        "2024-07-01 10:00:00", "2023-12-31 23:30:00", None, "2024-10-27 00:30:00", "2024-03-31 01:00:00",
        "0000-00-00 00:00:00",
    ]  # fmt: skip
    made, back = converted(made, moved, ColumnConversion(time_zone="Europe/Berlin", type="datetime(3)"), "s.t")
    assert made.type == back.type == pa.timestamp("us")
    assert text(back)[:4] == text(wall)[:4]
    assert text(back)[5] == "0000-00-00 00:00:00"


def test_years_outside_of_the_zones_tables() -> None:
    wall = pa.array([dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31, 23)], pa.timestamp("us"))
    _, moved = converted(field("datetime"), wall, ColumnConversion(time_zone="UTC"), "s.t")
    assert text(moved) == text(wall)


def test_what_is_declared_and_what_is_lost() -> None:
    assert declared("datetime(6)", BERLIN) == "timestamp(6)"
    assert declared("timestamp", BERLIN) == "datetime"
    assert declared("int", ColumnConversion(type="bigint")) == "bigint"
    assert declared("int", ColumnConversion()) == "int"
    assert "lives twice" in remark("datetime", BERLIN)
    assert remark("int", ColumnConversion(type="bigint")) == ""


@pytest.mark.parametrize(
    ("sql_type", "more", "conversion", "said"),
    [
        ("datetime", {"sluice.key": "1"}, BERLIN, "key column 'at'"),
        ("datetime", {}, ColumnConversion(time_zone="Europe/Berlin", type="datetime(6)"), "has a time_zone"),
        ("int", {}, BERLIN, "has a time_zone"),
    ],
)
def test_what_makes_no_sense_is_refused(
    sql_type: str, more: dict[str, str], conversion: ColumnConversion, said: str
) -> None:
    with pytest.raises(MappingError, match=said):
        converted(field(sql_type, **more), pa.array([None], pa.timestamp("us")), conversion, "s.t")
