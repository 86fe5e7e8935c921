"""Changed definitions of a PostgreSQL at a MySQL or MariaDB target: followed, held against both servers' own answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError, MappingError
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
        source_extra=DDL if ddl else "", target_extra=f"    accept_loss: ['.*\\.wide\\.j']\n{more}",
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


WIDE = (
    "CREATE TYPE mood AS ENUM ('good', 'it''s')",
    """CREATE TABLE wide (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, n bigint NOT NULL DEFAULT 7, yes boolean DEFAULT true,
      money numeric(8,2) DEFAULT -1.50, code varchar(20) NOT NULL DEFAULT 'a''b', word text DEFAULT E'\\\\ ä', raw bytea DEFAULT '\\x00ff',
      day date DEFAULT '2024-02-29', at timestamptz DEFAULT '2024-02-29 10:00:00+01', made timestamp DEFAULT now(), clock time(3) DEFAULT '23:59:59.5',
      midnight time NOT NULL DEFAULT '24:00', far timetz DEFAULT '10:00:00+02', span interval DEFAULT '1 day 02:00:00', felt mood DEFAULT 'it''s',
      j jsonb DEFAULT '{"a": 1}', u uuid UNIQUE DEFAULT gen_random_uuid(), ratio float8 DEFAULT 0.1, twice int GENERATED ALWAYS AS (1 + 1) STORED)""",
    "COMMENT ON TABLE wide IS 'all''s'",
    "COMMENT ON COLUMN wide.code IS 'its \\ code'",
    "CREATE INDEX by_word ON wide (word, n)", "CREATE UNIQUE INDEX by_code ON wide (code, day)",
    "CREATE UNIQUE INDEX by_text ON wide (word)", "CREATE INDEX of_expression ON wide (lower(code))",
)  # fmt: skip
NAMED = (
    "CREATE TABLE named (a text NOT NULL UNIQUE, b int NOT NULL DEFAULT 3, c time DEFAULT '01:02:03')",
    "ALTER TABLE named REPLICA IDENTITY USING INDEX named_a_key",
    "CREATE TABLE keyless (a varchar(9) NOT NULL, b int, UNIQUE (a, b))", "ALTER TABLE keyless REPLICA IDENTITY FULL",
)  # fmt: skip


def shown(made: PgCase, *tables: str) -> list[str]:
    """Return the target's SHOW CREATE TABLE of each, its indexes in one order."""

    def ordered(text: str) -> str:
        lines = [line.rstrip(",") for line in text.splitlines()]
        keys = sorted(line for line in lines if " KEY `" in line)
        return "\n".join([*(line for line in lines if line not in keys), *keys])

    return [ordered(made.target.execute(f"SHOW CREATE TABLE `{made.schema}`.`{table}`")[0][1]) for table in tables]


def printed(made: PgCase, table: str, names: str) -> list[list[str]]:
    """Return the target's rows, in the order of their ids, as the server prints them."""
    texts = ", ".join(f"CAST({name} AS CHAR)" for name in names.split(", "))
    return [list(row) for row in made.target.execute(f"SELECT {texts} FROM `{made.schema}`.`{table}` ORDER BY id")]


