"""The checkpoint of a Kafka target: the newest record of its compacted topic."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sluice.errors import Fenced, SluiceError, TargetUnavailable
from sluice.targets.fencing import require_batch, require_no_newer, require_own, require_unedited
from sluice.targets.kafka.ack_topic import AckTopic, KafkaCheckpoint
from sluice.targets.kafka.client import KicksOut
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.transactions import Channel, slot
from sluice.targets.port import Agrees, Checkpoint, Fence


class KafkaCheckpoints:
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def place(self) -> str:
        """The topic."""
        return f"topic {self._place.ack_topic}"

    def read(self) -> Checkpoint | None:
        """Return the target's checkpoint, None if there is none."""
        found = AckTopic(self._place).read()
        return found.checkpoint if found is not None else None

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""

        def made(found: KafkaCheckpoint | None) -> KafkaCheckpoint:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            found = found or KafkaCheckpoint(Checkpoint(0, first))
            held = found.checkpoint
            require_no_newer(held, epoch, self._place.record_place)
            return replace(found, checkpoint=replace(held, epoch=epoch, identity=identity or held.identity))

        return self._moved(epoch, made).checkpoint

    def advance(self, to: Checkpoint) -> None:
        """Store a later checkpoint. Raises Fenced."""

        def made(found: KafkaCheckpoint | None) -> KafkaCheckpoint:
            held = self._own(found, to.epoch)
            if held.checkpoint.batch >= to.batch:
                return held
            return replace(held, checkpoint=replace(held.checkpoint, batch=to.batch, position=to.position))

        self._moved(to.epoch, made, make=False)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier. Raises Fenced."""

        def made(found: KafkaCheckpoint | None) -> KafkaCheckpoint:
            held = found.checkpoint if found else Checkpoint(0, to.batch)
            require_no_newer(held, to.epoch, self._place.record_place)
            checkpoint = Checkpoint(to.epoch, to.batch, to.position, to.identity or held.identity)
            return replace(found or KafkaCheckpoint(checkpoint), checkpoint=checkpoint, replayed=())

        self._moved(to.epoch, made)

    def forget_topic(self, topic: str) -> None:
        """Remove a topic from the record, so that the next load takes the one that is there. Raises TargetUnavailable
        if another producer begins meanwhile.
        """
        held = AckTopic(self._place).read()
        if held is None or topic not in held.topics.partitions:
            return
        with slot(self._place) as mine:
            mine.channel = channel = _begun(self._place)
            if channel.held is not None:
                with _kicked(self._place):
                    channel.commit(replace(channel.held, topics=channel.held.topics.without(topic)))

    def forget(self) -> None:
        """Remove the record; messages stay."""
        if AckTopic(self._place).read() is None:
            return
        with slot(self._place) as mine:
            mine.channel = _begun(self._place)
            with _kicked(self._place):
                mine.channel.commit(None)

    def _own(self, found: KafkaCheckpoint | None, epoch: int) -> KafkaCheckpoint:
        if found is None:
            raise gone(self._place)
        require_own(found.checkpoint, epoch, self._place.record_place)
        return found

    def _moved(
        self, epoch: int, made: Callable[[KafkaCheckpoint | None], KafkaCheckpoint], *, make: bool = True
    ) -> KafkaCheckpoint:
        """Change the record to what ``made`` returns for it, with every other producer fenced off."""
        place = self._place
        with slot(place) as mine:
            moved = self._moved_by(mine.channel, made)
            if moved is not None:
                return moved
            before = AckTopic(place).read(0)
            if before is not None:
                require_no_newer(before.checkpoint, epoch, place.record_place)  # does not disturb it
            elif make:
                AckTopic(place).make()
            else:
                raise gone(place)
            mine.channel = channel = _begun(place)
            held = made(channel.held)
            if held != channel.held:
                with _kicked(place):
                    channel.commit(held)
            return held

    def _moved_by(
        self, channel: Channel | None, made: Callable[[KafkaCheckpoint | None], KafkaCheckpoint]
    ) -> KafkaCheckpoint | None:
        """Change the record through this process's existing producer; return None if that fails.

        What the producer knows is true only if its commit succeeds, so nothing else is concluded. If another process
        wrote to the topic, the topic is read again.
        """
        if channel is None or channel.held is None:
            return None
        with suppress(SluiceError, KicksOut):
            if not channel.knows():
                return None
            held = made(channel.held)
            if held != channel.held:
                channel.commit(held)
                return held
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


def gone(place: Place) -> Fenced:
    """Return the error that there is no record where there must be one."""
    return Fenced(
        "the target's checkpoint is gone",
        where=place.record_place,
        hint=f"was the topic deleted by hand? `sluice check {place.pipeline}` says what to do",
    )


def guarded(place: Place, fence: Fence, held: KafkaCheckpoint | None) -> KafkaCheckpoint:
    """Return what is held, if it is what a unit of ``fence`` was told. Raises Fenced."""
    if held is None:
        raise gone(place)
    require_unedited(held.checkpoint, place.pipeline, place.record_place)
    require_own(held.checkpoint, fence.epoch, place.record_place)
    require_batch(held.checkpoint.batch, fence, place.record_place)
    return held
