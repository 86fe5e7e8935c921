"""Statements that name a table that is not captured next to one that is: what is known of it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.pipelines.case import case


def test_renamed_away_and_made_like_a_table_that_is_not_captured(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema, away = fresh_schema(mysql_source, mysql_target), fresh_schema(mysql_source)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.source.execute(
            f"CREATE TABLE `{away}`.model (id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'x' COLLATE utf8mb4_bin, KEY (v))"
        )
        made.run_until_head()

        def run(*statements: str) -> None:
            made.source.execute(f"USE `{schema}`", *statements)
            made.run_until_head()

        run(f"CREATE TABLE t LIKE `{away}`.model", "INSERT INTO t (id) VALUES (1)", "CREATE TABLE u LIKE t")
        made.assert_equal("t", "u")
        for table in ("t", "u"):
            sides = [s.execute(f"SHOW CREATE TABLE `{schema}`.{table}")[0][1] for s in (made.source, made.target)]
            assert sides[0] == sides[1]
        run(f"RENAME TABLE t TO `{away}`.t", "INSERT INTO u VALUES (2, 'y')", f"ALTER TABLE u RENAME TO `{away}`.u")
        there = [
            name for (name,) in made.target.execute(f"SHOW TABLES FROM `{schema}`") if not name.startswith("_sluice")
        ]
        assert there == []
        try:
            assert made.target.execute(f"SELECT id FROM `{away}`.t") == [(1,)]
            run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (5)")
            made.assert_equal("t")
        finally:
            made.target.execute(f"DROP DATABASE `{away}`")
