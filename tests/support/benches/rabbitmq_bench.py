"""A RabbitMQ broker for the contract suite. Needs its clients, an extra."""

from __future__ import annotations

import itertools
import json
import os
from contextlib import suppress
from typing import Any

from sluice.config.connections import parse_connection
from sluice.model.tables import TableSchema
from sluice.targets.port import Input, Target
from sluice.targets.rabbitmq.target import RabbitMQTarget
from sluice.testing.targets import Bench, Received
from tests.support.readers.debezium_values import python_row

_numbers = itertools.count()


class RabbitMQBench(Bench):
    """A broker; messages are read by pika, also those of streams.

    ``exchange``: in the options, then one queue is bound for everything.
    """

    appends = True

    def __init__(self, server: Any, changes: str = "all", options: dict[str, Any] | None = None) -> None:
        self.server, self.changes = server, Input(changes)
        self.schema = f"s{os.getpid()}x{next(_numbers)}"
        self.options = {"create": "needed", **(options or {})}
        self.streams = self.options.get("send_to") == "streams"
        for name in ("exchange", "stream"):
            if name in self.options:
                self.options[name] = f"{self.schema}.{self.options[name]}"
        self.connection = parse_connection("target", server.connection_json())
        self.secret = self.connection.password
        self.types: dict[str, dict[str, str]] = {}
        self.queues: list[str] = []
        self.taken: list[Any] = []
        if "exchange" in self.options:
            self.queues.append(self.everything(self.options["exchange"]))
        elif "stream" in self.options:
            self.queues.append(self.options["stream"])

    def everything(self, exchange: str) -> str:
        """Make a topic exchange and a quorum queue that gets all of it; return the queue's name."""
        connection = self.server.client()
        channel, queue = connection.channel(), f"{exchange}.all"
        channel.exchange_declare(exchange, "topic", durable=True)
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(queue, exchange, "#")
        connection.close()
        return queue

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {**self.options, **config.pop("options", {})}
        if self.streams:
            options.setdefault("ack_stream", f"_ack.{self.schema}.{{pipeline}}.{{target}}")
        return RabbitMQTarget(self.config("rabbitmq", name=name, options=options, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        self.types[str(table.table)] = {column.name: column.sql_type for column in table.columns}
        if "exchange" not in self.options and "stream" not in self.options:
            self.queues.append(str(table.table))

    def messages(self) -> list[Any]:
        """Everything that arrived, queue by queue."""
        found = []
        for name in self.queues:
            found += self.server.messages(name, stream=self.streams, whole=True)
        if self.streams:
            return found
        self.taken += found
        return self.taken

    def received(self) -> list[Received]:
        return [self._received(one) for one in self.messages()]

    def _received(self, one: Any) -> Received:
        document = json.loads(one.body)
        table = f"{document['source']['db']}.{document['source']['table']}"
        assert one.headers["sluice.table"] == table
        op = {"c": "i"}.get(document["op"], document["op"])
        before, after = (python_row(self.types[table], document[side]) for side in ("before", "after"))
        return Received(one.id, table, op, before, after)

    def remove(self) -> None:
        """Remove the queues and streams."""
        connection = self.server.client()
        for name in self.queues:
            with suppress(Exception):
                connection.channel().queue_delete(name)
        connection.close()
