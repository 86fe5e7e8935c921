"""The statements that a PostgreSQL target runs for one of the source, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.targets.postgresql.catalog import ColumnInfo, TableInfo, UniqueKey, Wanted
from sluice.targets.postgresql.ddl import Follower
from sluice.targets.sql.names import Naming
from tests.support.tables.planned_changes import planned_changes

T = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9), KEY by_a (a))"
TYPES = {"id": "integer", "a": "integer", "b": "text"}
Q = '"s"."t"'


def table(types: Mapping[str, str]) -> TableInfo:
    columns = tuple(ColumnInfo(name, declared, nullable=name != "id") for name, declared in types.items())
    return TableInfo("r", columns, (UniqueKey("t_pkey", ("id",), arbiter=True, primary=True),))


def run(
    *statements: str, indexes: bool = False, rows: bool = True, has: Mapping[str, Any] | None = None, **given: Any
) -> list[str]:
    """Return the statements that are run for the last one."""
    [change] = planned_changes(T, *statements, **given)
    infos = {TableId("s", name): table(types) for name, types in ({"t": TYPES} if has is None else has).items()}
    return Follower(change, infos, lambda *_: rows, Naming(False), Wanted(indexes=indexes)).statements()


ALTERS = {
    "ADD c INT NOT NULL DEFAULT 5 COMMENT 'new'": [
        f'ALTER TABLE {Q} ADD COLUMN "c" integer DEFAULT 5 NOT NULL', f"COMMENT ON COLUMN {Q}.\"c\" IS 'new'",
    ],
    "DROP COLUMN a": [f'ALTER TABLE {Q} DROP COLUMN "a"', 'DROP INDEX IF EXISTS "s"."t_by_a"'],
    "CHANGE a c BIGINT NOT NULL": [
        f'ALTER TABLE {Q} RENAME COLUMN "a" TO "c"', f'ALTER TABLE {Q} ALTER COLUMN "c" DROP DEFAULT',
        f'ALTER TABLE {Q} ALTER COLUMN "c" TYPE bigint', f'ALTER TABLE {Q} ALTER COLUMN "c" SET NOT NULL',
    ],
    "RENAME COLUMN a TO b, RENAME COLUMN b TO a": [
        f'ALTER TABLE {Q} RENAME COLUMN "a" TO "_sluice_renamed_0"',
        f'ALTER TABLE {Q} RENAME COLUMN "b" TO "_sluice_renamed_1"',
        f'ALTER TABLE {Q} RENAME COLUMN "_sluice_renamed_0" TO "b"',
        f'ALTER TABLE {Q} RENAME COLUMN "_sluice_renamed_1" TO "a"',
    ],
    "DROP COLUMN a, ADD a INT": [
        f'ALTER TABLE {Q} DROP COLUMN "a"', f'ALTER TABLE {Q} ADD COLUMN "a" integer',
        'DROP INDEX IF EXISTS "s"."t_by_a"',
    ],
    "DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)": [
        f'ALTER TABLE {Q} ALTER COLUMN "b" SET NOT NULL', f'ALTER TABLE {Q} DROP CONSTRAINT "t_pkey"',
        f'ALTER TABLE {Q} ADD PRIMARY KEY ("id", "b")',
    ],
    "ALTER a SET DEFAULT 7, COMMENT 'it''s'": [
        f'ALTER TABLE {Q} ALTER COLUMN "a" SET DEFAULT 7', f"COMMENT ON TABLE {Q} IS 'it''s'",
    ],
    "ADD KEY by_both (b, a)": [f'CREATE INDEX IF NOT EXISTS "t_by_both" ON {Q} ("b", "a")'],
    "MODIFY b VARCHAR(200)": [],
    "MODIFY a INT AFTER b": [],
}  # fmt: skip


@pytest.mark.parametrize("alter", ALTERS)
def test_alters(alter: str) -> None:
    assert run(f"ALTER TABLE t {alter}", indexes=True) == ALTERS[alter]


def test_what_is_there_already_is_left_out() -> None:
    assert run("ALTER TABLE t ADD c INT", has={"t": {**TYPES, "C": "integer"}}) == []
    assert run("ALTER TABLE t MODIFY a BIGINT NOT NULL", has={"t": {**TYPES, "a": "bigint"}}) == [
        f'ALTER TABLE {Q} ALTER COLUMN "a" SET NOT NULL'
    ]
    assert run("DROP TABLE t", has={}) == []
    assert run("CREATE TABLE u LIKE t", has={"t": TYPES, "u": TYPES}) == []


def test_tables_that_come_go_and_are_renamed() -> None:
    assert run("TRUNCATE t") == [f"TRUNCATE TABLE {Q}"]
    assert run("DROP TABLE t") == [f"DROP TABLE {Q}"]
    [schema, made] = run("CREATE TABLE u (Id INT PRIMARY KEY, v INT NOT NULL DEFAULT 3, g INT AS (v))")
    assert schema == 'CREATE SCHEMA IF NOT EXISTS "s"'
    assert made == 'CREATE TABLE "s"."u" ("Id" integer NOT NULL, "v" integer NOT NULL DEFAULT 3, PRIMARY KEY ("Id"))'
    assert run("RENAME TABLE t TO u", indexes=True) == [
        f'ALTER TABLE {Q} RENAME TO "u"', 'ALTER INDEX IF EXISTS "s"."t_by_a" RENAME TO "u_by_a"',
    ]  # fmt: skip
    assert run("RENAME TABLE t TO u, u TO v") == [f'ALTER TABLE {Q} RENAME TO "u"', 'ALTER TABLE "s"."u" RENAME TO "v"']


def test_a_table_that_another_replaces() -> None:
    replace = run("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY)", mariadb=True)
    assert replace == [
        f"DROP TABLE {Q}", 'CREATE SCHEMA IF NOT EXISTS "s"',
        f'CREATE TABLE {Q} ("id" integer NOT NULL, PRIMARY KEY ("id"))',
    ]  # fmt: skip


def test_a_cut_over_with_its_indexes() -> None:
    ghost = (
        "CREATE TABLE _t_new LIKE t",
        "ALTER TABLE _t_new ADD c INT, ADD KEY by_b (b)",
        "RENAME TABLE t TO _t_old, _t_new TO t",
    )
    assert run(*ghost, indexes=True) == [
        f'ALTER TABLE {Q} ADD COLUMN "c" integer', f'CREATE INDEX IF NOT EXISTS "t_by_b" ON {Q} ("b")',
    ]  # fmt: skip
    with pytest.raises(LoadError, match="may have been renamed, or dropped and added"):
        run(ghost[0], "ALTER TABLE _t_new ADD c INT, DROP COLUMN a", ghost[2])


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (f"ADD `{'x' * 64}` INT", "is longer than 63 bytes"),
        ("ADD c INT DEFAULT (1 + 1)", "would get other values in the new column c"),
        ("MODIFY b DATE", "column b was varchar"),
    ],
)
def test_what_cannot_be_followed(alter: str, why: str) -> None:
    with pytest.raises(LoadError, match=why) as caught:
        run(f"ALTER TABLE t {alter}")
    assert caught.value.where == "log:9"
    assert caught.value.hint
