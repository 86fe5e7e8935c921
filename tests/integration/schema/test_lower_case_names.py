"""A source with ``lower_case_table_names=1``: statements name tables and schemas in any spelling, rows and the history
in lower case.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devstack.mariadb import MariaDBServer
from devstack.mysql import MySQLServer
from tests.support.pipelines.case import case
from tests.support.servers.fixtures import UNSAFE


@pytest.mark.parametrize("kind", [MySQLServer, MariaDBServer], ids=["mysql", "mariadb"])
def test_statements_in_another_spelling_are_followed(
    kind: Any, tmp_path: Path, mysql_target: Any, mariadb: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    target = mysql_target if kind is MySQLServer else mariadb
    schema = fresh_schema(target)
    capitals = schema.upper()
    options = {**UNSAFE, "lower_case_table_names": 1}
    with kind(tmp_path / "folding", name="folding", server_id=904, options=options) as source:
        source.execute(f"CREATE DATABASE `{capitals}`")
        with case(tmp_path, source, target, zookeeper, schema) as made:
            made.run_until_head()

            def run(*statements: str) -> list[str]:
                with made.source.connect(capitals) as connection, connection.cursor() as cursor:
                    for statement in statements:
                        cursor.execute(statement)
                made.run_until_head()
                tables = [name for (name,) in made.source.execute(f"SHOW TABLES FROM `{schema}`")]
                there = [name for (name,) in target.execute(f"SHOW TABLES FROM `{schema}`")]
                assert sorted(tables) == sorted(name for name in there if not name.startswith("_sluice"))
                made.assert_equal(*tables)
                return sorted(tables)

            run("CREATE TABLE T1 (Id INT PRIMARY KEY, v INT)", "INSERT INTO t1 VALUES (1, 1), (2, 2)")
            run("TRUNCATE TABLE T1")
            assert target.execute(f"SELECT COUNT(*) FROM `{schema}`.t1") == [(0,)]
            run(
                f"INSERT INTO {capitals}.T1 VALUES (3, 3)",
                f"ALTER TABLE `{capitals}`.`T1` ADD COLUMN More INT DEFAULT 7",
            )
            run("CREATE TABLE Copy LIKE T1", "INSERT INTO COPY SELECT * FROM t1", "CREATE INDEX ix ON COPY (v)")
            run(
                "CREATE TABLE Child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES T1 (id))", "DROP TABLE CHILD"
            )
            assert run("RENAME TABLE T1 TO Old_T1, Copy TO T1", "UPDATE T1 SET v = 9") == ["old_t1", "t1"]
            run("ALTER TABLE T1 RENAME TO T2", f"ALTER TABLE T2 RENAME AS {capitals}.T3, ALGORITHM=INPLACE")
            assert run("CREATE TABLE IF NOT EXISTS OLD_t1 (x INT)", "DROP TABLE Old_T1") == ["t3"]
            run("TRUNCATE `T3`", "INSERT INTO T3 (id) VALUES (5)", "ALTER TABLE T3 DROP COLUMN MORE")
            made.source.execute(f"DROP DATABASE `{capitals}`")
            made.run_until_head()
            assert target.execute(f"SHOW TABLES FROM `{schema}` LIKE 't%'") == []
