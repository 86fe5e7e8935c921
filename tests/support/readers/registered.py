"""Messages with schemas as their readers see them: Avro and Protobuf by a registry, and Kafka Connect's JSON."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any


def read_registered(registry: Any, message: bytes) -> Any:
    """Return a message as Python values: bytes as such, and float for every float and double."""
    if message[:1] == b"{":
        document = json.loads(message)
        return _connect(document["schema"], document["payload"])
    from confluent_kafka.schema_registry import SchemaRegistryClient

    found = SchemaRegistryClient({"url": registry.url}).get_schema(int.from_bytes(message[1:5], "big"))
    if found.schema_type == "PROTOBUF":
        from sluice.formats.protobuf import Decoder

        return Decoder(found.schema_str).decode(message[6:])
    import fastavro

    return fastavro.schemaless_reader(
        io.BytesIO(message[5:]), fastavro.parse_schema(json.loads(found.schema_str)), None
    )


def _connect(schema: Mapping[str, Any], value: Any) -> Any:
    if value is None:
        return None
    if schema["type"] == "struct":
        return {field["field"]: _connect(field, value.get(field["field"])) for field in schema["fields"]}
    if schema["type"] in {"float", "double"}:
        return float(value)
    return b64decode(value) if schema["type"] == "bytes" else value


__all__ = ["read_registered"]
