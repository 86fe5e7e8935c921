"""Documents with schemas, in a registry or in the message: values that the log lacks, and numbers that JSON lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError
from tests.support.pipelines.kafka_pipelines import registry_pipeline
from tests.support.pipelines.pg_source import PgCase, pg_case
from tests.support.readers import kafka_reading
from tests.support.readers.registered import read_registered

PLACEHOLDER = "__debezium_unavailable_value"
FORMS = {
    "avro": "format: debezium-avro",
    "protobuf": "format: debezium-protobuf",
    "json": "format: debezium-json, schemas: true",
}


@contextmanager
def from_postgresql(
    folder: Path, source: Any, zookeeper: Any, kafka: Any, registry: Any, schema: str, form: str, *tables: str
) -> Iterator[PgCase]:
    options = f'{{{form}, create_topics: {{when: needed}}, ack_topic: "{schema}-{{pipeline}}.{{target}}"}}'
    with pg_case(
        folder, source, zookeeper, schema=schema, tables=tables, target=kafka, kind="kafka",
        target_extra=f"    changes: all\n    options: {options}",
    ) as made:  # fmt: skip
        connection = json.loads(kafka.connection_json())
        connection["extra"]["schema.registry.url"] = registry.url
        made.connections["case_target"] = json.dumps(connection)
        made.prepare()
        made.run_until_head()
        yield made


def documents(kafka: Any, registry: Any, topic: str) -> list[dict[str, Any]]:
    """The documents of a topic without its tombstones."""
    return [read_registered(registry, one.value) for one in kafka_reading.read(kafka, topic) if one.value is not None]


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_the_log_lacks_is_debeziums_placeholder(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any, kafka: Any, schema_registry: Any, form: str
) -> None:
    schema = f"toast_{form}"
    table = (
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, big text NOT NULL, bin bytea, doc jsonb, n numeric)",
        *(f"ALTER TABLE t ALTER {name} SET STORAGE EXTERNAL" for name in ("big", "bin", "doc")),
    )
    args = tmp_path, postgresql_source, zookeeper, kafka, schema_registry
    with from_postgresql(*args, schema, FORMS[form], *table) as made:
        made.write(
            "INSERT INTO t VALUES (1, 1, repeat('x', 9000), convert_to(repeat('y', 9000), 'UTF8'), "
            "jsonb_build_object('k', repeat('z', 9000)), NULL)",
            "UPDATE t SET v = 2",
        )
        made.run_until_head()
        made.write("DELETE FROM t")
        made.run_until_head()
        created, updated, deleted = documents(kafka, schema_registry, f"{schema}.t")
        assert created["after"]["big"] == "x" * 9000
        lacked = {"id": 1, "v": 2, "big": PLACEHOLDER, "bin": PLACEHOLDER.encode(), "doc": PLACEHOLDER, "n": None}
        assert updated["after"] == lacked
        assert (updated["op"], updated["before"]) == ("u", None)
        assert (deleted["op"], deleted["before"]["id"], deleted["after"]) == ("d", 1, None)


@pytest.mark.parametrize("form", FORMS)
def test_a_number_that_the_log_lacks_stops_the_load(
    tmp_path: Path,
    mysql_source: Any,
    zookeeper: Any,
    kafka: Any,
    schema_registry: Any,
    fresh_schema: Any,
    form: str,
) -> None:
    schema = fresh_schema(mysql_source)
    with registry_pipeline(tmp_path, mysql_source, kafka, schema_registry, zookeeper, schema, "FORM") as made:
        text = made.path.read_text("utf-8").replace(
            "format: FORM", f"{FORMS[form]}, unavailable_value_placeholder: unknown"
        )
        made.path.write_text(text, "utf-8")
        mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT, big TEXT NOT NULL, b BLOB)")
        made.run_until_head()
        with mysql_source.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
            cursor.execute(f"INSERT INTO {schema}.t VALUES (1, 1, 'all', x'00ff')")
            cursor.execute(f"UPDATE {schema}.t SET v = 2")
            connection.commit()
            made.run_until_head()
            last = documents(kafka, schema_registry, f"{schema}.t")[-1]
            assert last["after"] == {"id": 1, "v": 2, "big": "unknown", "b": b"unknown"}
            cursor.execute(f"UPDATE {schema}.t SET big = 'new'")
            connection.commit()
        with pytest.raises(LoadError, match=rf"the log lacks v of an updated row of {schema}\.t.* int ") as stopped:
            made.run_until_head()
        assert "binlog_row_image = 'FULL'" in (stopped.value.hint or "")
        assert len(documents(kafka, schema_registry, f"{schema}.t")) == 2


COLUMNS = {
    "i": ("INT NOT NULL DEFAULT 5", 5),
    "s": ("VARCHAR(9) NOT NULL DEFAULT 'é'", "é"),
    "n": ("DECIMAL(5,2) NOT NULL DEFAULT -1.5", "\xff\x6a"),
    "b": ("VARBINARY(3) NOT NULL DEFAULT X'00FF'", "\x00\xff"),
    "f": ("DOUBLE NOT NULL DEFAULT 0.25", 0.25),
    "u": ("BIGINT UNSIGNED NOT NULL DEFAULT 7", "\x07"),
    "t": ("DATETIME NOT NULL DEFAULT '1970-01-01 00:00:01'", 1000),
    "z": ("TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP", "1970-01-01T00:00:00Z"),
    "o": ("INT DEFAULT 6", 6),
    "e": ("ENUM('x','y') NOT NULL DEFAULT 'y'", "y"),
}


def test_a_registry_that_wants_compatible_schemas_takes_a_column_with_a_default(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, schema_registry: Any, fresh_schema: Any
) -> None:
    """BACKWARD, which registries have by default: a reader of the new schema reads what was written before."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    schema = fresh_schema(mysql_source)
    client, subject = SchemaRegistryClient({"url": schema_registry.url}), f"{schema}.t-value"
    with registry_pipeline(tmp_path, mysql_source, kafka, schema_registry, zookeeper, schema, "debezium-avro") as made:
        mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (1)")
        made.run_until_head()
        client.set_compatibility(subject, "BACKWARD")
        added = ", ".join(f"ADD {name} {words}" for name, (words, _) in COLUMNS.items())
        mysql_source.execute(f"ALTER TABLE {schema}.t {added}", f"INSERT INTO {schema}.t (id) VALUES (2)")
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.t (id) VALUES (3)")
        made.run_until_head()
        assert client.get_versions(subject) == [1, 2]
        envelope = json.loads(client.get_latest_version(subject).schema.schema_str)
        [record] = [field["type"][1] for field in envelope["fields"] if field["name"] == "before"]
        defaults = {field["name"]: field.get("default") for field in record["fields"]}
        assert defaults == {"id": None, **{name: default for name, (_, default) in COLUMNS.items()}}
        second = documents(kafka, schema_registry, f"{schema}.t")[1]["after"]
        assert (second["i"], second["s"], second["o"]) == (5, "é", 6)


