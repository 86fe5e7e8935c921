"""The checkpoint of a target that keeps nothing itself, moved by compare-and-set.

Every move checks the epoch that wrote last, so that a paused process finds a higher one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sluice.coordination.layout import CHECKPOINT, Layout
from sluice.coordination.port import Create, Remove, Step, Znodes, committed, write_at
from sluice.model.offset import Offset


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """The record that is kept for a target."""

    epoch: int
    batch: int
    position: Offset | None = None
    identity: str = ""

    def encoded(self) -> bytes:
        """Return the record as JSON."""
        position = self.position.to_json() if self.position else None
        data = {"epoch": self.epoch, "batch": self.batch, "position": position, "identity": self.identity}
        return CHECKPOINT.encode(data)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> TargetRecord:
        """Read a checkpoint from its node."""
        position = Offset.from_json(found["position"]) if found["position"] else None
        return cls(int(found["epoch"]), int(found["batch"]), position, str(found.get("identity", "")))


class Superseded(Exception):
    """A higher epoch was here: ``epoch``."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch}")
        self.epoch = epoch


class TargetRecords:
    """The record of one target of a pipeline."""

    def __init__(self, znodes: Znodes, layout: Layout, target: str) -> None:
        self._z = znodes
        self.path = layout.checkpoint(target)

    def read(self) -> TargetRecord | None:
        """Return the record, None if nothing is kept."""
        return self._read()[0]

    def write(self, record: TargetRecord, *, backwards: bool = False) -> TargetRecord:
        """Store ``record`` unless a higher epoch was here.

        The batch never moves back, unless ``backwards``. Returns what is kept.

        Raises:
            Superseded: a higher epoch was here.
        """
        while True:
            found, version = self._read()
            if found is not None and found.epoch > record.epoch:
                raise Superseded(found.epoch)
            made = record
            if found is not None and not backwards and found.batch >= record.batch:
                made = replace(found, epoch=record.epoch, identity=record.identity or found.identity)
            if made == found:
                return made
            if self._moved(write_at(self.path, made.encoded(), version)):
                return made

    def forget(self) -> None:
        """Remove it."""
        if self._read()[1] >= 0:
            self._moved(Remove(self.path))

    def _read(self) -> tuple[TargetRecord | None, int]:
        node = self._z.get(self.path)
        if node is None:
            return None, -1
        found = CHECKPOINT.parse(self.path, node.data, TargetRecord.from_json) if node.data else None
        return found, node.version

    def _moved(self, step: Step) -> bool:
        if isinstance(step, Create):
            self._z.ensure(step.path.rpartition("/")[0])
        return committed(self._z, step)
