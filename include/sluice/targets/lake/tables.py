"""The tables of one target: how each is opened, and what its commits note."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import CheckpointError, LoadError, MappingError
from sluice.model.tables import TableId
from sluice.targets.lake.checkpoint import LakeCheckpointStore
from sluice.targets.lake.format import Commit, CommitNote, LakeFormat
from sluice.targets.lake.options import LakeOptions
from sluice.targets.port import Fence

STATEMENTS = 1 << 20
"""More statements than a batch has: a schema change notes its batch times this, plus its own number."""
SCHEMA_CHANGES = ("ddl", "rewrite", "emptied", "convert")
"""What a schema change is noted as, under its table's scope."""


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
        lake_table = self.existing(table)
        refusal = self.format.refusal(table, lake_table, every=self.every)
        if refusal is not None:
            raise LoadError(f"table {table}: {refusal.why}", where=self.format.uri(table), hint=refusal.hint or None)
        return lake_table

    def existing(self, table: TableId) -> Any:
        """Open a table to read it. Raises MappingError, TargetUnavailable, LoadError."""
        lake_table = self.open(table)
        if lake_table is None:
            raise self.missing(table)
        return lake_table

    def missing(self, table: TableId) -> MappingError:
        """Return the error that there is no such table."""
        return MappingError(
            f"the target has no table {table}: there is no {self.format.NAME} table at {self.format.uri(table)}",
            where=str(table),
            hint=f"`sluice check {self.pipeline} --apply` makes it",
        )

    def noted(self, lake_table: Any, scope: str, delivery: int) -> int:
        """Return the number that a table has noted under ``scope`` in this delivery; 0: none."""
        return self.format.noted(lake_table, self.owner, scope, delivery) or 0

    def require_ahead(self, table: TableId, lake_table: Any, scope: str, delivery: int) -> None:
        """Raise CheckpointError if a table was set back: to a version from before what it has noted under ``scope``.

        A restore or rollback leaves the notes as they are, so they are compared with the commits that led to it.
        """
        error = self.set_back(table, lake_table, scope, delivery)
        if error is not None:
            raise error

    def set_back(self, table: TableId, lake_table: Any, scope: str, delivery: int) -> CheckpointError | None:
        """Return the error that a table was set back, see :meth:`require_ahead`; None if it was not."""
        changed = (self.noted(lake_table, f"{scope}/{what}", delivery) // STATEMENTS for what in SCHEMA_CHANGES)
        last = max(self.noted(lake_table, scope, delivery), *changed)
        newest = self.format.newest(lake_table) if last else None
        if not last or (newest is not None and newest.tells(self.owner, scope) and newest.batch >= last):
            return None
        telling, begins, undone = None, newest is None, False
        now = self.open(table)  # ``lake_table`` stays as it was read, so that a commit is refused if another came since
        for commit in self.format.history(table, now) if now is not None else ():
            begins |= commit.begins
            if commit.tells(self.owner, scope):
                if not commit.undone:
                    telling = commit
                    break
                undone |= commit.batch >= last
        if telling.batch >= last if telling is not None else not (begins or undone):
            return None  # or versions expired, so that it cannot be seen
        return self._was_set_back(table, scope, last, telling)

    def _was_set_back(self, table: TableId, scope: str, last: int, commit: Commit | None) -> CheckpointError:
        place = f"{self.pipeline} {self.target}"
        after = ", which appends to all tables what they hold of these batches once more" if self.every else ""
        after += f"; if they are no longer stored, or the table shall stay as it is: `sluice adopt {place} --reset`"
        if not self.every:
            after += (
                f", and then `sluice dump start {self.pipeline} --target {self.target} --table {scope.split('#')[0]}` "
                f"and `sluice verify run {self.pipeline} --target {self.target} --repair` make it equal"
            )
        error = CheckpointError(
            f"the {self.format.NAME} table {table} was set back by a restore or a rollback: batch {last} was committed "
            f"to it, and it holds {f'batch {commit.batch}' if commit is not None else 'an earlier version'} now; "
            "nothing was written",
            where=self.format.uri(table),
            hint="set it forward again; or "
            f"`sluice redeliver {place} --from-batch {commit.batch + 1 if commit is not None else 1}` loads the "
            f"batches again from the segments{after}",
        )
        error.kind = "behind"
        return error

    def note(
        self, fence: Fence, scope: str, number: int, delivery: int, doing: str, more: Mapping[str, str] | None = None
    ) -> CommitNote:
        """Return the note of a commit. The epoch in its metadata is for people; the checkpoint fences."""
        metadata = {"sluice.owner": self.owner, "sluice.batch": str(fence.batch), "sluice.epoch": str(fence.epoch)}
        metadata["sluice.scope"] = scope
        return CommitNote(self.owner, scope, number, delivery, {**metadata, **self.about, **(more or {})}, doing)
