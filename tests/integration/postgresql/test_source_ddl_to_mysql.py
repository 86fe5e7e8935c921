"""Changed definitions of a PostgreSQL at a MySQL or MariaDB target: followed, held against both servers' own answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.sources.postgresql import ddl_trigger
from tests.support.pipelines.pg_source import PgCase, pg_case

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(10), n int, note text)"
DDL = ", ddl: true"


@contextmanager
def following(
    folder: Path, source: Any, target: Any, zookeeper: Any, schema: str, *, ddl: bool, more: str = ""
) -> Iterator[PgCase]:
    """A pipeline whose tables are there and equal."""
    with pg_case(
        folder, source, zookeeper, schema=schema, target=target, kind="mysql", tables=(TABLE,),
        source_extra=DDL if ddl else "", target_extra=more,
    ) as made:  # fmt: skip
        try:
            made.prepare()
            made.run_until_head()
            made.write("INSERT INTO t VALUES (1, 'a', 1, 'x'), (2, NULL, NULL, NULL)")
            made.run_until_head()
            yield made
        finally:
            if ddl:
                source.execute(ddl_trigger.REMOVAL)


@pytest.fixture(params=["mysql_target", pytest.param("mariadb", marks=pytest.mark.full)])
def target(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["postgresql_source", pytest.param("postgresql_15", marks=pytest.mark.full)])
def source(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def noted(tmp_path: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[PgCase]:
    """The source's triggers write DDL into the log."""
    with following(tmp_path, source, target, zookeeper, fresh_schema(target), ddl=True) as made:
        yield made


