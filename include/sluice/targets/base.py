"""The target port: what every kind of target is, and its capabilities as data.

The way of a batch::

    target.checkpoints.take_over(epoch)        on the driver, under the lease; every older writer is refused from here on
    with target.open(epoch) as session:
        writer = session.begin(batch)          no I/O
        writer.prepare()                       schema changes that precede the rows
        for phase in writer.plan(parallelism): units of a phase side by side, phases in order
            unit.write(rejected)               on workers; checks the fence first
        writer.commit(results)                 makes visible what is not yet, follows later schema changes, advances the checkpoint
    or writer.abort()

A repeat of a batch starts at ``prepare`` again, whatever the first attempt got to. A process that was paused and comes back finds a higher epoch and
raises Fenced.

A kind is a class with the attributes of :class:`Target`. It may offer :class:`TargetSchema` and :class:`Reconciler`. It is registered by one line in
``targets/__init__.py``, by the entry point ``sluice.targets``, or as a file in ``include/targets/``; and it passes the contract suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from pydantic import BaseModel

from sluice.config.pipeline import TargetConfig
from sluice.mapping import Mapping as TableMapping
from sluice.model.changes import Change
from sluice.model.digests import RangeDigest
from sluice.model.load_marks import LoadMark
from sluice.model.planned import PlannedTable
from sluice.model.positions import Position
from sluice.model.row_effects import ColumnEffect, StepKind
from sluice.model.schema_changes import ChangeKind, TableChange, cut_overs
from sluice.model.sessions import StatementSession
from sluice.model.source_words import StatementMeaning
from sluice.model.tables import TableId

# -- capabilities -------------------------------------------------------------------------------------------------------


class Input(StrEnum):
    """The form in which a target gets changes. The words are those of ``changes:`` in the pipeline file."""

    MERGED = "latest"
    """One row per key: its columns, ``_op`` and ``_before``."""
    CHANGES = "all"
    """Every change in log order, with its whole envelope."""


class Guarantee(StrEnum):
    """The effect that a repeated batch may have."""

    TRANSACTIONAL = "transactional"
    """Rows and checkpoint commit together."""
    IDEMPOTENT = "idempotent"
    """A repeat ends in the same state: a key or a version decides. The checkpoint follows the rows."""
    AT_LEAST_ONCE = "at_least_once"
    """A repeat may be seen; each row carries an idempotency key."""


class Ordering(StrEnum):
    """The changes that keep the order of the log."""

    NONE = "none"
    KEY = "key"
    TABLE = "table"
    GLOBAL = "global"


class Consistency(StrEnum):
    """The changes that readers of the target see together. The words are those of ``consistency:``."""

    ROW = "row"
    TABLE = "table"
    SCHEMA = "schema"
    BATCH = "batch"


class Execution(StrEnum):
    """The way rows are written."""

    UNITS = "units"
    """Rows are written by :class:`WriteUnit` in Python workers."""
    FRAME = "frame"
    """Large tables are written by Spark itself, through :class:`StatementRunner`; small ones by units."""


class Feature(StrEnum):
    """An ability beyond inserts and updates of whole rows by key."""

    DELETE = "delete"
    KEYLESS = "keyless"
    """Rows of tables without a key: of equal rows, as many stay as the source has."""
    PARTIAL_ROWS = "partial_rows"
    """Rows of which the log has only the changed columns."""
    RECONCILE = "reconcile"
    """Ranges of a table can be made equal to the source's: see :class:`Reconciler`."""
    ROW_REJECTION = "row_rejection"
    """One refused row does not stop the others (``on_error: dead_letter``)."""
    FOREIGN_KEYS = "foreign_keys"
    RECOPIES = "recopies"
    """A table whose rows cannot be converted as the source's were is emptied, and copied again (``on_conversion: copy``)."""
    BUNDLES = "bundles"
    """Several batches in one commit (``commit_every``): see :mod:`sluice.targets.bundles`."""
    CUT_OVERS = "cut_overs"
    """The cut-over of an online schema change is followed as a change of the table (:attr:`SchemaChange.cut_overs`), whatever is done for renames."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a kind of target. Data: shown by ``sluice targets list``, and used to refuse a pipeline file early.

    Attributes:
        schema_changes: the kinds of schema changes that it can follow.
        conversions: conversion steps that it applies to existing rows.
        max_writers: units at a time; 1: a single writer, which a global order needs.
    """

    inputs: frozenset[Input] = frozenset({Input.MERGED})
    guarantee: Guarantee = Guarantee.TRANSACTIONAL
    ordering: frozenset[Ordering] = frozenset({Ordering.NONE})
    consistency: frozenset[Consistency] = frozenset({Consistency.ROW})
    schema_changes: frozenset[ChangeKind] = frozenset()
    conversions: frozenset[StepKind] = frozenset()
    features: frozenset[Feature] = frozenset({Feature.DELETE})
    execution: Execution = Execution.UNITS
    max_writers: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the capabilities as JSON values, sorted."""
        return {
            "inputs": sorted(self.inputs),
            "guarantee": str(self.guarantee),
            "ordering": sorted(self.ordering),
            "consistency": sorted(self.consistency),
            "schema_changes": sorted(self.schema_changes),
            "conversions": sorted(self.conversions),
            "features": sorted(self.features),
            "execution": str(self.execution),
            "max_writers": self.max_writers,
        }


# -- the checkpoint -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The record of what a target holds of a pipeline: everything up to ``batch``, which ends at ``position``, written under ``epoch``.

    Attributes:
        identity: of the pipeline's state in ZooKeeper that delivered it, "" if an older version did.
        position: None before the first batch.
        edited: batch and position are not those that were written together.
    """

    epoch: int
    batch: int
    position: Position | None = None
    identity: str = ""
    edited: bool = False


