"""Pipelines that write to a Kafka broker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import values
from tests.support.pipelines import case

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
