"""The one transactional producer of a pipeline and target, and the topic with the target's checkpoint.

``transactional.id`` is the pipeline's and target's. Everything that moves the checkpoint is a transaction of it, and the checkpoint is a record in
the same transaction as the rows. So two fences work together:

* Kafka's: ``init_transactions`` ends what an older producer left open, waits for what it is committing, and refuses it from then on;
* Sluice's: the epoch in the record. Kafka's fence favours whoever came last. So the record is read before (a process that is out of date does not
  disturb a newer one) and after ``init_transactions`` (nothing can be committed in between any more), and a higher epoch in it stops this process.

The topic belongs to one target alone. In a shared one, a transaction that another pipeline left open would hide what follows it from
``read_committed``, which includes this target's own newest record.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sluice.config.connections import Endpoint
from sluice.errors import CheckpointError, LoadError, SluiceError, TargetUnavailable
from sluice.model.offset import Offset
from sluice.targets.fencing import seal_of
from sluice.targets.kafka.client import (
    ANSWER_S,
    KicksOut,
    client,
    errors,
    is_out,
    kafka_error,
    library,
    settings,
    translated,
)
from sluice.targets.kafka.options import KafkaOptions
from sluice.targets.port import Checkpoint

FORMAT_VERSION = 1
_TAIL = 8
_SECONDS_OF_INIT = 90.0
_SETTLES_S = 5.0
_RECORD_AND_MARKER = 2
_QUEUE = 200_000
_QUEUE_BYTES = 200 * 2**20
"""Bytes of messages that wait in this process for the broker."""


@dataclass(frozen=True, slots=True)
class Held:
    """The record: the checkpoint, partitions of each topic as of its last message, and dead letters that were delivered since."""

    checkpoint: Checkpoint
    partitions: dict[str, int] = field(default_factory=dict)
    replayed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """The topics of a target, and the clients to reach them. Picklable."""

    endpoint: Endpoint
    options: KafkaOptions
    pipeline: str
    target: str

    @property
    def transactional_id(self) -> str:
        return f"sluice/{self.pipeline}/{self.target}"

    @property
    def owner(self) -> str:
        return f"{self.pipeline}.{self.target}"

    @property
    def ack_topic(self) -> str:
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
        given = {
            "linger.ms": 20,
            "batch.num.messages": 100_000,
            **options.producer,
            "queue.buffering.max.messages": 2 * _QUEUE,
            "queue.buffering.max.kbytes": 2_000_000,
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": options.max_message_bytes + 10_000,  # a message's own envelope
            "compression.type": options.compression,
            "delivery.report.only.error": True,
            "on_delivery": on_delivery,
        }
        given["batch.size"] = min(1_000_000, options.max_message_bytes)
        return self.client("Producer", **given)

    # -- the record -----------------------------------------------------------------------------------------------------

    def read(self, settle_s: float = _SETTLES_S, *, settled: bool = False) -> Held | None:
        """Return what the target says it holds; None if nothing. Takes nothing over.

        Args:
            settle_s: how long to wait for a transaction that is in the topic and has no end there: the client returns from a commit before its marker
                is written. After that it counts as left by a dead process, and is ignored.
            settled: there can be no such transaction.
        """
        doing = f"reading the checkpoint of {self.owner}"
        consumer = self.client(
            "Consumer",
            **{
                "group.id": f"sluice-{self.owner}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "auto.offset.reset": "earliest",
            },
        )
        try:
            with errors(self.endpoint, doing, where=self.ack_topic, asked=consumer):
                found = consumer.list_topics(self.ack_topic, timeout=ANSWER_S).topics.get(self.ack_topic)
                if found is None or (
                    found.error is not None and found.error.name() in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}
                ):
                    return None
                if found.error is not None:
                    raise translated(found.error, self.endpoint, doing, where=self.ack_topic)
                return self._last(consumer, doing, settle_s, settled)
        except KicksOut as error:
            raise TargetUnavailable(f"{doing}: {error}") from None
        finally:
            consumer.close()

    def _last(self, consumer: Any, doing: str, settle_s: float, settled: bool) -> Held | None:
        """Return the newest record. The topic has one key, so it is the last one; most of the topic need not be read."""
        lib = library()
        partition = lib.TopicPartition(self.ack_topic, 0)
        low, high = consumer.get_watermark_offsets(partition, timeout=ANSWER_S, cached=False)
        back, patience = _TAIL, time.monotonic() + (ANSWER_S if settled else settle_s)
        while True:
            start = max(low, high - back)
            consumer.assign([lib.TopicPartition(self.ack_topic, 0, start)])
            newest, end = None, time.monotonic() + ANSWER_S
            while True:
                message = consumer.poll(0.5)
                if message is None:
                    if time.monotonic() > end:
                        raise TargetUnavailable(
                            f"{doing}: Kafka did not give all of the topic within {ANSWER_S:.0f} s",
                            where=self.ack_topic,
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
                                where=self.ack_topic,
                                hint="only this target may write to it; the broker ends the transaction after its timeout",
                            )
                        break
                    consumer.seek(lib.TopicPartition(self.ack_topic, 0, message.offset()))
                    time.sleep(0.02)
                else:
                    raise translated(message.error(), self.endpoint, doing, where=self.ack_topic)
            if newest is not None:
                return self._held(newest)
            if start == low:
                return None
            back *= 32

    def end(self, admin: Any) -> int | None:
        """Return the end of what is committed in the topic; None if there is no topic. Raises TargetUnavailable, LoadError."""
        from confluent_kafka.admin import OffsetSpec

        lib, doing = library(), f"looking at the end of the topic {self.ack_topic}"
        partition = lib.TopicPartition(self.ack_topic, 0)
        with errors(self.endpoint, doing, where=self.ack_topic):
            asked = admin.list_offsets(
                {partition: OffsetSpec.latest()},
                isolation_level=lib.IsolationLevel.READ_COMMITTED,
                request_timeout=ANSWER_S,
            )
            try:
                return int(asked[partition].result().offset)
            except lib.KafkaException as error:
                if kafka_error(error).name() in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}:
                    return None
                raise

    def _held(self, message: Any) -> Held | None:
        where = f"{self.ack_topic}, offset {message.offset()}"
        if message.key() != self.key:
            raise CheckpointError(
                f"the topic of {self.owner} has a record of {(message.key() or b'')[:200]!r}",
                where=where,
                hint="each target needs an ack_topic of its own",
            )
        if message.value() is None:
            return None
        try:
            data = json.loads(message.value())
            if data["format"] != FORMAT_VERSION:
                raise ValueError(f"format {data['format']}")
            position = Offset.from_json(data["position"]) if data["position"] else None
            seal = data.get("seal")  # older versions wrote no seal
            edited = seal is not None and seal != seal_of([self.owner], int(data["batch"]), data["position"])
            checkpoint = Checkpoint(int(data["epoch"]), int(data["batch"]), position, str(data["identity"]), edited)
            return Held(checkpoint, dict(data.get("partitions", {})), tuple(data.get("replayed", ())))
        except (ValueError, KeyError, TypeError, SluiceError) as error:
            raise CheckpointError(
                f"the checkpoint of {self.owner} cannot be read: {error}",
                where=where,
                hint=f"was it written by a newer version, or by hand? `sluice check {self.pipeline}` says what to do",
            ) from error

    def record(self, held: Held) -> bytes:
        """Return the record as stored."""
        at = held.checkpoint
        position = at.position.to_json() if at.position else None
        return json.dumps({
            "format": FORMAT_VERSION,
            "epoch": at.epoch,
            "batch": at.batch,
            "identity": at.identity,
            "position": position,
            "seal": seal_of([self.owner], at.batch, position),
            "partitions": held.partitions,
            "replayed": list(held.replayed),
        }).encode()

    def make_ack_topic(self) -> None:
        """Create the compacted topic if it is missing. Its segments are small: little is left to be read and stored."""
        from confluent_kafka.admin import NewTopic

        doing = f"making the topic {self.ack_topic}"
        admin = self.client("AdminClient")
        wanted = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}
        replication = self.options.create_topics.replication
        with errors(self.endpoint, doing):
            try:
                admin.create_topics([NewTopic(self.ack_topic, 1, replication, config=wanted)])[self.ack_topic].result(
                    ANSWER_S
                )
            except library().KafkaException as error:
                if kafka_error(error).name() != "TOPIC_ALREADY_EXISTS":
                    raise
            end = time.monotonic() + ANSWER_S
            while self.ack_topic not in _known(admin, self.ack_topic) and time.monotonic() < end:
                time.sleep(0.02)  # the brokers learn about it one after the other


def _known(admin: Any, topic: str) -> set[str]:
    found = admin.list_topics(topic, timeout=ANSWER_S).topics
    return {name for name, one in found.items() if one.error is None and one.partitions}


@dataclass
class Failure:
    """The first message that was not taken."""

    error: Any = None
    topic: str = ""
    key: bytes | None = None

    def note(self, error: Any, message: Any) -> None:
        """Note a failed delivery; a callback for the client's delivery reports."""
        if error is not None and (self.error is None or self.error.name().startswith("_PURGE")):
            self.error, self.topic, self.key = error, message.topic() or "", message.key()


