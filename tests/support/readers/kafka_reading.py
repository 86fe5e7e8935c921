"""Topics read from outside, as a read_committed consumer has them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")  # the client is an extra

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.running.waiting import wait_until


@dataclass(frozen=True)
class Read:
    """A message."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def document(self) -> Any:
        return None if self.value is None else json.loads(self.value)


def delete(server: Any, topic: str) -> None:
    """Delete a topic, and wait until the brokers have forgotten it."""
    client = AdminClient({"bootstrap.servers": server.bootstrap})
    client.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in topics_of(server), f"the end of topic {topic}")


def topics_of(server: Any) -> dict[str, int]:
    """Topic -> partitions."""
    found = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=30).topics
    return {name: len(one.partitions) for name, one in found.items() if one.error is None}


def settle(server: Any, topic: str) -> None:
    """Wait until no transaction of a topic is open: a client returns from its commit before the markers are written."""
    client = AdminClient({"bootstrap.servers": server.bootstrap})
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(topics_of(server).get(topic, 0))}

    def ends(level: IsolationLevel) -> list[int]:
        return [answer.result(30).offset for answer in client.list_offsets(asked, isolation_level=level).values()]

    if asked:
        written = ends(IsolationLevel.READ_UNCOMMITTED)
        wait_until(lambda: ends(IsolationLevel.READ_COMMITTED) >= written, "the end of all transactions")


def read(server: Any, *topics: str, committed: bool = True, counts: dict[str, int] | None = None) -> list[Read]:
    """All messages of topics, partition by partition."""
    counts = topics_of(server) if counts is None else counts
    places = [TopicPartition(topic, number, 0) for topic in topics for number in range(counts.get(topic, 0))]
    if not places:
        return []
    consumer = Consumer({
        "bootstrap.servers": server.bootstrap, "group.id": "test", "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted", "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,
    })  # fmt: skip
    found: list[Read] = []
    try:
        consumer.assign(places)
        left = {(place.topic, place.partition) for place in places}
        end = time.monotonic() + 60
        while left:
            assert time.monotonic() < end, f"topics did not end: {left}"
            for message in consumer.consume(10_000, 0.2 if not found else 0.05):
                if message.error() is None:
                    headers = {name: value.decode() for name, value in message.headers() or ()}
                    found.append(
                        Read(
                            message.topic(),
                            message.partition(),
                            message.offset(),
                            message.key(),
                            message.value(),
                            headers,
                        )
                    )
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic(), message.partition()))
                else:
                    raise AssertionError(message.error())
    finally:
        consumer.close()
    return sorted(found, key=lambda one: (topics.index(one.topic), one.partition, one.offset))


def values(found: Iterable[Read]) -> list[Any]:
    return [one.document for one in found]