Agrees = Callable[[Checkpoint | None], None]
"""A check that raises CheckpointError if the target's checkpoint does not match; None: the target has none yet."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The fence of a unit: the epoch of its lease, the batch that the target holds meanwhile, and the batch that is written."""

    epoch: int
    held: int
    batch: int


class CheckpointStore(Protocol):
    """The store of the checkpoint: the target itself (then it is the fence, too), or ZooKeeper for a target that keeps nothing."""

    @property
    def place(self) -> str:
        """The location of the checkpoint, for messages."""

    def read(self) -> Checkpoint | None:
        """Return the checkpoint of this pipeline and target, None if there is none. Takes nothing over."""

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Raise the epoch; waits for writers of older epochs. Returns what is held: batch ``first`` when the two meet for the first time.

        ``identity``: of the state that delivers from now on. ``agrees``: asked first, while no other process can take over; what it raises leaves
        everything as it was.

        Raises:
            Fenced: a higher epoch was here.
        """

    def advance(self, to: Checkpoint) -> None:
        """Record that all of ``to.batch`` is written. A repeat is harmless. Raises Fenced."""

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Record that ``to.batch``, possibly an earlier one, is held: what follows is delivered again. Raises Fenced.

        ``anew``: batch numbers mean something else from now on; what single tables remember of earlier ones is forgotten.
        """

    def forget(self) -> None:
        """Remove all that is said about this pipeline and target. Rows stay."""


# -- what a batch gives -------------------------------------------------------------------------------------------------


