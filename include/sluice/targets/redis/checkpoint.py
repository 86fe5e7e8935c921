"""The checkpoint of a Redis target: a hash at the server itself, which every script looks at before it writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from sluice.errors import CheckpointError, Fenced, SluiceError, TargetUnavailable
from sluice.model.offset import Offset
from sluice.targets.fencing import require_batch, require_no_newer, require_own, require_unedited, seal_of
from sluice.targets.port import Agrees, Checkpoint, Fence
from sluice.targets.redis.client import Client, FenceMoved, connected, library, translated
from sluice.targets.redis.place import Place
from sluice.targets.redis.scripts import ADVANCE

FORMAT_VERSION = "1"
SENT, STATEMENTS = "sent", "statements"
"""Fields: entries of a batch that streams have; (batch, number) of the schema changes that are done."""
_OF_BATCHES = (SENT, STATEMENTS, "replay:", "moved:")
"""Begins of the fields that name a batch."""
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class RedisCheckpoint:
    """The record.

    ``tables``: target tables that the pipeline wrote; ``at``: seconds since 1970 of the last batch; ``fields``: all of
    them.
    """

    checkpoint: Checkpoint
    tables: frozenset[str] = frozenset()
    at: float = 0.0
    fields: tuple[str, ...] = ()


class RedisCheckpoints:
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def place(self) -> str:
        """The key, and its server."""
        return self._place.record_place

    def read(self) -> Checkpoint | None:
        """Return the target's checkpoint, None if there is none."""
        with connected(self._place) as client:
            found = read_checkpoint(client, self._place)
        return found.checkpoint if found is not None else None

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""

        def made(found: RedisCheckpoint | None) -> Checkpoint:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            held = found.checkpoint if found else Checkpoint(0, first)
            require_no_newer(held, epoch, self.place)
            return replace(held, epoch=epoch, identity=identity or held.identity)

        return self._moved(made)

    def advance(self, to: Checkpoint, tables: Iterable[str] = ()) -> None:
        """Store a later checkpoint. ``tables``: that the batch wrote. Raises Fenced."""
        with connected(self._place) as client:
            held = own_checkpoint(client, self._place, to.epoch)
            known = json.dumps(sorted({*held.tables, *tables}))
            position = _position_text(to)
            words = [to.epoch, to.batch, position, self._seal(to), known, f"{time.time():.3f}"]
            try:
                client.run(ADVANCE, [self._place.checkpoint_key], words)
            except FenceMoved:
                own_checkpoint(client, self._place, to.epoch)
                raise TargetUnavailable("the checkpoint moved meanwhile", where=self.place) from None
            _wait_for_disk(client, self._place)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier. Raises Fenced."""

        def made(found: RedisCheckpoint | None) -> Checkpoint:
            held = found.checkpoint if found else Checkpoint(0, to.batch)
            require_no_newer(held, to.epoch, self.place)
            return Checkpoint(to.epoch, to.batch, to.position, to.identity or held.identity)

        self._moved(made, lambda name: name in {SENT, STATEMENTS} or (anew and name.startswith(_OF_BATCHES)))

    def forget(self) -> None:
        """Remove the record; rows stay."""
        with connected(self._place) as client:
            client.ask("removing the checkpoint", "DEL", self._place.checkpoint_key)

    def _seal(self, held: Checkpoint) -> int:
        return seal_of([self._place.owner], held.batch, held.position.to_json() if held.position else None)

    def _moved(
        self, made: Callable[[RedisCheckpoint | None], Checkpoint], drops: Callable[[str], bool] = lambda name: False
    ) -> Checkpoint:
        """Change the record to what ``made`` returns for it, unless another process changes it meanwhile."""
        place, key = self._place, self._place.checkpoint_key
        for _ in range(_ATTEMPTS):
            with connected(place) as client, _watched(client, key):
                found = read_checkpoint(client, place)
                held = made(found)
                gone = [name for name in (found.fields if found else ()) if drops(name)]
                if found is not None and held == found.checkpoint and not gone:
                    return held
                fields = {
                    "format": FORMAT_VERSION, "epoch": held.epoch, "batch": held.batch,
                    "position": _position_text(held),
                    "identity": held.identity, "seal": self._seal(held),
                }  # fmt: skip
                words = [word for pair in fields.items() for word in pair]
                commands: list[list[Any]] = [
                    ["MULTI"],
                    ["HSET", key, *words],
                    *([["HDEL", key, *gone]] if gone else ()),
                ]
                answers = client.ask_all("changing the checkpoint", [*commands, ["EXEC"]])
                for answer in answers:
                    if isinstance(answer, library().RedisError):
                        raise _refused(answer, place)
                if answers[-1] is not None:
                    _wait_for_disk(client, place)
                    return held
        raise TargetUnavailable("other processes changed the checkpoint again and again", where=self.place)


@contextmanager
def _watched(client: Client, key: str) -> Iterator[None]:
    client.ask("watching the checkpoint", "WATCH", key)
    try:
        yield
    finally:
        with suppress(SluiceError):  # the connection is used again
            client.ask("watching the checkpoint", "UNWATCH")


def _refused(error: Any, place: Place) -> Exception:
    return translated(error, place.endpoint, "changing the checkpoint")


def _position_text(held: Checkpoint) -> str:
    return json.dumps(held.position.to_json(), sort_keys=True) if held.position else ""


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

    ``key``: of another owner.
    """
    key = key or place.checkpoint_key
    found = client.ask("reading the checkpoint", "HGETALL", key)
    given = zip(found[::2], found[1::2], strict=True)
    data = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in given}
    if not data:
        return None
    try:
        if data["format"] != FORMAT_VERSION:
            raise ValueError(f"format {data['format']}")
        position = Offset.from_json(json.loads(data["position"])) if data["position"] else None
        owner = key.removeprefix(place.checkpoints)
        batch = int(data["batch"])
        edited = int(data["seal"]) != seal_of([owner], batch, position.to_json() if position else None)
        held = Checkpoint(int(data["epoch"]), batch, position, data["identity"], edited)
        tables = frozenset(json.loads(data.get("tables", "[]")))
        return RedisCheckpoint(held, tables, float(data.get("at", 0)), tuple(data))
    except (ValueError, KeyError, TypeError, SluiceError) as error:
        raise CheckpointError(
            f"the checkpoint of {place.owner} cannot be read: {error}",
            where=f"key {key} at {place.endpoint.address}",
            hint=f"was it written by a newer version, or by hand? `sluice check {place.pipeline}` says what to do",
        ) from error


