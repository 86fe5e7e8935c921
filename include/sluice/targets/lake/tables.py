"""The tables of one target: how each is opened, and what its commits note."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import MappingError
from sluice.model.tables import TableId
from sluice.targets.lake.checkpoint import LakeCheckpointStore
from sluice.targets.lake.format import CommitNote, LakeFormat
from sluice.targets.lake.options import LakeOptions
from sluice.targets.port import Fence


@dataclass(frozen=True)
class LakeTables:
    """The tables of a target. Picklable.

    Attributes:
        every: they hold changes, not rows.
        about: what commits say about the batch.
    """

    format: LakeFormat
    pipeline: str
    target: str
    every: bool = False
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> LakeOptions:
        """The target's options."""
        return self.format.options

    @property
    def owner(self) -> str:
        """pipeline/target."""
        return f"{self.pipeline}/{self.target}"

    @property
    def checkpoints(self) -> LakeCheckpointStore:
        """The checkpoint store of this target: a small table in the same location."""
        return LakeCheckpointStore(self.format, self.owner)

    def open(self, table: TableId) -> Any:
        """Open a table as it is now, None if there is none. Raises TargetUnavailable, LoadError."""
        return self.format.open(self.format.names(table), f"reading the metadata of {table}")

    def required(self, table: TableId) -> Any:
        """Open a table to write to it. Raises MappingError, TargetUnavailable, LoadError."""
        found = self.existing(table)
        self.format.require_fenced(table, found)
        return found

    def existing(self, table: TableId) -> Any:
        """Open a table to read it. Raises MappingError, TargetUnavailable, LoadError."""
        found = self.open(table)
        if found is None:
            raise self.missing(table)
        return found

    def missing(self, table: TableId) -> MappingError:
        """Return the error that there is no such table."""
        return MappingError(
            f"the target has no table {table}: there is no {self.format.NAME} table at {self.format.uri(table)}",
            where=str(table),
            hint=f"`sluice check {self.pipeline} --apply` makes it",
        )

    def noted(self, found: Any, scope: str, delivery: int) -> int:
        """Return the number that a table has noted under ``scope`` in this delivery; 0: none."""
        return self.format.noted(found, self.owner, scope, delivery) or 0

    def note(
        self, fence: Fence, scope: str, number: int, delivery: int, doing: str, more: Mapping[str, str] | None = None
    ) -> CommitNote:
        """Return the note of a commit. The epoch in its words is for people: the checkpoint is what fences."""
        said = {"sluice.owner": self.owner, "sluice.batch": str(fence.batch), "sluice.epoch": str(fence.epoch)}
        return CommitNote(self.owner, scope, number, delivery, {**said, **self.about, **(more or {})}, doing)
