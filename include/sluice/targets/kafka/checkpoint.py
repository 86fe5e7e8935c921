"""The checkpoint of a Kafka target: the newest record of its compacted topic."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sluice.errors import SluiceError, TargetUnavailable
from sluice.targets.kafka.ack_topic import AckTopic, KafkaCheckpoint
from sluice.targets.kafka.client import KicksOut
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.transactions import Channel, slot
from sluice.targets.port.record import Decision, Move, RecordCheckpoints, require_no_newer


class KafkaCheckpoints(RecordCheckpoints[Place, KafkaCheckpoint]):
    """The checkpoint store, a topic. Its compare-and-set is a transaction: a producer that begins fences off others."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, KafkaCheckpoint)

    @property
    def place(self) -> str:
        """The topic."""
        return f"topic {self._place.ack_topic}"

    def _read(self) -> KafkaCheckpoint | None:
        return AckTopic(self._place).read()

    def forget_topic(self, topic: str) -> None:
        """Remove a topic from the record, so that the next load takes the one that is there. Raises TargetUnavailable
        if another producer begins meanwhile.
        """
        record = AckTopic(self._place).read()
        if record is None or topic not in record.topics.partitions:
            return
        with slot(self._place) as own_slot:
            own_slot.channel = channel = _begun(self._place)
            if channel.held is not None:
                with _kicked(self._place):
                    channel.commit(replace(channel.held, topics=channel.held.topics.without(topic)))

    def _change(self, move: Move, epoch: int, decide: Decision[KafkaCheckpoint]) -> KafkaCheckpoint | None:
        """Change the record, with every other producer fenced off."""
        place = self._place
        with slot(place) as own_slot:
            moved = self._moved_by(own_slot.channel, decide)
            if moved is not None:
                return moved
            before = AckTopic(place).read(0)
            if before is None:
                if move in {Move.ADVANCE, Move.FORGET}:
                    return decide(None)
                AckTopic(place).make()
            elif move is not Move.FORGET:
                require_no_newer(before.checkpoint, epoch, place.record_place)  # does not disturb it
            own_slot.channel = channel = _begun(place)
            record = decide(channel.held)
            if record != channel.held:
                with _kicked(place):
                    channel.commit(record)
            return record

    def _moved_by(self, channel: Channel | None, decide: Decision[KafkaCheckpoint]) -> KafkaCheckpoint | None:
        """Change the record through this process's existing producer; return None if that fails.

        What the producer knows is true only if its commit succeeds, so nothing else is concluded. If another process
        wrote to the topic, the topic is read again.
        """
        if channel is None or channel.held is None:
            return None
        with suppress(SluiceError, KicksOut):
            if not channel.knows():
                return None
            record = decide(channel.held)
            if record is not None and record != channel.held:
                channel.commit(record)
                return record
        return None


def _begun(place: Place) -> Channel:
    with _kicked(place):
        return Channel(place)


class _kicked:
    """Turns a fenced producer into an error: another producer began meanwhile, and the next attempt sees which one is
    right.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KicksOut):
            raise TargetUnavailable(
                f"another producer began transactions as {self._place.transactional_id} meanwhile: {error}",
                where=self._place.owner,
            ) from None
