"""The port of a source, with a few verbs. Flows know this module, never a kind.

A source is one folder here and one line in the registry (``sources/__init__.py``). It passes
``tests/contract/test_sources.py``.

A :class:`Source` is made without I/O. Questions and the log are a :class:`SourceSession`; one thread that copies rows
while the log is read is a :class:`ChunkReader`. A source says where it is by an :data:`Offset`; flows keep it, compare
it and give it back, and never look into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import structlog
from typing_extensions import TypeVar

from sluice.config.pipeline import StartPosition
from sluice.errors import SourceUnavailable
from sluice.model.column_types import ColumnType
from sluice.model.completeness import Settled
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.dialects import Dialect
from sluice.model.digests import RangeDigest
from sluice.model.dumps import Chunk, Marking, TablePlanned, TableRequest
from sluice.model.findings import Finding
from sluice.model.load_marks import PartnerLoads
from sluice.model.offset import Offset
from sluice.model.row_effects import ColumnEffect, Ran
from sluice.model.schema_changes import SchemaStatement, TableChange
from sluice.model.tables import Column, TableId, TableSchema
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()

TableFilter = Selection
"""Which tables and which kinds of change are wanted."""

M_co = TypeVar("M_co", covariant=True, default=Any)
M = TypeVar("M", default=Any)
Asked = tuple[int, tuple[Any, ...], Sequence[tuple[Any, ...]]]
"""A number, a key, and keys of which it may be one: values, a member a column."""
Key = tuple[str, ...]
"""A key as literals of the source, one a column."""


_BUDGET_USED = 0.75
"""The part of a budget from which on captured log is released; the server frees it with a delay."""


# -- what a source says of itself --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The server that answers.

    Attributes:
        server: its own id; another server has another one.
        dialect: whose types and whose order of keys its rows have (MySQL, MariaDB, another); ``version``: as it prints
            it.
        origin: the number that changes made at this server bear (``_origin``).
    """

    server: str
    dialect: Dialect
    version: str
    origin: int = 0


def changed_meanwhile(table: TableId) -> SourceUnavailable:
    """Return the error of rows that cannot be read by the definition that was read before them."""
    return SourceUnavailable(
        f"the definition of {table} changed while its rows were read",
        hint="this passes by itself: they are read again, by the new definition",
    )


def raise_first(findings: Sequence[Finding], where: str) -> None:
    """Raise the first error of a pre-flight, which names the others; log its warnings."""
    for finding in findings:
        if finding.severity == "warning":
            _log.warning(
                "preflight_warned", setting=finding.setting, value=finding.value, reason=finding.why, fix=finding.fix
            )
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        first = errors[0]
        others = "".join(f"; also {f.setting} is {f.value}" for f in errors[1:])
        raise first.kind(f"{first.setting} is {first.value}: {first.why}{others}", where=where, hint=first.fix or None)


