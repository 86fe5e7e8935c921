"""The checkpoint of a target that sends to streams: the newest record of a stream of its own.

Decision: records are published under one name, each with the id after that of the record it was made from. The server
takes an id once, so that of two processes that change the same record one wins, and both see which when they read it
back. This is the compare-and-set that streams do not have.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from typing_extensions import override

from sluice.errors import LoadError, MappingError, TargetUnavailable
from sluice.targets.port import Checkpoint, Fence
from sluice.targets.port.record import (
    Record,
    SwappedCheckpoints,
    change_record,
    checkpoint_of,
    fields_of,
    reading,
    require_guarded,
)
from sluice.targets.rabbitmq.place import Place
from sluice.targets.rabbitmq.stream_client import StreamClient, stream_connected

_WRITER = "sluice"
_KEPT = {"max-length-bytes": "4000000", "stream-max-segment-size-bytes": "1000000"}
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class StreamCheckpoint(Record):
    """The record.

    Attributes:
        slot: the upper half of the publishing ids of the newest batch that was begun; it only grows. begun: the
            contents that it stands for.
        streams: those that have messages of delivered batches.
    """

    slot: int = 0
    begun: str = ""
    streams: frozenset[str] = frozenset()

    @override
    def advanced(self, checkpoint: Checkpoint, tables: Iterable[str]) -> Self:
        """Return the record after a later batch; its ``tables`` are the streams that it wrote to."""
        return replace(self, checkpoint=checkpoint, streams=self.streams.union(tables))

    @override
    def rewound(self, checkpoint: Checkpoint, *, anew: bool) -> Self:
        """Return the record without begun contents, so that what follows gets new publishing ids."""
        return replace(self, checkpoint=checkpoint, begun="")


class StreamCheckpoints(SwappedCheckpoints[Place, StreamCheckpoint]):
    """The checkpoint store, a stream."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, StreamCheckpoint)

    @contextmanager
    def _opened(self) -> Iterator[CheckpointStream]:
        with stream_connected(self._place, f"checkpoint of {self._place.owner}") as client:
            yield CheckpointStream(client, self._place)

    def forget_stream(self, stream: str) -> None:
        """Remove a stream from the record, so that the next load takes the one that is there."""

        def decide(record: StreamCheckpoint | None) -> StreamCheckpoint | None:
            return record and replace(record, streams=record.streams - {stream})

        with self._opened() as store:
            if store.read()[0] is not None:
                change_record(store, decide, self._place)

    def forget(self) -> None:
        """Remove the record, and its stream; messages stay."""
        with stream_connected(self._place, f"checkpoint of {self._place.owner}") as client:
            client.delete(self._place.ack_stream)


class CheckpointStream:
    """The two calls, by publishing ids."""

    def __init__(self, client: StreamClient, place: Place) -> None:
        self._client, self._place = client, place

    def read(self) -> tuple[StreamCheckpoint | None, int]:
        """Return the record, and its number."""
        record, number, _ = self._newest()
        return record, number

    def swap(self, record: StreamCheckpoint | None, token: int) -> bool:
        """Publish the record under the next number, and read back whose record that is."""
        assert record is not None
        place, stream, nonce = self._place, self._place.ack_stream, secrets.token_hex(8)
        if not token:
            self._client.create(stream, **_KEPT)
        self._client.publish(stream, _WRITER, [(token + 1, record_text(place, record, token + 1, nonce))])
        self._client.flush()
        return self._newest()[2] == nonce

    def _newest(self) -> tuple[StreamCheckpoint | None, int, str]:
        """Return the newest record, its number and its nonce. Raises CheckpointError, TargetUnavailable."""
        place = self._place
        try:
            newest = self._client.last_id(place.ack_stream, _WRITER)
        except MappingError:
            newest = 0
        if not newest:
            return None, 0, ""
        end = time.monotonic() + place.options.timeout.total_seconds()
        while True:
            data = self._client.last_message(place.ack_stream)
            if data is not None and (newest_record := record_of(place, data))[1] >= newest:
                return newest_record
            if time.monotonic() > end:
                raise TargetUnavailable(
                    f"RabbitMQ did not give record {newest} of the checkpoint", where=place.record_place
                )
            time.sleep(_PAUSE_S)


def why_lost(client: StreamClient, place: Place, record: StreamCheckpoint | None, stream: str) -> LoadError | None:
    """Return why a stream lacks what the target wrote to it, None if it has it.

    A stream that was made anew holds no publishing id of this target.
    """
    if record is None or stream not in record.streams:
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
    """Return the record that allows a unit of ``fence`` to write. Raises Fenced, CheckpointError."""
    return require_guarded(CheckpointStream(client, place).read()[0], place, fence)


def begin(client: StreamClient, place: Place, fence: Fence, contents: str, newest_id: int) -> int:
    """Return the slot of a batch, which is stored before its first message is published. Raises Fenced.

    A repeat of the same contents gets the same slot, so that the server drops what it has. Other contents get one above
    everything that a process before may have used or may still use. ``newest_id``: that the streams hold of this
    publisher.
    """

    def decide(record: StreamCheckpoint | None) -> StreamCheckpoint:
        current = require_guarded(record, place, fence)
        if current.begun == contents:
            return current
        return replace(current, begun=contents, slot=max(fence.batch, current.slot + 1, (newest_id >> 32) + 1))

    record = change_record(CheckpointStream(client, place), decide, place)
    assert record is not None
    return record.slot


def record_text(place: Place, record: StreamCheckpoint, number: int, nonce: str) -> bytes:
    """Return the record as stored."""
    more: dict[str, Any] = {
        "slot": record.slot,
        "begun": record.begun,
        "number": number,
        "nonce": nonce,
        "owner": place.owner,
    }
    if record.streams:
        more["streams"] = sorted(record.streams)
    return json.dumps(fields_of(record.checkpoint, place.owner) | more).encode()


def record_of(place: Place, text: bytes) -> tuple[StreamCheckpoint, int, str]:
    """Return a stored record, its number and its nonce. Raises CheckpointError."""
    with reading(place):
        data = json.loads(text)
        if data["owner"] != place.owner:
            raise ValueError(f"it is of {data['owner']}; each target needs an ack_stream of its own")
        checkpoint = checkpoint_of(data, place.owner)
        return (
            StreamCheckpoint(checkpoint, int(data["slot"]), str(data["begun"]), frozenset(data.get("streams", ()))),
            int(data["number"]),
            str(data["nonce"]),
        )
