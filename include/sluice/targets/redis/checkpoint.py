"""The checkpoint of a Redis target: a hash at the server itself, which every script looks at before it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from typing_extensions import override

from sluice.errors import SluiceError, TargetUnavailable
from sluice.targets.port import Checkpoint, Fence
from sluice.targets.port.record import (
    Decision,
    Move,
    SwappedCheckpoints,
    WriterRecord,
    change_record,
    checkpoint_of,
    fields_of,
    position_text,
    reading,
    require_guarded,
)
from sluice.targets.redis.client import Client, connected
from sluice.targets.redis.place import Place
from sluice.targets.redis.scripts import SWAP

SENT, STATEMENTS = "sent", "statements"
"""Fields: entries of a batch that streams have; (batch, number) of the schema changes that are done."""
_OF_BATCHES = (SENT, STATEMENTS, "replay:", "moved:")
"""Begins of the fields that name a batch."""
_OWN = {"format", "epoch", "batch", "position", "identity", "seal", "at", "tables"}
"""The fields of the record."""


@dataclass(frozen=True, slots=True)
class RedisCheckpoint(WriterRecord):
    """The record. ``notes``: the names of the fields that scripts write beside it."""

    notes: frozenset[str] = frozenset()

    @override
    def rewound(self, checkpoint: Checkpoint, *, anew: bool) -> Self:
        forgotten = {
            name for name in self.notes if name in {SENT, STATEMENTS} or (anew and name.startswith(_OF_BATCHES))
        }
        return replace(self, checkpoint=checkpoint, notes=self.notes - forgotten)

    def to_fields(self, place: Place) -> dict[str, Any]:
        """Return the fields of the hash, without notes."""
        fields = fields_of(self.checkpoint, place.owner)
        stored = {
            "format": fields["format"], "epoch": fields["epoch"], "batch": fields["batch"],
            "position": position_text(fields), "identity": fields["identity"], "seal": fields["seal"],
        }  # fmt: skip
        return stored | ({"at": f"{self.at:.3f}", "tables": json.dumps(sorted(self.tables))} if self.at else {})


class RedisCheckpoints(SwappedCheckpoints[Place, RedisCheckpoint]):
    """The checkpoint store, a hash."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, RedisCheckpoint)

    @contextmanager
    def _opened(self) -> Iterator[CheckpointHash]:
        with connected(self._place) as client:
            yield CheckpointHash(client, self._place)

    def _change(self, move: Move, epoch: int, decide: Decision[RedisCheckpoint]) -> RedisCheckpoint | None:
        """Change the record. With ``fsync``, one that stays is written again: the server waits for its disk only after
        a write of the same connection, and an earlier attempt may have written without an answer of the disk.
        """
        with self._opened() as store:
            record = change_record(store, decide, self._place)
            while record is not None and self._place.options.fsync and not store.is_on_disk:
                held_checkpoint, token = store.read()
                if held_checkpoint != record:
                    raise TargetUnavailable("the checkpoint moved meanwhile", where=self.place)
                store.swap(record, token)
        return record

    def forget(self) -> None:
        """Remove the record; rows stay."""
        with connected(self._place) as client:
            client.ask("removing the checkpoint", "DEL", self._place.checkpoint_key)


class CheckpointHash:
    """The two calls: a script compares the whole hash."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client, self._place = client, place
        self.is_on_disk = False

    def read(self) -> tuple[RedisCheckpoint | None, list[bytes]]:
        """Return the record, and all words of the hash."""
        words = self._client.ask("reading the checkpoint", "HGETALL", self._place.checkpoint_key)
        return parsed(words, self._place), words

    def swap(self, record: RedisCheckpoint | None, token: list[bytes]) -> bool:
        """Change the hash, unless it has other words by now."""
        assert record is not None
        fields = record.to_fields(self._place)
        dropped = {name.decode("utf-8", "replace") for name in token[::2]} - record.notes - fields.keys()
        words = [word for pair in fields.items() for word in pair]
        arguments = [len(token), *token, len(words), *words, *sorted(dropped)]
        if not int(self._client.run(SWAP, [self._place.checkpoint_key], arguments)):
            return False
        _wait_for_disk(self._client, self._place)
        self.is_on_disk = True
        return True


def _wait_for_disk(client: Client, place: Place) -> None:
    """Wait until the server's log is on its disk, if the options say so. Raises TargetUnavailable, LoadError."""
    if not place.options.fsync:
        return
    wait_ms = int(place.options.timeout.total_seconds() * 900)  # less than the client waits for the answer
    answer = client.ask("waiting for the server's disk (fsync: true)", "WAITAOF", 1, 0, wait_ms)
    if int(answer[0]) < 1:
        raise TargetUnavailable(
            "the server did not write its log to its disk in time (fsync: true)", where=place.endpoint.address
        )


def read_checkpoint(client: Client, place: Place, key: str = "") -> RedisCheckpoint | None:
    """Return the record, None if there is none. Raises CheckpointError if it cannot be read.

    ``key``: the key of another owner.
    """
    key = key or place.checkpoint_key
    return parsed(client.ask("reading the checkpoint", "HGETALL", key), place, key)


def parsed(words: list[bytes], place: Place, key: str = "") -> RedisCheckpoint | None:
    """Return the record from the words of a hash. Raises CheckpointError."""
    key = key or place.checkpoint_key
    pairs = zip(words[::2], words[1::2], strict=True)
    data = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in pairs}
    if not data:
        return None
    owner = key.removeprefix(place.checkpoints)
    with reading(place, owner=owner, where=f"key {key} at {place.endpoint.address}"):
        tables = frozenset(json.loads(data.get("tables", "[]")))
        checkpoint, at = checkpoint_of(data, owner), float(data.get("at", 0))
        return RedisCheckpoint(checkpoint, tables, at, frozenset(data.keys() - _OWN))


def guarded(client: Client, place: Place, fence: Fence) -> RedisCheckpoint:
    """Return the record that allows a unit of ``fence`` to write. Raises Fenced, CheckpointError."""
    return require_guarded(read_checkpoint(client, place), place, fence)


def moved(place: Place, fence: Fence) -> SluiceError:
    """Return the error for a script that found another checkpoint."""
    try:
        with connected(place) as client:  # on another one answers may be under way
            guarded(client, place, fence)
    except SluiceError as error:
        return error
    return TargetUnavailable("the checkpoint was another one for a moment", where=place.record_place)
