"""One target's tables, whatever their format: how each is opened, what it is, and what it has noted of batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sluice.errors import MappingError
from sluice.model.tables import TableId
from sluice.targets.base import Fence
from sluice.targets.lake.checkpoints import LakeCheckpoints
from sluice.targets.lake.columns import TableInfo, clusterable
from sluice.targets.lake.options import LakeOptions


@dataclass(frozen=True, slots=True)
class Note:
    """What a commit notes in its table: all up to ``number`` is there under ``scope``, in one ``delivery``. ``said``: its words, for people.

    ``known``: up to where the table has it already.
    """

    scope: str
    number: int
    delivery: int
    said: Mapping[str, str]
    known: int = 0


@dataclass(frozen=True)
class LakeSite(ABC):
    """Picklable.

    Attributes:
        place: where the tables are. every: they hold changes, not rows. about: what commits say of the batch.
    """

    FORMAT: ClassVar[str] = ""
    NAME: ClassVar[str] = ""
    """The same for people."""

    place: Any
    options: LakeOptions
    pipeline: str
    target: str
    every: bool = False
    about: Mapping[str, str] = field(default_factory=dict)

    # -- of the format ---------------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def checkpoints(self) -> LakeCheckpoints:
        """Of this target."""

    @abstractmethod
    def uri(self, table: TableId) -> str:
        """For people."""

    @abstractmethod
    def open(self, table: TableId) -> Any:
        """A table as it is now, None if there is none. Raises TargetUnavailable, LoadError."""

    @abstractmethod
    def info(self, table: Any) -> TableInfo:
        """What a table is that was opened."""

    @abstractmethod
    def noted(self, table: Any, scope: str, delivery: int) -> int | None:
        """The number that a table has noted under ``scope`` in this delivery."""

    def odd_name(self, name: str) -> bool:
        """True for a name that no column can have."""
        return not name

    # -- of all ----------------------------------------------------------------------------------------------------
    @property
    def owner(self) -> str:
        """pipeline/target."""
        return f"{self.pipeline}/{self.target}"

    @property
    def wide_decimals(self) -> str:
        """Of the options."""
        return self.options.wide_decimals

    def partitions(self, table: TableId) -> tuple[str, ...]:
        """Of a table that is made here."""
        return self.options.partition_by.get(str(table), ())

    def clusters(self, table: TableId, info: TableInfo) -> tuple[str, ...]:
        """Columns by which rows of a table are clustered. Names of the option that do not fit do not count: `sluice check` says so."""
        found = map(info.find, self.options.cluster_by.get(str(table), ()))
        return tuple(one.name for one in found if one is not None and not one.partition and clusterable(one.kind))

    def required(self, table: TableId) -> Any:
        """A table as it is now. Raises MappingError, TargetUnavailable, LoadError."""
        found = self.open(table)
        if found is None:
            raise self.missing(table)
        return found

    def missing(self, table: TableId) -> MappingError:
        """There is no such table."""
        return MappingError(
            f"the target has no table {table}: there is no {self.NAME} table at {self.uri(table)}",
            where=str(table),
            hint="`sluice check --apply` makes it",
        )

    def note(self, fence: Fence, scope: str, number: int, delivery: int, more: Mapping[str, str] | None = None) -> Note:
        """For a commit. The epoch in its words is for people: the checkpoint is what fences."""
        said = {"sluice.owner": self.owner, "sluice.batch": str(fence.batch), "sluice.epoch": str(fence.epoch)}
        return Note(scope, number, delivery, {**said, **self.about, **(more or {})})
