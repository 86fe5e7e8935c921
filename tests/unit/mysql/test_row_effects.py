"""What an ALTER TABLE is said to do to stored values, conversion by conversion; ``test_row_effects_truth`` asks the
servers.
"""

from __future__ import annotations

from typing import Any

import pytest

from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.row_effects import Ran, Step, StepKind
from sluice.model.schema_changes import TableChange, widens
from sluice.model.tables import TableId
from sluice.mysql.ddl.row_effects import Conditions, column_effect, row_effects

STRICT, LAX = 1 << 22, 0
S = StepKind


def column(declared: str, **more: Any) -> ColumnDefinition:
    """A column; text of utf8mb4 unless the words say otherwise; ``!``: it is NOT NULL."""
    nullable = not declared.endswith("!")
    words = declared.rstrip("!").split("@")
    word = words[0].partition("(")[0].partition(" ")[0]
    charset = (
        words[1]
        if len(words) > 1
        else "utf8mb4"
        if word in {"char", "varchar", "text", "tinytext", "longtext", "enum", "set"}
        else None
    )
    labels = (
        tuple(part.strip("'") for part in words[0].partition("(")[2].rstrip(")").split(","))
        if word in {"enum", "set"}
        else ()
    )
    given = {
        "charset": charset,
        "collation": charset and f"{charset}_bin",
        "labels": labels,
        "nullable": nullable,
        **more,
    }
    return ColumnDefinition("v", words[0], **given)


SAME: tuple[Step, ...] = ()
CASES = [
    # old, new, strict, without strict mode (None: it cannot be told)
    ("int", "bigint", SAME, SAME),
    ("bigint", "int", SAME, (Step(S.WITHIN, low=-(2**31), high=2**31 - 1),)),
    ("int", "int unsigned", SAME, (Step(S.WITHIN, high=2**32 - 1),)),
    ("int(5) unsigned zerofill", "int unsigned", SAME, SAME),
    ("int", "decimal(12,2)", SAME, SAME),
    ("int", "decimal(5,2)", SAME, (Step(S.WITHIN, low=-999, high=999),)),
    ("decimal(20,5)", "decimal(10,1)", (Step(S.ROUND, 1),), (Step(S.ROUND, 1),
        Step(S.WITHIN, low=-(10**9 - 1), high=10**9 - 1))),
    ("decimal(10,5)", "decimal(10,1)", (Step(S.ROUND, 1),), (Step(S.ROUND, 1),)),
    ("decimal(10,2)", "decimal(12,4)", SAME, SAME),
    ("decimal(10,2)", "int", (Step(S.ROUND, 0),), (Step(S.ROUND, 0),)),
    ("double", "double(9,2)", None, None),
    ("double", "float", None, None),
    ("float", "double", SAME, SAME),
    ("float(7,2)", "float", SAME, SAME),
    ("int", "double", SAME, SAME),
    ("bigint", "double", None, None),
    ("varchar(10)", "char(10)", (Step(S.TRIM_BLANKS),), (Step(S.TRIM_BLANKS),)),
    ("char(10)", "varchar(10)", SAME, SAME),
    ("char(10)", "char(3)", SAME, (Step(S.LEFT, 3), Step(S.TRIM_BLANKS))),
    ("varchar(10)", "varchar(20)", SAME, SAME),
    ("varchar(20)", "varchar(10)", SAME, (Step(S.LEFT, 10),)),
    ("varchar(300)", "varchar(10)", (Step(S.LEFT, 10),), (Step(S.LEFT, 10),)),
    ("text", "varchar(10)", (Step(S.LEFT, 10),), (Step(S.LEFT, 10),)),
    ("varchar(10)", "text", SAME, SAME),
    ("varchar(300)", "tinytext", (Step(S.AT_MOST, 63),), (Step(S.AT_MOST, 63),)),
    ("varchar(10)@latin1", "varchar(10)", SAME, SAME),
    ("varchar(10)", "varchar(10)@latin1", SAME, None),
    ("text@latin1", "text", (Step(S.AT_MOST, 16383),), (Step(S.AT_MOST, 16383),)),
    ("varchar(10)", "varbinary(40)", None, None),
    ("varbinary(5)", "binary(5)", (Step(S.PAD_ZEROS, 5),), (Step(S.PAD_ZEROS, 5),)),
    ("binary(3)", "binary(5)", (Step(S.PAD_ZEROS, 5),), (Step(S.PAD_ZEROS, 5),)),
    ("binary(5)", "binary(3)", None, None),
    ("binary(5)", "varbinary(9)", SAME, SAME),
    ("varbinary(9)", "varbinary(5)", SAME, None),
    ("datetime(3)", "datetime(6)", SAME, SAME),
    ("datetime(6)", "datetime", (Step(S.ROUND_TIME, 0),), None),
    ("timestamp(6)", "timestamp(2)", (Step(S.ROUND_TIME, 2),), (Step(S.ROUND_TIME, 2),)),
    ("time(6)", "time(1)", (Step(S.ROUND_TIME, 1),), (Step(S.ROUND_TIME, 1),)),
    ("datetime", "timestamp", None, None),
    ("timestamp", "datetime", None, None),
    ("date", "datetime", (Step(S.AT_MIDNIGHT),), (Step(S.AT_MIDNIGHT),)),
    ("datetime", "date", None, None),
    ("int", "varchar(20)", (Step(S.TO_TEXT),), (Step(S.TO_TEXT),)),
    ("int", "varchar(3)", (Step(S.TO_TEXT),), None),
    ("decimal(10,3)", "varchar(20)", (Step(S.TO_TEXT, 3),), (Step(S.TO_TEXT, 3),)),
    ("int(5) unsigned zerofill", "varchar(10)", None, None),
    ("year", "varchar(4)", None, None),
    ("year", "int", SAME, SAME),
    ("varchar(10)", "int", None, None),
    ("int", "enum('a','b')", None, None),
    ("enum('a','b')", "enum('a','b','c')", SAME, SAME),
    ("enum('a','b')", "enum('b','a')", SAME, SAME),
    ("enum('a','b')", "enum('A','B')", None, None),
    ("enum('a','b')", "enum('a')", SAME, None),
    ("enum('1','2')", "enum('x','y')", None, None),
    ("enum('a','b')", "varchar(1)", SAME, SAME),
    ("enum('a','bcd')", "varchar(1)", SAME, None),
    ("enum('a','b')", "int", None, None),
    ("set('a','b')", "set('a','b','c')", SAME, SAME),
    ("set('a','b')", "set('b','a')", (Step(S.REORDER, labels=("b", "a")),), (Step(S.REORDER, labels=("b", "a")),)),
    ("set('a','b')", "set('x','a','b')", SAME, SAME),
    ("set('a','b')", "set('b')", None, None),
    ("bit(4)", "bit(8)", SAME, SAME),
    ("bit(8)", "bit(4)", SAME, None),
    ("json", "longtext", None, None),
    ("longtext", "json", None, None),
    ("point", "geometry", SAME, SAME),
    ("geometry", "point", None, None),
    ("uuid", "char(36)", None, None),
    ("int", "int!", SAME, (Step(S.NO_NULL),)),
    ("timestamp", "timestamp!", (Step(S.NO_NULL),), (Step(S.NO_NULL),)),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "strict", "lax"), CASES, ids=[f"{case[0]} to {case[1]}" for case in CASES])
