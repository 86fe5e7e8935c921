"""What every target is: a port with a few verbs, and its capabilities as data.

A target is one folder here and one line in the registry (``targets/__init__.py``). It passes ``tests/contract``.

Exactly once, the rule all targets keep: the target itself holds a row (epoch, batch) a pipeline and target. ``begin_load`` raises the epoch
under a lease; every write happens under a check that the row still says (epoch, the batch before); ``finish_load`` moves the batch.
A process that was paused and comes back finds a higher epoch and stops (Fenced).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import pyarrow as pa

from sluice.mapping import Mapping as TableMapping
from sluice.model.planned import PlannedTable
from sluice.model.positions import Position
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.sessions import StatementSession
from sluice.model.tables import TableId


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of target can do.

    Attributes:
        consistency: the settings it offers (row, table, batch).
        transactional: writes and the acknowledgement commit together.
        keyless: rows of tables without a key can be deleted.
        all_changes: takes every change in order (``changes: all``), not only merged rows.
        replaces: stretches of a table can be made equal to the source's.
    """

    consistency: frozenset[str]
    transactional: bool
    keyless: bool
    all_changes: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to know about a planned table before its first row: ``severity`` is warning or error, ``column`` "" for the table itself.

    ``statement``: what would mend it at the target, "" if nothing simple would; ``hint``: what there is to choose, where that is more than it.
    """

    severity: str
    table: TableId
    column: str
    why: str
    statement: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key at the target: ``columns`` of ``child`` name a row of ``parent``."""

    name: str
    child: TableId
    columns: tuple[str, ...]
    parent: TableId
    parent_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as the target has it. Picklable: planned once, used by every work unit.

    Attributes:
        columns: names the target accepts a value for, in its own spelling, without generated columns.
        unique_keys: the columns of each unique key except the one rows are identified by.
        key: the planned key, in the target's spelling; empty for a table without a key.
        being_copied: a dump brings its rows: one that is not there yet comes whole with its chunk.
        generation: rows of a lower one have to be there first, as the target checks it; None: it checks nothing.
        types: what each of ``columns`` is declared as at the target; empty: not known.
        references: foreign keys from this table and to it that have to hold behind the batch. Those from it the target checks as rows are written,
            if the table has a generation.
        padded: columns of unique keys in which the target does not see spaces at the end, and the source does.
    """

    table: TableId
    columns: tuple[str, ...]
    key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...] = ()
    being_copied: bool = False
    generation: int | None = None
    references: tuple[Reference, ...] = ()
    padded: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a target says about a pipeline: the epoch that wrote last, the batch it holds and where that ends.

    ``identity``: of the pipeline's state in ZooKeeper that delivered it, "" if an older version did. ``position``: None before the first batch.
    """

    epoch: int
    batch: int
    position: Position | None = None
    identity: str = ""


Agrees = Callable[[Checkpoint | None], None]
"""Raises CheckpointError if what the target says does not fit; None: it says nothing yet."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Under which a unit writes: the epoch of the lease, and the batch the target held when the load began."""

    epoch: int
    held: int
    batch: int


@dataclass(frozen=True, slots=True)
class DdlStep:
    """A statement of the source's log that this target shall follow.

    Attributes:
        number: its place among the batch's steps, from 0. where: file:offset in the log.
        sql: as recorded, run with the default schema ``schema`` and the bits ``sql_mode``.
        changes: what it did to captured tables, at the source. mapping: where tables go. foreign: tables in it that are not captured.
        columns: (source table, source column, target column) of columns with another name; excluded: (source table, column) that do not go.
        session: of the statement at the source; None: recorded by a version that did not look at it.
        check_only: the policy is stop: done already, or an error. kinds: only these kinds of change are wanted; None: the statement as it is.
    """

    number: int
    where: str
    sql: str
    schema: str
    sql_mode: int
    changes: tuple[TableChange, ...]
    mapping: TableMapping
    foreign: frozenset[TableId] = frozenset()
    columns: tuple[tuple[TableId, str, str], ...] = ()
    excluded: tuple[tuple[TableId, str], ...] = ()
    check_only: bool = False
    kinds: frozenset[ChangeKind] | None = None
    mariadb: bool = False
    session: StatementSession | None = None

    def target(self, table: TableId) -> TableId:
        """The target's name of a source table."""
        return self.mapping.route(table).target


