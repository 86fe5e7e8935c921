"""The checkpoint of a target that keeps nothing itself, moved by compare-and-set.

Every move checks the epoch that wrote last, so that a paused process finds a higher one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.coordination.layout import CHECKPOINT, Layout
from sluice.coordination.port import Create, Remove, Znodes, committed, write_at
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
    def from_json(cls, fields: dict[str, Any]) -> TargetRecord:
        """Read a checkpoint from its node."""
        position = Offset.from_json(fields["position"]) if fields["position"] else None
        return cls(int(fields["epoch"]), int(fields["batch"]), position, str(fields.get("identity", "")))


class TargetRecords:
    """The record of one target of a pipeline."""

    def __init__(self, znodes: Znodes, layout: Layout, target: str) -> None:
        self._z = znodes
        self.path = layout.checkpoint(target)

    def read(self) -> tuple[TargetRecord | None, int]:
        """Return the record, None if nothing is stored, and the version of its node, -1 if there is none."""
        node = self._z.get(self.path)
        if node is None:
            return None, -1
        target_record = CHECKPOINT.parse(self.path, node.data, TargetRecord.from_json) if node.data else None
        return target_record, node.version

    def swap(self, record: TargetRecord | None, version: int) -> bool:
        """Store ``record`` (None: remove the node) if the node is at ``version``; False if it is not."""
        if record is None:
            return version < 0 or committed(self._z, Remove(self.path, version))
        step = write_at(self.path, record.encoded(), version)
        if isinstance(step, Create):
            self._z.ensure(step.path.rpartition("/")[0])
        return committed(self._z, step)
