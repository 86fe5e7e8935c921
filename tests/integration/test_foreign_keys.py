"""Foreign keys and triggers at the target, and the SQL mode of the source's rows: both sides end equal, nothing happens twice."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.errors import LoadError, MappingError
from tests.pipelines import Case, case

FAMILY = (
    "CREATE TABLE parents (id INT PRIMARY KEY, name VARCHAR(20) UNIQUE)",
    "CREATE TABLE children (id INT PRIMARY KEY, parent INT, n INT, "
    "CONSTRAINT c_p FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE grandchildren (id INT PRIMARY KEY, child INT, "
    "CONSTRAINT g_c FOREIGN KEY (child) REFERENCES children (id) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE staff (id INT PRIMARY KEY, boss INT, CONSTRAINT s_s FOREIGN KEY (boss) REFERENCES staff (id) ON DELETE CASCADE)",
)
NAMES = ("parents", "children", "grandchildren", "staff")


def write(source: Any, schema: str, choose: random.Random, statements: int) -> None:
    """Rows come, move and go, and with them the rows below."""
    with source.connect(schema) as connection, connection.cursor() as cursor:
        for _ in range(statements):
            a, b = choose.randint(1, 30), choose.randint(1, 30)
            cursor.execute(
                choose.choice([
                    f"INSERT IGNORE INTO parents VALUES ({a}, 'p{b}')",
                    f"INSERT IGNORE INTO children SELECT {a}, id, {b} FROM parents ORDER BY RAND() LIMIT 1",
                    f"INSERT IGNORE INTO grandchildren SELECT {a}, id FROM children ORDER BY RAND() LIMIT 1",
                    f"INSERT IGNORE INTO staff SELECT {a}, MIN(id) FROM staff WHERE id < {b}",
                    f"UPDATE IGNORE parents SET id = {b} WHERE id = {a}",
                    f"UPDATE IGNORE parents SET name = 'p{b}' WHERE id = {a}",
                    f"UPDATE IGNORE children SET id = {b} WHERE id = {a}",
                    f"UPDATE children SET n = n + 1 WHERE id = {a}",
                    f"DELETE FROM parents WHERE id = {a}",
                    f"DELETE FROM children WHERE id = {a}",
                    f"DELETE FROM staff WHERE id = {a}",
                ])
            )


@pytest.mark.parametrize("settings", ["unchecked row", "ordered row", "ordered batch"])
def test_cascades_end_equal(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
) -> None:
    """The source writes the effects of its foreign keys to its log; the target has the same keys."""
    monkeypatch.setattr("sluice.flows.units.UNIT_ROWS", 8)
    monkeypatch.setattr("sluice.flows.units.TABLE_COST", 1)
    monkeypatch.setattr("sluice.targets.mysql.bulk.BULK_ROWS", 4)
    keys, consistency = settings.split()
    schema = fresh_schema(mysql_source, mysql_target)
    options = f"    consistency: {consistency}\n    options: {{foreign_keys: {keys}}}"
    choose = random.Random(settings)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra=options) as made:
        for server in (mysql_source, mysql_target):
            server.execute(*FAMILY, database=schema)
        made.run_until_head()
        for _ in range(5):
            write(mysql_source, schema, choose, 120)
            made.run_until_head()
            made.assert_equal(*NAMES)
        assert all(mysql_source.execute(f"SELECT COUNT(*) FROM {schema}.{name}")[0][0] for name in NAMES[:2])


def test_a_child_without_its_parent_is_refused_where_the_target_checks(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    options = "    options: {foreign_keys: ordered}"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra=options) as made:
        for server in (mysql_source, mysql_target):
            server.execute(*FAMILY, database=schema)
        made.run_until_head()
        mysql_source.execute("INSERT INTO parents VALUES (1, 'p')", database=schema)
        made.run_until_head()
        mysql_target.execute("DELETE FROM parents", database=schema)
        mysql_source.execute("INSERT INTO children VALUES (1, 1, 1)", database=schema)
        with pytest.raises(LoadError, match="foreign key constraint fails"):
            made.run_until_head()
        mysql_target.execute("INSERT INTO parents VALUES (1, 'p')", database=schema)
        made.run_until_head()
        made.assert_equal(*NAMES)


def test_cascades_that_are_not_logged_stop_before_the_first_row(
    tmp_path: Path, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """MariaDB's InnoDB deletes the children without a word in the log: with checks off they would stay at the target."""
    schema = fresh_schema(mariadb, mysql_target)
    with case(tmp_path, mariadb, mysql_target, zookeeper, schema) as made:
        mariadb.execute(*FAMILY, database=schema)
        with pytest.raises(Exception, match="cascading foreign keys"):
            made.run_until_head()
        found = made.cli("check", str(made.path))
        assert found.returncode != 0
        assert "unlogged_cascades" in found.stdout


