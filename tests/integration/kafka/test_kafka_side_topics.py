"""Transactions and changes of definitions in topics of their own, as Debezium has them."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ConfigError, MappingError
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.formats.avro import Encoder
from sluice.model.dumps import DumpState
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.kafka_pipelines import pipeline
from tests.support.readers import kafka_reading

fastavro = pytest.importorskip("fastavro")
TARGET = """    changes: all
    options: {{create_topics: {{when: needed}}, transaction_topic: "{schema}-transactions", schema_topic: "{schema}-changes"{more}}}
"""


def documents(kafka: Any, topic: str) -> list[Any]:
    return [json.loads(one.value) for one in kafka_reading.read(kafka, topic) if one.value is not None]


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_transactions_and_definitions(
    tmp_path: Path, request: pytest.FixtureRequest, zookeeper: Any, kafka: Any, fresh_schema: Any, server: str
) -> None:
    source = request.getfixturevalue(server)
    schema = fresh_schema(source)
    created = f"CREATE TABLE `{schema}`.a (id INT PRIMARY KEY, note VARCHAR(9))"
    source.execute(
        created, f"CREATE TABLE `{schema}`.b (note VARCHAR(9))", f"INSERT INTO `{schema}`.a VALUES (100, 'old')"
    )
    target = TARGET.format(schema=schema, more="")
    with pipeline(tmp_path, source, kafka, zookeeper, schema, target) as made:
        made.run_until_head()
        source.execute(
            "START TRANSACTION",
            f"INSERT INTO `{schema}`.a VALUES (1, 'x'), (2, 'y')",
            f"INSERT INTO `{schema}`.b VALUES ('one')",
            f"UPDATE `{schema}`.a SET id = id + 10 WHERE id = 1",  # two events
            f"DELETE FROM `{schema}`.a WHERE id = 2",
            f"DELETE FROM `{schema}`.b",
            "COMMIT",
            f"UPDATE `{schema}`.a SET note = 'z'",
            f"ALTER TABLE `{schema}`.a ADD COLUMN more INT COMMENT 'added'",
            f"INSERT INTO `{schema}`.a VALUES (3, 'w', 7)",
        )  # fmt: skip
        made.run_until_head()
    rows = {table: documents(kafka, f"{schema}.{table}") for table in "ab"}
    told = documents(kafka, f"{schema}-transactions")
    keys = [json.loads(one.key) for one in kafka_reading.read(kafka, f"{schema}-transactions")]

    assert [one["status"] for one in told] == ["BEGIN", "END"] * 3
    assert [one["id"] for one in told[::2]] == [one["id"] for one in told[1::2]] == [key["id"] for key in keys[::2]]
    assert len({one["id"] for one in told}) == 3
    ends = [
        (one["event_count"], {each["data_collection"]: each["event_count"] for each in one["data_collections"]})
        for one in told[1::2]
    ]
    assert ends == [
        (7, {f"{schema}.a": 5, f"{schema}.b": 2}),
        (2, {f"{schema}.a": 2}),
        (1, {f"{schema}.a": 1}),
    ]
    begun = [one for one in told if one["status"] == "BEGIN"]
    assert {(one["event_count"], one["data_collections"]) for one in begun} == {(None, None)}

    events = [one for table in rows.values() for one in table]
    for end in told[1::2]:
        inside = [one for one in events if one["transaction"]["id"] == end["id"]]
        assert sorted(one["transaction"]["total_order"] for one in inside) == list(range(1, end["event_count"] + 1))
        assert {one["source"]["gtid"] for one in inside} == {end["id"]}
        assert {one["ts_ms"] for one in inside} == {end["ts_ms"]}
    first = [one for one in rows["a"] if one["transaction"]["id"] == told[0]["id"]]
    in_order = [
        (one["op"], one["transaction"]["total_order"], one["transaction"]["data_collection_order"]) for one in first
    ]
    assert in_order == [("c", 1, 1), ("c", 2, 2), ("d", 4, 3), ("c", 5, 4), ("d", 6, 5)]
    assert Counter(one["op"] for one in rows["b"]) == {"c": 1, "d": 1}

    messages = kafka_reading.read(kafka, f"{schema}-changes")
    assert {one.key for one in messages} == {json.dumps({"databaseName": schema}, separators=(",", ":")).encode()}
    [change] = [json.loads(one.value) for one in messages if b"ADD COLUMN more" in one.value]
    assert (change["databaseName"], change["tableChanges"][0]["type"]) == (schema, "ALTER")
    assert [one["name"] for one in change["tableChanges"][0]["table"]["columns"]] == ["id", "note", "more"]
    assert change["source"]["pos"] > 0


def test_rows_of_a_dump_are_of_no_transaction(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY)", f"INSERT INTO `{schema}`.t VALUES (1), (2)")
    target = TARGET.format(schema=schema, more="")
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        made.run_until_head()
        with delivering(made):
            assert work(made.runtime(), start(made.runtime()).id).state is DumpState.DONE
        mysql_source.execute(f"INSERT INTO `{schema}`.t VALUES (3)")
        made.run_until_head()
    found = documents(kafka, f"{schema}.t")
    assert [one["transaction"] for one in found if one["op"] == "r"] == [None, None]
    assert [one["transaction"]["total_order"] for one in found if one["op"] == "c"] == [1]
    assert len(documents(kafka, f"{schema}-transactions")) == 2


@pytest.mark.parametrize("form", ["debezium-json", "canal-json", "maxwell-json", "cloudevents-json"])
def test_definitions_in_each_format(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any, form: str
) -> None:
    """Also of a batch that has no rows; with schemas, both topics go with them."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY)")
    more = f", format: {form}" + (", schemas: true" if form == "debezium-json" else "")
    target = TARGET.format(schema=schema, more=more)
    if form != "debezium-json":
        target = target.replace(f'transaction_topic: "{schema}-transactions", ', "")
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        made.run_until_head()
        mysql_source.execute(
            f"ALTER TABLE `{schema}`.t ADD COLUMN e ENUM('a', 'b') NOT NULL DEFAULT 'b', ADD COLUMN d DECIMAL(9,2)"
        )
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO `{schema}`.t VALUES (1, 'a', 1.5)")
        made.run_until_head()
    told = documents(kafka, f"{schema}-changes")
    if form == "canal-json":
        assert [(one["isDdl"], one["type"], one["table"]) for one in told] == [(True, "ALTER", "t")]
    elif form == "maxwell-json":
        assert [(one["type"], one["table"]) for one in told] == [("table-alter", "t")]
    elif form == "cloudevents-json":
        assert [one["type"].rsplit(".", 1)[1] for one in told] == ["SchemaChangeEvent"]
        [row] = kafka_reading.read(kafka, f"{schema}.t")
        assert row.headers["content-type"].startswith("application/cloudevents+json")
        assert row.document["data"]["after"]["e"] == "a"
    else:
        messages = [
            one for topic in ("changes", "transactions") for one in kafka_reading.read(kafka, f"{schema}-{topic}")
        ]
        assert len(messages) == 3
        for message in messages:
            for side in (message.key, message.value):
                given = json.loads(side)
                encoder = Encoder(json.dumps(given["schema"]))  # it refuses what the schema does not say
                body = io.BytesIO(encoder.encode(json.dumps(given["payload"])))
                found = fastavro.schemaless_reader(body, fastavro.parse_schema(json.loads(encoder.schema)), None)
                assert found == given["payload"]


def test_topics_that_do_not_go(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY)")
    target = TARGET.format(schema=schema, more="").replace("create_topics: {when: needed}, ", "")
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        found = made.cli("check", str(made.path)).stdout
        for name in ("transactions", "changes"):
            assert f"kafka-topics --create --topic {schema}-{name} --partitions 1" in " ".join(found.split())
        made.cli("check", str(made.path), "--apply")
        made.run_until_head()
        path = made.path.read_text("utf-8")
        made.path.write_text(path.replace(f"{schema}-changes", f"{schema}.t"), "utf-8")
        mysql_source.execute(f"INSERT INTO `{schema}`.t VALUES (1)")
        with pytest.raises(MappingError, match="has other messages already"):
            made.run_until_head()
        made.path.write_text(path.replace("changes: all", "changes: latest"), "utf-8")
        with pytest.raises(ConfigError, match="merged rows are of no transaction"):
            made.run_until_head()