@dataclass(frozen=True, slots=True)
class Blindness:
    """A login that does not see every table: its name, and the statement that grants it; ``on_schema``: the statement
    for one schema.
    """

    login: str
    grant: str
    on_schema: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the source has it now.

    Attributes:
        schema: its definition; columns of a type that is not understood are not in it but in ``unknown`` (name, type).
        rows: the server's estimate; size_bytes: of its data.
        unique_not_null: column names of its first unique key without a nullable column, if it has no primary key.
        unique: every unique key, primary first: (column, prefix in characters or 0), column "" for an expression.
        left_out: columns that ``capture.columns.exclude`` keeps out of storage; ``schema`` has those of the key only.
    """

    schema: TableSchema
    rows: int
    size_bytes: int
    unique_not_null: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    unique: tuple[tuple[tuple[str, int], ...], ...] = ()
    left_out: tuple[str, ...] = ()

    def kept(self, selection: TableFilter) -> SourceTable:
        """Return the table as it is stored."""
        left_out = tuple(c.name for c in self.schema.columns if selection.skips(self.id, c.name))
        gone = set(left_out) - set(self.schema.primary_key)
        if not left_out:
            return self
        schema = replace(self.schema, columns=tuple(c for c in self.schema.columns if c.name not in gone))
        unique = tuple(key for key in self.unique if not gone & {name for name, _ in key})
        return replace(self, schema=schema, unique=unique, left_out=left_out)

    @property
    def id(self) -> TableId:
        """The name of the table."""
        return self.schema.table


# -- the log -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamLimits:
    """The limits of a batch: it closes at the end of the transaction in which one of these is reached.

    Attributes:
        max_changes: row changes; max_bytes: bytes of log since the first change; max_wait_s: seconds since the first
            change.
        idle_wait_s: seconds to wait for a first change before giving up.
        max_event_bytes: a larger event (a row, mostly) is refused.
        stop_at: read no further than this offset (the head, for a run that ends).
        stays_open: a batch whose time is over stays open while this is true: who delivers it is not free yet.
    """

    max_changes: int = 2_000_000
    max_bytes: int = 512 * 2**20
    max_wait_s: float = 0.5
    idle_wait_s: float = 1.0
    max_event_bytes: int = 128 * 2**20
    stop_at: Offset | None = None
    stays_open: Callable[[], bool] | None = None


@dataclass(frozen=True)
class StreamResult(Generic[M]):
    """The result of one call of :meth:`SourceSession.stream`.

    Attributes:
        last: end of the last whole transaction read; may have moved even without a batch.
        manifest: what ``finish`` of the sink returned, None if nothing was captured.
        changes, transactions: captured ones; log_bytes: bytes of log read; reached_head: nothing more was there.
        closed_by: bytes, changes, time, ddl, head or idle.
        schema: the schema history as of ``last`` if statements changed it, else None.
        partner: what it says of loads by the channel's other pipeline; only what one reader read.
        filled: tables that got rows which are not in the log.
    """

    last: Offset
    manifest: M | None
    changes: int
    transactions: int
    log_bytes: int
    reached_head: bool
    closed_by: str
    schema: Definitions | None = None
    partner: PartnerLoads = field(default_factory=PartnerLoads)
    filled: tuple[TableId, ...] = ()


class ChangeSink(Protocol[M_co]):
    """The receiver of a batch's rows, such as ``sluice.segments.writer.SegmentWriter``.

    ``add`` is called from several threads.
    """

    def buckets(self, schema: TableSchema, keys: Any, rows: int) -> np.ndarray[Any, Any]:
        """Return the key bucket of each row."""

    def add(self, schema: TableSchema, rows: pa.Table, *, in_order: bool = False) -> None:
        """Take SEGMENT_ROWS (:mod:`sluice.model.layouts`) of ``schema.arrow_schema``."""

    def note_ddl(self, statement: SchemaStatement) -> None:
        """Note a statement that changed definitions."""

    def finish(
        self,
        first: Offset,
        last: Offset,
        *,
        changes: int | None = None,
        transactions: int = 0,
        log_bytes: int = 0,
        first_commit_time_us: int = 0,
        last_commit_time_us: int = 0,
        skipped: dict[str, int] | None = None,
    ) -> M_co:
        """Write the manifest."""

    def abort(self) -> None:
        """Forget the batch."""

    def branch(self, number: int, of: int) -> Any:
        """Return a sink of the same batch for one of several readers, numbered from 1."""

    def absorb(self, branch: Any) -> None:
        """Take what a branch has written."""


class SchemaHistory(Protocol):
    """Definitions as of an offset, of a source whose log does not contain them.

    Raises SourceUnavailable, LostPosition.
    """

    def snapshot(self, at: Offset, wanted: TableFilter, progress: Callable[[], None] | None = None) -> Definitions:
        """Return all definitions as of ``at``, from the server. Tables that were changed since are unknown in it."""

    def has(self, at: Offset) -> bool:
        """Return False if the log from there on is no longer kept."""

    def is_same_log(self, at: Offset) -> bool:
        """Return True unless another log is there than the one that was read."""

    def fold(
        self, definitions: Definitions, start: Offset, stop: Offset, progress: Callable[[], None] | None = None
    ) -> None:
        """Apply the statements between two offsets to ``definitions``."""

    def definition(self, table: TableId, at: Offset) -> TableDefinition:
        """Return today's definition, if it was the same at ``at``; any thread may ask.

        Raises SchemaUnknown with the statement that changed it.
        """

    def parse(self, definitions: Definitions, table: TableId, sql: str) -> TableDefinition:
        """Return the definition that a CREATE TABLE gives ``table`` among ``definitions``. Raises ConfigError."""


@runtime_checkable
class TellsRetention(Protocol):
    """A session whose server removes its log after a time."""

    def retention_s(self) -> float | None:
        """Return for how many seconds the server keeps its log, at least; None: unknown, or nothing removes it."""


@dataclass(frozen=True, slots=True)
class RetainedLog:
    """The log that a server retains for a pipeline.

    Attributes:
        size_bytes: its size; budget_bytes: the pipeline's budget, None: no limit.
        left_bytes: how much more the server writes before it may remove what it retains; None: it never does.
        at_risk: little is left.
    """

    size_bytes: int
    budget_bytes: int | None = None
    left_bytes: int | None = None
    at_risk: bool = False

    @property
    def is_over(self) -> bool:
        """True from three quarters of the budget on: what is captured has to be released before it is used up."""
        return self.budget_bytes is not None and self.size_bytes > self.budget_bytes * _BUDGET_USED


@runtime_checkable
class RetainsForUs(Protocol):
    """A session whose server retains its log for this pipeline."""

    def retained(self) -> RetainedLog | None:
        """Return how much it retains now; None: nothing, as what it is kept for is gone."""


class SourceSession(Protocol):
    """Connections of one piece of work.

    What it says of the server (identity, head) is as of the first question, or of the last :meth:`look_again`. Not for
    several threads.

    Raises (all methods): SourceUnavailable, ConfigError for a refused login, PreflightError for a right that lacks.
    """

    @property
    def identity(self) -> SourceIdentity:
        """The server that answers."""

    @property
    def head(self) -> Offset | None:
        """The end of the log; None if the server keeps none."""

    @property
    def history(self) -> SchemaHistory | None:
        """None for a source whose log contains definitions."""

    def lag_bytes(self, at: Offset) -> int | None:
        """Return the bytes of log between ``at`` and the head; None if that log is no longer there."""

    def preflight(self, at: Offset | None) -> list[Finding]:
        """Return all findings, errors first. ``at``: the captured offset, None before the first batch."""

    def replication_findings(self) -> list[Finding]:
        """Return what a server that replicates from another one leaves out of captured tables, as far as its settings
        tell; empty: nothing.
        """

    def require_ready(self, at: Offset | None) -> None:
        """Raise PreflightError, LostPosition or WrongServer for the first error of the pre-flight; log its warnings."""

    def confirm(self, at: Offset) -> None:
        """Compare the log with what was read up to ``at``. Raises LostPosition if another log is there.

        In a session that streams, the log may stay open, for :meth:`stream` to go on with it.
        """

    def goes_on(self, at: Offset) -> bool:
        """Return True if an earlier :meth:`stream` of this session ended at ``at`` and left its log open for the
        next.
        """

    def look_again(self) -> None:
        """Ask the server again what it says of itself."""

    def resolve_start(self, start: str | StartPosition) -> Offset:
        """Return an offset for ``latest``, ``earliest``, ``dump`` (begins at the head) or a position of a person.

        Raises:
            LostPosition: the server does not have it. ConfigError: it is no position.
        """

    def stream(
        self,
        start: Offset,
        limits: StreamLimits,
        wanted: TableFilter,
        sink: Callable[[], ChangeSink[M]],
        *,
        definitions: Callable[[], Definitions] | None = None,
        one_reader: bool = False,
        progress: Callable[..., None] | None = None,
    ) -> StreamResult[M]:
        """Read the log from ``start`` until a limit closes the batch, or nothing comes.

        Rows of the watermark table go to the sink, too.

        Args:
            sink: makes the sink; called at the first change. definitions: gives the schema history as of ``start``;
                called when it is needed.
            one_reader: rows have to come in the order of the log. progress: called a few times a second; what it raises
                ends the stream.

        Raises:
            LostPosition, and CaptureErrors for what cannot be read; the sink was aborted. If whole transactions were
                captured before it,
            ``whole_until`` of the CaptureError is the end of the last of them: with it as ``stop_at`` the same call
                gives a batch.
            Whatever the sink raises.
        """

    def settled(self) -> Settled:
        """Return a time of the source's clock, now or a little earlier, and the position behind all that was committed
        before it.

        No transaction with an earlier commit time comes after the position, as long as nobody sets the clock back.

        Raises PreflightError if this server cannot tell, with the reason.
        """

    def release(self, delivered: Offset) -> None:
        """Tell the source that every target holds everything up to ``delivered``.

        This pipeline needs no older log any more.
        """

    def relocate(self, at: Offset, *, patience_s: float = 0.0) -> Offset:
        """Return the offset in this log up to which it has the same transactions as another of the group at ``at``.

        ``patience_s``: how long to wait for transactions that are still on their way here.

        Raises:
            LostPosition: this server lacks transactions that were read up to ``at`` (they are listed), or purged those
                after it.
            ConfigError: the kind of source, or its settings, give a transaction no name that all servers know.
        """

    # -- tables --------------------------------------------------------------------------------------------------------
    def tables(self, wants: Callable[[TableId], bool]) -> list[SourceTable]:
        """Return every table that ``wants`` accepts, with its definition, by name."""

    def table_rows(self) -> dict[TableId, int]:
        """Return at least every table of the schemas that the pipeline captures, with the server's estimate of its
        rows; the estimate may be old.
        """

    def estimates(self, tables: Sequence[TableId]) -> dict[TableId, int]:
        """Return the server's present estimate of the tables' rows."""

    def empty_tables(self, tables: Sequence[TableId]) -> list[TableId]:
        """Return those of ``tables`` that have no row."""

    def keyless(self) -> set[TableId]:
        """Return the tables without a primary key and without a unique key of whole columns that are never null."""

    def create_statement(self, table: TableId, named: TableId) -> str:
        """Return the statement that creates ``table`` under another name at a target of the same dialect; "" for
        none.
        """

    def blindness(self) -> Blindness | None:
        """Return what hides tables from the login; None if it sees every table."""

    def numbering(self) -> tuple[int, int] | None:
        """Return (auto_increment_increment, auto_increment_offset), or None if the source has no auto-increment."""

    def same_keys(self, fields: Sequence[pa.Field], asked: Sequence[Asked]) -> Iterator[tuple[int, bool]]:
        """Yield (number, is_same) for each (number, key, others).

        ``is_same``: the source treats ``key`` as equal to one of ``others``. ``fields``: of the key's columns, as
        segments have them; only text columns are compared, the others are equal.
        """

    # -- dumps ---------------------------------------------------------------------------------------------------------
    def choose_marking(self) -> Marking:
        """Choose how a new dump is marked, and create what the watermarks need.

        Raises PreflightError if it cannot be marked.
        """

    def chunk_table(self, table: TableId) -> ChunkTable:
        """Return a table as it is now, for the plan of a dump. Raises ConfigError, DumpRefused."""


# -- copies of rows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """The key that cuts a table into chunks: ``columns`` of the primary key, or of the index the request names."""

    columns: tuple[Column, ...]
    index: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the key's columns, in the key's order."""
        return tuple(c.name for c in self.columns)


