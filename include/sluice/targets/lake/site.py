"""The tables of one target, whatever their format: how each is opened, what it is, and which batches it has noted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sluice.errors import MappingError
from sluice.model.tables import TableId
from sluice.targets.lake.checkpoints import LakeCheckpoints
from sluice.targets.lake.columns import TableInfo, clusterable
from sluice.targets.lake.options import LakeOptions
from sluice.targets.port import Fence


@dataclass(frozen=True, slots=True)
class Note:
    """The note of a commit in its table: everything up to ``number`` is there under ``scope``, in one ``delivery``. ``said``: words for people.

    ``known``: the number up to which the table has it already.
    """

    scope: str
    number: int
    delivery: int
    said: Mapping[str, str]
    known: int = 0


@dataclass(frozen=True)
class LakeSite(ABC):
    """The tables of a target of one format. Picklable.

    Attributes:
        place: location of the tables.
        every: they hold changes, not rows.
        about: what commits say about the batch.
    """

    FORMAT: ClassVar[str] = ""
    NAME: ClassVar[str] = ""
    """The format's name, for messages."""

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
        """The checkpoint store of this target."""

    @abstractmethod
    def uri(self, table: TableId) -> str:
        """Return the URI or name of a table, for messages."""

    @abstractmethod
    def open(self, table: TableId) -> Any:
        """Open a table as it is now, None if there is none. Raises TargetUnavailable, LoadError."""

    @abstractmethod
    def info(self, table: Any) -> TableInfo:
        """Return the columns and partitions of an opened table."""

    @abstractmethod
    def noted(self, table: Any, scope: str, delivery: int) -> int | None:
        """Return the number that a table has noted under ``scope`` in this delivery."""

    def odd_name(self, name: str) -> bool:
        """Return True for a name that no column can have."""
        return not name

    # -- of all ----------------------------------------------------------------------------------------------------
    @property
    def owner(self) -> str:
        """pipeline/target."""
        return f"{self.pipeline}/{self.target}"

    @property
    def wide_decimals(self) -> str:
        """The option ``wide_decimals``."""
        return self.options.wide_decimals

    def partitions(self, table: TableId) -> tuple[str, ...]:
        """Return the partition columns of a table that is created here."""
        return self.options.partition_by.get(str(table), ())

    def clusters(self, table: TableId, info: TableInfo) -> tuple[str, ...]:
        """Return the columns by which rows of a table are clustered. Names in the option that do not fit are ignored: `sluice check` reports them."""
        found = map(info.find, self.options.cluster_by.get(str(table), ()))
        return tuple(one.name for one in found if one is not None and not one.partition and clusterable(one.kind))

    def required(self, table: TableId) -> Any:
        """Open a table as it is now. Raises MappingError, TargetUnavailable, LoadError."""
        found = self.open(table)
        if found is None:
            raise self.missing(table)
        return found

    def missing(self, table: TableId) -> MappingError:
        """Return the error that there is no such table."""
        return MappingError(
            f"the target has no table {table}: there is no {self.NAME} table at {self.uri(table)}",
            where=str(table),
            hint="`sluice check --apply` makes it",
        )

    def note(self, fence: Fence, scope: str, number: int, delivery: int, more: Mapping[str, str] | None = None) -> Note:
        """Return the note of a commit. The epoch in its words is for people: the checkpoint is what fences."""
        said = {"sluice.owner": self.owner, "sluice.batch": str(fence.batch), "sluice.epoch": str(fence.epoch)}
        return Note(scope, number, delivery, {**said, **self.about, **(more or {})})
