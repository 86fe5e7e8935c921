"""The PostgreSQL target's choices of names and collations: identifiers folded to lower case, texts compared as at the
source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import MappingError
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import delivering

PG = "postgresql"


@pytest.fixture
def schema(mysql_source: Any, postgresql: Any, fresh_schema: Any, fresh_pg_schema: Any) -> str:
    """An empty schema of the same name on both sides."""
    return str(fresh_pg_schema(fresh_schema(mysql_source, options="CHARACTER SET utf8mb4")))


def test_folded_names_need_no_quotes(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, schema: str
) -> None:
    """From the copy on: rows by key and without one, definitions that change, verify and a range made equal."""
    source = mysql_source
    source.execute(
        f"CREATE TABLE {schema}.`OrderLines` (`OrderId` INT, `LineNo` INT, `ItemName` VARCHAR(20) COMMENT 'what', "
        "PRIMARY KEY (`OrderId`, `LineNo`)) COMMENT 'lines'",
        f"CREATE TABLE {schema}.`Log` (`What` VARCHAR(20))",
        f"INSERT INTO {schema}.OrderLines VALUES (1, 1, 'a'), (1, 2, 'b'), (2, 1, 'c')",
    )

    def there(sql: str) -> list[tuple[Any, ...]]:
        """Without quotes."""
        return sorted(postgresql.execute(f"SET search_path = {schema}", sql), key=repr)

    lines = f"    options: {{ack_schema: {schema}, identifiers: folded}}"
    with case(tmp_path, source, postgresql, zookeeper, schema, kind=PG, target_extra=lines, start="dump") as made:
        planned = made.cli("check", "case", "--json").stdout
        assert f'CREATE TABLE \\"{schema}\\".\\"orderlines\\" (\\"orderid\\" integer NOT NULL' in planned
        made.make_missing()
        made.run_until_head()
        assert there("SELECT OrderId, LineNo, ItemName FROM OrderLines") == [(1, 1, "a"), (1, 2, "b"), (2, 1, "c")]
        comment = "SELECT col_description('orderlines'::regclass, 3)"
        assert there(comment) == [("what",)]
        source.execute(
            f"USE `{schema}`",
            "UPDATE OrderLines SET ItemName = 'z', LineNo = 9 WHERE OrderId = 1 AND LineNo = 2",
            "DELETE FROM OrderLines WHERE OrderId = 2",
            "INSERT INTO Log VALUES ('x'), ('x'), ('y')",
            "DELETE FROM Log WHERE What = 'x' LIMIT 1",
            "ALTER TABLE OrderLines ADD COLUMN `NetPrice` INT NOT NULL DEFAULT 3 COMMENT 'net', RENAME COLUMN "
            "ItemName TO `TheItem`",
            "CREATE TABLE `Later` (`Id` INT PRIMARY KEY)",
            "INSERT INTO Later VALUES (5)",
        )
        made.run_until_head()
        assert there("SELECT OrderId, LineNo, TheItem, NetPrice FROM OrderLines") == [(1, 1, "a", 3), (1, 9, "z", 3)]
        assert there("SELECT What FROM Log") == [("x",), ("y",)]
        assert there("SELECT Id FROM Later") == [(5,)]
        source.execute(
            f"USE `{schema}`", "RENAME TABLE Later TO `LaterOn`", "ALTER TABLE OrderLines DROP COLUMN NetPrice"
        )
        made.run_until_head()
        assert there("SELECT Id FROM LaterOn") == [(5,)]
        there("INSERT INTO OrderLines VALUES (7, 7, 'only here') RETURNING 1")
        there("UPDATE OrderLines SET TheItem = 'wrong' WHERE LineNo = 9 RETURNING 1")
        with delivering(made):
            found = made.cli("verify", "case", "--repair", "--yes")
        assert (found.returncode, "2 repaired" in found.stdout) == (0, True), found.stdout + found.stderr
        made.run_until_head()
        assert there("SELECT OrderId, LineNo, TheItem FROM OrderLines") == [(1, 1, "a"), (1, 9, "z")]
        _refuses_a_second_log(made, there)


def _refuses_a_second_log(made: Case, there: Callable[[str], list[tuple[Any, ...]]]) -> None:
    """A table whose folded name is another's: found by ``check``, by the batch that makes it, and, where making it is
    ignored, by its rows; none of them arrives. What the error says to run puts it right."""
    source, schema = made.source, made.schema
    one_table = rf"{schema}\.LOG and {schema}\.Log are one table at the target, {schema}\.log"
    source.execute(f"CREATE TABLE {schema}.`LOG` (`What` VARCHAR(20))")
    clash = made.cli("check", "case", "--json")
    assert clash.returncode == 1
    assert re.search(one_table, clash.stdout)
    with pytest.raises(MappingError, match=one_table):
        made.run_until_head()
    made.path.write_text(made.yaml.replace("    options:", "    ddl: {create_table: ignore}\n    options:"))
    made.run_until_head()
    source.execute(f"INSERT INTO {schema}.`LOG` VALUES ('mixed')")
    for _ in range(2):
        with pytest.raises(MappingError, match=one_table) as refused:
            made.run_until_head()
    assert "sluice rollback case" in str(refused.value.hint)
    assert there("SELECT What FROM Log") == [("x",), ("y",)]
    made.path.write_text(f"{made.yaml}mapping: [{{from: {schema}.LOG, to: {schema}.Log2}}]\n")
    for command in (("rollback", "case", "--yes"), ("check", "case", "--apply", "--yes")):
        done = made.cli(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    made.run_until_head()
    assert there("SELECT What FROM Log") == [("x",), ("y",)]
    assert there("SELECT What FROM Log2") == [("mixed",)]


TEXTS = (
    "", "a", "A", "á", "Á", "ä", "ae", "b", "B", "é", "e\u0301", "e", "ö", "oe", "o", "å", "aa", "y", "ü", "1", "!",
    "日", "😀", "🐬",
)  # fmt: skip
COLLATIONS = (
    "utf8mb4_0900_ai_ci", "utf8mb4_0900_as_ci", "utf8mb4_0900_as_cs", "utf8mb4_unicode_520_ci", "utf8mb4_sv_0900_ai_ci",
    "utf8mb4_de_pb_0900_ai_ci",
)  # fmt: skip


def test_texts_are_compared_as_at_the_source(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, schema: str
) -> None:
    """In tables that the option names, made by ``check --apply`` or followed; keys and other tables are left to the
    database.
    """
    source = mysql_source
    columns = ", ".join(f"`{name}` VARCHAR(20) COLLATE {name}" for name in COLLATIONS)
    values = ", ".join(f"({n}, {', '.join([repr(text)] * len(COLLATIONS))})" for n, text in enumerate(TEXTS))
    source.execute(
        f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, {columns})",
        f"CREATE TABLE {schema}.other (id INT PRIMARY KEY, v VARCHAR(9))",
        f"CREATE TABLE {schema}.texts (name VARCHAR(20) PRIMARY KEY)",
        f"INSERT INTO {schema}.t VALUES {values}",
    )
    lines = (
        f"    options: {{ack_schema: {schema}, icu_collations: [{schema}.t, {schema}.texts, {schema}.later], "
        "indexes: true}"
    )

    def collation(table: str, column: str) -> str:
        found = postgresql.execute(
            f"SELECT COALESCE(collation_name, '') FROM information_schema.columns WHERE table_schema = '{schema}' "
            f"AND table_name = '{table}' AND column_name = '{column}'"
        )
        return str(found[0][0])

    with case(tmp_path, source, postgresql, zookeeper, schema, kind=PG, target_extra=lines, start="dump") as made:
        planned = made.cli("check", "case", "--json").stdout
        assert "compared by ICU's und-u-ks-level1 for utf8mb4_0900_ai_ci" in planned
        assert "a key column is compared by the database's own collation, not as by utf8mb4_0900_ai_ci" in planned
        made.make_missing()
        made.run_until_head()
        for name in COLLATIONS:
            pairs = "SELECT a.id, b.id FROM {place} a JOIN {place} b ON a.{c} = b.{c} WHERE a.id < b.id ORDER BY 1, 2"
            here = source.execute(pairs.format(place=f"`{schema}`.t", c=f"`{name}`"))
            there = postgresql.execute(pairs.format(place=f'"{schema}".t', c=f'"{name}"'))
            assert [(TEXTS[a], TEXTS[b]) for a, b in there] == [(TEXTS[a], TEXTS[b]) for a, b in here], name
        assert (collation("other", "v"), collation("texts", "name")) == ("", "")
        source.execute(
            f"USE `{schema}`",
            "ALTER TABLE t ADD COLUMN more VARCHAR(9) COLLATE utf8mb4_0900_as_ci",
            "ALTER TABLE t MODIFY utf8mb4_0900_ai_ci VARCHAR(40) COLLATE utf8mb4_0900_ai_ci",
            "CREATE TABLE later (id INT PRIMARY KEY, v VARCHAR(9) UNIQUE)",
            "INSERT INTO later VALUES (1, 'a'), (2, 'B')",
            "UPDATE later SET v = 'A' WHERE id = 1",
        )
        made.run_until_head()
        assert collation("t", "more") == "utf8mb4_0900_as_ci"
        assert collation("t", COLLATIONS[0]) == COLLATIONS[0]
        assert postgresql.execute(f"SELECT id, v FROM \"{schema}\".later WHERE v IN ('a', 'b') ORDER BY id") == [
            (1, "A"),
            (2, "B"),
        ]
        with delivering(made):
            assert made.cli("verify", "case").returncode == 0
            postgresql.execute(f"UPDATE \"{schema}\".later SET v = 'a' WHERE id = 1")
            assert made.cli("verify", "case").returncode == 3, "values are compared exactly, whatever the collation"
