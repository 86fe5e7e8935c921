"""A session: connections for questions and for the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from sluice.config.pipeline import StartPosition
from sluice.model.completeness import Settled
from sluice.model.definitions import Definitions
from sluice.model.dumps import Marking
from sluice.model.findings import Finding
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.sources.port.chunks import ChunkTable
from sluice.sources.port.log import ChangeSink, M, SchemaHistory, StreamLimits, StreamResult, TableFilter
from sluice.sources.port.server import Blindness, SourceIdentity, SourceTable

Asked = tuple[int, tuple[Any, ...], Sequence[tuple[Any, ...]]]
"""A number, a key, and keys of which it may be one: values, a member a column."""


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
        table_filter: TableFilter,
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

    def same_keys(self, fields: Sequence[pa.Field], questions: Sequence[Asked]) -> Iterator[tuple[int, bool]]:
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


@runtime_checkable
class PreparesSource(Protocol):
    """Optional, of a :class:`SourceSession`: it makes at the source what a capture needs there."""

    def missing(self) -> list[str]:
        """Return the statements that make it, in the order in which they have to run; empty: nothing is missing."""

    def make(self, statement: str) -> None:
        """Run one of them. Raises PreflightError if the login may not."""


@runtime_checkable
class ArchivesLog(Protocol):
    """Optional, of a :class:`SourceSession`: files of its log may be kept elsewhere for longer than at the server."""

    def archive(self) -> Iterator[tuple[str, int]]:
        """Copy the closed files that the archive lacks, and yield (name, bytes) of each.

        Raises ConfigError if the pipeline names no archive.
        """


@runtime_checkable
class LogsPartialRows(Protocol):
    """Optional, of a :class:`SourceSession`: its log may have only some columns of a change."""

    def partial_tables(self) -> Mapping[TableId, str]:
        """Return the tables of which that is so, each with the statement after which the log has whole rows."""


@runtime_checkable
class FollowsTimelines(Protocol):
    """Optional, of a :class:`SourceSession`: its log may go on under another name, at the same place."""

    def followed(self, at: Offset) -> Offset:
        """Return the offset of the same place under the present name of the log; ``at`` if that is its name, or if the
        log does not go on from there.
        """
