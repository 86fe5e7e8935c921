"""``capture.columns.exclude``: the values of a column are in no file, at no target, and nothing else is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.errors import ConfigError
from sluice.operations.check import check
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.pg_source import pg_case
from tests.support.servers.fixtures import setting

EXCLUDE = 'capture:\n  columns: {exclude: [".*\\\\.secret", ".*\\\\.c\\\\.(?i:pin)"]}\n'
TABLES = (
    "CREATE TABLE c (id INT PRIMARY KEY, name VARCHAR(40), secret VARCHAR(200), n INT, Pin VARCHAR(40), big TEXT)",
    "CREATE TABLE k (a INT, secret TEXT, b VARCHAR(40))",
)
BEFORE = (
    "INSERT INTO c VALUES (1, 'VISIBLE', 'HIDDEN-1', 1, 'HIDDEN-2', 'x'), (2, 'b', NULL, NULL, NULL, NULL)",
    "INSERT INTO k VALUES (1, 'HIDDEN-3', 'VISIBLE'), (1, 'HIDDEN-4', 'VISIBLE'), (2, NULL, NULL)",
)
CHANGES = (
    "INSERT INTO c VALUES (3, 'c', 'HIDDEN-5', 3, 'HIDDEN-6', 'y'), (4, 'd', 'HIDDEN-7', 4, NULL, NULL)",
    "UPDATE c SET secret = 'HIDDEN-8' WHERE id = 1",
    "UPDATE c SET n = 7, secret = 'HIDDEN-9' WHERE id = 3",
    "UPDATE c SET id = 5 WHERE id = 4",
    "DELETE FROM c WHERE id = 2",
    "INSERT INTO k VALUES (3, 'HIDDEN-10', 'c')",
    "DELETE FROM k WHERE a = 2",
)
DEFINITIONS = (
    "ALTER TABLE c ADD COLUMN after_it INT DEFAULT 4",
    "INSERT INTO c (id, name, secret, pin) VALUES (6, 'f', 'HIDDEN-11', 'HIDDEN-12')",
    "ALTER TABLE c DROP COLUMN secret",
    "INSERT INTO c (id, name, pin) VALUES (7, 'g', 'HIDDEN-13')",
    "ALTER TABLE c ADD COLUMN secret VARCHAR(90) DEFAULT 'none'",
    "INSERT INTO c (id, name, secret) VALUES (8, 'h', 'HIDDEN-14')",
)
SOURCES = [
    ("mysql_source", {}),
    ("mysql_source", {"binlog_row_metadata": "MINIMAL", "binlog_row_image": "MINIMAL"}),
    ("mariadb", {}),
    ("mariadb", {"binlog_row_metadata": "NO_LOG", "binlog_row_image": "MINIMAL"}),
    ("postgresql_source", {}),
]


@pytest.fixture(params=SOURCES, ids=lambda one: f"{one[0]}{'-bare' * bool(one[1])}")
def made(request: Any, tmp_path: Path, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    """A pipeline to a MySQL whose tables lack the columns, with rows from before its first copy."""
    name, settings = request.param
    source = request.getfixturevalue(name)
    kept = (
        "CREATE TABLE c (id INT PRIMARY KEY, name VARCHAR(40), n INT, big TEXT)",
        "CREATE TABLE k (a INT, b VARCHAR(40))",
    )
    if name == "postgresql_source":
        schema = fresh_schema(mysql_target)
        tables = (*TABLES, "ALTER TABLE k REPLICA IDENTITY FULL", "ALTER TABLE c REPLICA IDENTITY FULL")
        with pg_case(
            tmp_path, source, zookeeper, schema=schema, target=mysql_target, kind="mysql", tables=tables, start="dump"
        ) as made:  # fmt: skip
            begin(made, kept)
            made.prepare()
            yield made
        return
    schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    with setting(source, **settings):
        for table in TABLES:
            source.execute(table, database=schema)
        with case(tmp_path, source, mysql_target, zookeeper, schema, start="dump") as made:
            begin(made, kept)
            yield made


def begin(made: Case, tables: tuple[str, ...], text: str = EXCLUDE) -> None:
    made.path.write_text(made.yaml.replace("capture:\n", text), encoding="utf-8")
    for table in tables:
        made.target.execute(table, database=made.schema)


def run(made: Case, *statements: str) -> None:
    if hasattr(made, "write"):
        made.write(*statements)
    else:
        for statement in statements:
            made.source.execute(statement, database=made.schema)


def words_in(folder: Path) -> str:
    """All that is written in the files of a folder; Parquet files as their rows."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found.append(data.decode("latin-1"))
            if data[:4] == b"PAR1" == data[-4:]:
                found.append(str(pq.read_table(pa.BufferReader(data)).to_pydict()))
    return "\n".join(found)


def sides(made: Case) -> list[list[str]]:
    columns = {"c": "id, name, n, big, after_it", "k": "a, b"}
    return [
        sorted(
            str(row)
            for table, names in columns.items()
            for row in side.execute(f"SELECT {names} FROM {made.schema}.{table}")
        )
        for side in (made.source, made.target)
    ]


@pytest.mark.promise("A12")
def test_no_file_has_a_value_of_a_column_that_is_left_out(made: Case) -> None:
    run(made, *BEFORE)
    made.run_until_head()
    run(made, *CHANGES)
    made.run_until_head()
    for statement in DEFINITIONS:
        run(made, statement)
        made.run_until_head()
    ours, theirs = sides(made)
    assert ours == theirs
    assert len(ours) == 9
    columns = f"SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = '{made.schema}'"
    assert {row[0].lower() for row in made.target.execute(columns)} & {"secret", "pin"} == set()
    with delivering(made):  # a server of PostgreSQL writes to its log by itself
        verified = made.cli("verify", "run", made.name, "--table", f"{made.schema}.c")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    words = words_in(made.folder / "store")
    assert "VISIBLE" in words
    assert "HIDDEN" not in words
    tail = made.cli("tail", made.name, "--from", "earliest")
    assert "HIDDEN" not in tail.stdout


def test_a_key_cannot_be_left_out(made: Case) -> None:
    run(made, *BEFORE)
    begin(made, (), EXCLUDE.replace("[", '[".*\\\\.id", '))
    [error] = [one for one in check(made.runtime()).findings if one.setting == "capture.columns"]
    assert (error.severity, error.value) == ("error", f"{made.schema}.c")
    run(made, *CHANGES)
    with pytest.raises(ConfigError, match=r"capture\.columns\.exclude names id"):
        made.run_until_head()


def test_what_names_it_is_told(made: Case) -> None:
    rules = made.folder / "rules"
    (rules / "upper.sql").write_text("SELECT *, upper(secret) AS s FROM rows")
    (rules / "engine.yaml").write_text(
        "version: 1\nrules:\n  - {name: upper, path: upper.sql, type: sql, match: {table: c}}\n"
    )
    mapping = f"rules: engine.yaml\nmapping: [{{from: {made.schema}.c, to: {made.schema}.c, columns: {{rename: {{secret: s}}}}}}]\n"
    made.path.write_text(made.yaml.replace("capture:\n", EXCLUDE) + mapping, encoding="utf-8")
    found = [one for one in check(made.runtime()).findings if one.severity == "error"]
    assert {one.part for one in found if "capture.columns.exclude" in f"{one.why} {one.fix}"} == {"mapping", "rules"}, (
        found
    )