@pytest.fixture
def noticed(
    tmp_path: Path, postgresql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> Iterator[PgCase]:
    """A changed definition is noticed at its first row."""
    schema = fresh_schema(mysql_target)
    with following(tmp_path, postgresql_source, mysql_target, zookeeper, schema, ddl=False) as made:
        yield made


def texts(rows: Any) -> list[list[str]]:
    """As one of both servers prints them."""

    def text(value: Any) -> str:
        return str(int(value) if isinstance(value, bool) else value).removesuffix("+00:00")

    return sorted([list(map(text, row)) for row in rows])


def same(made: PgCase, table: str) -> list[str]:
    """The names of a table's columns, which are those of both servers, as are the rows."""
    names = [
        name for (name,) in made.source.execute(
            f"SELECT column_name::text FROM information_schema.columns WHERE table_schema = '{made.schema}' "
            f"AND table_name = '{table}' ORDER BY column_name"
        )
    ]  # fmt: skip
    shape = columns(made, table)
    assert sorted(shape) == names
    ours = made.source.execute(f"SELECT {', '.join(names)} FROM {made.schema}.{table}")
    theirs = made.target.execute(f"SELECT {', '.join(f'`{name}`' for name in names)} FROM `{made.schema}`.`{table}`")
    assert texts(theirs) == texts(ours)
    return names


def columns(made: PgCase, table: str) -> dict[str, tuple[str, bool, str | None]]:
    """Type, NULL and default of the target's columns."""
    return {
        name: (kind, nullable == "YES", default)
        for name, kind, nullable, default in made.target.execute(
            "SELECT column_name, column_type, is_nullable, column_default FROM information_schema.columns "
            f"WHERE table_schema = '{made.schema}' AND table_name = '{table}'"
        )
    }


def indexes(made: PgCase, table: str) -> dict[str, tuple[bool, str]]:
    """Whether it is unique, and the columns, of the target's indexes."""
    return {
        name: (not other, names)
        for name, other, names in made.target.execute(
            "SELECT index_name, non_unique, GROUP_CONCAT(column_name ORDER BY seq_in_index) "
            f"FROM information_schema.statistics WHERE table_schema = '{made.schema}' AND table_name = '{table}' "
            "GROUP BY index_name, non_unique"
        )
    }


def test_columns_follow(noted: PgCase) -> None:
    """ADD, DROP and RENAME COLUMN, wider types, NOT NULL and defaults, with rows in between and without."""
    noted.write(
        "ALTER TABLE t ADD COLUMN paid numeric(8,2) NOT NULL DEFAULT 1.50, ADD COLUMN day date DEFAULT '2024-02-29', "
        "ADD COLUMN at timestamptz DEFAULT '2024-02-29 10:00:00+01', ADD COLUMN word text NOT NULL DEFAULT E'it''s \\\\ ä', "
        "ADD COLUMN yes boolean DEFAULT true, ADD COLUMN raw bytea DEFAULT '\\x00ff'",
        "INSERT INTO t (id, v) VALUES (3, 'c')",
        "ALTER TABLE t ALTER COLUMN n TYPE bigint, ALTER COLUMN v TYPE varchar(40), ALTER COLUMN paid TYPE numeric(12,4)",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "UPDATE t SET n = 12345678901, w = repeat('w', 40), paid = 12345678.1234 WHERE id = 1",
        "ALTER TABLE t DROP COLUMN note",
        "ALTER TABLE t ADD COLUMN note int",
        "ALTER TABLE t DROP COLUMN yes, ADD COLUMN yes text DEFAULT 'yes'",
    )
    noted.run_until_head()
    assert same(noted, "t") == ["at", "day", "id", "n", "note", "paid", "raw", "w", "word", "yes"]
    found = columns(noted, "t")
    assert found["n"][0].startswith("bigint")
    assert found["w"][0] == "varchar(40)"
    assert found["note"][0].startswith("int")
    assert (found["paid"][0], found["paid"][1], float(found["paid"][2] or 0)) == ("decimal(12,4)", False, 1.5)
    noted.write(
        "UPDATE t SET n = 0, w = '' WHERE w IS NULL OR n IS NULL",
        "ALTER TABLE t ALTER COLUMN n SET NOT NULL, ALTER COLUMN n SET DEFAULT 7, ALTER COLUMN paid DROP DEFAULT",
        "ALTER TABLE t ALTER COLUMN paid DROP NOT NULL",
        "ALTER TABLE t RENAME COLUMN n TO m",
        "ALTER TABLE t RENAME COLUMN w TO n",
        "COMMENT ON COLUMN t.n IS 'it''s'",
        "INSERT INTO t (id, n) VALUES (4, 'd')",
    )
    noted.run_until_head()
    same(noted, "t")
    found = columns(noted, "t")
    assert found["m"][1:] == (False, "7")
    assert found["paid"][1] is True
    assert found["paid"][2] in {None, "NULL"}


def test_tables_come_go_and_are_renamed(noted: PgCase) -> None:
    """Also with a key of text, without one, and into another schema."""
    other = f"{noted.schema}_2"
    noted.source.execute(f"CREATE SCHEMA {other}")
    try:
        noted.write(
            "CREATE TABLE keyed (code text, part bytea, n int DEFAULT 3, mood varchar(5) UNIQUE, PRIMARY KEY (code, part))",
            "INSERT INTO keyed VALUES ('a', '\\x01', 1, 'x'), ('a ', '\\x0100', 2, 'X')",
            "ALTER TABLE keyed RENAME TO kept",
            "INSERT INTO kept VALUES ('A', '', 3, NULL)",
            "CREATE TABLE gone (id int PRIMARY KEY)",
            "INSERT INTO gone VALUES (1)",
            "DROP TABLE gone",
            f"ALTER TABLE t SET SCHEMA {other}",
        )
        noted.run_until_head()
        assert same(noted, "kept") == ["code", "mood", "n", "part"]
        assert columns(noted, "gone") == columns(noted, "keyed") == columns(noted, "t") == {}
        assert noted.target.execute(f"SELECT id FROM `{other}`.t ORDER BY id") == [(1,), (2,)]
        noted.write("TRUNCATE kept")
        noted.run_until_head()
        assert same(noted, "kept")
        assert noted.target.execute(f"SELECT COUNT(*) FROM `{noted.schema}`.kept") == [(0,)]
    finally:
        noted.source.execute(f"DROP SCHEMA {other} CASCADE")
        noted.target.execute(f"DROP DATABASE IF EXISTS `{other}`")


def test_keys_and_indexes_follow(noted: PgCase) -> None:
    """Unique ones only where this server can hold them unique; an index goes with its column."""
    noted.write(
        "UPDATE t SET v = 'b', n = 2, note = 'y' WHERE id = 2",
        "CREATE INDEX by_n ON t (n)", "CREATE UNIQUE INDEX by_v ON t (v, n)", "CREATE INDEX by_note ON t (note, n)",
        "CREATE UNIQUE INDEX by_text ON t (note)", "CREATE INDEX of_expression ON t (lower(v))",
        "CREATE INDEX of_some ON t (n) WHERE n > 0",
        "INSERT INTO t VALUES (3, 'c', 3, repeat('long', 1000))",
    )  # fmt: skip
    noted.run_until_head()
    same(noted, "t")
    assert indexes(noted, "t") == {
        "PRIMARY": (True, "id"), "by_n": (False, "n"), "by_v": (True, "v,n"), "by_note": (False, "note,n"),
    }  # fmt: skip
    noted.write(
        "DROP INDEX by_n", "ALTER TABLE t RENAME COLUMN n TO number", "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, number)", "INSERT INTO t VALUES (3, 4, 'z')",
    )  # fmt: skip
    noted.run_until_head()
    same(noted, "t")
    assert indexes(noted, "t") == {"PRIMARY": (True, "id,number"), "by_note": (False, "note,number")}


def test_a_change_that_is_noticed_at_its_first_row(noticed: PgCase) -> None:
    """Columns that came, went, got another name and a wider type, and a new table."""
    noticed.write(
        "ALTER TABLE t ADD COLUMN extra int NOT NULL DEFAULT 5, ALTER COLUMN n TYPE bigint, ALTER COLUMN v TYPE text",
        "ALTER TABLE t RENAME COLUMN note TO remark",
        "INSERT INTO t VALUES (3, 'c', 12345678901, 'r', 6)",
        "CREATE TABLE fresh (id uuid PRIMARY KEY, j jsonb)",
        f"ALTER PUBLICATION {noticed.slot} ADD TABLE fresh",
    )
    noticed.write("INSERT INTO fresh VALUES ('00000000-0000-0000-0000-000000000001', NULL)")
    noticed.run_until_head()
    assert same(noticed, "t") == ["extra", "id", "n", "remark", "v"]
    assert same(noticed, "fresh") == ["id", "j"]
    noticed.write("ALTER TABLE t DROP COLUMN remark", "ALTER TABLE t RENAME TO t2", "UPDATE t2 SET extra = 7")
    noticed.run_until_head()
    assert same(noticed, "t2") == ["extra", "id", "n", "v"]
    assert columns(noticed, "t") == {}


def test_what_the_log_does_not_tell_stops_with_the_statement(noted: PgCase) -> None:
    """Another type than a wider one, and values that a default computed. What the error says helps."""
    noted.write("ALTER TABLE t ALTER COLUMN n TYPE text USING 'n' || n", "INSERT INTO t VALUES (3, 'c', 'n3', NULL)")
    with pytest.raises(LoadError, match="the source converted the rows") as raised:
        noted.run_until_head()
    statement = f"ALTER TABLE `{noted.schema}`.`t` MODIFY COLUMN `n` longtext"
    assert raised.value.hint is not None
    assert f"({statement}" in raised.value.hint
    assert "change_column to ignore" in raised.value.hint
    made = raised.value.hint.partition("(")[2].partition("), rows included")[0]
    noted.target.execute(made, f"UPDATE `{noted.schema}`.t SET n = CONCAT('n', n)")
    noted.path.write_text(noted.yaml.replace("type: mysql", "type: mysql\n    ddl: {change_column: ignore}"))
    noted.run_until_head()
    same(noted, "t")
    noted.path.write_text(noted.yaml)
    noted.write("ALTER TABLE t ADD COLUMN k uuid NOT NULL DEFAULT gen_random_uuid()")
    with pytest.raises(LoadError, match="no constant that is understood") as raised:
        noted.run_until_head()
    assert raised.value.hint is not None
    noted.target.execute(raised.value.hint.partition("(")[2].partition(");")[0])
    noted.run_until_head()  # it goes on once the column is there
    assert "k" in columns(noted, "t")


@pytest.mark.parametrize("policy", ["stop", "widen_only"])
def test_policies(
    policy: str, tmp_path: Path, postgresql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """A load that stops goes on once somebody made the change by hand."""
    schema = fresh_schema(mysql_target)
    more = f"    ddl: {policy}"
    with following(tmp_path, postgresql_source, mysql_target, zookeeper, schema, ddl=True, more=more) as made:
        made.write("ALTER TABLE t ALTER COLUMN v TYPE varchar(30), ADD COLUMN extra int DEFAULT 4")
        if policy == "stop":
            with pytest.raises(LoadError, match="the policy of target copy is to stop"):
                made.run_until_head()
            mysql_target.execute(
                f"ALTER TABLE `{schema}`.t MODIFY v varchar(30) COLLATE utf8mb4_0900_bin, ADD extra int DEFAULT 4"
            )
        made.run_until_head()
        same(made, "t")
        made.write("ALTER TABLE t DROP COLUMN extra")
        with pytest.raises(LoadError, match="the policy of target copy is to stop"):
            made.run_until_head()
        mysql_target.execute(f"ALTER TABLE `{schema}`.t DROP COLUMN extra")
        made.run_until_head()
        same(made, "t")
