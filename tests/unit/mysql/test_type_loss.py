"""Which conversions lose what: a table of expectations, as a MySQL server in strict mode behaves."""

from __future__ import annotations

import pytest

from sluice.mysql.type_loss import SqlType, loss

FITS = [
    ("int", "bigint"), ("int unsigned", "bigint"), ("tinyint unsigned", "smallint"), ("bigint", "decimal(19,0)"),
    ("int", "double"),
    ("int", "varchar(11)"),
    ("decimal(12,2)", "decimal(14,2)"), ("decimal(12,2)", "decimal(14,4)"), ("decimal(9,0)", "int"),
    ("decimal(10,2)", "double"), ("float", "double"),
    ("datetime(3)", "datetime(6)"), ("timestamp", "datetime"), ("date", "datetime"), ("time(3)", "time(6)"),
    ("varchar(40)", "text"),
    ("varchar(40)", "varchar(41)"), ("char(4)", "varchar(4)"), ("text", "longtext"), ("binary(4)", "varbinary(4)"),
    ("blob", "longblob"),
    ("enum('a','b')", "enum('b','a','c')"), ("enum('a','bc')", "varchar(2)"), ("set('a','b')", "varchar(3)"),
    ("bit(8)", "bit(9)"),
    ("bit(8)", "smallint"),
    ("json", "longtext"), ("json", "json"), ("year", "year"), ("point", "point"), ("point", "longblob"), ("", "int"),
]  # fmt: skip
LOSES = [
    ("bigint", "int", "refused"), ("int", "int unsigned", "refused"), ("bigint unsigned", "bigint", "refused"),
    ("bigint", "double", "2^53"),
    ("int", "varchar(10)", "longer than 10"), ("decimal(12,4)", "decimal(14,2)", "rounded to 2"),
    ("decimal(14,2)", "decimal(12,2)", "more than 10"),
    ("decimal(20,2)", "double", "lose digits"), ("decimal(5,2)", "int", "rounded away"), ("double", "float", "6"),
    ("double", "decimal(10,2)", "rounded"),
    ("datetime(6)", "datetime", "rounded to 0"), ("datetime", "timestamp", "1970"), ("datetime", "date", "cut off"),
    ("time", "datetime", "written as"),
    ("varchar(40)", "varchar(39)", "longer than 39"), ("text", "varchar(100)", "longer than 100"),
    ("longtext", "text", "longer than"),
    ("varchar(40)", "json", "no JSON"), ("blob", "text", "written as"), ("varbinary(4)", "binary(4)", "padded"),
    ("enum('a','b')", "enum('a')", "'b'"),
    ("bit(9)", "bit(8)", "more than 8"), ("json", "text", "longer"), ("varchar(4)", "int", "no valid"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), FITS)
def test_fits(source: str, target: str) -> None:
    assert loss(SqlType.parse(source), SqlType.parse(target)) == ""


@pytest.mark.parametrize(("source", "target", "said"), LOSES)
def test_loses(source: str, target: str, said: str) -> None:
    assert said in loss(SqlType.parse(source), SqlType.parse(target))


@pytest.mark.parametrize(
    ("source", "target", "lost"),
    [
        ("utf8mb3", "utf8mb4", False),
        ("latin1", "utf8mb4", False),
        ("ascii", "latin1", False),
        ("utf8mb4", "utf8mb3", True),
        ("utf8mb4", "latin1", True),
        ("latin1", "latin2", True),
        ("utf8mb4", "utf8mb4", False),
    ],
)
def test_charsets(source: str, target: str, lost: bool) -> None:
    assert bool(loss(SqlType.parse("varchar(4)", source), SqlType.parse("varchar(4)", target))) == lost


def test_a_declared_type_is_taken_apart() -> None:
    assert SqlType.parse("ENUM('a,b','it''s')").labels == ("a,b", "it's")
    assert SqlType.parse("decimal") == SqlType("decimal", (10, 0))
    assert SqlType.parse("BIGINT(20) UNSIGNED ZEROFILL") == SqlType("bigint", (20,), True)
