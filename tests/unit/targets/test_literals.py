"""SQL text of values and the cutting of statements."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from sluice.model.tables import TableId
from sluice.model.temporal import special_date, special_timestamp
from sluice.targets.mysql import statements
from sluice.targets.mysql.literals import hexadecimal, literals
from sluice.targets.mysql.statements import Dialect
from sluice.targets.sql.tables import TargetTable


def field(kind: pa.DataType, sql: str = "", name: str = "c") -> pa.Field:
    return pa.field(name, kind, metadata={"sluice.type": sql, "sluice.name": name})


@pytest.mark.parametrize(
    ("kind", "sql", "values", "expected"),
    [
        (pa.uint64(), "bigint unsigned", [2**64 - 1, None], ["18446744073709551615", None]),
        (pa.uint16(), "year", [0, 2000], ["'0000'", "'2000'"]),
        (pa.float32(), "float", [0.1, -1e-30], ["'0.1'", "'-1e-30'"]),
        (pa.float64(), "double", [0.1, 1e300], ["'0.1'", "'1e+300'"]),
        (pa.decimal128(20, 10), "decimal(20,10)", [Decimal("0.0000000001"), Decimal(-5)],
            ["0.0000000001", "-5.0000000000"]),
        (pa.decimal256(65, 30), "decimal(65,30)", [Decimal("12345678901234567890.5")],
            ["12345678901234567890." + "5".ljust(30, "0")]),
        (pa.decimal256(76, 20), "decimal(76,20)", [Decimal("9" * 56 + "." + "9" * 20), None],
            ["'" + "9" * 56 + "." + "9" * 20 + "'", None]),
        (pa.decimal256(60, 40), "decimal(60,40)", [Decimal("0." + "9" * 40)], ["'0." + "9" * 40 + "'"]),
        (pa.string(), "varchar(9)", ["a'b", "a\\b", "a\x00b", "😀", "", None],
            ["'a\\'b'", "'a\\\\b'", "'a\\0b'", "'😀'", "''", None]),
        (pa.binary(), "blob", [b"", b"\x00\xff'", None], ["X''", "X'00FF27'", None]),
        (pa.date32(), "date", [dt.date(1, 2, 3), None], ["'0001-02-03'", None]),
        (pa.timestamp("us"), "datetime(3)", [dt.datetime(2024, 2, 29, 1, 2, 3, 456000)], ["'2024-02-29 01:02:03.456'"]),
        (pa.timestamp("us", "UTC"), "timestamp", [dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC)],
            ["'2024-02-29 01:02:03'"]),
        (pa.duration("us"), "time(6)", [-dt.timedelta(hours=838, microseconds=1)], ["'-838:00:00.000001'"]),
        (pa.string(), "enum('a','')", ["\x00", "a", ""], ["''", "'a'", "''"]),
        (pa.bool_(), "", [True, False, None], ["1", "0", None]),
    ],
)  # fmt: skip
def test_literals(kind: pa.DataType, sql: str, values: list[object], expected: list[str]) -> None:
    assert literals(field(kind, sql), pa.array(values, kind)).to_pylist() == expected


def test_dates_that_no_calendar_has() -> None:
    days = pa.array([special_date(0, 0, 0), special_date(2024, 0, 15)], pa.int32()).cast(pa.date32())
    assert literals(field(pa.date32(), "date"), days).to_pylist() == ["'0000-00-00'", "'2024-00-15'"]
    moments = pa.array([special_timestamp(0, 0, 0, 0)], pa.int64()).cast(pa.timestamp("us"))
    assert literals(field(pa.timestamp("us"), "datetime(2)"), moments).to_pylist() == ["'0000-00-00 00:00:00.00'"]


def test_comparing_a_float_needs_its_precision() -> None:
    assert literals(field(pa.float32(), "float"), pa.array([0.1], pa.float32()), comparing=True).to_pylist() == [
        "CAST('0.10000000149011612' AS DOUBLE)"
    ]


def test_hexadecimal_of_a_slice_with_nulls() -> None:
    values = pa.array([b"xx", b"\x01\x02", None, b"\xfe"]).slice(1)
    assert hexadecimal(values).to_pylist() == ["0102", None, "FE"]


def table(rows: int) -> pa.Table:
    return pa.table({
        "id": pa.array(range(rows)),
        "k2": pa.array(["x"] * rows),
        "v": pa.array(["y" * 100] * rows),
        "_op": ["u"] * rows,
    })


def test_statements_fit_and_lose_nothing() -> None:
    target = TargetTable(TableId("a`b", "t"), ("ID", "k2", "v", "other"), ("ID", "k2"))
    made = list(statements.upserts(target, table(1000), Dialect(max_bytes=10_000)))
    assert sum(s.rows for s in made) == 1000
    assert max(len(s.sql) for s in made) <= 10_000
    assert made[0].sql.startswith(b"INSERT INTO `a``b`.`t` (`ID`, `k2`, `v`) VALUES (0,'x','yyy")
    assert made[0].sql.endswith(b"AS _n ON DUPLICATE KEY UPDATE `ID` = _n.`ID`, `k2` = _n.`k2`, `v` = _n.`v`")


def test_one_row_larger_than_the_limit_is_a_statement_of_its_own() -> None:
    target = TargetTable(TableId("a", "t"), ("id", "k2", "v"), ("id",))
    assert [s.rows for s in statements.upserts(target, table(3), Dialect(max_bytes=200))] == [1, 1, 1]


def test_deletes_by_key() -> None:
    one = TargetTable(TableId("a", "t"), ("id", "k2", "v"), ("id",))
    two = TargetTable(TableId("a", "t"), ("id", "k2", "v"), ("id", "k2"))
    assert next(statements.deletes(one, table(2), Dialect())).sql == b"DELETE FROM `a`.`t` WHERE `id` IN (0,1)"
    expected = b"DELETE FROM `a`.`t` WHERE (`id`, `k2`) IN ((0,'x'),(1,'x'))"
    assert next(statements.deletes(two, table(2), Dialect())).sql == expected
    expected = b"DELETE FROM `a`.`t` WHERE (`id` = 0 AND `k2` = 'x') OR (`id` = 1 AND `k2` = 'x')"
    assert next(statements.deletes(two, table(2), Dialect(row_constructors=False))).sql == expected
    assert [s.rows for s in statements.deletes(one, table(2500), Dialect())] == [1000, 1000, 500]


def test_old_servers_get_the_old_form() -> None:
    target = TargetTable(TableId("a", "t"), ("id", "v"), ("id",))
    sql = next(statements.upserts(target, table(1), Dialect(row_alias=False))).sql
    assert sql.endswith(b"ON DUPLICATE KEY UPDATE `id` = VALUES(`id`), `v` = VALUES(`v`)")