class KeyText(Protocol):
    """Keys as literals of the source's dialect: what chunks, lists of keys and ranges are stored as. Picklable."""

    def literals(self, columns: Sequence[Column], keys: pa.Table) -> list[Key]:
        """Return a literal per column for each row of ``keys``, which may be what :meth:`values` returned."""

    def values(self, types: Mapping[str, ColumnType], keys: Sequence[Key]) -> pa.Table:
        """Return keys as columns named and typed as ``types`` says, in its order; as many as the keys have.

        A column has another type if its own does not hold every value exactly, see :mod:`sluice.model.exact_values`.
        Raises UnsupportedType for a text that is no literal.
        """

    def typed(self, column: Column, text: str) -> str:
        """Return the literal of a value that a person typed. Raises ConfigError."""

    def shown(self, key: Key) -> list[str]:
        """Return the values of a key as readable text."""


class ChunkTable(Protocol):
    """A table as the source has it now, and what it says of a request for some of its rows.

    Raises ConfigError, DumpRefused.
    """

    @property
    def schema(self) -> TableSchema:
        """Its definition."""

    @property
    def whole_rows_logged(self) -> bool:
        """True if the log contains every column of a changed row."""

    def key(self, request: TableRequest) -> ChunkKey:
        """Return the key that cuts the table into chunks; without columns the table is one chunk."""

    def has_prefix_key(self, key: ChunkKey) -> bool:
        """Return True if the key holds only the beginning of a column."""

    def condition(self, text: str) -> str:
        """Check a person's condition and return it in the source's dialect."""

    def is_reversed(self, lower: Key, upper: Key) -> bool:
        """Return True if ``lower`` is certainly more than ``upper``."""

    def estimate(self, request: TableRequest, key: ChunkKey) -> int:
        """Return the server's estimate of the rows."""

    def require_taken(self, request: TableRequest, key: ChunkKey, keys: Sequence[Key]) -> None:
        """Raise ConfigError if the server does not accept one of the keys as a value."""


