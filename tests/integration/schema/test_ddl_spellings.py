"""Statements in every spelling that servers take, through a whole pipeline: what is captured arrives, what is not never
stops it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.errors import PreflightError
from sluice.operations.schema import show
from tests.support.pipelines.case import Case, case


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Any:
    schema = fresh_schema(mysql_source, mysql_target, options="CHARACTER SET utf8mb4")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as built:
        built.run_until_head()
        yield built


def run(made: Case, *statements: str | bytes, **options: Any) -> None:
    with made.source.connect(made.schema, **options) as connection, connection.cursor() as cursor:
        for statement in statements:
            if isinstance(statement, bytes):
                connection.query(statement)
            else:
                cursor.execute(statement)


def definition(server: Any, schema: str, table: str) -> str:
    return str(server.execute(f"SHOW CREATE TABLE `{schema}`.`{table}`")[0][1])


def assert_same(made: Case, *tables: str) -> None:
    for table in tables:
        sides = [definition(server, made.schema, table) for server in (made.source, made.target)]
        assert sides[0] == sides[1]
    made.assert_equal(*tables)


DEFINERS = (
    "`app`@`%`", "'app'@'%'", "`app`@`my-host`", "'a''p'@'10.0.0.0/255.0.0.0'", "app@localhost", "root@127.0.0.1",
    "CURRENT_USER", "CURRENT_USER()",
    "app", "'app'", "`we``ird`@`%.example.com`", '"app"@"%"',
)  # fmt: skip


def test_views_triggers_and_routines_stop_nothing(made: Case) -> None:
    """Whatever their definers and bodies look like."""
    run(made, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    made.run_until_head()
    for number, definer in enumerate(DEFINERS):
        run(
            made,
            f"CREATE DEFINER={definer} VIEW v{number} AS SELECT * FROM t",
            f"CREATE OR REPLACE ALGORITHM=MERGE DEFINER = {definer} SQL SECURITY INVOKER VIEW v{number} AS SELECT id "
            "FROM t",
            f"CREATE DEFINER={definer} TRIGGER tr{number} BEFORE INSERT ON t FOR EACH ROW SET @`t` = 'ALTER TABLE t', "
            "@'x' = @@global.server_id",
            f"CREATE DEFINER={definer} PROCEDURE p{number}() BEGIN DROP TABLE IF EXISTS t; SET @x = 't'; END",
            f"CREATE DEFINER={definer} FUNCTION f{number}() RETURNS INT DETERMINISTIC RETURN (SELECT COUNT(*) FROM t)",
            f"CREATE DEFINER={definer} EVENT e{number} ON SCHEDULE EVERY 1 YEAR DO DELETE FROM t",
            f"ALTER DEFINER={definer} VIEW v{number} AS SELECT v FROM t",
            f"DROP TRIGGER tr{number}",
            f"DROP EVENT e{number}",
        )
    user = f"`u{made.schema}`@`my-host`"
    run(
        made,
        f"CREATE USER {user} IDENTIFIED BY 'it''s @`t` -- '",
        f"GRANT SELECT ON t TO {user}",
        f"DROP USER {user}",
        "CREATE JSON DUALITY VIEW dv AS SELECT JSON_DUALITY_OBJECT('_id': id, 'v': v) FROM t",
        "CREATE LIBRARY lib LANGUAGE JAVASCRIPT AS $$ export function t() { return `it's ${1}`; } $$",
        "DROP LIBRARY lib",
        "ANALYZE TABLE t",
        "INSERT INTO t VALUES (2, 2)",
    )
    made.run_until_head()
    assert_same(made, "t")
    assert (
        "unknown" not in show(made.runtime(), f"{made.schema}.t")
        or not show(made.runtime(), f"{made.schema}.t")["unknown"]
    )


SPELLINGS = {
    "20151214": "CREATE TABLE {schema}.20151214 (id INT PRIMARY KEY)",
    "1e5": "CREATE TABLE {schema}.1e5 (id INT PRIMARY KEY)",
    "0x1": "CREATE TABLE {schema}.0x1 (id INT PRIMARY KEY, 1x INT, `2` INT, 3x4 INT)",
    "attributes": "CREATE TABLE attributes (id INT PRIMARY KEY, e ENUM('a','b') ASCII, s SET('a','b') UNICODE, c "
    "ENUM('x') BINARY, d ENUM('y') ASCII BINARY)",
    "labels": "CREATE TABLE labels (id INT PRIMARY KEY, e ENUM('a', b'1000010', x'63', 0x64), j ENUM(0x9353, 0x9373) "
    "CHARACTER SET sjis, u ENUM(0x0061, 0x6587) CHARACTER SET ucs2, l SET('é', 0xE6) CHARACTER SET latin1)",
    "numbers": "CREATE TABLE numbers (id INT PRIMARY KEY, a DECIMAL(19.5), b FLOAT(7.4), c DECIMAL(6,2) DEFAULT "
    "1.5COMMENT 'no space', d INT DEFAULT '1')",
    "odd$`name": "CREATE TABLE `odd$``name` (`a``b` INT PRIMARY KEY, `c.d` INT, `e'f` INT, `g--h` INT, `i/*j` INT)",
    "comments": "/*!50003 CREATE*/ /* it's */ TABLE -- `comment\n comments # '\n(id /*!99999 x */ "
    "INT/**/PRIMARY/*!80000 KEY*/)",
    "spaces": "CREATE TABLE spaces (\u00a0id INT PRIMARY KEY, \u3000 INT)",
    "introduced": "CREATE TABLE introduced (id INT PRIMARY KEY, v VARCHAR(9) DEFAULT _latin1'x', w VARCHAR(9) DEFAULT "
    "N'y', x VARCHAR(9) DEFAULT _utf8mb4 0xC3A9)",
    "defaults": "CREATE TABLE defaults (id INT PRIMARY KEY, d DATE DEFAULT '2020-01-01', b BIT(4) DEFAULT b'101', t "
    "VARCHAR(9) DEFAULT 'a' 'b')",
}  # fmt: skip


def test_spellings_of_tables_arrive(made: Case) -> None:
    for table, sql in SPELLINGS.items():
        run(made, sql.format(schema=made.schema))
        key = "a``b" if table.startswith("odd") else "\u00a0id" if table == "spaces" else "id"
        run(made, f"INSERT INTO `{table.replace('`', '``')}` (`{key}`) VALUES (1), (2)")
    run(
        made,
        "CREATE TABLE queried (PRIMARY KEY (id)) CHARACTER SET latin2 COMMENT 'c' SELECT id, 'x' AS START, 'é' AS e "
        "FROM labels",
    )
    run(made, "UPDATE labels SET e = id + 1, j = id, u = id, l = id", "DELETE FROM attributes WHERE id = 1",
        "ALTER TABLE labels ADD x ENUM(b'1100001', 'b')")  # fmt: skip
    made.run_until_head()
    assert made.target.execute(f"SELECT j FROM `{made.schema}`.labels ORDER BY id") == [("鉄",), ("都",)]
    for table in (*SPELLINGS, "queried"):
        if "`" not in table:
            assert_same(made, table)


def test_sql_modes_and_charsets_of_sessions(made: Case) -> None:
    """The text in the log has the session's charset and its quotes."""
    run(
        made,
        "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        'CREATE TABLE "a ""b""" ("id" INT PRIMARY KEY, "v\\" VARCHAR(9) DEFAULT \'x\\\')',
        'INSERT INTO "a ""b""" ("id") VALUES (1)',
    )
    run(
        made,
        "CREATE TABLE `größe` (id INT PRIMARY KEY, e ENUM('é', 'ß'), v VARCHAR(9) DEFAULT 'ü' COMMENT 'ö')",
        "INSERT INTO `größe` (id, e) VALUES (1, 'ß')",
        "ALTER TABLE `größe` ADD `ä` VARCHAR(9) NOT NULL DEFAULT 'é'",
        charset="latin1",
    )
    run(
        made,
        "CREATE TABLE kanji (id INT PRIMARY KEY, `表` VARCHAR(9) DEFAULT 'ソ')",
        "INSERT INTO kanji (id) VALUES (1)",
        charset="sjis",
    )
    made.run_until_head()
    assert_same(made, 'a "b"', "größe", "kanji")


