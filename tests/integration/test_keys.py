"""What tells rows apart: spellings that the server holds equal, unique keys instead of a primary key, columns that came in the middle."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import MappingError
from tests.pipelines import case

SPELLINGS = [
    "a",
    "A",
    "á",
    "Á",
    "a ",
    "A  ",
    "ß",
    "ss",
    "SS",
    "b",
    "B ",
    "ö",
    "o",
    "Ö",
    "\u3042",
    "\u30a2",
    "e\u0301",
    "é",
]


def write(server: Any, schema: str, seed: int, changes: int, spellings: list[str]) -> None:
    """Inserts, updates of keys to other spellings, deletes: whatever the server's collation allows."""
    choose = random.Random(seed)
    with server.connect(schema) as connection, connection.cursor() as cursor:
        done = 0
        while done < changes:
            name, other, n = choose.choice(spellings), choose.choice(spellings), choose.randint(1, 99)
            statement, values = choose.choice([
                ("INSERT IGNORE INTO words VALUES (%s, %s, %s)", (name, choose.choice(spellings), n)),
                ("REPLACE INTO words VALUES (%s, %s, %s)", (name, choose.choice(spellings), n)),
                ("UPDATE IGNORE words SET word = %s WHERE word = %s", (name, other)),
                ("UPDATE IGNORE words SET other = %s, n = %s WHERE word = %s", (name, n, other)),
                ("DELETE FROM words WHERE word = %s", (name,)),
            ])
            done += cursor.execute(statement, values)
        connection.commit()


@pytest.mark.parametrize(
    "collation", ["utf8mb4_0900_ai_ci", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "latin1_german2_ci"]
)
@pytest.mark.parametrize("consistency", ["row", "batch"])
def test_spellings_that_are_equal_to_the_server(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: Any,
    collation: str,
    consistency: str,
) -> None:
    """The table ends byte for byte as the source's, however the batch is cut into units."""
    monkeypatch.setattr("sluice.flows.units.UNIT_ROWS", 20)
    monkeypatch.setattr("sluice.flows.units.TABLE_COST", 1)
    monkeypatch.setattr("sluice.targets.mysql.bulk.BULK_ROWS", 5)
    _words(tmp_path, (mysql_source, mysql_target), zookeeper, fresh_schema, collation, consistency)


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_nopad_bin"])
def test_spellings_on_mariadb(
    tmp_path: Path, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, monkeypatch: Any, collation: str
) -> None:
    monkeypatch.setattr("sluice.flows.units.UNIT_ROWS", 20)
    monkeypatch.setattr("sluice.flows.units.TABLE_COST", 1)
    source = fresh_schema(mariadb, prefix="s")
    _words(
        tmp_path,
        (mariadb, mariadb),
        zookeeper,
        fresh_schema,
        collation,
        "row",
        schema=source,
        into=fresh_schema(mariadb, prefix="d"),
    )


def _words(
    folder: Path,
    servers: Any,
    zookeeper: Any,
    fresh_schema: Any,
    collation: str,
    consistency: str,
    schema: str = "",
    into: str = "",
) -> None:
    schema = schema or fresh_schema(*servers)
    charset = collation.partition("_")[0]
    spellings = [
        text for text in SPELLINGS if charset != "latin1" or text == text.encode("latin1", "ignore").decode("latin1")
    ]
    mapping = f"mapping: [{{from: {schema}.*, to: {into}.*}}]\n" if into else ""
    with case(
        folder, *servers, zookeeper, schema, target_extra=f"    consistency: {consistency}", extra=mapping
    ) as made:
        for server, place in ((servers[0], schema), (servers[1], into or schema)):
            server.execute(
                f"CREATE TABLE {place}.words (word VARCHAR(20) NOT NULL, other VARCHAR(20), n INT, PRIMARY KEY (word), UNIQUE KEY (other)) "
                f"CHARACTER SET {charset} COLLATE {collation}"
            )
        made.run_until_head()
        for seed in range(4):
            write(servers[0], schema, seed, 120, spellings)
            made.run_until_head()
            rows = [
                server.execute(f"SELECT HEX(word), HEX(other), n FROM {place}.words ORDER BY 1")
                for server, place in ((servers[0], schema), (servers[1], into or schema))
            ]
            assert rows[0] == rows[1], f"seed {seed}"


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