class SourceLoad(Protocol):
    """The load of a server, and how far it follows its own source."""

    def running(self) -> int:
        """Return the number of statements that run now."""

    def replica_lag_s(self) -> float | None:
        """Return the seconds that it lags; None if it follows no server, infinite for a replica that has stopped."""


class Watermarker(Protocol):
    """Marks the window of a chunk: what the log changed in it is newer than the rows of the chunk, or the same."""

    def low(self, chunk: Chunk) -> str:
        """Mark the beginning of the window, before the select. Return what the chunk has to remember."""

    def reading(self, chunk: Chunk) -> AbstractContextManager[str | None]:
        """Wrap the select. Yields what replaces :meth:`low`'s answer, or None."""

    def high(self, chunk: Chunk) -> None:
        """Mark the end of the window, after the rows are durable."""


class ChunkReader(SourceLoad, Protocol):
    """Connections of one thread that copies rows while the log is read."""

    @property
    def watermarks(self) -> Watermarker:
        """The marks of its chunks."""

    def end_of_log(self) -> str:
        """Return the present end of the log, as :attr:`Offset.place` says it."""

    def schema(self, table: TableId) -> TableSchema:
        """Return the present definition."""

    def next_border(self, request: TableRequest, planned: TablePlanned, rows: int) -> tuple[Key, bool]:
        """Return the last key of the next chunk of about ``rows`` (empty: open), and True if it is the last chunk."""

    def rows(self, request: TableRequest, chunk: Chunk, keys: Iterable[Sequence[Key]] = ()) -> Iterator[pa.Table]:
        """Yield the rows of a chunk (SELECTED_ROWS): the columns of :meth:`schema` in order, whatever their names.

        ``keys``: the keys of the chunk, in pieces, for a request with a list of keys.

        Raises DumpRefused: the source cannot read rows under the request's condition.
        """


