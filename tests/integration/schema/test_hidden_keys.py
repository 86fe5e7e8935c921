"""Columns that a server makes by itself and does not show: MySQL's primary keys, the hashes of MariaDB's unique keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.pipelines.case import assert_same_rows, case
from tests.support.servers.fixtures import setting


def test_a_hidden_key_is_known(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    setting = "show_gipk_in_create_table_and_information_schema"
    for server in (mysql_source, mysql_target):
        server.execute(f"SET GLOBAL {setting} = OFF")
    try:
        create = f"CREATE TABLE {schema}.t (v INT)"
        mysql_source.execute(
            "SET sql_generate_invisible_primary_key = ON", create, f"INSERT INTO {schema}.t VALUES (1)"
        )
        mysql_target.execute("SET sql_generate_invisible_primary_key = ON", create)
        with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, start="dump") as made:
            made.run_until_head()
            mysql_source.execute(
                f"USE {schema}",
                "INSERT INTO t VALUES (2), (2)",
                "UPDATE t SET v = 3 WHERE v = 1",
                "DELETE FROM t WHERE v = 2 LIMIT 1",
            )
            made.run_until_head()
            columns = f"SELECT my_row_id, v FROM {schema}.t ORDER BY my_row_id"
            assert mysql_target.execute(columns) == mysql_source.execute(columns)
            assert len(mysql_source.execute(columns)) == 2
    finally:
        for server in (mysql_source, mysql_target):
            server.execute(f"SET GLOBAL {setting} = ON")


HASHED = (
    "CREATE TABLE a (id INT PRIMARY KEY, t TEXT {unique}, g INT AS (id + 1) VIRTUAL, v VARCHAR(4000) {unique}, b BLOB)",
    "CREATE TABLE u (id INT NOT NULL {hash}, DB_ROW_HASH_1 BIGINT UNSIGNED, e VARCHAR(3) NOT NULL UNIQUE)",
    "CREATE TABLE n (id INT, t TEXT NOT NULL {unique})",
    "CREATE TABLE m (id INT PRIMARY KEY, n BIGINT UNSIGNED, v VARCHAR(1000) {unique})",
)
CHANGES = (
    "INSERT INTO a (id, t, v, b) VALUES (1, 'x', 'y', 'b'), (2, NULL, NULL, NULL)",
    "INSERT INTO u VALUES (1, 18446744073709551615, 'a'), (2, 5, 'b')", "INSERT INTO n VALUES (1, 'x'), (NULL, 'y')",
    "INSERT INTO m VALUES (1, 18446744073709551615, 'a'), (2, NULL, NULL)",
    "UPDATE a SET v = 'z', b = NULL WHERE id = 1", "UPDATE u SET DB_ROW_HASH_1 = NULL WHERE id = 2",
    "UPDATE n SET id = 3 WHERE t = 'y'", "UPDATE m SET n = 7, id = 3 WHERE id = 2",
    "ALTER TABLE a ADD q BIGINT UNSIGNED DEFAULT 5, ADD w INT FIRST",
    "INSERT INTO a (id, t, v) VALUES (3, 'x3', 'v3')", "UPDATE a SET id = 4 WHERE id = 2",
    "DELETE FROM a WHERE id = 1", "DELETE FROM u WHERE id = 1", "DELETE FROM n WHERE id = 1",
)  # fmt: skip


@pytest.mark.parametrize("start", ["log", "dump"])
@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_hashes_of_unique_keys_are_no_columns(
    tmp_path: Any, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, metadata: str, image: str,
    start: str,
) -> None:  # fmt: skip
    """MariaDB logs the hash of a unique key over a long column as a column, which no catalog has."""
    with setting(mariadb, binlog_row_metadata=metadata, binlog_row_image=image):
        schema = fresh_schema(mariadb, mysql_target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        for create in HASHED:
            mariadb.execute(create.format(unique="UNIQUE", hash=", UNIQUE (id) USING HASH"), database=schema)
            mysql_target.execute(create.format(unique="", hash=" UNIQUE"), database=schema)
        first = 4 if start == "dump" else 0
        for change in CHANGES[:first]:
            mariadb.execute(change, database=schema)
        with case(tmp_path, mariadb, mysql_target, zookeeper, schema, **({"start": "dump"} if first else {})) as made:
            made.run_until_head()
            for change in CHANGES[first:]:
                mariadb.execute(change, database=schema)
            made.run_until_head()
            assert_same_rows(made)
