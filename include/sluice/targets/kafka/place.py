"""The topics of a target by name, and the clients that reach them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.config.connections import Endpoint
from sluice.targets.kafka.client import client, settings
from sluice.targets.kafka.options import KafkaOptions

QUEUE = 200_000
"""Messages that wait in this process for the broker."""


@dataclass(frozen=True)
class Place:
    """The topics of a target, and the clients to reach them. Picklable."""

    endpoint: Endpoint
    options: KafkaOptions
    pipeline: str
    target: str

    @property
    def transactional_id(self) -> str:
        """The id by which Kafka fences off older producers of this target."""
        return f"sluice/{self.pipeline}/{self.target}"

    @property
    def owner(self) -> str:
        """``pipeline.target``, as messages and errors name the target."""
        return f"{self.pipeline}.{self.target}"

    @property
    def ack_topic(self) -> str:
        """The compacted topic that has the checkpoint."""
        return self.options.ack_topic_of(self.pipeline, self.target)

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"topic {self.ack_topic}, {self.owner}"

    @property
    def key(self) -> bytes:
        """The key of the record."""
        return self.owner.encode()

    @property
    def timeout_s(self) -> float:
        """The timeout of a transaction, in seconds."""
        return self.options.transaction_timeout.total_seconds()

    def client(self, kind: str, **more: Any) -> Any:
        """Return a client of the connection."""
        return client(kind, {**settings(self.endpoint), **more}, self.endpoint)

    def producer(self, on_delivery: Callable[[Any, Any], None]) -> Any:
        """Return the transactional producer."""
        options, timeout_ms = self.options, int(self.timeout_s * 1000)
        configuration = {
            "linger.ms": 20,
            "batch.num.messages": 100_000,
            **options.producer,
            "queue.buffering.max.messages": 2 * QUEUE,
            "queue.buffering.max.kbytes": 2_000_000,
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": options.max_message_bytes + 10_000,  # a message's own envelope
            "compression.type": options.compression,
            "delivery.report.only.error": True,
            "on_delivery": on_delivery,
        }
        configuration["batch.size"] = min(1_000_000, options.max_message_bytes)
        return self.client("Producer", **configuration)
