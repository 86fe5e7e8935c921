"""Statements of MariaDB at a MySQL target, and of MySQL at MariaDB: words and defaults that the other server does not
take, or reads otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.operations.check import check
from tests.support.pipelines.case import Case, case

CREATED = (
    "CREATE TABLE own (id INT PRIMARY KEY, u UUID DEFAULT uuid(), a INET4 DEFAULT '10.0.0.1', b INET6, c TEXT "
    "COMPRESSED, g INT AS (id * 2) PERSISTENT, "
    "t TEXT DEFAULT 'it''s', n INT DEFAULT 7, m DATETIME DEFAULT current_timestamp() ON UPDATE current_timestamp(), x "
    "VARCHAR(9) DEFAULT concat('a', 'b')) ENGINE=Aria TRANSACTIONAL=1",
    "CREATE TABLE texts (id INT PRIMARY KEY, t TEXT DEFAULT 'x', j LONGTEXT DEFAULT '{}')",
    "CREATE TABLE keyed (k UUID PRIMARY KEY, v INT)",
    "CREATE OR REPLACE TABLE late (id INT PRIMARY KEY, v UUID)",
    "CREATE TABLE plain (id INT PRIMARY KEY)",
)


def shown(made: Case, there: str, table: str) -> list[Any]:
    """The rows of both sides as each server prints them."""
    found = []
    for server, schema in ((made.source, made.schema), (made.target, there)):
        with server.connect(schema) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER "
                "BY 1",
                (schema, table),
            )
            texts = ", ".join(f"CAST(`{row[0]}` AS CHAR)" for row in cursor.fetchall())
            cursor.execute(f"SELECT {texts} FROM `{table}` ORDER BY 1, 2")
            found.append(list(cursor.fetchall()))
    return found


def test_mariadbs_own_words_at_mysql(
    tmp_path: Path, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mariadb, mysql_target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    with case(tmp_path, mariadb, mysql_target, zookeeper, schema) as made:
        made.run_until_head()
        mariadb.execute(f"USE {schema}", *CREATED)
        mariadb.execute(
            f"USE {schema}",
            "INSERT INTO own (id, b, c) VALUES (1, '::1', 'c'), (2, NULL, NULL)",
            "INSERT INTO texts (id) VALUES (1)",
            "INSERT INTO keyed VALUES ('123E4567-E89B-12D3-A456-426655440000', 1), "
            "('00000000-0000-0000-0000-000000000001', 2)",
            "INSERT INTO late VALUES (1, uuid())",
            "INSERT INTO plain VALUES (1), (2)",
            "ALTER TABLE plain ADD COLUMN IF NOT EXISTS u UUID DEFAULT '123e4567-e89b-12d3-a456-426655440000', ADD i "
            "INET6 DEFAULT '::1' AFTER id, ADD t TEXT DEFAULT 'old'",
            "ALTER TABLE plain ADD COLUMN IF NOT EXISTS u INT, ADD KEY IF NOT EXISTS (u)",
            "UPDATE keyed SET v = 3 WHERE v = 1",
            "DELETE FROM keyed WHERE v = 2",
            "INSERT INTO plain (id) VALUES (3)",
        )
        made.run_until_head()
        for table in ("own", "texts", "keyed", "late", "plain"):
            source, target = shown(made, schema, table)
            assert source == target, table


def test_a_new_columns_default_is_the_sources_value(
    tmp_path: Path, mariadb: Any, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Numbers of labels, hexadecimal literals and fractions mean other values to the two servers."""
    for number, (source, target) in enumerate(((mysql_source, mariadb), (mariadb, mysql_source))):
        schema, there = (
            fresh_schema(one, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci") for one in (source, target)
        )
        (folder := tmp_path / str(number)).mkdir()
        with case(folder, source, target, zookeeper, schema) as made:
            made.path.write_text(made.yaml + f"\nmapping: [{{from: {schema}.*, to: {there}.*}}]\n")
            source.execute(f"USE {schema}", "CREATE TABLE t (id INT PRIMARY KEY)")
            target.execute(f"USE {there}", "CREATE TABLE t (id INT PRIMARY KEY)")
            made.run_until_head()
            source.execute(
                f"USE {schema}",
                "INSERT INTO t VALUES (1), (2)",
                "ALTER TABLE t ADD n INT COMMENT 'DEFAULT x''3132''' DEFAULT x'3132' NOT NULL, ADD m BIGINT DEFAULT "
                "x'37', ADD v DECIMAL(9,2) DEFAULT x'3132', ADD d DATETIME DEFAULT '2024-01-01 00:00:00.9', ADD z "
                "TIME(2) DEFAULT '10:00:00.126'",
                "ALTER TABLE t ADD e ENUM('1', '3', 'b') DEFAULT 3, ADD f DOUBLE DEFAULT 1.5, ADD s VARCHAR(9) "
                "DEFAULT 'it''s'",
                "INSERT INTO t (id) VALUES (3)",
            )
            made.run_until_head()
            rows = shown(made, there, "t")
            assert rows[0] == rows[1]
            source.execute(f"ALTER TABLE {schema}.t ADD w DOUBLE DEFAULT '-0.0'")
            if target is mariadb:  # it has no literal for this value
                with pytest.raises(LoadError, match="otherwise than"):
                    made.run_until_head()
            else:
                made.run_until_head()
                rows = shown(made, there, "t")
                assert rows[0] == rows[1]


@pytest.mark.parametrize("other", [False, True], ids=["same-kind", "other-kind"])
def test_rows_are_copied_again_only_where_the_target_converts_otherwise(
    other: bool, tmp_path: Path, request: Any, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """`on_conversion: copy`: a server of the source's kind converts its rows itself, one of the other kind gets a copy."""
    target = request.getfixturevalue("mariadb" if other else "mysql_target")
    schema = fresh_schema(mysql_source, target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    extra = "    on_conversion: copy"
    with case(tmp_path, mysql_source, target, zookeeper, schema, target_extra=extra) as made:
        made.run_until_head()
        mysql_source.execute(
            f"USE {schema}", "CREATE TABLE t (id INT PRIMARY KEY, v DOUBLE)",
            "INSERT INTO t VALUES (1, 1.239), (2, 2.345), (3, NULL)",
        )  # fmt: skip
        made.run_until_head()
        mysql_source.execute(
            f"USE {schema}", "ALTER TABLE t MODIFY v DOUBLE(9,2), ADD COLUMN w INT NOT NULL DEFAULT 4",
            "INSERT INTO t VALUES (4, 3.456, 5)", "DELETE FROM t WHERE id = 3",
        )  # fmt: skip
        made.run_until_head()
        made.run_until_head()  # what was read last arrives
        ours, theirs = shown(made, schema, "t")
        assert theirs == ours
        assert len(ours) == 3
        with made.runtime().state() as state:
            assert [state.dumps.require(one).reason for one in state.dumps.ids()] == ["converted rows"] * other


ORACLE = (
    'CREATE TABLE "t" ("id" INT PRIMARY KEY, d DATE, v VARCHAR2(10), n NUMBER, m NUMBER(7, 2), c CLOB, r RAW(4), b BLOB)',
    "INSERT INTO t VALUES (1, '2020-01-02 03:04:05', 'a', 1.5, 2.25, 'c', x'00ff', x'01'), "
    "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "ALTER TABLE t ADD e DATE DEFAULT '2021-02-03 04:05:06', ADD w VARCHAR2(5) DEFAULT 'x' NOT NULL, ADD k NUMBER(3)",
    "ALTER TABLE t MODIFY v VARCHAR2(40), MODIFY d DATE DEFAULT '2000-01-01 01:01:01', ADD z mariadb_schema.DATE, ADD y BLOB(300)",
    "INSERT INTO t (id, e, v, y, z) VALUES (3, '2022-01-01 01:01:01', 'longer than ten', 'y', '2020-01-01')",
    "ALTER TABLE t MODIFY k NUMBER(9, 2), DROP COLUMN n",
    "INSERT INTO t (id, k, b) VALUES (4, 1.25, REPEAT('b', 70000))",
    "UPDATE t SET d = '2023-01-01 05:05:05' WHERE id = 2",
)


@pytest.mark.parametrize("excludes", [False, True], ids=["text", "definitions"])
@pytest.mark.parametrize("other", [False, True], ids=["mariadb", "mysql"])
def test_statements_that_mariadb_reads_as_oracle_does(
    tmp_path: Path, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, other: bool, excludes: bool
) -> None:
    """``sql_mode=ORACLE``: a DATE has a time there. Where columns are left out, definitions tell the statements."""
    target = mysql_target if other else mariadb
    schema, there = (
        fresh_schema(one, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci") for one in (mariadb, target)
    )
    with case(tmp_path, mariadb, target, zookeeper, schema) as made:
        line = f"{{from: {schema}.t, to: {there}.t, columns: {{exclude: [r]}}}}, " if excludes else ""
        made.path.write_text(made.yaml + f"\nmapping: [{line}{{from: {schema}.*, to: {there}.*}}]\n")
        made.run_until_head()
        mariadb.execute("SET sql_mode = 'ORACLE,STRICT_ALL_TABLES'", f"USE {schema}", *ORACLE[:2])
        for statement in ORACLE[2:]:
            made.run_until_head()
            mariadb.execute("SET sql_mode = 'ORACLE,STRICT_ALL_TABLES'", f"USE {schema}", statement)
        made.run_until_head()
        names = [
            name
            for name in ["id", "d", "v", "m", "c", "r", "b", "e", "w", "k", "z", "y"]
            if name != "r" or not excludes
        ]
        kinds = [
            server.execute(
                "SELECT COLUMN_NAME, DATA_TYPE, COALESCE(CHARACTER_MAXIMUM_LENGTH, 0) FROM information_schema.COLUMNS "
                f"WHERE TABLE_SCHEMA = '{place}' AND TABLE_NAME = 't' ORDER BY 1"
            )
            for server, place in ((mariadb, schema), (target, there))
        ]
        assert [one for one in kinds[0] if one[0] in names] == list(kinds[1])
        rows = [
            server.execute(f"SELECT {', '.join(names)} FROM {place}.t ORDER BY id")
            for server, place in ((mariadb, schema), (target, there))
        ]
        assert rows[0] == rows[1]
        mariadb.execute("SET sql_mode = 'ORACLE'", f"ALTER TABLE {schema}.t ADD p VARCHAR2(9) DEFAULT ('a' || NULL)")
        if other:
            with pytest.raises(LoadError, match="sql_mode=ORACLE"):
                made.run_until_head()
        else:
            made.run_until_head()
            assert target.execute(f"SELECT p FROM {there}.t") == [("a",)] * 4


VERSIONED = {
    "mysql": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT /*!80016 NOT NULL DEFAULT 7 */, "
            "s VARCHAR(10) /*!80000 CHARACTER SET latin1 */, x INT /*M! NOT NULL DEFAULT 9 */, "
            "y INT /*!99999 NOT NULL DEFAULT 9 */, d INT, /*!50100 e INT, */ z DOUBLE)",
            "INSERT INTO t (id, d, z) VALUES (1, 1, 1.239), (2, 2, 2.345)",
        ),
        (
            "ALTER TABLE t ADD w INT NOT NULL /*!80016 DEFAULT 5 */",
            "ALTER TABLE t /*!80000 DROP COLUMN d */ /*!50100 , ADD k INT DEFAULT 3 */",
            "/*!80000 ALTER TABLE t ADD l INT NOT NULL DEFAULT 4 */",
            "ALTER TABLE t ADD n /*M! INT NOT NULL DEFAULT 1 */ /*!80016 BIGINT NOT NULL /* why */ DEFAULT 2 */",
        ),
    ),
    "mariadb": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT /*M! NOT NULL DEFAULT 7 */, "
            "s VARCHAR(10) /*M!100100 CHARACTER SET latin1 */, x INT /*!80016 NOT NULL DEFAULT 9 */, "
            "y INT /*!100100 NOT NULL DEFAULT 8 */, d INT, /*!50100 e INT, */ z DECIMAL(10,2))",
            "INSERT INTO t (id, d, z) VALUES (1, 1, 1.45), (2, 2, 2.55)",
        ),
        (
            "ALTER TABLE t ADD w INT NOT NULL /*!100100 DEFAULT 5 */",
            "ALTER TABLE t /*M! DROP COLUMN d */ /*!50100 , ADD k INT DEFAULT 3 */",
            "ALTER TABLE t /*M! MODIFY z DECIMAL(10,0), */ ADD q INT",
            "ALTER TABLE t ADD n /*!80016 INT NOT NULL DEFAULT 1 */ /*M!100100 BIGINT NOT NULL DEFAULT 2 */",
        ),
    ),
}


