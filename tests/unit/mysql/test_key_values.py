"""Literals of keys are read back exactly as the values that they were written from."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import UnsupportedType
from sluice.model.column_types import ColumnKind
from sluice.model.key_literals import key_values
from sluice.model.tables import Column
from sluice.mysql.key_sql import literals

K = ColumnKind
MOMENTS = st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31))
COLUMNS = {
    Column("a", K.BIGINT, "bigint"): st.integers(-(2**63), 2**63 - 1),
    Column("a", K.BIGINT, "bigint unsigned", unsigned=True): st.integers(0, 2**64 - 1),
    Column("a", K.YEAR, "year"): st.integers(1901, 2155),
    Column("a", K.BIT, "bit(20)", length=20): st.integers(0, 2**20 - 1),
    Column("a", K.DECIMAL, "decimal(20,4)", precision=20, scale=4): st.decimals(-(10**15), 10**15, places=4),
    Column("a", K.DOUBLE, "double"): st.floats(allow_nan=False, allow_infinity=False),
    Column("a", K.VARCHAR, "varchar(20)", charset="utf8mb4"): st.text(max_size=20),
    Column("a", K.VARBINARY, "varbinary(20)"): st.binary(max_size=20),
    Column("a", K.DATE, "date"): st.dates(dt.date(1000, 1, 1)),
    Column("a", K.DATETIME, "datetime(6)", fsp=6): MOMENTS,
    Column("a", K.TIME, "time(6)", fsp=6): st.timedeltas(dt.timedelta(hours=-838), dt.timedelta(hours=838)),
    Column("a", K.ENUM, "enum('z','y','x')", labels=("z", "y", "x")): st.sampled_from("zyx"),
    Column("a", K.SET, "set('p','q','r')", labels=("p", "q", "r")): st.sampled_from(["", "p", "q,r", "p,q,r"]),
}


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.sql_type)
@given(data=st.data())
def test_what_is_written_is_read(column: Column, data: st.DataObject) -> None:
    values = pa.array(data.draw(st.lists(COLUMNS[column], max_size=5)), column.arrow_type)
    assert key_values(column.type, literals(column, values)).equals(values)


def test_points_in_time_are_in_utc() -> None:
    column = Column("a", K.TIMESTAMP, "timestamp(6)", fsp=6)
    values = pa.array([dt.datetime(2024, 2, 29, 12, 0, 0, 1)], column.arrow_type)
    assert key_values(column.type, literals(column, values)).equals(values)


@pytest.mark.parametrize(("kind", "literal"), [(K.DATE, "'0000-00-00'"), (K.INT, "'abc'"), (K.DECIMAL, "x")])
def test_what_is_not_understood_is_refused(kind: ColumnKind, literal: str) -> None:
    column = Column("a", kind, str(kind), precision=5)
    with pytest.raises(UnsupportedType, match="are not understood"):
        key_values(column.type, [literal])