@pytest.fixture
def triggered(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Any:
    """Both sides have the same trigger: each new row of t is noted in seen."""
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        for server in (mysql_source, mysql_target):
            server.execute(
                "CREATE TABLE t (id INT PRIMARY KEY)",
                "CREATE TABLE seen (n INT AUTO_INCREMENT PRIMARY KEY, id INT)",
                "CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW INSERT INTO seen (id) VALUES (NEW.id)",
                database=schema,
            )
        made.run_until_head()
        mysql_source.execute("INSERT INTO t VALUES (1), (2)", database=schema)
        yield made


def test_a_trigger_at_the_target_is_refused(triggered: Case) -> None:
    with pytest.raises(MappingError, match=r"trigger note at the target fires") as caught:
        triggered.run_until_head()
    assert f"DROP TRIGGER `{triggered.schema}`.`note`" in (caught.value.hint or "")
    found = triggered.cli("check", str(triggered.path))
    assert found.returncode != 0
    assert "trigger note" in found.stdout
    triggered.target.execute("DROP TRIGGER note", database=triggered.schema)
    triggered.run_until_head()
    triggered.assert_equal("t", "seen")


def test_a_trigger_that_is_meant_may_tell_rows_of_sluice_from_others(triggered: Case) -> None:
    triggered.path.write_text(
        triggered.yaml.replace(
            "    connection: case_target\n", "    connection: case_target\n    options: {triggers: fire}\n"
        )
    )
    triggered.target.execute(
        "DROP TRIGGER note",
        "CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW BEGIN IF @sluice IS NULL THEN INSERT INTO seen (id) VALUES (NEW.id); END IF; END",
        database=triggered.schema,
    )
    triggered.run_until_head()
    triggered.assert_equal("t", "seen")
    triggered.target.execute("INSERT INTO t VALUES (9)", database=triggered.schema)
    assert triggered.target.execute("SELECT id FROM seen ORDER BY n", database=triggered.schema) == [(1,), (2,), (9,)]


@pytest.mark.parametrize("way", ["upsert", "bulk"])
def test_rows_written_in_any_sql_mode_end_equal(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    way: str,
) -> None:
    """What a lax session of the source could store, the target stores; what it would have to change, it refuses."""
    monkeypatch.setattr("sluice.targets.mysql.bulk.BULK_ROWS", 1 if way == "bulk" else 10_000)
    schema = fresh_schema(mysql_source, mysql_target)
    table = (
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP NULL, n TINYINT UNSIGNED, e ENUM('a', 'b'), "
        "c CHAR(5), v VARCHAR(3), a INT, b INT, ratio DECIMAL(9, 4) AS (a / b) STORED, odd INT AS (a MOD b))"
    )
    modes = (
        "",
        "NO_AUTO_VALUE_ON_ZERO",
        "ALLOW_INVALID_DATES",
        "TRADITIONAL",
        "PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES",
        "ANSI_QUOTES",
    )
    mysql_target.execute("SET GLOBAL local_infile = ON")
    request.addfinalizer(lambda: mysql_target.execute("SET GLOBAL local_infile = OFF"))
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        for server in (mysql_source, mysql_target):
            server.execute("SET sql_mode = ''", table, database=schema)
        made.run_until_head()
        for number, mode in enumerate(modes):
            with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
                cursor.execute("SET sql_mode = %s", (mode,))
                rows = [
                    "('2024-02-30', '0000-00-00 00:00:00', NULL, 300, 'x', 'a  ', 'long text', 1, 0)",
                    "('2024-00-00', '2024-01-01 00:00:00', '2024-01-01 00:00:00', -1, 'a', '\\\\n', 'abc', 7, 2)",
                    "('2024-02-29', NULL, NULL, 255, 'b', '', '', -7, 2)",
                ]
                taken = 0
                for row in rows:
                    with suppress(pymysql.err.MySQLError):  # this mode does not take it
                        taken += cursor.execute(f"INSERT INTO t (d, dt, ts, n, e, c, v, a, b) VALUES {row}")
                if mode == "NO_AUTO_VALUE_ON_ZERO":
                    taken += cursor.execute("INSERT INTO t (id, a) VALUES (0, 1)")
                with suppress(pymysql.err.MySQLError):  # a division by zero, to some modes
                    cursor.execute(f"UPDATE t SET a = a + {number}, b = 0 WHERE id % 3 = {number % 3}")
                connection.commit()
            assert taken >= 1
            made.run_until_head()
            made.assert_equal("t")