def test_defaults_of_a_postgresql_source(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any, kafka: Any, schema_registry: Any
) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    client = SchemaRegistryClient({"url": schema_registry.url})
    args = tmp_path, postgresql_source, zookeeper, kafka, schema_registry
    with from_postgresql(*args, "defaults_of_pg", FORMS["avro"], "CREATE TABLE t (id int PRIMARY KEY)") as made:
        made.write("INSERT INTO t VALUES (1)")
        made.run_until_head()
        client.set_compatibility("defaults_of_pg.t-value", "BACKWARD")
        made.write("ALTER TABLE t ADD a2 int NOT NULL DEFAULT 5", "INSERT INTO t VALUES (2, 7)")
        made.run_until_head()
        made.write("UPDATE t SET a2 = 8")
        made.run_until_head()
        made.write("ALTER TABLE t ADD a3 text NOT NULL DEFAULT 'é'", "INSERT INTO t VALUES (3, 9)")
        made.run_until_head()
        assert client.get_versions("defaults_of_pg.t-value") == [1, 2, 3]
        rows = [one["after"] for one in documents(kafka, schema_registry, "defaults_of_pg.t")]
        assert rows == [
            {"id": 1}, {"id": 2, "a2": 7}, {"id": 1, "a2": 8}, {"id": 2, "a2": 8}, {"id": 3, "a2": 9, "a3": "é"},
        ]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_are_not_finite(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any, kafka: Any, schema_registry: Any, form: str
) -> None:
    schema = f"nan_{form}"
    table = "CREATE TABLE t (id int PRIMARY KEY, d float8, r float4)"
    args = tmp_path, postgresql_source, zookeeper, kafka, schema_registry
    with from_postgresql(*args, schema, FORMS[form], table) as made:
        made.write(
            "INSERT INTO t VALUES (1, 'Infinity', '-Infinity'), (2, '-Infinity', 'Infinity'), (3, 'NaN', 'NaN'), "
            "(4, 1.5, 2.5)"
        )
        made.run_until_head()
        rows = [one["after"] for one in documents(kafka, schema_registry, f"{schema}.t")]
        assert [(one["d"], one["r"]) for one in rows if one["id"] != 3] == [
            (math.inf, -math.inf), (-math.inf, math.inf), (1.5, 2.5)
        ]  # fmt: skip
        assert all(math.isnan(rows[2][name]) for name in ("d", "r"))
