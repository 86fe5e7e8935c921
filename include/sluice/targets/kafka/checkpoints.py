"""The checkpoint of a Kafka target: the newest record of its compacted topic."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sluice.errors import Fenced, SluiceError, TargetUnavailable
from sluice.targets.base import Agrees, Checkpoint, Fence
from sluice.targets.kafka.channel import Channel, Held, KicksOut, Place, slot


class KafkaCheckpoints:
    """See :class:`sluice.targets.base.CheckpointStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def place(self) -> str:
        """The topic."""
        return f"topic {self._place.ack_topic}"

    def read(self) -> Checkpoint | None:
        """What the target says, None if nothing."""
        found = self._place.read()
        return found.checkpoint if found is not None else None

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Raises Fenced, and what ``agrees`` raises."""

        def made(found: Held | None) -> Held:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            found = found or Held(Checkpoint(0, first))
            held = found.checkpoint
            require_no_newer(self._place, held, epoch)
            return replace(found, checkpoint=replace(held, epoch=epoch, identity=identity or held.identity))

        return self._moved(epoch, made).checkpoint

    def advance(self, to: Checkpoint) -> None:
        """Raises Fenced."""

        def made(found: Held | None) -> Held:
            held = self._own(found, to.epoch)
            if held.checkpoint.batch >= to.batch:
                return held
            return replace(held, checkpoint=replace(held.checkpoint, batch=to.batch, position=to.position))

        self._moved(to.epoch, made, make=False)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Raises Fenced."""

        def made(found: Held | None) -> Held:
            held = found.checkpoint if found else Checkpoint(0, to.batch)
            require_no_newer(self._place, held, to.epoch)
            checkpoint = Checkpoint(to.epoch, to.batch, to.position, to.identity or held.identity)
            return Held(checkpoint, found.partitions if found else {})

        self._moved(to.epoch, made)

    def forget(self) -> None:
        """The record; messages stay."""
        if self._place.read() is None:
            return
        with slot(self._place) as mine:
            mine.channel = _begun(self._place)
            with _kicked(self._place):
                mine.channel.commit(None)

    def _own(self, found: Held | None, epoch: int) -> Held:
        if found is None:
            raise gone(self._place)
        require_no_newer(self._place, found.checkpoint, epoch)
        if found.checkpoint.epoch != epoch:
            raise Fenced(f"epoch {epoch} did not take this target over", where=self.place)
        return found

    def _moved(self, epoch: int, made: Callable[[Held | None], Held], *, make: bool = True) -> Held:
        """What is held becomes what ``made`` says of it, with every other producer shut out."""
        place = self._place
        with slot(place) as mine:
            moved = self._moved_by(mine.channel, made)
            if moved is not None:
                return moved
            before = place.read(0)
            if before is not None:
                require_no_newer(place, before.checkpoint, epoch)  # does not disturb it
            elif make:
                place.make_ack_topic()
            else:
                raise gone(place)
            mine.channel = channel = _begun(place)
            held = made(channel.held)
            if held != channel.held:
                with _kicked(place):
                    channel.commit(held)
            return held

    def _moved_by(self, channel: Channel | None, made: Callable[[Held | None], Held]) -> Held | None:
        """By the producer that this process has already. What it knows is only true if its commit is taken, so that nothing else is concluded."""
        if channel is None or channel.held is None:
            return None
        with suppress(SluiceError, KicksOut):
            held = made(channel.held)
            if held != channel.held:
                channel.commit(held)
                return held
        return None


def _begun(place: Place) -> Channel:
    with _kicked(place):
        return Channel(place)


class _kicked:
    """Another producer began meanwhile: who is right is seen at the next attempt."""

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


def require_no_newer(place: Place, held: Checkpoint, epoch: int) -> None:
    """Raises Fenced if a higher epoch wrote to the target."""
    if held.epoch > epoch:
        raise Fenced(
            f"epoch {held.epoch} took this target over from epoch {epoch}",
            where=f"topic {place.ack_topic}, {place.owner}",
            hint="a newer run is at work; this one must not write any more",
        )


def gone(place: Place) -> Fenced:
    """There is no record where there must be one."""
    return Fenced(
        "the target's checkpoint is gone",
        where=f"topic {place.ack_topic}, {place.owner}",
        hint=f"was the topic deleted by hand? `sluice check {place.pipeline}` says what to do",
    )


def guarded(place: Place, fence: Fence, held: Held | None) -> Held:
    """What is held, if it is what a unit of ``fence`` was told. Raises Fenced."""
    if held is None:
        raise gone(place)
    require_no_newer(place, held.checkpoint, fence.epoch)
    if held.checkpoint.epoch != fence.epoch:
        raise Fenced(f"epoch {fence.epoch} did not take this target over", where=f"topic {place.ack_topic}")
    if held.checkpoint.batch != fence.held:
        raise Fenced(
            f"batch {fence.batch} was to be written after batch {fence.held}, and the target holds batch {held.checkpoint.batch} by now",
            where=place.owner,
            hint="another run delivered it; this one has nothing left to do",
        )
    return held