@runtime_checkable
class ReadsInParts(Protocol):
    """Optional, of a :class:`ChunkReader`: several connections read a table that no key cuts, all at the snapshot that
    the watermarker has opened.
    """

    def rows_in_parts(self, request: TableRequest, chunk: Chunk, readers: int) -> Iterator[pa.Table]:
        """Yield all rows of the table as :meth:`ChunkReader.rows` does, in any order, read by at most ``readers``
        connections at the same time.
        """


@runtime_checkable
class PreparesSource(Protocol):
    """Optional, of a :class:`SourceSession`: it makes at the source what a capture needs there."""

    def missing(self) -> list[str]:
        """Return the statements that make it, in the order in which they have to run; empty: nothing is missing."""

    def make(self, statement: str) -> None:
        """Run one of them. Raises PreflightError if the login may not."""


@runtime_checkable
class LogsPartialRows(Protocol):
    """Optional, of a :class:`SourceSession`: its log may have only some columns of a change."""

    def partial_tables(self) -> Mapping[TableId, str]:
        """Return the tables of which that is so, each with the statement after which the log has whole rows."""


@runtime_checkable
class DigestReader(Protocol):
    """Optional, of a :class:`ChunkReader`: the server computes checksums of ranges itself, without sending their
    rows.
    """

    def digest_words(self, table: TableId, columns: Sequence[str]) -> tuple[str, ...]:
        """Describe how the columns' values enter a checksum; empty if there is none.

        Sides that return the same have the same checksum for the same rows.
        """

    def digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> RangeDigest:
        """Return the digest of the rows of a chunk, over these columns in this order."""


@runtime_checkable
class SharedDigestReader(Protocol):
    """Optional, of a :class:`ChunkReader`: as :class:`DigestReader`, with checksums that other kinds of servers compute
    alike.
    """

    def shared_digest_words(self, table: TableId, columns: Sequence[str]) -> tuple[str, ...]:
        """See :meth:`DigestReader.digest_words`."""

    def shared_digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> RangeDigest:
        """See :meth:`DigestReader.digest`."""


