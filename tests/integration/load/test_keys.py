"""What tells rows apart: unique keys instead of a primary key, columns that came in the middle, a deleted row that
stays. Keys that the server holds equal: test_key_histories.py."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import MappingError
from tests.support.pipelines.case import case
from tests.support.pipelines.small_units import small_units
from tests.support.servers.fixtures import setting
from tests.support.values.random_values import SPELLINGS


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_a_deleted_row_that_stays_gives_way_to_its_other_spelling(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: Any,
    server: str,
) -> None:
    """soft_delete keeps ``a``, and ``A`` comes in the same batch: for the target that is one row, and it is alive."""
    source = request.getfixturevalue(server)
    small_units(monkeypatch, 10, 2)
    schema = fresh_schema(source, mysql_target)
    words = (
        "CREATE TABLE words (word VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL, n INT, m INT NOT NULL, PRIMARY "
        "KEY (m, word)) CHARSET utf8mb4"
    )
    choose = random.Random(7)
    with case(tmp_path, source, mysql_target, zookeeper, schema, extra="rules: engine.yaml") as made:
        source.execute(words, database=schema)
        mysql_target.execute(
            words.replace("m INT NOT NULL,", "m INT NOT NULL, deleted TINYINT NOT NULL DEFAULT 0,"), database=schema
        )
        (tmp_path / "rules/engine.yaml").write_text(
            "rules: [{name: keep, builtin: soft_delete, match: {table: words}}]\n"
        )
        made.run_until_head()
        for _ in range(5):
            with source.connect(schema) as connection, connection.cursor() as cursor:
                for _ in range(150):
                    word, m = choose.choice(SPELLINGS), choose.randint(1, 3)
                    statement, values = choose.choice([
                        ("INSERT IGNORE INTO words (word, n, m) VALUES (%s, %s, %s)", (word, choose.randint(1, 99), m)),
                        ("UPDATE IGNORE words SET word = %s WHERE word = %s", (choose.choice(SPELLINGS), word)),
                        ("DELETE FROM words WHERE word = %s AND m = %s", (word, m)),
                    ])
                    cursor.execute(statement, values)
                connection.commit()
            made.run_until_head()
            here = source.execute(f"SELECT HEX(word), n, m FROM {schema}.words ORDER BY m, word")
            there = mysql_target.execute(
                f"SELECT HEX(word), n, m FROM {schema}.words WHERE NOT deleted ORDER BY m, word"
            )
            assert there == here
        assert mysql_target.execute(f"SELECT COUNT(*) FROM {schema}.words WHERE deleted")[0][0]


def test_a_unique_key_instead_of_a_primary_key(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    line = f"mapping: [{{from: {schema}.log, to: {schema}.log, key: [host, at]}}]\n"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra=line) as made:
        for server in (mysql_source, mysql_target):
            server.execute(
                f"CREATE TABLE {schema}.log (n INT, host VARCHAR(9), at INT, text TEXT, UNIQUE KEY (host, at))"
            )
        made.run_until_head()
        with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
            for i in range(20):
                cursor.execute("INSERT INTO log VALUES (%s, 'h', %s, 'x')", (i, i))
            cursor.execute("UPDATE log SET at = at + 100 WHERE at % 2")
            cursor.execute("UPDATE log SET text = 'y', n = NULL WHERE at < 9")
            cursor.execute("DELETE FROM log WHERE at = 4")
        made.run_until_head()
        made.assert_equal("log")
        with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE log SET at = at + 1 ORDER BY at DESC")
            cursor.execute("DELETE FROM log WHERE n = 11")
        made.run_until_head()
        made.assert_equal("log")
        assert "whole row" not in made.cli("check", str(made.path)).stdout
        mysql_source.execute(f"INSERT INTO {schema}.log VALUES (1, NULL, 1, 'z')")
        with pytest.raises(MappingError, match="NULL in some rows"):
            made.run_until_head()


def test_rows_before_a_new_column_keep_the_targets_default(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Without DDL among the events a batch may hold rows of several definitions."""
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        text = made.yaml.replace("capture:\n", "capture:\n  events: [insert, update, delete]\n")
        made.path.write_text(text.replace("max_wait: 200ms", "max_wait: 2s"), encoding="utf-8")
        mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, a INT)")
        made.run_until_head()
        mysql_source.execute(
            f"INSERT INTO {schema}.t VALUES (1, 1), (2, 2)",
            f"ALTER TABLE {schema}.t ADD COLUMN b INT NOT NULL DEFAULT 5",
            f"INSERT INTO {schema}.t VALUES (3, 3, 3)",
            f"UPDATE {schema}.t SET b = 6 WHERE id = 2",
            f"ALTER TABLE {schema}.t ADD COLUMN c VARCHAR(9) DEFAULT 'd' FIRST, DROP COLUMN a",
            f"INSERT INTO {schema}.t VALUES ('e', 4, 4)",
        )
        mysql_target.execute(
            f"CREATE TABLE {schema}.t (c VARCHAR(9) DEFAULT 'd', id INT PRIMARY KEY, b INT NOT NULL DEFAULT 5)"
        )
        made.run_until_head()
        made.assert_equal("t")


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_a_table_without_a_key_gets_rows_of_several_definitions(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, image: str
) -> None:
    """Rows of both definitions are written; neither hides the other from the target's memory of the batch."""
    schema = fresh_schema(mysql_source, mysql_target)
    with (
        setting(mysql_source, binlog_row_image=image),
        case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made,
    ):
        text = made.yaml.replace("capture:\n", "capture:\n  events: [insert, update, delete]\n")
        made.path.write_text(text.replace("max_wait: 200ms", "max_wait: 2s"), encoding="utf-8")
        mysql_source.execute(
            f"CREATE TABLE {schema}.t (a INT)", f"CREATE TABLE {schema}.k (id INT PRIMARY KEY, a INT, u INT UNIQUE)"
        )
        made.run_until_head()
        mysql_source.execute(
            f"INSERT INTO {schema}.t VALUES (1), (1), (2)",
            f"INSERT INTO {schema}.k VALUES (1, 1, 10), (2, 2, 20), (3, 3, 30)",
            f"ALTER TABLE {schema}.t ADD COLUMN b INT DEFAULT 5",
            f"ALTER TABLE {schema}.k ADD COLUMN b INT DEFAULT 5",
            f"INSERT INTO {schema}.t VALUES (3, 3), (3, 3)",
            f"UPDATE {schema}.k SET u = NULL WHERE id = 1",
            f"INSERT INTO {schema}.k VALUES (4, 4, 10, 6)",
        )
        mysql_target.execute(
            f"CREATE TABLE {schema}.t (a INT, b INT DEFAULT 5)",
            f"CREATE TABLE {schema}.k (id INT PRIMARY KEY, a INT, u INT UNIQUE, b INT DEFAULT 5)",
        )
        made.run_until_head()
        made.assert_equal("t", "k")


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_rows_that_come_anew_swap_their_unique_values(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, image: str
) -> None:
    """Deleted and inserted again in one batch: what they held before has to be free, whoever takes it."""
    schema = fresh_schema(mysql_source, mysql_target)
    with (
        setting(mysql_source, binlog_row_image=image),
        case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made,
    ):
        for server in (mysql_source, mysql_target):
            server.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, u VARCHAR(9), n INT DEFAULT 5, UNIQUE (u))")
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (4, 'd', 4)")
        made.run_until_head()
        with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
            for statement in (
                "BEGIN",
                "UPDATE t SET n = 9 WHERE id = 4",
                "UPDATE t SET u = NULL WHERE id = 4",
                "REPLACE INTO t (id, u) VALUES (1, 'b')",  # deletes 1 and 2
                "INSERT INTO t (id, u) VALUES (2, 'd')",
                "DELETE FROM t WHERE id = 3",
                "INSERT INTO t (id, u) VALUES (3, 'a')",
                "UPDATE t SET u = 'c' WHERE id = 4",
                "COMMIT",
            ):
                cursor.execute(statement)
        made.run_until_head()
        made.assert_equal("t")
