"""A Kafka broker for the contract suite. Needs the client, an extra."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

from sluice.config.connections import Endpoint
from sluice.model.tables import TableSchema
from sluice.targets.kafka.target import KafkaTarget
from sluice.targets.kafka.transactions import end_all
from sluice.targets.port import Input, Target
from sluice.testing.targets import Bench, Received
from tests.support.readers import kafka_reading
from tests.support.readers.debezium_values import python_row

_numbers = itertools.count()


class KafkaBench(Bench):
    """A Kafka broker; rows are read from its topics, read_committed."""

    appends = True

    def __init__(self, server: Any, changes: str = "latest", options: dict[str, Any] | None = None) -> None:
        self.server, self.changes = server, Input(changes)
        self.schema = f"s{os.getpid()}x{next(_numbers)}"
        self.single = (options or {}).get("partitioning") == "global"
        topic = f"{self.schema}-all" if self.single else "{schema}.{table}"
        self.options = {"topic": topic, "create_topics": {"when": "needed", "partitions": 3}, **(options or {})}
        self.connection = Endpoint(
            "target", "kafka", "", extra={"bootstrap.servers": server.bootstrap, "sasl.password": self.secret}
        )
        self.types: dict[str, dict[str, str]] = {}

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {**self.options, **config.pop("options", {})}
        pipeline = f"{self.schema}_{pipeline}"
        return KafkaTarget(self.config("kafka", name=name, options=options, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        self.types[str(table.table)] = {column.name: column.sql_type for column in table.columns}

    def received(self) -> list[Received]:
        counts = kafka_reading.topics_of(self.server)
        topics = sorted(t for t in counts if t.startswith((f"{self.schema}.", f"{self.schema}-")))
        found = []
        for one in kafka_reading.read(self.server, *topics, counts=counts):
            document = one.document
            if document is None:
                if self.changes is Input.CHANGES:
                    continue  # after its delete
                table, op = one.topic, "d"
                before, after = json.loads(one.key or b""), None
            else:
                table = f"{document['source']['db']}.{document['source']['table']}"
                op = {"c": "i"}.get(document["op"], document["op"])
                types = self.types[table]
                before, after = (python_row(types, document[side]) for side in ("before", "after"))
            name = f"{table}/{one.headers['sluice.batch']}/{one.headers['sluice.change']}"
            found.append(Received(name, table, op, before, after))
        return found

    def kill(self) -> None:
        end_all()
