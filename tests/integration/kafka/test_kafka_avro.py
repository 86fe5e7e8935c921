"""debezium-avro: with a real registry, read by the registry's own client; and the same values as debezium-json, for all
types.
"""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from devstack.registry import RegistryServer
from sluice.errors import ConfigError, LoadError, TargetUnavailable
from sluice.model.tables import TableId
from tests.support.pipelines.kafka_pipelines import assert_says_the_same, registry_pipeline
from tests.support.readers import kafka_reading

fastavro = pytest.importorskip("fastavro")
registry_client = pytest.importorskip("confluent_kafka.schema_registry")
SECRET = "s3cret-of-the-registry"


class Numbers:
    """A registry's numbers; ``schemas``: the Avro schema of each."""

    def __init__(self) -> None:
        self.schemas: list[Any] = []

    def number_of(self, table: TableId | str, side: str, record: str, schema: str, kind: str) -> int:
        assert kind == "AVRO"
        self.schemas.append(fastavro.parse_schema(json.loads(schema)))
        return len(self.schemas) - 1

    def read(self, message: bytes | None) -> Any:
        if message is None:
            return None
        assert message[0] == 0
        body = io.BytesIO(message[5:])
        found = fastavro.schemaless_reader(body, self.schemas[int.from_bytes(message[1:5], "big")], None)
        assert not body.read()
        return found


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_values_of_all_types(
    tmp_path: Path, request: pytest.FixtureRequest, zookeeper: Any, kafka: Any, fresh_schema: Any, server: str
) -> None:
    source = request.getfixturevalue(server)
    assert_says_the_same(tmp_path, source, kafka, zookeeper, fresh_schema(source), "debezium-avro", Numbers())


def test_a_pipeline_and_its_schemas(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, schema_registry: RegistryServer, fresh_schema: Any
) -> None:
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    schema = fresh_schema(mysql_source)
    table, topic = f"`{schema}`.`odd-name`", f"{schema}.odd-name"
    client = registry_client.SchemaRegistryClient({"url": schema_registry.url})
    with registry_pipeline(tmp_path, mysql_source, kafka, schema_registry, zookeeper, schema, "debezium-avro") as made:
        mysql_source.execute(
            f"CREATE TABLE {table} (id BIGINT UNSIGNED PRIMARY KEY, `unit price` DECIMAL(10,3), `2nd` VARBINARY(9))"
        )
        made.run_until_head()
        mysql_source.execute(
            f"INSERT INTO {table} VALUES (18446744073709551615, -12.345, x'00ff')",
            f"UPDATE {table} SET `unit price` = NULL",
            f"ALTER TABLE {table} ADD COLUMN note VARCHAR(9)",
            f"UPDATE {table} SET note = 'é'",
            f"DELETE FROM {table}",
        )
        made.run_until_head()
        read = AvroDeserializer(client)
        found = [
            (
                read(one.key, SerializationContext(topic, MessageField.KEY)),
                read(one.value, SerializationContext(topic, MessageField.VALUE)),
            )
            for one in kafka_reading.read(kafka, topic)
        ]
        whole = {"id": Decimal(2**64 - 1), "unit_price": Decimal("-12.345"), "_2nd": b"\x00\xff"}
        less, noted = {**whole, "unit_price": None}, {**whole, "unit_price": None, "note": "é"}
        blank = {**less, "note": None}
        assert {key["id"] for key, _ in found} == {Decimal(2**64 - 1)}
        assert [value and (value["op"], value["before"], value["after"]) for _, value in found] == [
            ("c", None, whole), ("u", whole, less), ("u", blank, noted), ("d", noted, None), None,
        ]  # fmt: skip
        assert client.get_versions(f"{topic}-value") == [1, 2]

        client.set_compatibility(f"{topic}-value", "BACKWARD")
        mysql_source.execute(
            f"ALTER TABLE {table} ADD COLUMN must INT NOT NULL",
            f"INSERT INTO {table} (id, must) VALUES (2, 7)",
        )
        with pytest.raises(LoadError, match="does not go with the schema before it") as refused:
            made.run_until_head()
        assert f"compatibility of subject {topic}-value" in (refused.value.hint or "")
        client.set_compatibility(f"{topic}-value", "NONE")
        made.run_until_head()
        last = kafka_reading.read(kafka, topic)[-1].value
        assert read(last, SerializationContext(topic, MessageField.VALUE))["after"]["must"] == 7
        assert client.get_versions(f"{topic}-value") == [1, 2, 3]


def test_a_registry_that_does_not_answer(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, server_folder: Path, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source)
    server = RegistryServer(server_folder / f"registry-{schema}")
    server.port = 1
    login = {"schema.registry.basic.auth.user.info": f"sluice:{SECRET}", "schema.registry.max.retries": 0}
    with registry_pipeline(tmp_path, mysql_source, kafka, server, zookeeper, schema, "debezium-avro", **login) as made:
        mysql_source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY)")
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO `{schema}`.t VALUES (1)")
        with pytest.raises(TargetUnavailable, match=r"schema of .*t as ") as refused:
            made.run_until_head()
        assert SECRET not in str(refused.value)


def test_a_connection_without_a_registry(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, server_folder: Path, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source)
    server = RegistryServer(server_folder / f"registry-{schema}")
    with registry_pipeline(
        tmp_path, mysql_source, kafka, server, zookeeper, schema, "debezium-avro", **{"schema.registry.url": ""}
    ) as made:
        mysql_source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY)")
        made.run_until_head()
        checked = made.cli("check", str(made.path))
        assert "names no schema registry" in checked.stdout
        assert checked.returncode == 1
        mysql_source.execute(f"INSERT INTO `{schema}`.t VALUES (1)")
        with pytest.raises(ConfigError, match="names no schema registry"):
            made.run_until_head()
