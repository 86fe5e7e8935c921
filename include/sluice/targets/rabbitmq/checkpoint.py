"""The checkpoint of a target that sends to streams: the newest record of a stream of its own.

Decision: records are published under one name, each with the id after that of the record it was made from. The server
takes an id once, so that of two processes that change the same record one wins, and both see which when they read it
back. This is the compare-and-set that streams do not have.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from sluice.errors import CheckpointError, Fenced, LoadError, MappingError, SluiceError, TargetUnavailable
from sluice.model.offset import Offset
from sluice.targets.fencing import require_batch, require_no_newer, require_own, require_unedited, seal_of
from sluice.targets.port import Agrees, Checkpoint, Fence
from sluice.targets.rabbitmq.place import Place
from sluice.targets.rabbitmq.stream_client import StreamClient, stream_connected

FORMAT_VERSION = 1
_WRITER = "sluice"
_KEPT = {"max-length-bytes": "4000000", "stream-max-segment-size-bytes": "1000000"}
_ATTEMPTS = 20
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class StreamCheckpoint:
    """The record.

    Attributes:
        slot: the upper half of the publishing ids of the newest batch that was begun; it only grows. begun: the
            contents that it stands for.
        number, nonce: of the record itself.
        streams: those that have messages of delivered batches.
    """

    checkpoint: Checkpoint
    slot: int = 0
    begun: str = ""
    number: int = 0
    nonce: str = ""
    streams: frozenset[str] = frozenset()


Made = Callable[[StreamCheckpoint | None], StreamCheckpoint]


class StreamCheckpoints:
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def place(self) -> str:
        """The stream, and its server."""
        return self._place.record_place

    def read(self) -> Checkpoint | None:
        """Return the target's checkpoint, None if there is none."""
        with self._connected() as client:
            found = read_checkpoint(client, self._place)
        return found.checkpoint if found is not None else None

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""

        def made(found: StreamCheckpoint | None) -> StreamCheckpoint:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            found = found or StreamCheckpoint(Checkpoint(0, first))
            held = found.checkpoint
            require_no_newer(held, epoch, self.place)
            return replace(found, checkpoint=replace(held, epoch=epoch, identity=identity or held.identity))

        with self._connected() as client:
            return change_checkpoint(client, self._place, made, create=True).checkpoint

    def advance(self, to: Checkpoint, streams: Collection[str] = ()) -> None:
        """Store a later checkpoint, and the streams that the batch wrote to. Raises Fenced."""

        def made(found: StreamCheckpoint | None) -> StreamCheckpoint:
            held = _own(self._place, found, to.epoch)
            if held.checkpoint.batch >= to.batch:
                return held
            checkpoint = replace(held.checkpoint, batch=to.batch, position=to.position, edited=False)
            return replace(held, checkpoint=checkpoint, streams=held.streams | frozenset(streams))

        with self._connected() as client:
            change_checkpoint(client, self._place, made)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier: what follows gets new publishing ids, and is delivered again.

        Raises Fenced.
        """

        def made(found: StreamCheckpoint | None) -> StreamCheckpoint:
            held = found.checkpoint if found else Checkpoint(0, to.batch)
            require_no_newer(held, to.epoch, self.place)
            wanted = Checkpoint(to.epoch, to.batch, to.position, to.identity or held.identity)
            found = found or StreamCheckpoint(wanted)
            return replace(found, checkpoint=wanted, begun="")

        with self._connected() as client:
            change_checkpoint(client, self._place, made, create=True)

    def forget_stream(self, stream: str) -> None:
        """Remove a stream from the record, so that the next load takes the one that is there."""
        with self._connected() as client:
            found = read_checkpoint(client, self._place)
            if found is not None and stream in found.streams:
                change_checkpoint(
                    client, self._place, lambda now: replace(now or found, streams=(now or found).streams - {stream})
                )

    def forget(self) -> None:
        """Remove the record, and its stream; messages stay."""
        with self._connected() as client:
            client.delete(self._place.ack_stream)

    def _connected(self) -> AbstractContextManager[StreamClient]:
        return stream_connected(self._place, f"checkpoint of {self._place.owner}")


def change_checkpoint(client: StreamClient, place: Place, made: Made, *, create: bool = False) -> StreamCheckpoint:
    """Change the record to what ``made`` returns for it, unless another process changes it meanwhile: then ``made`` is
    asked again.
    """
    stream = place.ack_stream
    for _ in range(_ATTEMPTS):
        found = read_checkpoint(client, place)
        wanted = made(found)
        if found is not None and wanted == found:
            return found
        if found is None and create:
            client.create(stream, **_KEPT)
        record = replace(wanted, number=(found.number if found else 0) + 1, nonce=secrets.token_hex(8))
        client.publish(stream, _WRITER, [(record.number, _text(place, record))])
        client.flush()
        now = read_checkpoint(client, place)
        if now is not None and now.nonce == record.nonce:
            return now
    raise TargetUnavailable("other processes changed the checkpoint again and again", where=place.record_place)


def read_checkpoint(client: StreamClient, place: Place) -> StreamCheckpoint | None:
    """Return the newest record, None if there is none.

    Raises CheckpointError if it cannot be read, TargetUnavailable.
    """
    try:
        newest = client.last_id(place.ack_stream, _WRITER)
    except MappingError:
        return None
    if not newest:
        return None
    end = time.monotonic() + place.options.timeout.total_seconds()
    while True:
        data = client.last_message(place.ack_stream)
        found = _record_of(place, data) if data is not None else None
        if found is not None and found.number >= newest:
            return found
        if time.monotonic() > end:
            raise TargetUnavailable(
                f"RabbitMQ did not give record {newest} of the checkpoint", where=place.record_place
            )
        time.sleep(_PAUSE_S)


def why_lost(client: StreamClient, place: Place, found: StreamCheckpoint | None, stream: str) -> LoadError | None:
    """Return why a stream lacks what the target wrote to it, None if it has it.

    A stream that was made anew holds no publishing id of this target.
    """
    if found is None or stream not in found.streams:
        return None
    if not client.exists(stream):
        why, first = "is gone, and with it what the target wrote to it", ""
    elif not client.last_id(stream, place.publisher()):
        why, first = "was deleted and made anew, so that it lacks what was sent before", "delete it, "
    else:
        return None
    return LoadError(
        f"the stream {stream} {why}",
        where=f"{place.owner} at {place.address}",
        hint=f"{first}let `sluice check {place.pipeline} --apply` make it, and copy its rows: `sluice dump start "
        f"{place.pipeline} --table SCHEMA.TABLE`",
    )


def guarded(client: StreamClient, place: Place, fence: Fence) -> StreamCheckpoint:
    """Return the record, if it is what a unit of ``fence`` was told. Raises Fenced, CheckpointError."""
    return _guard(place, read_checkpoint(client, place), fence)


def begin(client: StreamClient, place: Place, fence: Fence, contents: str, newest_id: int) -> int:
    """Return the slot of a batch, which is stored before its first message is published. Raises Fenced.

    A repeat of the same contents gets the same slot, so that the server drops what it has. Other contents get one above
    everything that a process before may have used or may still use. ``newest_id``: that the streams hold of this
    publisher.
    """

    def made(found: StreamCheckpoint | None) -> StreamCheckpoint:
        held = _guard(place, found, fence)
        if held.begun == contents:
            return held
        return replace(held, begun=contents, slot=max(fence.batch, held.slot + 1, (newest_id >> 32) + 1))

    return change_checkpoint(client, place, made).slot


def _guard(place: Place, found: StreamCheckpoint | None, fence: Fence) -> StreamCheckpoint:
    held = _own(place, found, fence.epoch)
    require_unedited(held.checkpoint, place.pipeline, place.record_place)
    require_batch(held.checkpoint.batch, fence, place.record_place)
    return held


def _own(place: Place, found: StreamCheckpoint | None, epoch: int) -> StreamCheckpoint:
    if found is None:
        raise Fenced(
            "the target's checkpoint is gone",
            where=place.record_place,
            hint=f"was the stream deleted by hand? `sluice check {place.pipeline}` says what to do",
        )
    require_own(found.checkpoint, epoch, place.record_place)
    return found


def _text(place: Place, record: StreamCheckpoint) -> bytes:
    at = record.checkpoint
    position = at.position.to_json() if at.position else None
    return json.dumps({
        "format": FORMAT_VERSION, "epoch": at.epoch, "batch": at.batch, "identity": at.identity, "position": position,
        "seal": seal_of([place.owner], at.batch, position), "slot": record.slot, "begun": record.begun,
        "number": record.number,
        "nonce": record.nonce, "owner": place.owner, "streams": sorted(record.streams),
    }).encode()  # fmt: skip


def _record_of(place: Place, text: bytes) -> StreamCheckpoint:
    try:
        data = json.loads(text)
        if data["format"] != FORMAT_VERSION:
            raise ValueError(f"format {data['format']}")
        if data["owner"] != place.owner:
            raise ValueError(f"it is of {data['owner']}; each target needs an ack_stream of its own")
        position = Offset.from_json(data["position"]) if data["position"] else None
        edited = data["seal"] != seal_of([place.owner], int(data["batch"]), data["position"])
        held = Checkpoint(int(data["epoch"]), int(data["batch"]), position, str(data["identity"]), edited)
        number, nonce, streams = int(data["number"]), str(data["nonce"]), frozenset(data.get("streams", ()))
        return StreamCheckpoint(held, int(data["slot"]), str(data["begun"]), number, nonce, streams)
    except (ValueError, KeyError, TypeError, SluiceError) as error:
        raise CheckpointError(
            f"the checkpoint of {place.owner} cannot be read: {error}",
            where=place.record_place,
            hint=f"was it written by a newer version, or by hand? `sluice check {place.pipeline}` says what to do",
        ) from error


__all__ = [
    "StreamCheckpoint",
    "StreamCheckpoints",
    "begin",
    "change_checkpoint",
    "guarded",
    "read_checkpoint",
    "why_lost",
]
