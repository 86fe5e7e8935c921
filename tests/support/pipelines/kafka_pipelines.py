"""Pipelines that write to a Kafka broker."""

from __future__ import annotations

import json
import random
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from devstack.registry import RegistryServer
from sluice.flows.load.batch_changes import stored_changes
from sluice.targets.messages.documents import MessageWriter
from sluice.targets.messages.form import MessageForm
from tests.support.pipelines.case import case
from tests.support.values import random_values as values

ROWS = 40
"""Of a table with columns of all types."""


@contextmanager
def captured(folder: Path, source: Any, kafka: Any, zookeeper: Any, schema: str) -> Iterator[Any]:
    with case(folder, source, source, zookeeper, schema) as made:
        made.connections["case_target"] = kafka.connection_json()
        made.path.write_text(
            made.yaml.replace(
                "type: mysql",
                f'type: kafka\n    options: {{create_topics: {{when: needed}}, ack_topic: "{schema}-{{pipeline}}.{{target}}"}}',
            ),
            encoding="utf-8",
        )
        made.run_until_head()
        yield made


@contextmanager
def pipeline(
    folder: Path, source: Any, kafka: Any, zookeeper: Any, schema: str, target: str, *, extra: str = ""
) -> Any:
    with case(folder, source, source, zookeeper, schema, extra=extra) as made:
        made.connections["case_target"] = kafka.connection_json(user="sluice", password="s3cret-of-the-broker")
        own = f'options: {{ack_topic: "{schema}-{{pipeline}}.{{target}}", '  # all of these pipelines are called case
        made.yaml = made.yaml.replace("    type: mysql\n", f"    type: kafka\n{target.replace('options: {', own)}")
        made.path.write_text(made.yaml, encoding="utf-8")
        yield made


def statements_of_all_types(types: dict[str, Any], r: random.Random) -> Iterator[str]:
    for number, names in enumerate(values.groups(types)):
        table = f"t{number}"
        yield values.create(table, names, types)
        yield values.insert(table, range(ROWS), names, types, r)
        yield f"UPDATE {table} SET `{names[0]}` = NULL WHERE id % 3 = 0"
        yield f"UPDATE {table} SET id = id + 1000 WHERE id = 4"
        yield f"DELETE FROM {table} WHERE id % 5 = 0"


@contextmanager
def registry_pipeline(
    folder: Path,
    source: Any,
    kafka: Any,
    registry: RegistryServer,
    zookeeper: Any,
    schema: str,
    form: str,
    **extra: Any,
) -> Iterator[Any]:
    with case(folder, source, source, zookeeper, schema) as made:
        connection = json.loads(kafka.connection_json())
        connection["extra"] |= {"schema.registry.url": registry.url, **extra}
        made.connections["case_target"] = json.dumps(connection)
        options = f'{{format: {form}, create_topics: {{when: needed}}, ack_topic: "{schema}-{{pipeline}}.{{target}}"}}'
        made.path.write_text(
            made.yaml.replace("type: mysql", f"type: kafka\n    changes: all\n    options: {options}"), "utf-8"
        )
        yield made


def by_connect(schema: Mapping[str, Any], value: Any) -> Any:
    """A value of Kafka Connect's JSON, as its schema says."""
    if value is None:
        return None
    if schema["type"] == "struct":
        return {field["field"]: by_connect(field, value.get(field["field"])) for field in schema["fields"]}
    if schema.get("name", "").endswith(".Decimal"):
        digits = int.from_bytes(b64decode(value), "big", signed=True)
        return Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -int(schema["parameters"]["scale"])))
    if schema["type"] == "array":
        return [by_connect(schema["items"], one) for one in value]
    if schema["type"] == "float":
        return float(np.float32(value))
    return b64decode(value) if schema["type"] == "bytes" else value


def assert_says_the_same(
    folder: Path,
    source: Any,
    kafka: Any,
    zookeeper: Any,
    schema: str,
    form: str,
    numbers: Any,
    by: Callable[..., Any] = by_connect,
) -> None:
    """Messages of a binary format hold, in columns of all types, what those of debezium-json hold.

    Args:
        numbers: stands for the registry; ``read`` decodes a message.
        by: the value that a reader gets, from a schema of Kafka Connect and the JSON of the payload.
    """
    with captured(folder, source, kafka, zookeeper, schema) as made:
        types = values.types_of(source)
        source.execute(values.MODE, f"USE {schema}", *statements_of_all_types(types, random.Random(form)))
        made.run_until_head()
        runtime, seen = made.runtime(), 0
        for number in runtime.store.batches():
            with runtime.state() as state:
                stored = state.batches.require(number)
            manifest = runtime.store.read_manifest(stored.manifest)
            plain = MessageWriter(MessageForm(schemas=True), "shop", number)
            binary = MessageWriter(MessageForm(format=form), "shop", number, numbers=numbers)
            for piece in stored_changes(runtime, "copy", manifest, stored.manifest).change_pieces():
                expected = plain.messages(piece)
                for found in (binary.messages(piece), binary.one_by_one(piece)):
                    assert found.rows.tolist() == expected.rows.tolist()
                    assert (found.headers and list(found.headers)) == (expected.headers and list(expected.headers))
                    for side in ("keys", "values"):
                        for one, text in zip(getattr(found, side), getattr(expected, side), strict=True):
                            wanted = text.as_py() and json.loads(text.as_py())
                            assert numbers.read(one.as_py()) == (wanted and by(wanted["schema"], wanted["payload"]))
                            seen += 1
        assert seen > 100