def test_statements_of_tables_that_are_not_captured_stop_nothing(made: Case, fresh_schema: Any) -> None:
    other = fresh_schema(made.source)
    run(made, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    run(
        made,
        f"CREATE TABLE {other}.x (e ENUM(0x9353,0x9373) CHARACTER SET sjis)",
        f"CREATE TABLE {other}.y (e ENUM(0xD83DDE00, 'a') CHARACTER SET binary, t INT)",
        f"ALTER TABLE {other}.y ADD f ENUM(0xFF28) CHARACTER SET binary",
        f"CREATE TABLE {other}.z (v VARCHAR(9) DEFAULT _latin1'\xe9', t VARCHAR(9) COMMENT 't')".encode("latin1"),
        f"ALTER TABLE {other}.z RENAME TO {other}.zz",
        f"RENAME TABLE {other}.y TO {other}.yy",
        f"CREATE VIEW {other}.v AS SELECT * FROM t",
        f"CREATE DATABASE {other}_2 CHARACTER SET latin1",
        f"DROP DATABASE {other}_2",
        "INSERT INTO t VALUES (2)",
    )  # fmt: skip
    made.run_until_head()
    made.assert_equal("t")
    assert made.cli("schema", "show", "case").returncode == 0


def test_what_mariadb_calls_default(
    tmp_path: Path, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mariadb, mysql_target, options="COLLATE utf8mb4_unicode_ci")
    mysql_target.execute("CREATE TABLE t (a BIGINT PRIMARY KEY, b TEXT)", database=schema)
    with case(tmp_path, mariadb, mysql_target, zookeeper, schema, target_extra="    ddl: ignore") as built:
        built.run_until_head()
        run(
            built,
            f"CREATE DATABASE {schema}_d CHARACTER SET DEFAULT",
            f"ALTER DATABASE {schema}_d COLLATE DEFAULT",
            f"CREATE TABLE {schema}_d.u (a INT, t VARCHAR(9))",
            "CREATE TABLE t (.a BIGINT PRIMARY KEY) CHARACTER SET = DEFAULT",
            "ALTER TABLE t CHARACTER SET latin2, COLLATE = DEFAULT, ADD b TEXT",
            "ALTER TABLE t CHARSET DEFAULT",
            f"INSERT INTO {schema}_d.u VALUES (1, 'x')",
            "INSERT INTO t VALUES (1, 'é')",
            f"DROP DATABASE {schema}_d",
        )
        built.run_until_head()
        assert mysql_target.execute("SELECT a, b FROM t", database=schema) == [(1, "é")]
        said = show(built.runtime(), f"{schema}.t")["table"]
        assert said, show(built.runtime(), f"{schema}.t")
        assert (said["charset"], said["collation"]) == ("utf8mb4", "utf8mb4_general_ci")
        assert [c["charset"] for c in said["columns"] if c["name"] == "b"] == ["latin2"]


@pytest.mark.parametrize("default", [None, "elsewhere"])
def test_names_without_a_schema_mean_what_they_meant_at_the_source(
    made: Case, fresh_schema: Any, default: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign key's parent stands beside its child, whatever the default schema of the session is, if it has one.

    MERGE tables are refused by the pre-flight, which sees those that are there now; the log may have older ones.
    """
    schema = made.schema
    with made.source.connect(default and fresh_schema(made.source)) as connection, connection.cursor() as cursor:
        for statement in (
            "CREATE TABLE {s}.parent (id INT PRIMARY KEY)",
            "CREATE TABLE {s}.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))",
            "CREATE TABLE {s}.child2 (id INT PRIMARY KEY, p INT REFERENCES parent (id))",
            "CREATE TABLE {s}.child3 (id INT PRIMARY KEY, p INT)",
            "ALTER TABLE {s}.child3 ADD CONSTRAINT mine FOREIGN KEY by_p (p) REFERENCES parent (id)",
            "CREATE TABLE {s}.tree (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES tree (id))",
            "CREATE TABLE {s}.copied LIKE {s}.parent",
            "CREATE TABLE {s}.m1 (id INT) ENGINE=MyISAM",
            "CREATE TABLE {s}.merged (id INT) ENGINE=MERGE UNION=({s}.m1) INSERT_METHOD=LAST",
            "INSERT INTO {s}.parent VALUES (1)",
            "INSERT INTO {s}.child VALUES (1, 1)",
        ):
            cursor.execute(statement.format(s=schema))
    run(made, "CREATE TABLE merged2 (id INT) ENGINE=MERGE UNION (m1)", "ALTER TABLE merged2 UNION=(m1), COMMENT 'x'")
    with pytest.raises(PreflightError, match="MERGE table"):
        made.run_until_head()
    monkeypatch.setattr("sluice.sources.mysql.server.preflight.merge_findings", lambda *_: [])
    made.run_until_head()
    assert_same(made, "parent", "child", "child2", "child3", "tree", "copied", "m1", "merged", "merged2")