def own_checkpoint(client: Client, place: Place, epoch: int) -> RedisCheckpoint:
    """Return the record of a target that ``epoch`` took over. Raises Fenced."""
    found = read_checkpoint(client, place)
    if found is None:
        raise Fenced(
            "the target's checkpoint is gone",
            where=place.record_place,
            hint=f"was the server emptied, or did it lose its memory? `sluice check {place.pipeline}` says what to do",
        )
    require_own(found.checkpoint, epoch, place.record_place)
    return found


def guarded(client: Client, place: Place, fence: Fence) -> RedisCheckpoint:
    """Return the record, if it is what a unit of ``fence`` was told. Raises Fenced, CheckpointError."""
    found = own_checkpoint(client, place, fence.epoch)
    require_unedited(found.checkpoint, place.pipeline, place.record_place)
    require_batch(found.checkpoint.batch, fence, place.record_place)
    return found


def moved(place: Place, fence: Fence) -> SluiceError:
    """Return the error for a script that found another checkpoint."""
    try:
        with connected(place) as client:  # on another one answers may be under way
            guarded(client, place, fence)
    except SluiceError as error:
        return error
    return TargetUnavailable("the checkpoint was another one for a moment", where=place.record_place)


__all__ = [
    "SENT", "STATEMENTS", "RedisCheckpoint", "RedisCheckpoints", "guarded", "moved", "own_checkpoint",
    "read_checkpoint",
]  # fmt: skip
