"""debezium-protobuf: protoc reads its schemas, and messages have the same values as debezium-json, for all types; with
a real registry.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from devstack.registry import RegistryServer
from sluice.errors import MappingError
from sluice.formats.protobuf import Encoder
from sluice.model.tables import TableId
from tests.support.pipelines.kafka_pipelines import assert_says_the_same, by_connect, registry_pipeline
from tests.support.readers import kafka_reading

pytest.importorskip("fastavro")  # what the registry's client needs
registry_client = pytest.importorskip("confluent_kafka.schema_registry")

PROTOC = Path(sys.executable).with_name("protoc")


def compiled(folder: Path, schema: str, name: str) -> Any:
    """The class of a message, from the schema's text alone."""
    (folder / "schema.proto").write_text(schema, encoding="utf-8")
    out = folder / "schema.bin"
    done = subprocess.run(
        [PROTOC, f"-I{folder}", f"--descriptor_set_out={out}", str(folder / "schema.proto")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, f"{done.stderr}\n{schema}"
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def python_value(message: Any) -> Any:
    """A message as a dict; a Decimal as such."""
    if message.DESCRIPTOR.name == "Decimal":
        digits = int.from_bytes(message.value, "big", signed=True)
        return Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -message.scale))
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [python_value(one) if field.message_type else one for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return python_value(value) if field.message_type else value


class Numbers:
    """A registry's numbers; ``classes``: the message of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.classes: list[Any] = []

    def number_of(self, table: TableId | str, side: str, record: str, schema: str, kind: str) -> int:
        assert kind == "PROTOBUF"
        self.classes.append(compiled(self.folder, schema, record))
        return len(self.classes) - 1

    def read(self, message: bytes | None) -> Any:
        if message is None:
            return None
        assert (message[0], message[5]) == (0, 0)
        return python_value(self.classes[int.from_bytes(message[1:5], "big")].FromString(message[6:]))


def without_null_arrays(schema: Mapping[str, Any], value: Any) -> Any:
    if value is None:
        return [] if schema["type"] == "array" else None
    if schema["type"] == "struct":
        return {field["field"]: without_null_arrays(field, value[field["field"]]) for field in schema["fields"]}
    return value


def by_protobuf(schema: Mapping[str, Any], value: Any) -> Any:
    return without_null_arrays(schema, by_connect(schema, value))


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_values_of_all_types(
    tmp_path: Path, request: pytest.FixtureRequest, zookeeper: Any, kafka: Any, fresh_schema: Any, server: str
) -> None:
    source, form = request.getfixturevalue(server), "debezium-protobuf"
    numbers = Numbers(tmp_path)
    assert_says_the_same(tmp_path, source, kafka, zookeeper, fresh_schema(source), form, numbers, by_protobuf)


def test_a_pipeline_and_its_schemas(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, schema_registry: RegistryServer, fresh_schema: Any
) -> None:
    """Read with the schemas of the registry, through its own client; also the transactions."""
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    schema = fresh_schema(mysql_source)
    table, topic = f"`{schema}`.`odd-name`", f"{schema}.odd-name"
    client = registry_client.SchemaRegistryClient({"url": schema_registry.url})
    with registry_pipeline(
        tmp_path, mysql_source, kafka, schema_registry, zookeeper, schema, "debezium-protobuf"
    ) as made:
        text = made.path.read_text("utf-8")
        made.path.write_text(text.replace("ack_topic", f'transaction_topic: "{schema}-tx", ack_topic'), "utf-8")
        mysql_source.execute(
            f"CREATE TABLE {table} (id BIGINT UNSIGNED PRIMARY KEY, `unit price` DECIMAL(10,3), `Decimal` INT)"
        )
        made.run_until_head()
        mysql_source.execute(
            f"INSERT INTO {table} VALUES (18446744073709551615, -12.345, 0)",
            f"ALTER TABLE {table} ADD COLUMN note VARCHAR(9)",
            f"UPDATE {table} SET note = 'é', `Decimal` = NULL",
            f"DELETE FROM {table}",
        )
        made.run_until_head()

    def read(message: Any, name: str) -> list[Any]:
        found = []
        for data, field in ((message.key, MessageField.KEY), (message.value, MessageField.VALUE)):
            if data is None:
                found.append(None)
                continue
            stored = client.get_schema(int.from_bytes(data[1:5], "big"))
            assert stored.schema_type == "PROTOBUF"
            [record] = [line.split()[1] for line in stored.schema_str.splitlines() if line.startswith("message ")][:1]
            [package] = [
                line.split()[1].rstrip(";") for line in stored.schema_str.splitlines() if line.startswith("package ")
            ]
            kind = compiled(tmp_path, stored.schema_str, f"{package}.{record}")
            reader = ProtobufDeserializer(kind, {"use.deprecated.format": False})
            found.append(python_value(reader(data, SerializationContext(name, field))))
        return found

    rows = [read(one, topic) for one in kafka_reading.read(kafka, topic)]
    assert {key["id"] for key, _ in rows} == {Decimal(2**64 - 1)}
    first = {"id": Decimal(2**64 - 1), "unit_price": Decimal("-12.345"), "Decimal": 0}
    last = {**first, "Decimal": None, "note": "é"}
    assert [value and (value["op"], value["before"], value["after"]) for _, value in rows] == [
        ("c", None, first), ("u", {**first, "note": None}, last), ("d", last, None), None,
    ]  # fmt: skip
    assert client.get_versions(f"{topic}-value") == [1, 2]
    told = [read(one, f"{schema}-tx") for one in kafka_reading.read(kafka, f"{schema}-tx")]
    assert [(value["status"], value["event_count"]) for _, value in told] == [("BEGIN", None), ("END", 1)] * 3
    assert all(key["id"] == value["id"] for key, value in told)


def test_names_that_are_one_name() -> None:
    fields = [{"type": "string", "optional": True, "field": name} for name in ("a b", "aB")]
    with pytest.raises(MappingError, match="columns 'a b' and 'aB' are one name in Protobuf"):
        Encoder(json.dumps({"type": "struct", "name": "shop.t.Key", "fields": fields, "optional": False}))