@pytest.mark.parametrize("kind", VERSIONED)
def test_a_versioned_comment_does_at_the_target_what_it_did_at_the_source(
    kind: str, tmp_path: Path, mariadb: Any, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """The other server skips comments that this one ran, and runs some that it skipped."""
    source, target = (mysql_source, mariadb) if kind == "mysql" else (mariadb, mysql_source)
    schema, there = (
        fresh_schema(server, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci") for server in (source, target)
    )
    columns = (
        "SELECT column_name, data_type, is_nullable, column_default, character_set_name FROM "
        "information_schema.columns WHERE table_schema = '{}' AND table_name = 't' ORDER BY 1"
    )
    with case(tmp_path, source, target, zookeeper, schema) as made:
        made.path.write_text(made.yaml + f"\nmapping: [{{from: {schema}.*, to: {there}.*}}]\n")
        made.run_until_head()
        for statements in VERSIONED[kind]:
            source.execute(f"USE {schema}", *statements)
            made.run_until_head()
            ours, theirs = shown(made, there, "t")
            assert theirs == ours
            definitions = [
                [(name, kind_, nullable, None if default == "NULL" else default, charset) for
                 name, kind_, nullable, default, charset in server.execute(columns.format(place))]
                for server, place in ((source, schema), (target, there))
            ]  # fmt: skip
            assert definitions[1] == definitions[0]


OWN_WORDS = {
    "mariadb": "CREATE TABLE own (k VARCHAR(9) COLLATE utf8mb4_uca1400_as_cs PRIMARY KEY, w VARCHAR(9) COLLATE "
    "utf8mb4_general_nopad_ci UNIQUE, u UUID, i INET6, n VARCHAR(9) COLLATE utf8mb4_uca1400_nopad_ai_ci)",
    "mysql_source": "CREATE TABLE own (k VARCHAR(9) COLLATE utf8mb4_0900_as_cs PRIMARY KEY, w VARCHAR(9) COLLATE "
    "utf8mb4_de_pb_0900_ai_ci UNIQUE, g GEOMETRYCOLLECTION, n VARCHAR(9) COLLATE utf8mb4_0900_ai_ci)",
}
"""A table of each server with collations and types that the other one lacks, or names otherwise."""


@pytest.mark.parametrize("kind", OWN_WORDS)
@pytest.mark.parametrize("made_by", ["check", "run"])
def test_a_table_is_made_in_the_words_of_the_targets_server(
    kind: str, made_by: str, tmp_path: Path, request: Any, mysql_target: Any, mariadb: Any, zookeeper: Any,
    fresh_schema: Any,
) -> None:  # fmt: skip
    """Its collations tell apart what the source's do, or the rows of one key would overwrite each other."""
    source, target = request.getfixturevalue(kind), mysql_target if kind == "mariadb" else mariadb
    schema = fresh_schema(source, target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    with case(tmp_path, source, target, zookeeper, schema) as made:
        if made_by == "check":
            source.execute(f"USE {schema}", OWN_WORDS[kind])
            made.make_missing()
        made.run_until_head()
        if made_by == "run":
            source.execute(f"USE {schema}", OWN_WORDS[kind])
        source.execute(f"USE {schema}", "INSERT INTO own (k, w) VALUES ('a', 'a'), ('A', 'b'), ('á', 'c')")
        made.run_until_head()
        assert sorted(target.execute(f"SELECT k, w FROM {schema}.own")) == [("A", "b"), ("a", "a"), ("á", "c")]


def test_the_statement_that_mends_a_coarser_key_runs_at_the_other_server(
    tmp_path: Path, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    for number, (source, target, collation) in enumerate((
        (mariadb, mysql_target, "utf8mb4_uca1400_as_cs"), (mysql_target, mariadb, "utf8mb4_0900_as_cs"),
    )):  # fmt: skip
        schema = fresh_schema(source, target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        source.execute(f"CREATE TABLE {schema}.t (k VARCHAR(9) COLLATE {collation} PRIMARY KEY)")
        target.execute(f"CREATE TABLE {schema}.t (k VARCHAR(9) PRIMARY KEY)")
        (folder := tmp_path / str(number)).mkdir()
        with case(folder, source, target, zookeeper, schema) as made:
            [refused] = [one for one in check(made.runtime()).findings if one.severity == "error"]
            assert "may be one row" in refused.why
            target.execute(refused.fix.partition("; or")[0])
            assert not check(made.runtime()).failed


@pytest.mark.parametrize(
    ("kind", "sql", "error"),
    [
        ("mysql_source", "CREATE TABLE t (id INT PRIMARY KEY, v VECTOR(3))", 4161),
        ("mariadb", "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, g INT AS (id * 2))", 3109),
    ],
)
def test_a_refused_statement_has_a_hint_whatever_its_error(
    kind: str, sql: str, error: int, tmp_path: Path, request: Any, mysql_target: Any, mariadb: Any, zookeeper: Any,
    fresh_schema: Any,
) -> None:  # fmt: skip
    """MySQL and MariaDB have errors above those of the client, which are not of a lost connection."""
    source, target = request.getfixturevalue(kind), mysql_target if kind == "mariadb" else mariadb
    schema = fresh_schema(source, target)
    with case(tmp_path, source, target, zookeeper, schema) as made:
        made.run_until_head()
        source.execute(f"USE {schema}", sql)
        with pytest.raises(LoadError, match=f"refused the source's DDL.*error {error}") as refused:
            made.run_until_head()
        assert "run it by hand in another form" in (refused.value.hint or "")
        if error == 4161:
            with pytest.raises(LoadError, match="4161") as refused:
                made.make_missing()
            assert "make it at the target by hand" in (refused.value.hint or "")
