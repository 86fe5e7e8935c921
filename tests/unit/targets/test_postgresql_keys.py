"""Keys of the source as PostgreSQL compares them: ranges need the same order at both sides, listed keys only what tells
them apart.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from sluice.model.definitions import ColumnDefinition
from sluice.model.dialects import MYSQL
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.sources.words import words_of
from sluice.targets.port import KeyRange
from sluice.targets.postgresql.catalog import ColumnInfo, TableInfo, UniqueKey
from sluice.targets.postgresql.range_delete import LISTED_KEYS, replaceable, stretches
from sluice.targets.sql.tables import TargetTable

PLACE = TableId("shop", "words")


def planned(sql_type: str) -> PlannedTable:
    return PlannedTable(PLACE, PLACE, (column(sql_type, "utf8mb4"),))


def column(sql_type: str, charset: str = "") -> PlannedColumn:
    made = words_of(MYSQL).column_type(ColumnDefinition("w", sql_type, charset=charset))
    return PlannedColumn("w", sql_type, key=1, charset=charset, type=made)


def info(declared: str, *, exact: bool = True) -> TableInfo:
    column = ColumnInfo("w", declared, nullable=False, collation="any", exact=exact)
    return TableInfo("r", (column,), (UniqueKey("words_pkey", ("w",), True, True),))


def table(declared: str) -> TargetTable:
    return TargetTable(PLACE, ("w",), ("w",), types=(declared,))


def listed(declared: str, *keys: str) -> list[str]:
    return stretches(table(declared), KeyRange(("w",), listed=pa.table({"w": pa.array(keys, pa.string())})))


def test_listed_texts_are_literals_of_their_exact_value() -> None:
    assert listed("text", "it's 5\\%", "", "a ") == [
        "(t.\"w\") IN ((CAST('it''s 5\\%' AS text)), (CAST('' AS text)), (CAST('a ' AS text)))"
    ]


def test_a_text_that_no_row_can_have_is_no_condition() -> None:
    assert listed("character varying(9)", "a\0b", "ab") == ["(t.\"w\") IN ((CAST('ab' AS text)))"]
    assert listed("text", "\0") == []


def test_a_text_that_is_longer_than_the_column_is_not_cut_to_another_one() -> None:
    assert listed("character(2)", "abc") == ["(t.\"w\") IN ((CAST('abc' AS bpchar)))"]


def test_many_keys_are_some_conditions() -> None:
    assert len(listed("text", *map(str, range(LISTED_KEYS + 1)))) == 2


@pytest.mark.parametrize("declared", ["text", "character varying(20)", "character(20)"])
@pytest.mark.parametrize("sql_type", ["varchar(20)", "char(20)"])
def test_texts_are_listed_and_have_no_ranges(sql_type: str, declared: str) -> None:
    there, why = replaceable(planned(sql_type), info(declared))
    assert there is None
    assert "may sort otherwise" in why
    there, why = replaceable(planned(sql_type), info(declared), listed=True)
    assert (there, why) == (table(declared), "")


def test_texts_that_a_collation_holds_for_equal_are_not_removed() -> None:
    there, why = replaceable(planned("varchar(20)"), info("text", exact=False), listed=True)
    assert there is None
    assert "different texts are equal" in why


def test_values_of_another_family_are_not_removed() -> None:
    for sql_type, declared in (("int", "text"), ("char(36)", "uuid"), ("enum('a')", "text")):
        there, why = replaceable(planned(sql_type), info(declared), listed=True)
        assert there is None
        assert "may tell apart otherwise" in why
    whole = replace(planned("int"), columns=(column("int"),))
    assert replaceable(whole, info("bigint"))[1] == replaceable(whole, info("bigint"), listed=True)[1] == ""
