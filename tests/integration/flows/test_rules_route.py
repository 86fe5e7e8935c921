"""A rule chooses where a row goes, whatever the kind of target: to a topic, to a table of rows by key, to a lake
table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.case import case
from tests.support.readers import kafka_reading

pytest.importorskip("pyiceberg")
pytest.importorskip("confluent_kafka")

from tests.support.readers.lakes import IcebergLake

TARGETS = """\
    options: {{}}
  - name: events
    type: kafka
    connection: case_events
    options: {{ack_topic: "{schema}-{{pipeline}}.{{target}}", create_topics: {{when: needed}}}}
  - name: reporting
    type: postgresql
    connection: case_reporting
    options: {{ack_schema: {schema}}}"""
RULE = "SELECT *, CASE WHEN country = 'CH' THEN '{schema}.swiss' END AS _table FROM rows"


def test_a_rule_routes_rows_to_a_topic_and_to_tables(
    tmp_path: Path,
    mysql_source: Any,
    zookeeper: Any,
    kafka: Any,
    postgresql: Any,
    fresh_schema: Any,
    fresh_pg_schema: Any,
) -> None:
    """A row that moves from one to the other is removed where it was."""
    schema = fresh_pg_schema(fresh_schema(mysql_source))
    mysql_source.execute(
        *(
            f"CREATE TABLE {schema}.{name} (id INT PRIMARY KEY, country VARCHAR(2), v INT)"
            for name in ("orders", "swiss")
        )
    )
    lake = IcebergLake(tmp_path / "lake")
    with case(
        tmp_path, mysql_source, lake, zookeeper, schema, kind="iceberg", target_extra=TARGETS.format(schema=schema),
        extra="rules: engine.yaml"
    ) as made:  # fmt: skip
        made.connections |= {"case_events": kafka.connection_json(), "case_reporting": postgresql.connection_json()}
        (tmp_path / "rules/split.sql").write_text(RULE.format(schema=schema))
        (tmp_path / "rules/engine.yaml").write_text(
            "rules:\n  - {name: split, path: split.sql, type: sql, match: {table: orders}}\n"
        )
        assert made.cli("check", "case", "--apply", "--yes").returncode == 0, made.cli("check", "case").stdout
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.orders VALUES (1, 'CH', 1), (2, 'AT', 2), (3, 'CH', 3)")
        made.run_until_head()
        mysql_source.execute(
            f"UPDATE {schema}.orders SET country = 'AT' WHERE id = 3", f"UPDATE {schema}.orders SET v = 9 WHERE id < 3"
        )
        made.run_until_head()
        for table, expected in (("swiss", [(1, "CH", 9)]), ("orders", [(2, "AT", 9), (3, "AT", 3)])):
            found = [tuple(row.values()) for row in lake.rows(schema, table).to_pylist()]
            assert sorted(found) == expected
            assert sorted(postgresql.execute(f'SELECT * FROM "{schema}".{table}')) == expected
            newest = {one.key: one.value for one in kafka_reading.read(kafka, f"{schema}.{table}")}
            documents = [json.loads(value)["after"] for value in newest.values() if value is not None]
            assert sorted(tuple(one.values()) for one in documents) == expected