@runtime_checkable
class DigestsLog(Protocol):
    """Optional, of a :class:`Source`: computes from decoded rows the checksums that its server computes."""

    def log_digest(self, dialect: Dialect, schema: TableSchema, rows: pa.Table) -> RangeDigest | str:
        """Return what SEGMENT_ROWS do to the digest of their table: rows that come less rows that go, and the XOR of
        the hashes of both. A text: why that cannot be told. Pure.

        Rows that a dump read are no changes.
        """

    def not_digested(self, schema: TableSchema) -> str:
        """Return why the digest of a table cannot be kept from the log, "" if it can. Pure."""


@dataclass(frozen=True, slots=True)
class SnapshotDigest:
    """The digest of a whole table as of one moment, and where that stands in the log.

    Attributes:
        digest: of all rows.
        low: as for a dump's chunk: with the marking, tells which changes the moment saw; "": the marks are rows.
        start, end: all that stands before ``start`` in the log was seen, nothing that stands after ``end`` was.
    """

    digest: RangeDigest
    low: str
    start: str
    end: str


@runtime_checkable
class SnapshotDigestReader(Protocol):
    """Optional, of a :class:`DigestReader`: computes the digest of a whole table as of one moment."""

    def snapshot_digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> SnapshotDigest:
        """Return the digest of all rows of a table, over these columns in this order. ``chunk``: its marks' name."""


class LogWatch(Protocol):
    """Looks at a source's log for many pipelines at a time.

    Opens its connections at the first look. Not for several threads.

    Attributes:
        fresh: tables that the last look saw changes of; None: any table may have changed.
    """

    fresh: set[TableId] | None

    def look(self, since: Offset | None = None) -> bool:
        """Look at what was written since the last look; True if the log moved.

        ``since``: of the first look, where the log begins to be of interest.

        Raises SourceUnavailable, ConfigError, LostPosition.
        """

    def may_concern(self, since: Offset, wants: Callable[[TableId], bool]) -> bool:
        """Return True if something after ``since`` may be about a table that ``wants`` accepts.

        Call it after a look that was made after ``since`` was read.
        """

    @property
    def end(self) -> Offset | None:
        """The end of the log, as a place where a capture can go on, if everything up to it was looked at."""

    def close(self) -> None:
        """Close the connections."""


class Source(Protocol):
    """One source of one pipeline. Constructed without I/O."""

    kind: ClassVar[str]
    """``source.type`` in the pipeline file."""
    keeps_for_us: ClassVar[bool]
    """True if the source keeps its log until :meth:`SourceSession.release`."""

    @property
    def where(self) -> str:
        """Its address, for people."""

    @property
    def keys(self) -> KeyText:
        """The way it writes keys."""

    def stored_definitions(self, base: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> Definitions:
        """Return the definitions that the schema store kept. Pure.

        They are a ``Definitions.to_json``, then each ``Definitions.part``, oldest first.
        """

    def stored_table(self, definition: TableDefinition) -> TableSchema:
        """Return what the rows of a table with this definition look like in segments. Pure. Raises UnsupportedType."""

    def dialect(self, at: Offset) -> Dialect:
        """Return the dialect of the log's statements around ``at``. Pure."""

    def row_effects(self, at: Offset, change: TableChange, statement: Ran) -> tuple[ColumnEffect, ...]:
        """Return what a statement of the log around ``at`` did to the values of the columns that it changed. Pure."""

    @property
    def watermark_table(self) -> TableId | None:
        """The table whose rows in the log are watermarks; None if this kind has none."""

    @property
    def watch_key(self) -> str:
        """A value that is equal for sources that one watch can serve: server and login. Holds secrets."""

    def watch(self) -> LogWatch:
        """Return a watch of its log, which serves all pipelines of the same key."""

    def open(self, *, to_stream: bool = False) -> AbstractContextManager[SourceSession]:
        """Open a session for questions; ``to_stream``: also for the log, under the pipeline's own replica id."""

    def open_chunks(self, marking: Marking, owner: str) -> AbstractContextManager[ChunkReader]:
        """Open a reader for one thread of a dump. ``owner``: tells its marks from those of others."""

    def open_replica(self, connection: str) -> AbstractContextManager[SourceLoad]:
        """Open a replica of the source whose lag a dump watches, by its connection's id."""

    def after_low(self, marking: Marking, low: str, rows: Mapping[str, Any] | pa.Table) -> np.ndarray[Any, Any]:
        """Return a mask of the changes that came after the low watermark that a chunk remembers. Pure.

        ``rows``: columns ``_gtid``, ``_file``, ``_offset``.
        """
