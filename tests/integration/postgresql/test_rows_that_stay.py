"""Rows that only a PostgreSQL target has, in a table with a text key: commands remove them, also where another pipeline
writes to another schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import delivering

COLUMNS = "(k VARCHAR(20) PRIMARY KEY, v INT)"


@contextmanager
def two_pipelines(folder: Path, source: Any, server: Any, zookeeper: Any, schemas: list[str]) -> Iterator[list[Case]]:
    """Each with a schema of its own, both with their checkpoints in the first one's."""
    options = f"    options: {{ack_schema: {schemas[0]}}}"
    with (
        case(
            folder / "one", source, server, zookeeper, schemas[0], kind="postgresql", target_extra=options, name="one"
        ) as one,
        case(
            folder / "two", source, server, zookeeper, schemas[1], kind="postgresql", target_extra=options, name="two"
        ) as two,
    ):
        for made in (one, two):
            source.execute(
                f"CREATE TABLE `{made.schema}`.t {COLUMNS}", f"INSERT INTO `{made.schema}`.t VALUES ('a', 1), ('b', 2)"
            )
            made.make_missing()
            made.run_until_head()
            made.source.execute(f"UPDATE `{made.schema}`.t SET v = v + 1")
            made.run_until_head()
        yield [one, two]


def rows(made: Case) -> list[str]:
    return [row[0] for row in made.target.execute(f'SELECT k FROM "{made.schema}".t ORDER BY k COLLATE "C"')]


@pytest.fixture
def one(
    tmp_path: Path, mysql_source: Any, postgresql: Any, zookeeper: Any, fresh_schema: Any, fresh_pg_schema: Any
) -> Iterator[Case]:
    schemas = [fresh_schema(mysql_source) for _ in range(2)]
    for schema in schemas:
        fresh_pg_schema(schema)
    with two_pipelines(tmp_path, mysql_source, postgresql, zookeeper, schemas) as made:
        yield made[0]


def test_a_verification_with_repair_removes_them(one: Case) -> None:
    one.target.execute(f"INSERT INTO \"{one.schema}\".t VALUES ('stale', 7)")
    with delivering(one):
        done = one.cli("verify", "one", "--repair", "--yes")
    assert done.returncode == 0, done
    assert rows(one) == ["a", "b"]


def test_what_a_recovery_leaves_is_removed_by_the_command_that_it_prints(one: Case) -> None:
    """Its log was purged with deletes in it: the copy keeps their rows, the exit status says so, and the command makes
    both sides equal.
    """
    one.source.execute(f"DELETE FROM `{one.schema}`.t WHERE k = 'a'", "FLUSH BINARY LOGS")
    newest = one.source.execute("SHOW BINARY LOGS")[-1][0]
    one.source.execute(f"PURGE BINARY LOGS TO '{newest}'")
    done = one.cli("recover", "one", "--apply", "--yes", "--json")
    assert done.returncode != 0, done
    [measure] = json.loads(done.stdout.splitlines()[-1])["measures"]
    assert measure["after"] == "sluice verify run one --target copy --repair"
    one.run_until_head()
    assert rows(one) == ["a", "b"]
    with delivering(one):
        repaired = one.cli(*measure["after"].split()[1:], "--yes")
    assert repaired.returncode == 0, repaired
    assert rows(one) == ["b"]


def test_a_pipeline_that_writes_the_same_table_keeps_them(one: Case) -> None:
    """The rows may be the other's; the line names it."""
    other = (
        one.path
        .read_text()
        .replace("pipeline: one", "pipeline: three")
        .replace(f"/test/{one.schema}", f"/test/{one.schema}-3")
    )
    (one.folder / "three.yaml").write_text(other)
    three = Case(one.folder, one.source, one.target, one.zookeeper_hosts, one.schema, "three", other, one.connections)
    three.run_until_head()
    one.source.execute(f"INSERT INTO `{one.schema}`.t VALUES ('c', 3)")
    three.run_until_head()
    one.target.execute(f"INSERT INTO \"{one.schema}\".t VALUES ('stale', 7)")
    with delivering(one):
        done = one.cli("verify", "one", "--repair", "--yes")
    assert "stale" in rows(one)
    assert "three" in done.stdout + done.stderr
