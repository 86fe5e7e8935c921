"""Charsets and collations that a statement leaves to a default: the target's table is as the source's, whatever the
target's own defaults are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.case import case

STATEMENTS = {
    "plain": ["CREATE TABLE plain (k VARCHAR(20) PRIMARY KEY, e ENUM('a','b'), t TEXT, n INT)"],
    "engine": ["CREATE TABLE engine (k VARCHAR(20) PRIMARY KEY) ENGINE=InnoDB COMMENT='CHARSET' PARTITION BY KEY (k) PARTITIONS 2"],
    "charset": ["CREATE TABLE charset_ (k VARCHAR(20) PRIMARY KEY, v CHAR(3)) DEFAULT CHARSET=utf8mb4"],
    "column": ["CREATE TABLE column_ (k VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL PRIMARY KEY, v CHAR(9) CHARSET latin1, w TEXT COLLATE latin1_bin)"],
    "collate": ["CREATE TABLE collate_ (k VARCHAR(20) PRIMARY KEY) COLLATE utf8mb4_bin"],
    "select": ["CREATE TABLE select_ (PRIMARY KEY (k)) SELECT 'a' AS k, 1 AS n"],
    "like": ["CREATE TABLE model (k VARCHAR(20) PRIMARY KEY)", "CREATE TABLE like_ LIKE model"],
    "add": ["CREATE TABLE add_ (id INT PRIMARY KEY) CHARSET latin1", "ALTER TABLE add_ ADD a VARCHAR(5), ADD b "
    "VARCHAR(5) CHARACTER SET utf8mb4 AFTER id, ADD COLUMN (c TEXT, d ENUM('x') CHARSET utf8mb4 DEFAULT 'x')"],
    "convert": ["CREATE TABLE convert_ (id INT PRIMARY KEY, v VARCHAR(5)) CHARSET latin1", "ALTER TABLE convert_ "
    "CONVERT TO CHARACTER SET utf8mb4"],
    "default": ["CREATE TABLE default_ (id INT PRIMARY KEY, v VARCHAR(5)) CHARSET utf8mb4", "ALTER TABLE default_ "
    "CONVERT TO CHARACTER SET DEFAULT"],
    "option": ["CREATE TABLE option_ (id INT PRIMARY KEY, v VARCHAR(5))", "ALTER TABLE option_ DEFAULT "
    "CHARSET=utf8mb4, ADD w VARCHAR(5)"],
    "modify": ["CREATE TABLE modify_ (id INT PRIMARY KEY, v VARCHAR(5))", "ALTER TABLE modify_ MODIFY v VARCHAR(9) "
    "CHARACTER SET utf8mb4, CHANGE id Id BIGINT"],
}  # fmt: skip


_SHAPE = (
    "SELECT TABLE_NAME, COLUMN_NAME, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS WHERE "
    "TABLE_SCHEMA = %s "
    "AND TABLE_NAME NOT LIKE '\\_sluice%%' UNION ALL SELECT TABLE_NAME, '', '', TABLE_COLLATION FROM "
    "information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME NOT LIKE '\\_sluice%%'"
)


def shape(server: Any, schema: str) -> set[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(_SHAPE, (schema, schema))
        return set(cursor.fetchall())


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_what_is_left_to_a_default_is_the_sources_default(
    kind: str, request: Any, tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    source = request.getfixturevalue("mysql_source" if kind == "mysql" else "mariadb")
    target = mysql_target if kind == "mysql" else source
    schema = fresh_schema(source, options="CHARACTER SET latin1 COLLATE latin1_german1_ci")
    there = fresh_schema(target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    with case(tmp_path, source, target, zookeeper, schema) as made:
        made.path.write_text(made.yaml + f"\nmapping: [{{from: {schema}.*, to: {there}.*}}]\n")
        made.run_until_head()
        with source.connect(schema) as connection, connection.cursor() as cursor:
            if kind == "mysql":
                cursor.execute("SET default_collation_for_utf8mb4 = utf8mb4_general_ci")
            for statements in STATEMENTS.values():
                for statement in statements:
                    cursor.execute(statement)
        made.run_until_head()
        assert shape(target, there) == shape(source, schema)


def test_a_collation_that_the_target_does_not_have_is_not_said(
    tmp_path: Path, mysql_source: Any, mariadb: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """MySQL's own collations at MariaDB, and the other way round: the table is made by the target's defaults."""
    for number, (source, target) in enumerate(((mysql_source, mariadb), (mariadb, mysql_source))):
        options = (
            "CHARACTER SET utf8mb4" if source is mysql_source else "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
        )
        schema, there = fresh_schema(source, options=options), fresh_schema(target, options="CHARACTER SET utf8mb4")
        (folder := tmp_path / str(number)).mkdir()
        with case(folder, source, target, zookeeper, schema) as made:
            made.path.write_text(made.yaml + f"\nmapping: [{{from: {schema}.*, to: {there}.*}}]\n")
            made.run_until_head()
            made.source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, v VARCHAR(9))")
            made.source.execute(f"INSERT INTO `{schema}`.t VALUES (1, 'ä')")
            made.run_until_head()
            assert target.execute(f"SELECT id, v FROM `{there}`.t") == [(1, "ä")]