@dataclass(frozen=True, slots=True)
class DdlProgress:
    """How far a batch with DDL has come: ``rows``: all its rows are written; ``steps``: so many statements have run."""

    rows: bool = False
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Replacement:
    """A stretch of a table: rows in it whose key is not kept go, before anything of the batch is written.

    Attributes:
        names: key columns at the target, in key order; empty: every row goes.
        lower, upper, after, upto: MySQL literals of ``lower <= key <= upper`` and ``after < key <= upto``; empty: no bound.
        listed: literals of the only keys looked at; None: all of the range.
        kept: the keys that stay, a column a name (target names).
    """

    names: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    upto: tuple[str, ...] = ()
    listed: tuple[tuple[str, ...], ...] | None = None
    kept: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Merged rows of one table (changeset columns, target names) to be written, deletes before upserts.

    ``deletes``, ``upserts``: which half is wanted; both, unless the table is spread over several units in two phases. ``scope``: under which
    a table without a key, or with partial rows, remembers that these rows are written; the table itself, unless there are several such parts, or they
    are not a batch's. ``replaces``: stretches to clear first, in the same transaction; ``rows`` may have no columns if they are all there is.
    ``in_order``: the rows are in the order of the log and stay in it, as the server may hold keys of several of them for equal.
    ``verify``: nothing is written; the table's ``references`` are looked at, as the rows are there.
    ``read``: gives the rows piece by piece, again each time, where they are too many for the memory; ``rows`` has only their columns then.
    """

    table: TargetTable
    rows: pa.Table
    deletes: bool = True
    upserts: bool = True
    scope: str = ""
    replaces: tuple[Replacement, ...] = ()
    in_order: bool = False
    verify: bool = False
    read: Callable[[], Iterator[pa.Table]] | None = None

    def pieces(self) -> Iterator[pa.Table]:
        """All rows, never more at a time than the memory takes."""
        yield from self.read() if self.read is not None else (self.rows,)

    def each(self) -> Iterator[TableChanges]:
        """The same for the rows of each piece."""
        if self.read is None:
            yield self
            return
        for rows in self.read():
            yield replace(self, rows=rows, read=None)

    def whole(self) -> TableChanges:
        """The same with all rows in memory."""
        return self if self.read is None else replace(self, rows=pa.concat_tables([self.rows, *self.read()]), read=None)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row (a table of one) that the target did not take, why, and its number for the reason."""

    row: pa.Table
    reason: str
    where: str


OnRefused = Callable[[TableChanges, Sequence[Refusal]], None]
"""Keeps refused rows; called before the transaction that lacks them commits."""


@dataclass(frozen=True, slots=True)
class LoadCount:
    """What was written."""

    upserted: int = 0
    deleted: int = 0
    statements: int = 0
    retries: int = 0
    refused: int = 0

    def __add__(self, other: LoadCount) -> LoadCount:
        return LoadCount(
            self.upserted + other.upserted,
            self.deleted + other.deleted,
            self.statements + other.statements,
            self.retries + other.retries,
            self.refused + other.refused,
        )


@runtime_checkable
class Target(Protocol):
    """One target of one pipeline. Raises TargetUnavailable, ConfigError, MappingError, LoadError, Fenced."""

    capabilities: Capabilities

    @property
    def checkpoint_place(self) -> str:
        """Where the target keeps its checkpoint, for people."""

    def acked_batch(self) -> int:
        """The batch the target holds, 0 if none; takes nothing over."""

    def checkpoint(self) -> Checkpoint | None:
        """All that the target says about this pipeline, None if nothing; takes nothing over."""

    def begin_load(self, epoch: int, began: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> int:
        """Take over with ``epoch`` and return the batch the target holds. Raises Fenced if a higher epoch was here.

        ``began``: the batch before the first that this target is to get; what it holds when it meets Sluice for the first time.
        ``identity``: of the state that delivers from now on. ``agrees``: asked first, while nobody else can take over; what it raises
        leaves everything as it was.
        """

    def interrupt(self) -> None:
        """End the statements that this process is at for this pipeline and target; they fail. Raises TargetUnavailable, ConfigError."""

    def check(self, tables: Sequence[PlannedTable]) -> Mapping[TableId, TargetTable]:
        """Compare with what the target has, by target table. Raises MappingError that names table, column and the statement that helps."""

    def replaceable(self, plan: PlannedTable) -> tuple[TargetTable | None, str]:
        """The table, if a stretch of its keys (``plan.columns``; none: the whole table) can be replaced; else None and why not."""

    def others(self) -> tuple[str, ...]:
        """Other pipelines that are known to write to the same server."""

    def review(self, tables: Sequence[PlannedTable]) -> Sequence[Remark]:
        """All there is to say about the planned tables before the first batch; nothing is raised for them and nothing is changed."""

    def apply_statement(self, statement: str) -> None:
        """Run a statement that a remark proposes."""

    def ddl_progress(self, batch: int) -> DdlProgress:
        """How far ``batch`` has come, for a repeat after a crash."""

    def rows_loaded(self, fence: Fence) -> None:
        """All rows of a batch with DDL are written; its statements follow. Raises Fenced."""

    def apply_ddl(self, fence: Fence, step: DdlStep) -> tuple[str, ...]:
        """Make the target's tables follow a statement, exactly once. Returns what was run, nothing if the target had it already.

        Raises:
            LoadError: the target refused it, or policy and state want a person. Fenced.
        """

    def load(
        self,
        fence: Fence,
        changes: Sequence[TableChanges],
        *,
        one_transaction: bool = False,
        acknowledge: Position | None = None,
        on_refused: OnRefused | None = None,
    ) -> LoadCount:
        """Write; a repeat ends in the same state. ``acknowledge``: in one transaction with the batch's acknowledgement.

        ``on_refused``: rows that the target refuses are left out and given to it; None: the first one stops the load.
        """

    def finish_load(self, epoch: int, batch: int, position: Position) -> None:
        """All of ``batch`` is written. A repeat is harmless. Raises Fenced."""

    def reset_ack(self, epoch: int, batch: int, position: Position, *, identity: str = "", anew: bool = False) -> None:
        """Say that the target holds ``batch``, an earlier one than it says too: what follows is delivered again. Raises Fenced.

        ``anew``: batch numbers mean something else from now on, so that what single tables remember of earlier ones is forgotten.
        """

    def forget_checkpoint(self) -> None:
        """Remove all that the target says about this pipeline. Rows stay."""
