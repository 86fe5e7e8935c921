"""The checkpoint of a target whose tables are files of a lake: a property of a small separate table.

It is moved by commits that are refused if another was first.

Decision: the checkpoint is not in ZooKeeper, because a unit on a worker has to see the fence where it writes. It is not
in the tables, because a batch has many. It is a table property, not a row, so that no data file is written or left
over. A format without conditional commits would make this wrong.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sluice.errors import CheckpointError, Fenced, TargetUnavailable
from sluice.model.offset import Offset
from sluice.targets.fencing import require_batch, require_no_newer, require_own, seal_of
from sluice.targets.lake.format import LakeFormat, Raced
from sluice.targets.port import Agrees, Checkpoint, Fence

PROPERTY = "sluice.checkpoint"
_FORMAT = 1
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class LakeCheckpoint:
    """A checkpoint, and the number of the delivery: batches that tables noted in another one are delivered again."""

    checkpoint: Checkpoint
    delivery: int

    def to_text(self, owner: str) -> str:
        """Return the record as JSON, with a seal of what is written together."""
        found = self.checkpoint
        position = found.position.to_json() if found.position is not None else None
        return json.dumps({
            "format": _FORMAT, "epoch": found.epoch, "batch": found.batch, "position": position,
            "identity": found.identity,
            "delivery": self.delivery, "seal": seal_of([owner], found.batch, position),
        })  # fmt: skip

    @classmethod
    def from_text(cls, text: str, owner: str, where: str) -> LakeCheckpoint:
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


@dataclass(frozen=True)
class LakeCheckpointStore:
    """See :class:`sluice.targets.port.CheckpointStore`. ``owner``: pipeline/target."""

    format: LakeFormat
    owner: str

    @property
    def place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"{self.format.NAME} table {self.format.checkpoint_uri(self.owner)}"

    def read(self) -> Checkpoint | None:
        """Return the checkpoint, None if there is none."""
        found = self.held()
        return found.checkpoint if found is not None else None

    def held(self) -> LakeCheckpoint | None:
        """Return the checkpoint with the number of the delivery, None if there is none."""
        table = self.format.open_checkpoint(self.owner)
        return self._held(table) if table is not None else None

    def guard(self, fence: Fence) -> LakeCheckpoint:
        """Return what is held, if it is what a unit of ``fence`` was told. Raises Fenced."""
        held = self.held()
        if held is None:
            raise self._gone()
        require_own(held.checkpoint, fence.epoch, self.place)
        require_batch(held.checkpoint.batch, fence, self.place)
        return held

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""

        def made(found: LakeCheckpoint | None) -> LakeCheckpoint:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            found = found or LakeCheckpoint(Checkpoint(0, first), _drawn())
            require_no_newer(found.checkpoint, epoch, self.place)
            known = found.checkpoint
            return replace(found, checkpoint=replace(known, epoch=epoch, identity=identity or known.identity))

        moved: LakeCheckpoint = self._moved("taking the target over", made, make=True)
        return moved.checkpoint

    def advance(self, to: Checkpoint) -> None:
        """Store a later checkpoint. Raises Fenced."""

        def made(found: LakeCheckpoint | None) -> LakeCheckpoint:
            if found is None:
                raise self._gone()
            require_own(found.checkpoint, to.epoch, self.place)
            if found.checkpoint.batch >= to.batch:
                return found
            return replace(found, checkpoint=replace(found.checkpoint, batch=to.batch, position=to.position))

        self._moved("advancing the checkpoint", made)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier. What tables noted no longer counts, whether ``anew`` or not.

        Raises Fenced.
        """

        def made(found: LakeCheckpoint | None) -> LakeCheckpoint:
            known = found.checkpoint if found else Checkpoint(0, to.batch)
            require_no_newer(known, to.epoch, self.place)
            return LakeCheckpoint(replace(to, identity=to.identity or known.identity), _drawn())

        self._moved("rewinding the checkpoint", made, make=True)

    def forget(self) -> None:
        """Empty the property; the small table and the rows stay."""
        self._moved("forgetting the checkpoint", lambda found: None)

    # -- inside ----------------------------------------------------------------------------------------------------
    def _moved(
        self, doing: str, made: Callable[[LakeCheckpoint | None], LakeCheckpoint | None], *, make: bool = False
    ) -> Any:
        """Change the record to what ``made`` returns for it; ``made`` is called again each time another process was
        faster.
        """
        for attempt in range(_ATTEMPTS):
            table = self.format.open_checkpoint(self.owner)
            if table is None:
                if not make:
                    made(None)  # raises if there must be one
                    return None
                made(None)  # an error leaves everything unchanged
                self.format.create_checkpoint(self.owner)
                continue
            found = self._held(table)
            wanted = made(found)
            if wanted == found:
                return wanted
            try:
                text = wanted.to_text(self.owner) if wanted is not None else ""
                epoch = wanted.checkpoint.epoch if wanted is not None else 0
                self.format.move_checkpoint(self.owner, table, PROPERTY, text, epoch, doing)
                return wanted
            except Raced:
                time.sleep(min(0.01 * 2**attempt, 1.0))
        raise TargetUnavailable(f"{doing}: other processes were quicker {_ATTEMPTS} times", where=self.place)

    def _held(self, table: Any) -> LakeCheckpoint | None:
        text = self.format.property_of(table, PROPERTY)
        return LakeCheckpoint.from_text(text, self.owner, self.place) if text else None

    def _gone(self) -> Fenced:
        return Fenced(
            "the target's checkpoint is gone",
            where=self.place,
            hint=f"was the folder deleted by hand? `sluice check {self.owner.partition('/')[0]}` says what to do",
        )


def _drawn() -> int:
    """Return a number that no earlier delivery had."""
    return secrets.randbits(62) | 1
