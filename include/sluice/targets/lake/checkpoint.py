"""The checkpoint of a target whose tables are files of a lake: a property of a small separate table.

It is moved by commits that are refused if another was first.

Decision: the checkpoint is not in ZooKeeper, because a unit on a worker has to see the fence where it writes. It is not
in the tables, because a batch has many. It is a table property, not a row, so that no data file is written or left
over. A format without conditional commits would make this wrong.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from typing_extensions import override

from sluice.targets.lake.format import LakeFormat, Raced
from sluice.targets.port import Checkpoint, Fence
from sluice.targets.port.record import (
    Record,
    RecordPlace,
    SwappedCheckpoints,
    checkpoint_of,
    fields_of,
    reading,
    require_guarded,
)

PROPERTY = "sluice.checkpoint"
_FIELDS = ("format", "epoch", "batch", "position", "identity", "delivery", "seal")


def _drawn() -> int:
    """Return a number that no earlier delivery had."""
    return secrets.randbits(62) | 1


@dataclass(frozen=True, slots=True)
class LakeCheckpoint(Record):
    """A checkpoint, and the number of the delivery: batches that tables noted in another one are delivered again."""

    delivery: int = field(default_factory=_drawn)

    @override
    def rewound(self, checkpoint: Checkpoint, *, anew: bool) -> Self:
        """Return the record of a new delivery: what tables noted no longer counts."""
        return replace(self, checkpoint=checkpoint, delivery=_drawn())

    def to_text(self, owner: str) -> str:
        """Return the record as JSON."""
        fields = fields_of(self.checkpoint, owner) | {"delivery": self.delivery}
        return json.dumps({name: fields[name] for name in _FIELDS})

    @classmethod
    def from_text(cls, text: str, place: RecordPlace) -> Self:
        """Parse the record. Raises CheckpointError."""
        with reading(place):
            data = json.loads(text)
            checkpoint = checkpoint_of(data, place.owner, sealed=False)  # older versions wrote no seal
            return cls(checkpoint, data["delivery"])


@dataclass(frozen=True)
class LakePlace:
    """The names of a target and of its checkpoint. ``owner``: pipeline/target."""

    format: LakeFormat
    owner: str

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self.owner.partition("/")[0]

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"{self.format.NAME} table {self.format.checkpoint_uri(self.owner)}"


class LakeCheckpointStore(SwappedCheckpoints[LakePlace, LakeCheckpoint]):
    """The checkpoint store, a table property. A checkpoint that is forgotten is an empty text."""

    def __init__(self, format: LakeFormat, owner: str) -> None:
        super().__init__(LakePlace(format, owner), LakeCheckpoint)

    @contextmanager
    def _opened(self) -> Iterator[CheckpointProperty]:
        yield CheckpointProperty(self._place)

    def held(self) -> LakeCheckpoint | None:
        """Return the checkpoint with the number of the delivery, None if there is none."""
        return self._read()

    def guard(self, fence: Fence) -> LakeCheckpoint:
        """Return the record that allows a unit of ``fence`` to write. Raises Fenced, CheckpointError."""
        return require_guarded(self._read(), self._place, fence)


class CheckpointProperty:
    """The two calls, by commits that are refused if another was first."""

    def __init__(self, place: LakePlace) -> None:
        self._place = place

    def read(self) -> tuple[LakeCheckpoint | None, Any]:
        """Return the record, and the opened table, None if there is none."""
        format, owner = self._place.format, self._place.owner
        table = format.open_checkpoint(owner)
        text = format.property_of(table, PROPERTY) if table is not None else ""
        return LakeCheckpoint.from_text(text, self._place) if text else None, table

    def swap(self, record: LakeCheckpoint | None, token: Any) -> bool:
        """Commit the property; where there is no table, make it, and let the caller decide again."""
        format, owner = self._place.format, self._place.owner
        if token is None:
            format.create_checkpoint(owner)
            return False
        text = record.to_text(owner) if record is not None else ""
        epoch = record.checkpoint.epoch if record is not None else 0
        try:
            format.move_checkpoint(owner, token, PROPERTY, text, epoch, "moving the checkpoint")
        except Raced:
            return False
        return True
