"""The log of a source: limits and results of a read, the receiver of rows, what the server retains, who watches,
and definitions as of an offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from typing_extensions import TypeVar

from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.load_marks import PartnerLoads
from sluice.model.offset import Offset
from sluice.model.schema_changes import SchemaStatement
from sluice.model.tables import TableId, TableSchema
from sluice.sources.table_filter import Selection

M_co = TypeVar("M_co", covariant=True, default=Any)
M = TypeVar("M", default=Any)

TableFilter = Selection
"""Which tables and which kinds of change are wanted."""

_BUDGET_USED = 0.75
"""The part of a budget from which on captured log is released; the server frees it with a delay."""


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


class SchemaHistory(Protocol):
    """Definitions as of an offset, of a source whose log does not contain them.

    Raises SourceUnavailable, LostPosition.
    """

    def snapshot(
        self, at: Offset, table_filter: TableFilter, progress: Callable[[], None] | None = None
    ) -> Definitions:
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
