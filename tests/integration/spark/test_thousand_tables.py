"""A batch of many tables (``SLUICE_TEST_TABLES=1000``) through a real Spark: as many jobs as for sixty, and every row
of every table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.spark import SparkConnectServer
from tests.support.pipelines.case import Case, case

FEW, MANY = 60, int(os.environ.get("SLUICE_TEST_TABLES", "400"))


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkConnectServer]:
    """A server of its own, which writes down every job that it runs."""
    log = tmp_path / "events"
    log.mkdir()
    conf = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": log.as_uri(), "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }  # fmt: skip
    with SparkConnectServer(tmp_path / "spark", conf=conf) as server:
        yield server


def jobs(folder: Path) -> int:
    """Jobs that Spark has started since it runs."""
    [log] = [path for path in (folder / "events").iterdir() if path.is_file() and not path.name.startswith(".")]
    lines = log.read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["Event"] == "SparkListenerJobStart" for line in lines)


def create(server: Any, schema: str, count: int) -> None:
    """In InnoDB's own file: one file a table takes far longer to make and to drop."""
    server.execute("SET GLOBAL innodb_file_per_table = OFF")
    try:
        with server.connect(schema) as connection, connection.cursor() as cursor:
            for number in range(count):
                cursor.execute(f"CREATE TABLE t{number:04d} (id INT PRIMARY KEY, v INT, name VARCHAR(20) UNIQUE)")
    finally:
        server.execute("SET GLOBAL innodb_file_per_table = ON")


def write(source: Any, schema: str, statement: str, count: int) -> None:
    """The same in every table, in one transaction."""
    with source.connect(schema) as connection, connection.cursor() as cursor:
        connection.begin()
        for number in range(count):
            cursor.execute(statement.format(t=f"t{number:04d}", n=number))
        connection.commit()


def everything(server: Any, schema: str) -> list[tuple[Any, ...]]:
    each = (f"SELECT {number} AS n, id, v, name FROM t{number:04d}" for number in range(MANY))
    return list(server.execute(" UNION ALL ".join(each) + " ORDER BY n, id", database=schema))


def run(made: Case, folder: Path) -> int:
    """Deliver all there is, in one batch. Returns how many jobs that took."""
    before = jobs(folder)
    steps = made.run_until_head("connect")
    assert len({step.batch for step in steps if step.batch}) == 1
    return jobs(folder) - before


@pytest.mark.slow
def test_the_number_of_jobs_is_the_same(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, spark: SparkConnectServer
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        create(server, schema, MANY)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.connections["spark_connect_default"] = spark.connection_json()
        text = made.yaml.replace("spark: {mode: local}", "spark: {mode: connect, from_changes: 0}")
        made.path.write_text(text.replace("max_wait: 200ms", "max_wait: 30s"))
        made.run_until_head("connect")
        taken = {}
        for count in (FEW, MANY):
            write(mysql_source, schema, "INSERT INTO {t} VALUES (1, {n}, 'a'), (2, {n}, 'b'), (3, {n}, 'c')", count)
            inserts = run(made, tmp_path)
            write(mysql_source, schema, "DELETE FROM {t} WHERE id = 3", count)
            write(mysql_source, schema, "UPDATE {t} SET name = IF(id = 1, 'c', 'a'), v = -v ORDER BY id", count)
            taken[count] = (inserts, run(made, tmp_path))
            assert everything(mysql_target, schema) == everything(mysql_source, schema)
            write(mysql_source, schema, "DELETE FROM {t}", count)
            run(made, tmp_path)
        assert taken[MANY] == taken[FEW]
        assert taken[MANY][0] > 0