def test_what_becomes_of_the_values(old: str, new: str, strict: Any, lax: Any) -> None:
    for mode, expected in ((STRICT, strict), (LAX, lax)):
        steps, unknown = column_effect(column(old), column(new), Conditions(bool(mode), mode, False))
        assert (None if unknown else steps) == expected


@pytest.mark.parametrize(("old", "new", "strict", "lax"), CASES, ids=[f"{case[0]} to {case[1]}" for case in CASES])
def test_a_wider_type_keeps_its_values(old: str, new: str, strict: Any, lax: Any) -> None:
    if widens(column(old), column(new)) and not new.endswith("!"):
        assert (strict, lax) == (SAME, SAME)


def test_settings_of_the_session() -> None:
    def told(old: str, new: str, mode: int | None, *, mariadb: bool = False, **more: Any) -> Any:
        return column_effect(column(old), column(new, **more), Conditions(bool((mode or 0) & STRICT), mode, mariadb))

    assert told("datetime(6)", "datetime", STRICT | 1 << 32) == ((Step(S.CUT_TIME, 0),), "")
    assert told("datetime(6)", "datetime", STRICT, mariadb=True) == ((Step(S.CUT_TIME, 0),), "")
    assert told("datetime(6)", "datetime", STRICT | 1 << 34, mariadb=True) == ((Step(S.ROUND_TIME, 0),), "")
    assert told("datetime(6)", "datetime", None)[1]
    assert "PAD_CHAR" in told("char(9)", "varchar(9)", STRICT | 1 << 31)[1]
    assert told("int", "int", STRICT, auto_increment=True) == ((Step(S.NO_ZERO),), "")
    assert told("int", "int", STRICT | 1 << 19, auto_increment=True) == ((), "")
    assert "generated" in told("int", "int", STRICT, generated="1 + 1")[1]


TABLE = TableId("s", "t")


def changed(old: str, new: str, text: str, mode: int, engine: str = "InnoDB", **more: Any) -> Any:
    before, after = (TableDefinition(TABLE, (column(one),), engine=engine) for one in (old, new))
    return row_effects(TableChange(TABLE, (), before, after), Ran(text, "s", mode), mariadb=True, **more)


def test_what_protects_values() -> None:
    """IGNORE takes strict mode away, a table without transactions is not protected by STRICT_TRANS_TABLES, and other
    programs copy as they like.
    """
    statement = "ALTER TABLE t MODIFY v INT"
    assert changed("bigint", "int", statement, 1 << 21)[0].same
    assert not changed("bigint", "int", statement, 1 << 21, engine="MyISAM")[0].same
    assert changed("bigint", "int", statement, 1 << 22, engine="MyISAM")[0].same
    assert not changed("bigint", "int", "ALTER IGNORE TABLE t MODIFY v INT", 1 << 22)[0].same
    assert not changed("bigint", "int", "RENAME TABLE t TO _t_old, _t_new TO t", 1 << 22)[0].same
    assert "not understood" in changed("bigint", "int", "ALTER TABLE t FROBNICATE", 1 << 22)[0].unknown


def test_a_renamed_column_is_followed_by_its_old_name() -> None:
    before = TableDefinition(TABLE, (column("decimal(10,2)"),))
    after = TableDefinition(TABLE, (ColumnDefinition("w", "decimal(10,1)"),))
    [effect] = row_effects(
        TableChange(TABLE, (), before, after), Ran("ALTER TABLE t CHANGE v w DECIMAL(10,1)", "s", STRICT), mariadb=False
    )
    assert (effect.old.name, effect.new.name, effect.steps) == ("v", "w", (Step(S.ROUND, 1),))
