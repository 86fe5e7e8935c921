"""The compacted topic with the checkpoint of one target: its record, how it is read, and how the topic is made.

The topic belongs to one target alone. In a shared one, a transaction that another pipeline left open would hide what
follows it from ``read_committed``, which includes this target's own newest record.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from sluice.errors import CheckpointError, TargetUnavailable
from sluice.targets.kafka.client import ADMIN_S, ANSWER_S, KicksOut, errors, kafka_error, library, translated
from sluice.targets.kafka.options import MissingTopics
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.topics import KnownTopics, create
from sluice.targets.port import Checkpoint
from sluice.targets.port.record import Record, checkpoint_of, fields_of, reading

_TAIL = 8
SETTLES_S = 5.0
"""Seconds to wait for the marker of a transaction that is in the topic."""


@dataclass(frozen=True, slots=True)
class KafkaCheckpoint(Record):
    """The record: the checkpoint, the topics that the target wrote to, and dead letters that were delivered since."""

    topics: KnownTopics = field(default_factory=KnownTopics)
    replayed: tuple[str, ...] = ()

    @override
    def rewound(self, checkpoint: Checkpoint, *, anew: bool) -> KafkaCheckpoint:
        """Return the record without dead letters, which are delivered again."""
        return KafkaCheckpoint(checkpoint, self.topics)


@dataclass(frozen=True)
class AckTopic:
    """The topic with the checkpoint of a target."""

    place: Place

    def read(self, settle_s: float = SETTLES_S, *, settled: bool = False) -> KafkaCheckpoint | None:
        """Return what the target says it holds; None if nothing. Takes nothing over.

        Args:
            settle_s: how long to wait for a transaction that is in the topic and has no end there: the client returns
                from a commit before its marker is written. After that it counts as left by a dead process, and is
                ignored.
            settled: there can be no such transaction.
        """
        doing = f"reading the checkpoint of {self.place.owner}"
        consumer = self.place.client(
            "Consumer",
            **{
                "group.id": f"sluice-{self.place.owner}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "auto.offset.reset": "earliest",
            },
        )
        try:
            with errors(self.place.endpoint, doing, where=self.place.ack_topic, caller=consumer):
                topic = consumer.list_topics(self.place.ack_topic, timeout=ANSWER_S).topics.get(self.place.ack_topic)
                if topic is None or (
                    topic.error is not None and topic.error.name() in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}
                ):
                    return None
                if topic.error is not None:
                    raise translated(topic.error, self.place.endpoint, doing, where=self.place.ack_topic)
                return self._last(consumer, doing, settle_s, settled)
        except KicksOut as error:
            raise TargetUnavailable(f"{doing}: {error}") from None
        finally:
            consumer.close()

    def _last(self, consumer: Any, doing: str, settle_s: float, settled: bool) -> KafkaCheckpoint | None:
        """Return the newest record.

        The topic has one key, so it is the last one; most of the topic need not be read.
        """
        lib = library()
        partition = lib.TopicPartition(self.place.ack_topic, 0)
        low, high = consumer.get_watermark_offsets(partition, timeout=ANSWER_S, cached=False)
        back, patience = _TAIL, time.monotonic() + (ANSWER_S if settled else settle_s)
        while True:
            start = max(low, high - back)
            consumer.assign([lib.TopicPartition(self.place.ack_topic, 0, start)])
            newest, end = None, time.monotonic() + ANSWER_S
            while True:
                message = consumer.poll(0.5)
                if message is None:
                    if time.monotonic() > end:
                        raise TargetUnavailable(
                            f"{doing}: Kafka did not give all of the topic within {ANSWER_S:.0f} s",
                            where=self.place.ack_topic,
                        )
                    continue
                if message.error() is None:
                    newest = message
                elif message.error().code() == lib.KafkaError._PARTITION_EOF:
                    _, written = consumer.get_watermark_offsets(partition, cached=True)
                    if message.offset() >= max(high, written):
                        break
                    if time.monotonic() > patience and message.offset() >= high:
                        if settled:
                            raise TargetUnavailable(
                                f"{doing}: another process has an open transaction in the topic",
                                where=self.place.ack_topic,
                                hint="only this target may write to it; the broker ends the transaction after its "
                                "timeout",
                            )
                        break
                    consumer.seek(lib.TopicPartition(self.place.ack_topic, 0, message.offset()))
                    time.sleep(0.02)
                else:
                    raise translated(message.error(), self.place.endpoint, doing, where=self.place.ack_topic)
            if newest is not None:
                return self._checkpoint_of(newest)
            if start == low:
                return None
            back *= 32

    def end(self, admin: Any) -> int | None:
        """Return the end of what is committed in the topic; None if there is no topic.

        Raises TargetUnavailable, LoadError.
        """
        from confluent_kafka.admin import OffsetSpec

        lib, doing = library(), f"looking at the end of the topic {self.place.ack_topic}"
        partition = lib.TopicPartition(self.place.ack_topic, 0)
        with errors(self.place.endpoint, doing, where=self.place.ack_topic):
            requested_offsets = admin.list_offsets(
                {partition: OffsetSpec.latest()},
                isolation_level=lib.IsolationLevel.READ_COMMITTED,
                request_timeout=ADMIN_S,
            )
            try:
                return int(requested_offsets[partition].result().offset)
            except lib.KafkaException as error:
                if kafka_error(error).name() in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}:
                    return None
                raise

    def _checkpoint_of(self, message: Any) -> KafkaCheckpoint | None:
        where = f"{self.place.ack_topic}, offset {message.offset()}"
        if message.key() != self.place.key:
            raise CheckpointError(
                f"the topic of {self.place.owner} has a record of {(message.key() or b'')[:200]!r}",
                where=where,
                hint="each target needs an ack_topic of its own",
            )
        if message.value() is None:
            return None
        with reading(self.place, where=where):
            data = json.loads(message.value())
            checkpoint = checkpoint_of(data, self.place.owner, sealed=False)  # older versions wrote no seal
            topics = KnownTopics(dict(data.get("partitions", {})), dict(data.get("topic_ids", {})))
            return KafkaCheckpoint(checkpoint, topics, tuple(data.get("replayed", ())))

    def record(self, checkpoint: KafkaCheckpoint) -> bytes:
        """Return the record as stored."""
        more: dict[str, Any] = {"partitions": dict(checkpoint.topics.partitions), "replayed": list(checkpoint.replayed)}
        if checkpoint.topics.ids:
            more["topic_ids"] = dict(checkpoint.topics.ids)
        return json.dumps(fields_of(checkpoint.checkpoint, self.place.owner) | more).encode()

    def make(self) -> None:
        """Create the compacted topic if it is missing. Its segments are small: little is left to be read and stored."""
        config = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}
        replication = self.place.options.create_topics.replication
        create(self.place, self.place.ack_topic, MissingTopics(partitions=1, replication=replication, config=config))
        admin, end = self.place.client("AdminClient"), time.monotonic() + ANSWER_S
        with errors(self.place.endpoint, f"making the topic {self.place.ack_topic}"):
            while self.place.ack_topic not in _known(admin, self.place.ack_topic) and time.monotonic() < end:
                time.sleep(0.02)  # the brokers learn about it one after the other


def _known(admin: Any, topic: str) -> set[str]:
    topics = admin.list_topics(topic, timeout=ANSWER_S).topics
    return {name for name, metadata in topics.items() if metadata.error is None and metadata.partitions}
