"""The transactions of the one producer of a pipeline and target.

``transactional.id`` is the pipeline's and target's. Everything that moves the checkpoint is a transaction of it, and
the checkpoint is a record in the same transaction as the rows. So two fences work together:

* Kafka's: ``init_transactions`` ends what an older producer left open, waits for what it is committing, and refuses it
  from then on;
* Sluice's: the epoch in the record. Kafka's fence favours whoever came last. So the record is read before (a process
  that is out of date does not disturb a newer one) and after ``init_transactions`` (nothing can be committed in between
  any more), and a higher epoch in it stops this process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import LoadError, SluiceError, TargetUnavailable
from sluice.targets.kafka.ack_topic import SETTLES_S, AckTopic, KafkaCheckpoint
from sluice.targets.kafka.client import KicksOut, errors, is_out, settings, translated
from sluice.targets.kafka.place import QUEUE, Place

_SECONDS_OF_INIT = 90.0
_RECORD_AND_MARKER = 2
_QUEUE_BYTES = 200 * 2**20
"""Bytes of messages that wait in this process for the broker."""


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
    """A producer that began (``init_transactions``), and what the target held when it did, or since by its own
    commits.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._topic = AckTopic(place)
        self.failure = Failure()
        self.usable = True
        self.hidden: set[str] = set()
        self._queued_bytes = 0
        self.producer = place.producer(lambda error, message: self.failure.note(error, message))
        with errors(place.endpoint, f"beginning transactions as {place.transactional_id}", caller=self.producer):
            self.producer.init_transactions(_SECONDS_OF_INIT)
        self.admin = place.client("AdminClient")
        self._end = self._topic.end(self.admin)
        self.held = self._topic.read(settled=True)

    def knows(self) -> bool:
        """Return True if the newest record is the one that was read, or that this channel wrote: no other process wrote
        to the topic.

        Each transaction of this channel adds one record and one marker. The marker of the last one may not be there
        yet. A person may write to the topic.
        """
        until = time.monotonic() + SETTLES_S
        while (end := self._topic.end(self.admin)) is not None and self._end is not None:
            if end >= self._end or time.monotonic() > until:
                return end == self._end
            time.sleep(0.005)
        return False

    def commit(self, checkpoint: KafkaCheckpoint | None, send: Callable[[], None] | None = None) -> None:
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
                    send()
                value = self._topic.record(checkpoint) if checkpoint is not None else None
                self.producer.produce(place.ack_topic, value=value, key=place.key, partition=0)
                remaining_s = max(place.timeout_s - (time.monotonic() - started), 1.0)
                if self.producer.flush(remaining_s):
                    raise TargetUnavailable(f"{doing}: Kafka did not take all messages within {place.timeout_s:.0f} s")
                self.require_taken()
                self.producer.commit_transaction(max(place.timeout_s - (time.monotonic() - started), 10.0))
            self.held = checkpoint
            self._end = None if self._end is None else self._end + _RECORD_AND_MARKER
        except BaseException as error:
            refusal = self._refusal() if isinstance(error, LoadError | TargetUnavailable) else None
            self.close()
            if refusal is not None:
                raise refusal from error
            if isinstance(error, KicksOut) and time.monotonic() - started >= place.timeout_s:
                raise LoadError(
                    f"{doing}: the transaction took longer than {place.timeout_s:.0f} s, and Kafka gave it up",
                    where=place.owner,
                    hint="raise options.transaction_timeout of the target (and transaction.max.timeout.ms of the "
                    "brokers); batches of fewer transactions (capture: {batch: {max_changes: …}}) help unless one "
                    "transaction of the source is that large: a batch has it whole",
                ) from error
            raise

    def produce_each(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        partitions: Sequence[int],
        headers: Iterable[list[tuple[str, bytes]]],
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
        while len(self.producer) and len(self.producer) + len(messages) > QUEUE:
            self.breathe(0.05)
        if self._queued_bytes > _QUEUE_BYTES:
            while len(self.producer):
                self.breathe(0.05)
            self._queued_bytes = 0
        self._queued_bytes += size_bytes
        if self.producer.produce_batch(topic, messages) != len(messages):
            first = next(message for message in messages if "_error" in message)
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
        if failure.error.name().startswith("_PURGE"):  # what the transaction failed for is not in the report
            with errors(self.place.endpoint, f"writing to {self.place.owner}", where=where):
                self.producer.begin_transaction()  # refused with the reason
        raise translated(failure.error, self.place.endpoint, f"writing to {self.place.owner}", where=where)

    def _refusal(self) -> SluiceError | None:
        """Return why a message was refused, if one was.

        The next call of the client may come before this report, and says only that the transaction has failed.
        """
        try:
            self.breathe()
        except (LoadError, TargetUnavailable) as error:
            return error
        except Exception:
            return None
        return None

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
        slot = _slots.setdefault(name, _Slot())
    with slot.lock:
        if slot.channel is not None and (not slot.channel.usable or slot.channel.place != place):
            slot.channel = None
        yield slot


def end_all() -> None:
    """Drop every channel of this process, as a crash does: nothing is committed or aborted."""
    with _guard:
        _slots.clear()