class Channel:
    """A producer that began (``init_transactions``), and what the target held when it did, or since by its own commits."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.failure = Failure()
        self.usable = True
        self.hidden: set[str] = set()
        self._queued_bytes = 0
        self.producer = place.producer(lambda error, message: self.failure.note(error, message))
        with errors(place.endpoint, f"beginning transactions as {place.transactional_id}", asked=self.producer):
            self.producer.init_transactions(_SECONDS_OF_INIT)
        self._admin = place.client("AdminClient")
        self._end = place.end(self._admin)
        self.held = place.read(settled=True)

    def knows(self) -> bool:
        """Return True if the newest record is the one that was read, or that this channel wrote: no other process wrote to the topic.

        Each transaction of this channel adds one record and one marker. The marker of the last one may not be there yet. A person may write to the
        topic.
        """
        until = time.monotonic() + _SETTLES_S
        while (end := self.place.end(self._admin)) is not None and self._end is not None:
            if end >= self._end or time.monotonic() > until:
                return end == self._end
            time.sleep(0.005)
        return False

    def commit(self, held: Held | None, send: Callable[[Any], None] | None = None) -> None:
        """Commit a transaction: what ``send`` produces, and the record (None: the record is removed).

        Raises:
            KicksOut: another producer began. Then, and after any other error, this channel is unusable.
        """
        place = self.place
        doing = f"writing to {place.owner}"
        started = time.monotonic()
        self.failure.error = None
        self._queued_bytes = 0
        try:
            with errors(place.endpoint, doing):
                self.producer.begin_transaction()
                if send is not None:
                    send(self)
                value = place.record(held) if held is not None else None
                self.producer.produce(place.ack_topic, value=value, key=place.key, partition=0)
                left = max(place.timeout_s - (time.monotonic() - started), 1.0)
                if self.producer.flush(left):
                    raise TargetUnavailable(f"{doing}: Kafka did not take all messages within {place.timeout_s:.0f} s")
                self.require_taken()
                self.producer.commit_transaction(max(place.timeout_s - (time.monotonic() - started), 10.0))
            self.held = held
            self._end = None if self._end is None else self._end + _RECORD_AND_MARKER
        except BaseException as error:
            self.close()
            if isinstance(error, KicksOut) and time.monotonic() - started >= place.timeout_s:
                raise LoadError(
                    f"{doing}: the transaction took longer than {place.timeout_s:.0f} s, and Kafka gave it up",
                    where=place.owner,
                    hint="raise options.transaction_timeout of the target, or make batches smaller: capture: {batch: {max_changes: …}}",
                ) from error
            raise

    def produce_each(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        partitions: Sequence[int],
        headers: Sequence[list[tuple[str, bytes]]],
    ) -> None:
        """Produce messages with headers, in order; waits if the client's queue is full."""
        produce = self.producer.produce
        for key, value, partition, header in zip(keys, values, partitions, headers, strict=True):
            while True:
                try:
                    produce(topic, value=value, key=key, partition=partition, headers=header)
                    break
                except BufferError:
                    self.breathe(0.1)
        self.breathe()

    def produce_all(self, topic: str, messages: list[dict[str, Any]], size_bytes: int) -> None:
        """Produce messages without headers, in order.

        The client's queue must never be full: it would accept later ones and leave out earlier ones.
        """
        while len(self.producer) and len(self.producer) + len(messages) > _QUEUE:
            self.breathe(0.05)
        if self._queued_bytes > _QUEUE_BYTES:
            while len(self.producer):
                self.breathe(0.05)
            self._queued_bytes = 0
        self._queued_bytes += size_bytes
        if self.producer.produce_batch(topic, messages) != len(messages):
            first = next(one for one in messages if "_error" in one)
            self.failure.error, self.failure.topic, self.failure.key = first["_error"], topic, first.get("key")
        self.breathe()

    def breathe(self, wait_s: float = 0.0) -> None:
        """Process delivery reports. Raises what went wrong."""
        self.producer.poll(wait_s)
        self.require_taken()

    def require_taken(self) -> None:
        """Raise the error for which a message was refused, with its topic and key."""
        failure = self.failure
        if failure.error is None:
            return
        if is_out(failure.error):
            raise KicksOut(str(failure.error.str()))
        key = (failure.key or b"").decode("utf-8", "replace")[:300] or "none"
        key = "(masked)" if failure.topic in self.hidden else key
        where = f"topic {failure.topic}, key {key}"
        raise translated(failure.error, self.place.endpoint, f"writing to {self.place.owner}", where=where)

    def close(self) -> None:
        """Abort what is open, as far as the broker answers; the next producer of the same id does it otherwise."""
        if not self.usable:
            return
        self.usable = False
        with suppress(Exception):
            self.producer.purge()
        with suppress(Exception):
            self.producer.abort_transaction(10)


@dataclass
class _Slot:
    lock: threading.RLock = field(default_factory=threading.RLock)
    channel: Channel | None = None


_slots: dict[tuple[int, str, str], _Slot] = {}
_guard = threading.Lock()


@contextmanager
def slot(place: Place) -> Iterator[_Slot]:
    """Yield this process's channel of a target, for one thread at a time."""
    name = (os.getpid(), str(settings(place.endpoint)["bootstrap.servers"]), place.transactional_id)
    with _guard:
        found = _slots.setdefault(name, _Slot())
    with found.lock:
        if found.channel is not None and (not found.channel.usable or found.channel.place != place):
            found.channel = None
        yield found


def end_all() -> None:
    """Drop every channel of this process, as a crash does: nothing is committed or aborted."""
    with _guard:
        _slots.clear()


__all__ = ["Channel", "Held", "KicksOut", "Place", "end_all", "slot"]
