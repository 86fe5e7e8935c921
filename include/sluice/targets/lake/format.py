"""The protocol of a format: the steps on one table that Delta and Iceberg take differently.

The rest of a lake target is written once over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.definitions import ColumnDefinition
from sluice.model.row_effects import Step
from sluice.model.tables import TableId
from sluice.targets.lake.changelog import columns_of
from sluice.targets.lake.options import LakeOptions
from sluice.targets.lake.rows import Part
from sluice.targets.lake.types import LakeColumn, Shape, TableInfo
from sluice.targets.port import TableFinding, Upkeep
from sluice.targets.schema.plan import AddColumn

Names = tuple[str, ...]
"""The quoted names of a table in a statement that makes it."""

HOLDS = "sluice.holds"
"""The word of a commit that changes no row: the batch that the table held before it, and holds after it."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Raced(Exception):
    """Another commit was first: the table has to be read again."""


@dataclass(frozen=True, slots=True)
class CommitNote:
    """The note of a commit in its table: everything up to ``number`` is there under ``scope``, in one ``delivery``.

    Attributes:
        owner: pipeline/target.
        said: words for people. doing: what the commit does, for errors.
        known: the number up to which the table has it already.
    """

    owner: str
    scope: str
    number: int
    delivery: int
    said: Mapping[str, str]
    doing: str
    known: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a table.

    ``batch`` 0: it belongs to no batch and does not name the one that the table held (create, extend, compact).
    """

    version: int
    batch: int = 0
    commit_time: str = ""
    first: int = 0
    """The first batch of several (``commit_every``), else ``batch``."""
    begins: bool = False
    """True if it is the table's first commit."""
    owner: str = ""
    """The pipeline/target that made it, "" for another program."""
    scope: str = ""
    """The key under which the commit is noted, "" if it does not say."""
    replay: bool = False
    """True if it delivers a dead letter, whose ``batch`` is an earlier one."""
    undone: bool = False
    """True if the table was set back to a version before it."""

    @classmethod
    def of(cls, version: int, properties: Mapping[str, str], *, begins: bool, undone: bool = False) -> Commit:
        """Build it from the commit's words."""
        batch = int(properties.get("sluice.batch") or properties.get(HOLDS) or 0)
        first = int(properties.get("sluice.first_batch", batch))
        time, owner, scope = (properties.get(f"sluice.{word}", "") for word in ("commit_time", "owner", "scope"))
        return cls(version, batch, time, first, begins, owner, scope, "sluice.replay" in properties, undone)

    def has_within(self, batch: int) -> bool:
        """Return True if the commit contains ``batch`` and later ones."""
        return 0 < self.first <= batch < self.batch

    def tells(self, owner: str, scope: str) -> bool:
        """Return True if it tells which batch of ``owner`` the table held after it under ``scope``."""
        is_own = self.owner == owner and self.batch > 0 and not self.replay
        return is_own and (not self.scope or self.scope.split("#")[0] == scope.split("#")[0])

    def ended_by(self, time_us: int) -> bool:
        """Return True if its batch ended at the source at ``time_us`` or before."""
        if not self.batch or not self.commit_time:
            return False
        return (datetime.fromisoformat(self.commit_time) - _EPOCH) // timedelta(microseconds=1) <= time_us


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes of a table's columns by one statement.

    Attributes:
        source, table: at the source, and at the target. gone: names of columns that go. names: new names by the names
            now.
        wider: new types by the names now. wanted: all columns after the change. adds: new ones among them; a table of
            changes has none.
        clash: a name that two columns would have, unless the edits were made already; "" if there is none.
        every: it is a table of changes. emptied: it has no rows, as they are copied again.
    """

    source: TableId
    table: TableId
    gone: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    wider: Mapping[str, Shape] = field(default_factory=dict)
    wanted: tuple[tuple[ColumnDefinition, LakeColumn], ...] = ()
    adds: tuple[AddColumn, ...] = ()
    clash: str = ""
    every: bool = False
    emptied: bool = False

    @property
    def new(self) -> list[tuple[ColumnDefinition, LakeColumn]]:
        """The added columns, each as the source defines it and as the table has it."""
        names = {added.name for added in self.adds}
        return [(column, lake_column) for column, lake_column in self.wanted if lake_column.name in names]

    @property
    def all_changes(self) -> tuple[LakeColumn, ...]:
        """All columns of a table of changes after the statement."""
        return columns_of([lake_column for _, lake_column in self.wanted])


class Following(Protocol):
    """The statement that is followed, as a format asks about it while it edits columns."""

    def note(self, source: TableId, what: str, lake_table: Any) -> CommitNote | None:
        """Return the commit note for part ``what`` of the statement; None if noted already. Raises Fenced."""

    def refuse_clash(self, edits: Edits) -> None:
        """Raise LoadError for a clash.

        Ask it for a statement that is not noted yet: where it is, the names are as after it.
        """

    def fill(self, column: ColumnDefinition, lake_column: LakeColumn, target: TableId) -> pa.Scalar | None:
        """Return the value that existing rows get in a new column; None for NULL. Raises LoadError."""

    def say(self, sql: str) -> None:
        """Log a statement that the follower runs."""

    def by_hand(self, why: str) -> LoadError:
        """Return the error that people have to follow it."""


class LakeFormat(Protocol):
    """The tables of one target in a format. Picklable.

    ``lake_table`` is a table as the format's library opens it. Each write is one commit, which is refused (Raced) if
    another one came since ``lake_table`` was read that changed the same rows or noted the same. All raise LoadError and
    TargetUnavailable.
    """

    FORMAT: ClassVar[str]
    NAME: ClassVar[str]
    """The format's name, for messages."""
    BY_HAND: ClassVar[str]
    """The way people make a schema change that is not followed."""
    KEPT: ClassVar[str]
    """The time that versions are kept, for messages."""
    KEEPS_PARTITIONS: ClassVar[bool]
    """True if data files have the columns by which their table is partitioned."""
    EMPTY_VERSION: ClassVar[int | None]
    """The number of a table before its first commit; None if making a table is a commit."""

    @property
    def options(self) -> LakeOptions:
        """The target's options."""

    # -- tables ----------------------------------------------------------------------------------------------------
    def uri(self, table: TableId) -> str:
        """Return the URI or name of a table, for messages."""

    def names(self, table: TableId) -> Names:
        """Return the names of a table in a statement."""

    def sql_name(self, table: TableId) -> str:
        """Return the table in Spark's words."""

    def odd_name(self, name: str) -> bool:
        """Return True for a name that no column can have."""

    def open(self, names: Names, doing: str) -> Any:
        """Open a table as it is now, None if there is none."""

    def refusal(self, table: TableId, lake_table: Any, *, every: bool) -> TableFinding | None:
        """Return why the library cannot write to a table, or would commit a lost race by itself; None if it can."""

    def info(self, lake_table: Any) -> TableInfo:
        """Return the columns and partitions of a table."""

    def arrow_schema(self, lake_table: Any) -> pa.Schema:
        """Return the Arrow schema of rows for the table."""

    def is_empty(self, lake_table: Any) -> bool:
        """Return True if the table cannot have a row."""

    def turn(self) -> AbstractContextManager[None]:
        """Let only this thread commit inside the context, if threads would only hold each other up."""

    # -- schema ----------------------------------------------------------------------------------------------------
    def create(self, names: Names, columns: Sequence[LakeColumn], partitions: Sequence[str]) -> None:
        """Make a table unless there is one."""

    def add_columns(self, names: Names, lake_table: Any, columns: Sequence[LakeColumn]) -> None:
        """Add columns, or parts of a struct."""

    def set_properties(self, names: Names, lake_table: Any, properties: Mapping[str, str]) -> None:
        """Set properties of a table."""

    def edit_schema(self, edits: Edits, lake_table: Any, following: Following) -> None:
        """Make the edits; a repeat of the statement makes none twice."""

    def convert(
        self,
        table: TableId,
        lake_table: Any,
        note: CommitNote,
        steps: Mapping[str, Sequence[Step]],
        say: Callable[[str], None],
    ) -> None:
        """Convert values of columns (by current names) as the source did; ``say`` logs the statement.

        Raises Refused.
        """

    def empty(self, table: TableId, lake_table: Any, note: CommitNote) -> None:
        """Remove all rows."""

    # -- rows ------------------------------------------------------------------------------------------------------
    def noted(self, lake_table: Any, owner: str, scope: str, delivery: int) -> int | None:
        """Return the number that a table has noted under ``scope`` in this delivery."""

    def append(self, table: TableId, lake_table: Any, note: CommitNote, rows: pa.Table) -> None:
        """Append rows."""

    def merge(
        self,
        table: TableId,
        lake_table: Any,
        note: CommitNote,
        parts: Sequence[Part],
        info: TableInfo,
        key: Sequence[str],
    ) -> None:
        """Upsert and delete rows by the columns of ``key``."""

    def read(
        self, table: TableId, at: Any, names: Sequence[str], bounds: Mapping[str, tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of all rows; rows outside the ``bounds`` of a column may be left out.

        ``at``: a table, or from :meth:`as_of`.
        """

    # -- versions --------------------------------------------------------------------------------------------------
    def newest(self, lake_table: Any) -> Commit | None:
        """Return the newest commit of a table, None if there is none."""

    def history(self, table: TableId, lake_table: Any) -> Iterator[Commit]:
        """Yield the retained commits of a table, newest first.

        Those from which it was set back are ``undone``, and may come last.
        """

    def as_of(self, table: TableId, lake_table: Any, version: int) -> tuple[Any, TableInfo]:
        """Return the table at a version, for :meth:`read`, and its columns then."""

    def totals(self, table: TableId, lake_table: Any, version: int) -> tuple[int, int, int]:
        """Return the number of rows, of files, and the bytes of the files at a version."""

    # -- the table of the checkpoint -------------------------------------------------------------------------------
    def checkpoint_uri(self, owner: str) -> str:
        """Return the location of the small table, for messages. ``owner``: pipeline/target."""

    def open_checkpoint(self, owner: str) -> Any:
        """Return the small table, None if there is none."""

    def create_checkpoint(self, owner: str) -> None:
        """Make the small table unless there is one."""

    def property_of(self, lake_table: Any, name: str) -> str:
        """Return a property of a table, "" if it has none."""

    def move_checkpoint(self, owner: str, lake_table: Any, name: str, text: str, epoch: int, doing: str) -> None:
        """Set the property of the small table. Raises Raced if anything was committed since ``lake_table`` was read."""

    # -- maintenance -----------------------------------------------------------------------------------------------
    def compact(self, table: TableId, lake_table: Any, owner: str, *, dry_run: bool) -> Upkeep:
        """Make larger files of small ones, clustered as the options say. ``owner``: pipeline/target."""

    def expire(self, upkeep: Upkeep, *, dry_run: bool) -> Upkeep:
        """Remove versions and files that are older than the options keep; add them to ``upkeep``, its upkeep so far."""