def test_check_makes_the_tables_that_the_log_makes(noted: PgCase) -> None:
    """A followed CREATE TABLE and `sluice check --apply` give a table the same columns, defaults, comments and indexes;
    so do ADD COLUMN and a column that check adds. Rows get the values of the defaults at both servers.
    """
    noted.path.write_text(
        f"{noted.yaml}\nmapping: [{{from: {noted.schema}.named, to: {noted.schema}.named, columns: {{rename: {{b: z}}}}}}]\n"
    )
    noted.write(*WIDE, *NAMED)
    noted.write(
        "INSERT INTO wide (id, made, u) VALUES (1, '2024-01-01', NULL)",
        "INSERT INTO named VALUES ('x')",
        "INSERT INTO keyless VALUES ('x')",
    )
    noted.run_until_head()
    tables = ("wide", "named", "keyless")
    followed = shown(noted, *tables)
    for part in (
        "DEFAULT '23:59:59.500'", "DEFAULT '24:00:00.000000'", "DEFAULT '10:00:00+02'", "1 day 02:00:00",
        "COMMENT 'its", "COMMENT='all''s'", "KEY `by_word`", "UNIQUE KEY `by_code`",
    ):  # fmt: skip
        assert part in followed[0], followed[0]
    assert "`z` int" in followed[1]
    noted.target.execute(*(f"DROP TABLE `{noted.schema}`.{table}" for table in tables))
    noted.prepare()
    assert shown(noted, *tables) == followed
    noted.write("INSERT INTO wide (id, made, u, code, word) VALUES (2, '2024-01-02', NULL, 'b', '')")
    noted.run_until_head()
    assert printed(noted, "wide", "n, code, day, clock, midnight, far, span, felt") == [
        ["7", "b", "2024-02-29", "23:59:59.500", "24:00:00.000000", "10:00:00+02", "1 day 02:00:00", "it's"],
    ]
    noted.write(
        "ALTER TABLE t ADD COLUMN c time NOT NULL DEFAULT '12:00:00.25', ADD COLUMN i interval DEFAULT '01:30:00', "
        "ADD COLUMN z timetz DEFAULT '03:00:00-05', ADD COLUMN k int NOT NULL DEFAULT 4",
        "COMMENT ON COLUMN t.k IS 'fourth'",
    )
    noted.run_until_head()
    assert printed(noted, "t", "c, i, z, k") == [["12:00:00.250000", "01:30:00", "03:00:00-05", "4"]] * 2
    [before] = shown(noted, "t")
    noted.target.execute(*(f"ALTER TABLE `{noted.schema}`.t DROP COLUMN {name}" for name in "cizk"))
    noted.prepare()
    assert shown(noted, "t") == [before]


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
    with pytest.raises(MappingError, match="values would be lost: jsonb -> json") as raised:
        noticed.run_until_head()
    assert noticed.target.execute(f"SELECT count(*) FROM `{noticed.schema}`.fresh") == [(0,)]
    line = re.search(r"write under target copy: (accept_loss: \[.*?\]);", raised.value.hint or "")
    assert line
    noticed.path.write_text(re.sub(r"accept_loss: \[.*\]", lambda _: line[1], noticed.path.read_text()))
    noticed.run_until_head()
    assert same(noticed, "t") == ["extra", "id", "n", "remark", "v"]
    assert same(noticed, "fresh") == ["id", "j"]
    noticed.write("ALTER TABLE t DROP COLUMN remark", "ALTER TABLE t RENAME TO t2", "UPDATE t2 SET extra = 7")
    noticed.run_until_head()
    assert same(noticed, "t2") == ["extra", "id", "n", "v"]
    assert columns(noticed, "t") == {}


@pytest.mark.full
def test_a_copy_that_reads_a_column_before_the_log_tells_of_it(noticed: PgCase) -> None:
    """Without a row in the log, only the copy has the column: the load stops for it, and `sluice check --apply` makes
    it, which leaves a new column to the log otherwise.
    """
    noticed.write("ALTER TABLE t ADD COLUMN extra int DEFAULT 5")
    noticed.prepare()
    assert "extra" not in columns(noticed, "t")
    with ThreadPoolExecutor(1) as beside:
        copying = beside.submit(noticed.cli, "dump", "start", str(noticed.path), "--table", f"{noticed.schema}.t")
        stops: list[str] = []
        while not copying.done():
            try:
                noticed.run_until_head()
            except MappingError as error:
                stops.append(error.message)
                noticed.prepare()
        assert copying.result().returncode == 0, copying.result()
    noticed.run_until_head()
    assert len(stops) == 1
    assert "has no column 'extra'" in stops[0]
    assert same(noticed, "t") == ["extra", "id", "n", "note", "v"]


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


def test_a_table_is_copied_again_where_its_rows_cannot_be_converted(
    tmp_path: Path, postgresql_source: Any, target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """`on_conversion: copy`: the table is emptied, changed and filled by a copy, while later changes arrive."""
    schema, more = fresh_schema(target), "    on_conversion: copy"
    with following(tmp_path, postgresql_source, target, zookeeper, schema, ddl=True, more=more) as made:
        made.write("INSERT INTO t SELECT n, n, n, repeat('long', n) FROM generate_series(3, 500) n")
        made.run_until_head()
        made.write(
            "ALTER TABLE t ALTER COLUMN n TYPE text USING 'n' || n, ADD COLUMN k uuid NOT NULL DEFAULT gen_random_uuid()",
            "UPDATE t SET v = 'later' WHERE id IN (2, 400)", "DELETE FROM t WHERE id = 1",
            "INSERT INTO t (id, n) VALUES (501, 'new')",
        )  # fmt: skip
        made.run_until_head()
        made.run_until_head()  # what was read last arrives
        assert same(made, "t") == ["id", "k", "n", "note", "v"]
        assert made.target.execute(f"SELECT COUNT(*), COUNT(n) FROM `{schema}`.t") == [(500, 499)]
        with made.runtime().state() as state:
            assert [state.dumps.require(one).reason for one in state.dumps.ids()] == ["converted rows"]


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
