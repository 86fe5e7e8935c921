"""Read a topic from its beginning as a ``read_committed`` consumer, and later only what was added to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import TargetUnavailable
from sluice.targets.kafka.client import ADMIN_S, ANSWER_S, errors, library, translated
from sluice.targets.kafka.place import Place

MESSAGES = 10_000
"""Messages that are requested at a time."""


@dataclass
class TopicReader:
    """Reads a topic and remembers where its next read of each partition begins.

    Args:
        purpose: a word of the consumer group, which commits nothing.
        first: called with number and first offset of each partition that is read for the first time; it may raise.
    """

    place: Place
    topic: str
    purpose: str
    first: Callable[[int, int], None] = lambda number, low: None
    next: dict[int, int] = field(default_factory=dict)

    def read_on(
        self, partitions: int, take: Callable[[Sequence[Any]], None], ends: Mapping[int, int] | None = None
    ) -> None:
        """Give ``take`` the messages up to the end of every partition, in order.

        Raises TargetUnavailable, KicksOut, and what ``first`` raises.

        ``ends``: offsets that must be reached, see :func:`committed_ends`; None: what is committed when it is read.
        """
        doing = f"reading topic {self.topic}"
        settings = {
            "group.id": f"sluice-{self.purpose}-{self.place.owner}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "auto.offset.reset": "error",
        }
        lib = library()
        consumer = self.place.client("Consumer", **settings)
        try:
            with errors(self.place.endpoint, doing, where=self.topic):
                for number in range(partitions):
                    if number not in self.next:
                        partition = lib.TopicPartition(self.topic, number)
                        low, _ = consumer.get_watermark_offsets(partition, timeout=ANSWER_S)
                        self.first(number, low)
                        self.next[number] = low
                consumer.assign([lib.TopicPartition(self.topic, n, self.next[n]) for n in range(partitions)])
                unfinished, end = set(range(partitions)), time.monotonic() + ANSWER_S
                while unfinished:
                    messages = consumer.consume(MESSAGES, 0.1)
                    end = time.monotonic() + ANSWER_S if messages else end
                    if time.monotonic() > end:
                        raise TargetUnavailable(f"{doing}: Kafka sent nothing for {ANSWER_S:.0f} s", where=self.topic)
                    unfinished -= self._take(messages, take, doing, lib, ends or {})
        finally:
            consumer.close()

    def _take(
        self,
        received: Sequence[Any],
        take: Callable[[Sequence[Any]], None],
        doing: str,
        lib: Any,
        ends: Mapping[int, int],
    ) -> set[int]:
        """Hand over messages; return the partitions that end."""
        ended: set[int] = set()
        messages = []
        for message in received:
            error, number = message.error(), message.partition()
            if error is None:
                self.next[number] = message.offset() + 1
                ended.discard(number)
                messages.append(message)
            elif error.code() == lib.KafkaError._PARTITION_EOF:
                self.next[number] = max(self.next[number], message.offset())
                if self.next[number] >= ends.get(number, 0):
                    ended.add(number)
            else:
                raise translated(error, self.place.endpoint, doing, where=self.topic)
        take(messages)
        return ended


def committed_ends(place: Place, topic: str, partitions: int) -> dict[int, int]:
    """Return the end of each partition, once everything before it is committed or given up.

    The client returns from a commit before its marker is written, and a consumer sees a message only after that. Raises
    TargetUnavailable if another program's transaction stays open.
    """
    from confluent_kafka.admin import OffsetSpec

    lib, doing = library(), f"looking at the end of topic {topic}"
    admin = place.client("AdminClient")
    requests = {lib.TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}

    def ends(level: Any) -> dict[int, int]:
        answers = admin.list_offsets(requests, isolation_level=level, request_timeout=ADMIN_S)
        return {partition.partition: int(answer.result(ADMIN_S).offset) for partition, answer in answers.items()}

    with errors(place.endpoint, doing, where=topic, caller=admin):
        written, end = ends(lib.IsolationLevel.READ_UNCOMMITTED), time.monotonic() + ANSWER_S
        while True:
            committed = ends(lib.IsolationLevel.READ_COMMITTED)
            if all(committed[number] >= offset for number, offset in written.items()):
                return committed
            if time.monotonic() > end:
                raise TargetUnavailable(
                    f"{doing}: a transaction of another program has been open for {ANSWER_S:.0f} s: what it holds "
                    "back is not known",
                    where=topic,
                )
            time.sleep(0.02)


__all__ = ["MESSAGES", "TopicReader", "committed_ends"]
