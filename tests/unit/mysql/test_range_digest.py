"""Which types have a checksum, and when two declarations mean the same one."""

from __future__ import annotations

import pytest

from sluice.model.tables import TableId
from sluice.mysql.key_sql import shown_literal
from sluice.mysql.range_digest import DigestColumn, digest_sql, digest_word


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("int(11)", None), ("int", "")),
        (("tinyint(1)", None), ("tinyint", None)),
        (("varchar(40)", "utf8"), ("varchar(99)", "utf8mb3")),
        (("text", "latin1"), ("longtext", "latin1")),
        (("bigint(20) unsigned", None), ("bigint unsigned", None)),
    ],
)
def test_the_same(one, other) -> None:
    assert digest_word(*one) == digest_word(*other) != ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("int", None), ("bigint", None)),
        (("int", None), ("int unsigned", None)),
        (("varchar(40)", "latin1"), ("varchar(40)", "utf8mb4")),
        (("decimal(10,2)", None), ("decimal(10,3)", None)),
        (("datetime", None), ("datetime(6)", None)),
        (("enum('a','b')", "utf8mb4"), ("enum('A','b')", "utf8mb4")),
        (("float", None), ("double", None)),
    ],
)
def test_not_the_same(one, other) -> None:
    assert digest_word(*one) != digest_word(*other)


@pytest.mark.parametrize(
    ("declared", "alike"), [("float", False), ("double", False), ("time(3)", True), ("bit(9)", True)]
)
def test_types_that_mysql_and_mariadb_hash_alike(declared: str, alike: bool) -> None:
    words = {digest_word(declared, None, mariadb=mariadb) for mariadb in (False, True)}
    assert len(words) == (1 if alike else 2)


@pytest.mark.parametrize(
    "declared", ["geometry", "vector(3)", "int(5) unsigned zerofill", "float(7,3)", "double(9,2)", "nonsense"]
)
def test_types_without_one(declared: str) -> None:
    assert digest_word(declared, None) == ""


def test_identifiers_are_quoted() -> None:
    sql = digest_sql(TableId("a`b", "c"), [DigestColumn("d`e", "int")], "PRIMARY", "`d``e` > 3", "")
    assert sql.endswith("FROM `a``b`.`c` FORCE INDEX (`PRIMARY`) WHERE `d``e` > 3")
    assert "(`d``e` & 4294967295)" in sql


def test_keys_for_people() -> None:
    literals = ["17", "_utf8mb4 x'c3a9'", "x'00ff'", "'2024-01-01'", "1.5e0"]
    assert list(map(shown_literal, literals)) == ["17", "é", "0x00ff", "2024-01-01", "1.5"]
