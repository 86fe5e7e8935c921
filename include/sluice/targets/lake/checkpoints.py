"""The checkpoint of a target whose tables are files of a lake: a property of a small separate table.

It is moved by commits that are refused if another was first.

Decision: the checkpoint is not in ZooKeeper, because a unit on a worker has to see the fence where it writes. It is not in the tables, because a
batch has many. It is a table property, not a row, so that no data file is written or left over. A format without conditional commits would make this
wrong.
"""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sluice.errors import CheckpointError, Fenced, TargetUnavailable
from sluice.model.offset import Offset
from sluice.targets.fencing import require_batch, require_no_newer, require_own, seal_of
from sluice.targets.port import Agrees, Checkpoint, Fence

PROPERTY = "sluice.checkpoint"
_FORMAT = 1
_ATTEMPTS = 20


class Raced(Exception):
    """Another commit was first: the table has to be read again."""


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint, and the number of the delivery: batches that tables noted in another one are delivered again."""

    checkpoint: Checkpoint
    delivery: int

    def to_text(self, owner: str) -> str:
        """Return the record as JSON, with a seal of what is written together."""
        found = self.checkpoint
        position = found.position.to_json() if found.position is not None else None
        return json.dumps({
            "format": _FORMAT, "epoch": found.epoch, "batch": found.batch, "position": position, "identity": found.identity,
            "delivery": self.delivery, "seal": seal_of([owner], found.batch, position),
        })  # fmt: skip

    @classmethod
    def from_text(cls, text: str, owner: str, where: str) -> Held:
        """Parse the record. Raises CheckpointError."""
        try:
            data = json.loads(text)
            if data["format"] > _FORMAT:
                raise CheckpointError(
                    f"the checkpoint has format {data['format']}, and this version of Sluice knows {_FORMAT}",
                    where=where,
                    hint="a newer version of Sluice wrote it: use that one",
                )
            position = Offset.from_json(data["position"]) if data["position"] is not None else None
            seal = data.get("seal")  # older versions wrote no seal
            edited = seal is not None and seal != seal_of([owner], data["batch"], data["position"])
            return cls(Checkpoint(data["epoch"], data["batch"], position, data["identity"], edited), data["delivery"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"the table property {PROPERTY} is no checkpoint: {error!r}",
                where=where,
                hint="was it edited by hand?",
            ) from None


class LakeCheckpoints(ABC):
    """See :class:`sluice.targets.port.CheckpointStore`."""

    owner: str
    """The owner, pipeline/target."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The location of the checkpoint, for messages."""

    @abstractmethod
    def _open(self) -> Any:
        """Return the small table, None if there is none."""

    @abstractmethod
    def _text(self, table: Any) -> str:
        """Return the table's property, "" if it has none."""

    @abstractmethod
    def _create(self) -> None:
        """Make the small table unless there is one."""

    @abstractmethod
    def _commit(self, table: Any, wanted: Held | None, doing: str) -> None:
        """Set the property. Raises Raced if anything was committed since ``table`` was read."""

    def read(self) -> Checkpoint | None:
        """Return the checkpoint, None if there is none."""
        found = self.held()
        return found.checkpoint if found is not None else None

    def held(self) -> Held | None:
        """Return the checkpoint with the number of the delivery, None if there is none."""
        table = self._open()
        return self._held(table) if table is not None else None

    def guard(self, fence: Fence) -> Held:
        """Return what is held, if it is what a unit of ``fence`` was told. Raises Fenced."""
        held = self.held()
        if held is None:
            raise self._gone()
        require_own(held.checkpoint, fence.epoch, self.place)
        require_batch(held.checkpoint.batch, fence, self.place)
        return held

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""

        def made(found: Held | None) -> Held:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            found = found or Held(Checkpoint(0, first), _drawn())
            require_no_newer(found.checkpoint, epoch, self.place)
            known = found.checkpoint
            return replace(found, checkpoint=replace(known, epoch=epoch, identity=identity or known.identity))

        moved: Held = self._moved("taking the target over", made, make=True)
        return moved.checkpoint

    def advance(self, to: Checkpoint) -> None:
        """Store a later checkpoint. Raises Fenced."""

        def made(found: Held | None) -> Held:
            if found is None:
                raise self._gone()
            require_own(found.checkpoint, to.epoch, self.place)
            if found.checkpoint.batch >= to.batch:
                return found
            return replace(found, checkpoint=replace(found.checkpoint, batch=to.batch, position=to.position))

        self._moved("advancing the checkpoint", made)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier. What tables noted no longer counts, whether ``anew`` or not. Raises Fenced."""

        def made(found: Held | None) -> Held:
            known = found.checkpoint if found else Checkpoint(0, to.batch)
            require_no_newer(known, to.epoch, self.place)
            return Held(replace(to, identity=to.identity or known.identity), _drawn())

        self._moved("rewinding the checkpoint", made, make=True)

    def forget(self) -> None:
        """Empty the property; the small table and the rows stay."""
        self._moved("forgetting the checkpoint", lambda found: None)

    # -- inside ----------------------------------------------------------------------------------------------------
    def _moved(self, doing: str, made: Callable[[Held | None], Held | None], *, make: bool = False) -> Any:
        """Change the record to what ``made`` returns for it; ``made`` is called again each time another process was faster."""
        for attempt in range(_ATTEMPTS):
            table = self._open()
            if table is None:
                if not make:
                    made(None)  # raises if there must be one
                    return None
                made(None)  # an error leaves everything unchanged
                self._create()
                continue
            found = self._held(table)
            wanted = made(found)
            if wanted == found:
                return wanted
            try:
                self._commit(table, wanted, doing)
                return wanted
            except Raced:
                time.sleep(min(0.01 * 2**attempt, 1.0))
        raise TargetUnavailable(f"{doing}: other processes were quicker {_ATTEMPTS} times", where=self.place)

    def _held(self, table: Any) -> Held | None:
        text = self._text(table)
        return Held.from_text(text, self.owner, self.place) if text else None

    def _gone(self) -> Fenced:
        return Fenced(
            "the target's checkpoint is gone",
            where=self.place,
            hint="was the folder deleted by hand? `sluice check` says what to do",
        )


def _drawn() -> int:
    """Return a number that no earlier delivery had."""
    return secrets.randbits(62) | 1