class RowFile(Protocol):
    """A stored file of merged rows of one table, one row a key; what is known of it without reading it. Picklable."""

    @property
    def path(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def inserts(self) -> int: ...
    @property
    def updates(self) -> int: ...
    @property
    def deletes(self) -> int: ...
    @property
    def partial(self) -> int:
        """Rows of which the log has only some columns."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def arrow_bytes(self) -> int:
        """The bytes of the rows in memory."""

    @property
    def revived(self) -> bool:
        """The source deleted these rows and a rule keeps them: a row that came later may have the same key in another spelling."""

    @property
    def key_starts(self) -> tuple[int, ...]:
        """First key column's number at the start of each row group, and of the last row; empty unless the rows are in its order."""

    def groups(self, low: int | None, high: int | None) -> list[int]:
        """Return the row groups that may hold a first key column ``low <= value < high``; None: no bound."""


@dataclass(frozen=True, slots=True)
class TableInput:
    """The rows of one source table for one target table. Lighter tables are written first.

    ``batches``: the batch of each of ``files``, ascending, if several batches are written as one (Feature.BUNDLES); else empty. A key may then have a
    row in several of them, and the newest counts.
    """

    plan: PlannedTable
    files: tuple[RowFile, ...]
    weight: int = 0
    batches: tuple[int, ...] = ()

    @property
    def target(self) -> TableId:
        return self.plan.target

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def partial(self) -> bool:
        """True if some rows lack columns."""
        return any(file.partial for file in self.files)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """CHANGESET_ROWS of one set of columns.

    ``read``: yields the rows piece by piece, anew at each call, if they do not fit into memory; ``rows`` then has only their columns.
    """

    rows: pa.Table
    read: Callable[[], Iterator[pa.Table]] | None = None


@dataclass(frozen=True, slots=True)
class StoredRange:
    """A range of keys of one target table of which the source's rows are all there is. Picklable; read by :meth:`RowReader.key_range`.

    ``plan``: the key's columns; none: the whole table. ``stored``: for the reader. ``listed``: only listed keys of it are looked at.
    """

    plan: PlannedTable
    stored: Any = None
    listed: bool = False


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of keys: rows in it whose key is not kept are removed, before anything of the batch is written.

    Attributes:
        names: key columns at the target, in key order; empty: every row is removed.
        lower, upper, after, upto: literals of the source's dialect: ``lower <= key <= upper`` and ``after < key <= upto``; empty: no bound.
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
class Share:
    """Share ``number`` of ``of`` of a batch's changes, by key: all changes of one row are in one share."""

    number: int
    of: int


@dataclass(frozen=True, slots=True)
class ChangePiece:
    """Changes of one target table as columns, in log order.

    Attributes:
        table, key: at the target.
        rows: SEGMENT_ROWS (:mod:`sluice.model.layouts`).
        txn_row: each change's place in its transaction (uint64).
        part: tells rows apart that a rule made from one change (uint32).
        batch: of the changes, if several batches are written as one (Feature.BUNDLES); else 0.
    """

    table: TableId
    key: tuple[str, ...]
    rows: pa.Table
    txn_row: pa.Array
    part: pa.Array
    batch: int = field(default=0, kw_only=True)

    def slice(self, start: int, rows: int) -> ChangePiece:
        """Return some of the rows."""
        given, txn_row, part = (values.slice(start, rows) for values in (self.rows, self.txn_row, self.part))
        return ChangePiece(self.table, self.key, given, txn_row, part, batch=self.batch)


class RowReader(Protocol):
    """Reads a batch's rows where they are written. Picklable: it is sent with the units."""

    def pieces(self, files: Sequence[RowFile]) -> Iterator[pa.Table]:
        """Yield the rows of ``files`` as CHANGESET_ROWS (:mod:`sluice.model.layouts`), never more at a time than fits into memory.

        That is the user's columns (for the column's own name see :func:`sluice.model.fields.true_name`), ``_op`` (i, u, d), ``_seq``, ``_commit_ts``,
        ``_before`` (struct; null: the row is new), and ``_present`` if rows lack columns.
        """

    def groups(
        self,
        files: Sequence[RowFile],
        keys: tuple[int | None, int | None] | None = None,
        *,
        lean: bool = False,
        in_order: bool = False,
        streamed: bool = False,
    ) -> list[RowGroup]:
        """Return the same rows, one group for each set of columns: what a row never had is not written.

        Args:
            keys: only ``low <= first key column < high``.
            lean: without ``_seq``, ``_commit_ts`` and the contents of ``_before``.
            in_order: in log order.
            streamed: piece by piece.
        """

    def changes(self, share: Share | None = None) -> Iterator[Change]:
        """Yield every change in log order, or those of a share, for Input.CHANGES. Raises SegmentError."""

    def change_pieces(self, share: Share | None = None) -> Sequence[ChangePiece]:
        """Return the same changes as columns: each piece in log order (``_seq``, rows that a dump read first, then ``_row``), pieces unordered."""

    def is_large(self, size_bytes: int) -> bool:
        """Return True if rows of this many bytes are better read piece by piece."""

    def memory_of(self, size_bytes: int, files: int) -> int:
        """Return the memory of a process, in bytes, for rows of this size in this number of files."""

    def key_range(self, stored: StoredRange) -> KeyRange:
        """Read a stored range with its keys. Raises SegmentError."""


@dataclass(frozen=True, slots=True)
class SourceStatement:
    """A statement as the source ran it: for targets that understand its dialect, and for people.

    ``schema``: the session's default; ``mode``, ``session``: its settings. ``file``, ``offset``, ``gtid``, ``commit_time_us``: its place in the log.
    """

    dialect: str
    text: str
    schema: str = ""
    mode: int = 0
    session: StatementSession | None = None
    file: str = ""
    offset: int = 0
    gtid: str | None = None
    commit_time_us: int = 0


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A statement of the source's log that this target shall follow. The pipeline's policy is applied already.

    Attributes:
        number: its place among the batch's changes, from 0. where: file:offset in the log.
        statement: as recorded. tables: what it did to captured tables, at the source. mapping: where tables go.
        before_rows: it precedes the rows of the batch; else it follows them.
        kinds: only these kinds of change are wanted; None: the statement as it is.
        check_only: the policy is to stop: the target has it already, or it is an error.
        not_captured: tables in it that are not captured.
        columns: (source table, source column, target column) of columns with another name; excluded: (source table, column) that are left out.
        effects: what it did to stored values of columns that the target has, but for those that stay the same.
        copies: source tables that are copied again after it, as a target cannot do to its rows what the source did (``on_conversion: copy``).
        recopies: the kind of target offers that. consumer: the target's name. ddl_kinds: the words of its kinds in the target's ``ddl``.
        meaning: what the statement's words mean: types and defaults of the columns, and which columns it names.
    """

    number: int
    where: str
    statement: SourceStatement
    tables: tuple[TableChange, ...]
    mapping: TableMapping
    before_rows: bool = False
    kinds: frozenset[ChangeKind] | None = None
    check_only: bool = False
    not_captured: frozenset[TableId] = frozenset()
    columns: tuple[tuple[TableId, str, str], ...] = ()
    excluded: tuple[tuple[TableId, str], ...] = ()
    effects: tuple[ColumnEffect, ...] = ()
    copies: frozenset[TableId] = frozenset()
    recopies: bool = False
    consumer: str = ""
    ddl_kinds: tuple[str, ...] = ()
    meaning: StatementMeaning = field(default_factory=StatementMeaning, compare=False)

    @property
    def cut_overs(self) -> tuple[TableChange, ...]:
        """The changes that online schema changes made, see :func:`sluice.model.schema_changes.cut_overs`."""
        return cut_overs(self.tables, self.not_captured)

    @property
    def changes(self) -> tuple[TableChange, ...]:
        """``tables`` with each cut-over of an online schema change as one change of the captured table."""
        swapped = self.cut_overs
        names = {one.table for one in swapped}
        return (*swapped, *(one for one in self.tables if one.table not in names and one.renamed_to not in names))

    def target(self, table: TableId) -> TableId:
        """Return the target's name of a source table."""
        return self.mapping.route(table).target

    def name_after(self, table: TableId) -> TableId:
        """Return the name that a source table has after all renames of the statement, one after the other."""
        for one in self.changes:
            if one.table == table and one.renamed_to is not None:
                table = one.renamed_to
        return table

    @property
    def wanted(self) -> frozenset[ChangeKind]:
        """Kinds that the target has to follow."""
        every = frozenset(kind for table in self.tables for kind in table.kinds)
        return every if self.kinds is None else every & self.kinds


class SourceFacts(Protocol):
    """Answers a target's questions about the source while it plans a batch. On the driver; each question is answered when it is asked."""

    def being_copied(self) -> frozenset[TableId]:
        """Return the target tables that a dump is filling, or was when the batch was drained: rows may be missing."""

    def unique_keys(self, plan: PlannedTable) -> tuple[PlannedTable, frozenset[str]]:
        """Return the table with the source's unique keys as of the batch (``plan.unique``, None: unknown), and columns that only a rule makes."""

    def captured_tables(self) -> Mapping[TableId, TableId]:
        """Return the captured tables, as far as known at the start of the batch: source table -> target table."""


class NoFacts:
    """Answers as if nothing were known about the source."""

    def being_copied(self) -> frozenset[TableId]:
        """Return no table."""
        return frozenset()

    def unique_keys(self, plan: PlannedTable) -> tuple[PlannedTable, frozenset[str]]:
        """Return the table as it is."""
        return plan, frozenset()

    def captured_tables(self) -> Mapping[TableId, TableId]:
        """Return no table."""
        return {}


class StatementRunner(Protocol):
    """Runs SQL statements on Spark, from the driver; thread-safe."""

    def run(self, statement: str, settings: Mapping[str, str], required: Mapping[str, str]) -> None:
        """Run one statement to its end in its own Spark session with these settings, on a server that was started with those ``required``.

        Raises:
            LoadError: Spark refused it; the message has Spark's words.
            SparkUnavailable: it may still run, or not.
            ConfigError: the server has another setting than one that is required; nothing was run.
        """


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A batch as a target is given it. On the driver; ``reader`` travels with the units.

    Attributes:
        number: of the batch. position: at its end. held: the batch that the target holds while this one is written: the one before, or, where
            several are written as one (Feature.BUNDLES), the one before the first of them.
        tables: merged rows (Input.MERGED). changes: how many there are to read (Input.CHANGES).
        reconcile: ranges of which the source's rows are all there is.
        schema_changes: in log order.
        apart: it is not written with others, so that the tables can be read as of the batch before it.
        replay: "" for a batch in its turn; else the name of a dead letter, whose rows are written again: the checkpoint stays.
        spark: for kinds with Execution.FRAME; None: there is no Spark, and all is written by units.
    """

    number: int
    position: Position
    held: int
    reader: RowReader
    tables: tuple[TableInput, ...] = ()
    schema_changes: tuple[SchemaChange, ...] = ()
    reconcile: tuple[StoredRange, ...] = ()
    facts: SourceFacts = field(default_factory=NoFacts)
    replay: str = ""
    changes: int = 0
    spark: StatementRunner | None = None
    apart: bool = False


# -- writing ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row (a table of one) that the target did not take, why, and its number or word for the reason."""

    row: pa.Table
    reason: str
    where: str


class RejectedRows(Protocol):
    """Stores rejected rows. Picklable. Called for each part of a unit before what lacks the rows is committed, also if none is rejected."""

    def __call__(self, part: str, table: TableId, rejected: Sequence[Rejection]) -> None:
        """Store the rejected rows. ``part``: a name of the part that is the same in every attempt to write it."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The counts of what was written. ``message``: what ``commit`` needs from the unit (files, offsets); picklable."""

    upserted: int = 0
    deleted: int = 0
    appended: int = 0
    rejected: int = 0
    statements: int = 0
    retries: int = 0
    seconds: float = 0.0
    message: Any = None

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(
            self.upserted + other.upserted,
            self.deleted + other.deleted,
            self.appended + other.appended,
            self.rejected + other.rejected,
            self.statements + other.statements,
            self.retries + other.retries,
            self.seconds + other.seconds,
        )


class WriteUnit(Protocol):
    """Work for one worker: a small picklable value. It connects by itself."""

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process."""

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Check the fence, then write. A repeat, also one at the same time, ends in the same state (or is seen, with the same idempotency key, if
        the guarantee is at least once). ``rejected`` None: the first row that is refused stops the batch.

        Raises:
            Fenced, TargetUnavailable, LoadError, SegmentError.
        """


class BatchWriter(Protocol):
    """One batch. Calls come in this order: prepare, plan, write on workers, commit; or abort."""

    def prepare(self) -> None:
        """Follow schema changes that precede the rows, once over all repeats; resume a half-done batch. Raises LoadError, Fenced."""

    def plan(self, parallelism: int) -> Sequence[Sequence[WriteUnit]]:
        """Return phases of units. Units of a phase may run in parallel; phases run in order. Nothing is written if a table does not fit.

        Raises:
            MappingError: names table, column and remedy.
        """

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Make visible what is not yet, follow later schema changes, advance the checkpoint. A repeat is harmless. Raises Fenced, LoadError."""

    def abort(self) -> None:
        """Remove what would be in the way of the next attempt. Must not undo what a newer process wrote."""


class TargetSession(Protocol):
    """A target taken over, on the driver, under the lease of one epoch."""

    def begin(self, batch: BatchInput) -> BatchWriter:
        """Return the writer of a batch. No I/O."""


# -- what a target may say before the first row -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a planned table before its first row: ``severity`` is warning or error, ``column`` "" for the table itself.

    Attributes:
        statement: what would correct it at the target, in the target's own words; "" if nothing simple would.
        hint: the choices, if there are more than the statement.
        absent: the target lacks the table or the column itself, so that rows which it holds, or held, have no values there once the statement has
            made it.
    """

    severity: str
    table: TableId
    column: str
    why: str
    statement: str = ""
    hint: str = ""
    absent: bool = False


class TargetSchema(Protocol):
    """Optional: compares tables, for targets that have any."""

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[Finding]:
        """Return everything to say about the planned tables before the first batch. Raises nothing for them and changes nothing."""

    def apply(self, statement: str) -> None:
        """Run what a finding proposes. Raises LoadError that shows it."""


@dataclass(frozen=True, slots=True)
class OtherWriter:
    """Another pipeline that acknowledges at the same target.

    Attributes:
        tables: target tables that it writes, as ``schema.table`` or ``schema.*``; None: its version did not record them.
        idle_s: seconds since its last acknowledgement.
        forget: the statement that removes its acknowledgement, if the pipeline does not exist any more.
    """

    pipeline: str
    tables: frozenset[str] | None = None
    idle_s: float = 0.0
    forget: str = ""

    def may_write(self, table: TableId) -> bool:
        """Return True if the pipeline is known to write this table, or if nothing is known about it and it was active within a day."""
        if self.tables is None:
            return self.idle_s < IDLE_WRITER_S
        return str(table) in self.tables or f"{table.schema}.*" in self.tables


IDLE_WRITER_S = 86_400.0
"""Seconds without an acknowledgement after which a pipeline that notes no tables counts as gone."""


class Reconciler(Protocol):
    """Optional, with Feature.RECONCILE: makes a range of a table equal to the source's (:attr:`BatchInput.reconcile`)."""

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range of the table's keys (``table.columns``; none: the whole table) cannot be made equal, "" if it can."""

    def others(self) -> tuple[OtherWriter, ...]:
        """Return other pipelines that write to the same target; the rows in the tables that they write must stay."""


@runtime_checkable
class ListReconciler(Protocol):
    """Optional, for a :class:`Reconciler` that refuses ranges: removes listed keys of them (:attr:`KeyRange.listed`)."""

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return why listed keys of the table (``table.columns``) cannot be removed, "" if they can."""


def refuses(reconciler: Reconciler | None, table: PlannedTable, *, listed: bool) -> str:
    """Return why a target cannot make a range of keys equal, or remove listed keys; "" if it can. ``reconciler``: None if it has none."""
    if reconciler is None:
        return "its kind of target removes no ranges of keys"
    if listed and isinstance(reconciler, ListReconciler):
        return reconciler.refuses_listed(table)
    return reconciler.refuses(table)


SHOWN_CHARACTERS = 200
"""Characters of a differing value that are shown."""

MOST_EXTRA = 10_000
"""Keys of rows that only the target has, which one comparison reports."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that the target has with other values.

    Attributes:
        row: its number among the rows compared. columns: names at the target.
        values: (compared, at the target) as text for each of them, where they were asked for; a long value is cut.
    """

    row: int
    columns: tuple[str, ...]
    values: tuple[tuple[str | None, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class RangeDifferences:
    """The differences between a target and the rows it was compared with.

    Attributes:
        missing: numbers of rows that it does not have.
        different: rows that it has with other values.
        extra: keys that only the target has in the range, as literals of the source's dialect; at most MOST_EXTRA of a range that is not listed.
        more: there are more of them, and ``extra`` holds the first in key order.
    """

    missing: tuple[int, ...] = ()
    different: tuple[RowDifference, ...] = ()
    extra: tuple[tuple[str, ...], ...] = ()
    more: bool = False


class Comparer(Protocol):
    """Optional (``Target.comparer()``): reads the target back and compares. It writes nothing that stays.

    One with an attribute ``keeps = True`` remembers what it read, and is used in one process; of others there is one on each worker.
    """

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """Compare CHANGESET_ROWS with what the target holds, as if they were loaded: by its own types, and exactly.

        Args:
            item: ``rows`` are all that the source has in this range; other rows of the target in it are ``extra``. None: these rows alone are looked
                at. Its ``kept`` is not used.
            values: tell values, too.

        Raises:
            MappingError, LoadError, TargetUnavailable.
        """

    def digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """Return :meth:`sluice.sources.base.DigestReader.digest_words` for the columns of ``plan``; empty if no digest can be computed.

        The word is "" for a column that the target computes itself and that is never written.
        """

    def digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """Return the digest of the target's rows in a range, over the columns of ``plan`` in their order."""


@runtime_checkable
class KeyLister(Protocol):
    """Optional, for a :class:`Comparer` whose ranges are not the source's: lists every key that it holds, and supports :attr:`KeyRange.listed`.

    Rows that only the target has are then found by their keys, after all rows of the source were compared.
    """

    def not_listed(self, plan: PlannedTable) -> str:
        """Return why the target's keys cannot be listed, "" if they can. Raises TargetUnavailable."""

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """Yield all keys that the target holds now: columns in the order of ``plan.key``, in the types in which the source's values are stored.

        Raises:
            MappingError, LoadError, TargetUnavailable.
        """


@dataclass(frozen=True, slots=True)
class RowCount:
    """The counts of equal rows of a table without a key, if they differ between the sides. ``values``: as text, of the columns that may be shown."""

    values: tuple[str | None, ...]
    here: int
    there: int


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The differences of a target in a table without a key.

    Attributes:
        rows: number of rows sent.
        missing, extra: rows that the target has too few, or too many.
        undecided: different rows that the log changed meanwhile.
        first: some of those that differ.
        more: there are more than were counted.
    """

    rows: int = 0
    missing: int = 0
    extra: int = 0
    undecided: int = 0
    first: tuple[RowCount, ...] = ()
    more: bool = False


class ComparesRowsOnly:
    """The part of a :class:`Comparer` that computes no checksums: its own server does not write values as the source's does."""

    def digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """Return no words, as no digest can be computed."""
        return ()

    def digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """Raise NotImplementedError; it is never called, as there are no words."""
        raise NotImplementedError


@runtime_checkable
class CountingComparer(Protocol):
    """Optional, for a :class:`Comparer`: compares rows without a key by how often the target has each."""

    def count(
        self,
        plan: PlannedTable,
        rows: Iterable[pa.Table],
        changed: Callable[[], Iterable[pa.Table]],
        *,
        whole: bool,
        shown: Sequence[str],
        most: int,
    ) -> RowCounts:
        """Compare CHANGESET_ROWS with the whole of a table, by all columns of the rows.

        Args:
            rows: read to the end before the target's rows are. changed: asked for after that: rows whose number cannot be told.
            whole: rows that only the target has are looked for. shown: columns at the target whose values are told. most: rows told.
        """


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The maintenance that was done for the files of one table, or would be.

    Attributes:
        merged: files that became ``written`` larger ones.
        removed: files that no version within its retention needs.
        expired: old versions that were expired.
        error: why it was not done, "" if it was.
    """

    table: TableId
    merged: int = 0
    written: int = 0
    removed: int = 0
    expired: int = 0
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "table": str(self.table), "merged": self.merged, "written": self.written, "removed": self.removed, "expired": self.expired,
            "error": self.error,
        }  # fmt: skip


class Maintainer(Protocol):
    """Optional (``Target.maintainer()``): for targets whose tables are files that batches add to.

    It works while batches are loaded, in any process and without the lease: rows and what is noted of batches stay as they are, and a commit that
    loses against a load is made again.
    """

    def maintain(self, tables: Sequence[TableId], *, dry_run: bool = False) -> Sequence[Upkeep]:
        """Maintain each of ``tables`` that exists and needs it; return one result for each. An error at one does not stop the others."""


def maintainer_of(target: Target) -> Maintainer | None:
    """Return the maintainer of a target's files; None if this kind has none. Kinds need not know that there is such a thing."""
    make = getattr(target, "maintainer", None)
    made: Maintainer | None = make() if make is not None else None
    return made


def comparer_of(target: Target) -> Comparer | None:
    """Return the comparer of a target; None if this kind cannot be read back. Kinds need not know that there is such a thing."""
    make = getattr(target, "comparer", None)
    made: Comparer | None = make() if make is not None else None
    return made


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as a target holds it, or held it.

    Attributes:
        place: for people. version: the target's own number of it. batch: the newest that changed the table until then, 0: none did.
        commit_time: at the source, of the last transaction of that batch; ISO 8601, "" if it is not known.
    """

    table: TableId
    place: str
    version: int
    batch: int
    commit_time: str
    rows: int
    files: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "table": str(self.table), "place": self.place, "version": self.version, "batch": self.batch, "commit_time": self.commit_time,
            "rows": self.rows, "files": self.files, "size_bytes": self.size_bytes,
        }  # fmt: skip


class VersionReader(Protocol):
    """Optional (``Target.versions()``): reads older states of tables, each as of a batch, for targets that keep them."""

    def as_of(self, table: TableId, batch: int) -> TableVersion | None:
        """Return a table after ``batch``; None if it did not exist.

        Raises LoadError if that version is no longer kept, or the batch was written together with a later one (:meth:`whole`); TargetUnavailable.
        """

    def whole(self, table: TableId, batch: int) -> int:
        """Return the newest batch at or before ``batch`` as of which the table can be read.

        That is ``batch``, or the one before a commit of several batches that contains it. Raises LoadError if it is no longer kept,
        TargetUnavailable.
        """

    def rows(self, version: TableVersion, fields: Sequence[pa.Field]) -> Iterator[pa.Table]:
        """Yield all rows of a version in pieces: the columns of ``fields`` under their true names, in the source's stored types.

        Raises MappingError for a column that it does not have, LoadError, TargetUnavailable.
        """

    def columns(self, version: TableVersion) -> pa.Schema:
        """Return the columns of a version, as they are named and typed there. Raises MappingError, LoadError, TargetUnavailable."""

    def batch_at(self, table: TableId, time_us: int) -> int:
        """Return the newest batch that changed the table and ended at ``time_us`` (microseconds since 1970, at the source) or before; 0: none.

        Raises LoadError if the versions of that time are no longer kept, TargetUnavailable.
        """


def versions_of(target: Target) -> VersionReader | None:
    """Return the reader of a target's older states; None if this kind keeps none. Kinds need not know that there is such a thing."""
    make = getattr(target, "versions", None)
    made: VersionReader | None = make() if make is not None else None
    return made


@runtime_checkable
class Target(Protocol):
    """One target of one pipeline. Made without I/O, as ``Kind(config, endpoint, pipeline)``; picklable.

    Raises TargetUnavailable (retryable), ConfigError, MappingError, LoadError, Fenced; nothing else, and no secret in any of them.
    """

    Options: ClassVar[type[BaseModel]]
    """``options:`` of the pipeline file; refuses unknown keys. See :func:`sluice.targets.options.options_of`."""

    config: TargetConfig

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this kind."""

    @property
    def checkpoints(self) -> CheckpointStore | None:
        """The store of the checkpoint. None: the target keeps nothing, and ZooKeeper keeps it."""

    def open(self, epoch: int) -> AbstractContextManager[TargetSession]:
        """Open a session for writing, after the checkpoint was taken over with ``epoch``."""

    def schema(self) -> TargetSchema | None:
        """Return what compares tables, None if there is nothing to compare."""

    def reconciler(self) -> Reconciler | None:
        """Return what makes ranges equal, None if that is impossible."""

    def interrupt(self) -> None:
        """End what this process is waiting for at the target, for this pipeline, because a person asked for it.

        Raises TargetUnavailable, ConfigError.
        """


@runtime_checkable
class MarksLoads(Protocol):
    """A target that can mark what is written to it, so that a pipeline that reads its server knows these changes."""

    mark: LoadMark | None
    """The origin marker; None: nothing is marked."""


@runtime_checkable
class CopiesAgain(Protocol):
    """A target that holds rows in a way that some statements make wrong although no value is converted, until their tables are copied again.

    It empties what a later statement drops, and copies again what one renames: so a table that the source no longer has needs no copy.
    """

    def copied_again(self, change: SchemaChange) -> frozenset[TableId]:
        """Return the source tables, under their names before the statement, that are to be copied again after it. No I/O."""


__all__ = [
    "MOST_EXTRA",
    "Agrees",
    "BatchInput",
    "BatchWriter",
    "Capabilities",
    "ChangeKind",
    "ChangePiece",
    "Checkpoint",
    "CheckpointStore",
    "Comparer",
    "Consistency",
    "CopiesAgain",
    "CountingComparer",
    "Execution",
    "Feature",
    "Fence",
    "Finding",
    "Guarantee",
    "Input",
    "KeyLister",
    "KeyRange",
    "ListReconciler",
    "Maintainer",
    "MarksLoads",
    "NoFacts",
    "Ordering",
    "RangeDifferences",
    "Reconciler",
    "RejectedRows",
    "Rejection",
    "RowCount",
    "RowCounts",
    "RowDifference",
    "RowFile",
    "RowGroup",
    "RowReader",
    "SchemaChange",
    "Share",
    "SourceFacts",
    "SourceStatement",
    "StatementRunner",
    "StoredRange",
    "TableInput",
    "TableVersion",
    "Target",
    "TargetSchema",
    "TargetSession",
    "Upkeep",
    "VersionReader",
    "WriteResult",
    "WriteUnit",
    "comparer_of",
    "maintainer_of",
    "refuses",
    "versions_of",
]
