"""One thread of a dump at the server: a connection for questions, one for the rows of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import psycopg
import pyarrow as pa

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, DumpRefused, SluiceError
from sluice.model.definitions import ColumnDefinition
from sluice.model.digests import SHARED, RangeDigest, kind_and_words
from sluice.model.dumps import Chunk, Marking, TablePlanned, TableRequest
from sluice.model.tables import TableId, TableSchema
from sluice.postgresql import shared_digest
from sluice.postgresql.connection import Connection, is_gone, said
from sluice.postgresql.range_digest import KIND, DigestColumn, digest_sql, digest_word, is_built_in
from sluice.postgresql.type_names import LABEL
from sluice.sources.port import SnapshotDigest, Watermarker, changed_meanwhile
from sluice.sources.postgresql.catalog.table import CatalogTable
from sluice.sources.postgresql.server.connection import connected, rows_of, source_errors
from sluice.sources.postgresql.snapshot.chunk_queries import (
    ALIAS,
    NULLS,
    border_sql,
    from_table,
    has_nulls,
    key_of,
    nulls,
    place_of,
    range_of,
    selection_sql,
)
from sluice.sources.postgresql.snapshot.chunk_table import present
from sluice.sources.postgresql.snapshot.copy_rows import copy_rows
from sluice.sources.postgresql.snapshot.key_text import PostgresKeyText, after, among, both, upto
from sluice.sources.postgresql.snapshot.page_ranges import page_ranges, read_ranges
from sluice.sources.postgresql.snapshot.watermarks import SnapshotMarks, StandbyMarks, end_of_log, require_standby
from sluice.sources.table_filter import NOTHING, Selection

_ROWS = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "10min",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
}
"""A copy takes as long as it takes (a connection that is dead ends by its keepalives), and its borders are read in the
order of an index. A session that is paused in a snapshot would keep the server from cleaning up: it is ended."""
_LAG = (
    "SELECT pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_wal_receiver), "
    "pg_last_wal_receive_lsn() IS NOT DISTINCT FROM pg_last_wal_replay_lsn(), "
    "extract(epoch FROM now() - pg_last_xact_replay_timestamp())::float8"
)


class PostgresLoad:
    """The load of a server; see :class:`sluice.sources.port.SourceLoad`."""

    def __init__(self, endpoint: Endpoint, connection: Connection, doing: str) -> None:
        self.endpoint = endpoint
        self.connection = connection
        self._doing = doing

    def running(self) -> int:
        """Return the number of statements that clients run now. Raises SourceUnavailable."""
        with source_errors(self.endpoint, self._doing):
            sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND backend_type = 'client backend'"
            return int(rows_of(self.connection, sql)[0][0])

    def replica_lag_s(self) -> float | None:
        """Return the seconds that the server lags, None if it is no standby; infinite if nothing is sent to it.

        Raises SourceUnavailable.
        """
        with source_errors(self.endpoint, self._doing):
            [(standby, receivers, replayed_all, behind)] = rows_of(self.connection, _LAG)
        if not standby:
            return None
        if not receivers:
            return float("inf")
        return 0.0 if replayed_all else float(behind or 0.0)


class PostgresChunkReader(PostgresLoad):
    """See :class:`sluice.sources.port.ChunkReader`."""

    def __init__(
        self,
        endpoint: Endpoint,
        connection: Connection,
        reader: Connection,
        watermarks: Watermarker,
        *,
        pipeline: str,
        selection: Selection = NOTHING,
        primary: Connection | None = None,
    ) -> None:
        """``primary``: the connection that is asked for the end of the log, if rows come from a standby."""
        super().__init__(endpoint, connection, "asking the source")
        self.watermarks = watermarks
        self._primary = primary if primary is not None else connection
        self._reader = reader
        self._pipeline = pipeline
        self._selection = selection
        self._live: CatalogTable | None = None

    def end_of_log(self) -> str:
        """Ask the server for a place in its log that all that is visible stands before."""
        return end_of_log(self._primary)

    def schema(self, table: TableId) -> TableSchema:
        """Read the present definition, which the next :meth:`rows` of this table uses too."""
        self._live = present(self.connection, table, self._selection)
        return self._live.schema

    def next_border(self, request: TableRequest, planned: TablePlanned, rows: int) -> tuple[tuple[str, ...], bool]:
        """Select the key that ends the next chunk; rows whose key has a NULL are the first chunk, alone."""
        live = present(self.connection, request.table, self._selection)
        key = key_of(live, request)
        if not key.columns:
            return (), True
        if not planned.chunks and has_nulls(live, request, key):
            return NULLS, False
        low, high = range_of(request, key)
        behind = after(key.names, place_of(planned.upto))
        sql = border_sql(live, key, rows, low, high, behind, nulls(live, key, False))
        [border_rows] = list(copy_rows(self._reader, sql, key.columns))
        if not border_rows.num_rows:
            return (), True
        return PostgresKeyText().literals(key.columns, border_rows)[0], False

    def rows(
        self, request: TableRequest, chunk: Chunk, keys: Iterable[Sequence[tuple[str, ...]]] = ()
    ) -> Iterator[pa.Table]:
        """Copy the rows of the chunk on the connection for rows, and yield them as they arrive.

        Raises DumpRefused if the server fails on some row because of the request's condition.
        """
        live = self._definition_once(request.table)
        with self._asked(request, chunk), self._by(live):
            yield from self._rows(request, live, chunk, keys)

    def _rows(
        self, request: TableRequest, live: CatalogTable, chunk: Chunk, keys: Iterable[Sequence[tuple[str, ...]]]
    ) -> Iterator[pa.Table]:
        key = key_of(live, request)
        columns = live.schema.columns
        where = f"({request.where})" if request.where else ""
        if request.key_file:
            for some in keys:
                listed = among(request.identity or key.names, some)
                yield from copy_rows(self._reader, selection_sql(live, columns, listed, where), columns)
            return
        if chunk.upto == NULLS:
            sql = selection_sql(live, columns, nulls(live, key, True), where)
            yield from copy_rows(self._reader, sql, columns)
            return
        conditions = (
            *range_of(request, key), after(key.names, place_of(chunk.after)), upto(key.names, chunk.upto),
            nulls(live, key, False), where,
        )  # fmt: skip
        yield from copy_rows(self._reader, selection_sql(live, columns, *conditions), columns)

    def rows_in_parts(self, request: TableRequest, chunk: Chunk, readers: int) -> Iterator[pa.Table]:
        """See :class:`sluice.sources.port.ReadsInParts`: in ranges of pages."""
        live = self._definition_once(request.table)
        with self._asked(request, chunk), self._by(live):
            ranges = page_ranges(self._reader, live)
            yield from read_ranges(live, live.schema.columns, ranges, self._reader, self._one_more, readers)

    def _one_more(self) -> AbstractContextManager[Connection]:
        """Open another connection for rows."""
        return connected(self.endpoint, application_of(self._pipeline), **_ROWS)

    def digest_words(self, table: TableId, columns: Sequence[str]) -> tuple[str, ...]:
        """See :class:`sluice.sources.port.DigestReader`."""
        return self._words(
            KIND, table, columns, lambda definition: digest_word(definition, built_in=is_built_in(definition))
        )

    def digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> RangeDigest:
        """See :class:`sluice.sources.port.DigestReader`."""
        return self._computed(digest_sql, request, chunk, columns)

    def snapshot_digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> SnapshotDigest:
        """See :class:`sluice.sources.port.SnapshotDigestReader`. Raises ConfigError at a standby.

        No place of the log stands for what a standby shows.
        """
        if isinstance(self.watermarks, StandbyMarks):
            raise ConfigError(
                f"the digest of {request.table} cannot be computed at a standby: {self.endpoint.address}",
                hint="take dump.connection out of the pipeline file; if the source itself is the standby, write "
                "verify: {digest: none}",
            )
        with self.watermarks.reading(chunk) as snapshot:
            digest = self.shared_digest(request, chunk, columns)
        return SnapshotDigest(digest, str(snapshot), "", self.end_of_log())

    def shared_digest_words(self, table: TableId, columns: Sequence[str]) -> tuple[str, ...]:
        """See :class:`sluice.sources.port.SharedDigestReader`."""
        return self._words(SHARED, table, columns, shared_digest.shared_word)

    def shared_digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> RangeDigest:
        """See :class:`sluice.sources.port.SharedDigestReader`."""
        digest = self._computed(shared_digest.shared_digest_sql, request, chunk, columns)
        return RangeDigest(digest.rows, digest.checksum & shared_digest.MASK)

    def _words(
        self, kind: str, table: TableId, columns: Sequence[str], word_of: Callable[[str], str]
    ) -> tuple[str, ...]:
        definition = present(self.connection, table, self._selection).definition
        return kind_and_words(kind, (word_of(_digested(definition.column(name)).declared) for name in columns))

    def _computed(
        self,
        sql: Callable[[str, Sequence[DigestColumn], str, str], str],
        request: TableRequest,
        chunk: Chunk,
        columns: Sequence[str],
    ) -> RangeDigest:
        live = self._definition_once(request.table)
        key = key_of(live, request)
        condition = both(
            *range_of(request, key), after(key.names, place_of(chunk.after)), upto(key.names, chunk.upto),
            nulls(live, key, False),
        )  # fmt: skip
        known_columns = [_digested(live.definition.column(name)) for name in columns]
        [digest_row] = rows_of(self._reader, sql(from_table(live), known_columns, condition, ALIAS))
        return RangeDigest().plus(*digest_row)

    @contextmanager
    def _asked(self, request: TableRequest, chunk: Chunk) -> Iterator[None]:
        """Turn the failure of an accepted condition on some row into DumpRefused: it does not pass by itself."""
        try:
            yield
        except psycopg.Error as error:
            if not request.where or is_gone(error) or (error.sqlstate or "")[:2] != "22":
                raise
            raise DumpRefused(
                f"the source cannot read rows of {request.table} under the condition {request.where!r}: {said(error)}",
                where=f"dump {chunk.id.dump}",
                hint=f"`sluice dump cancel {self._pipeline} {chunk.id.dump}`, then ask for it with a condition that "
                "holds for every row",
            ) from error

    @contextmanager
    def _by(self, live: CatalogTable) -> Iterator[None]:
        """Turn a failure to read rows by a definition into SourceUnavailable if the table has another one now."""
        try:
            yield
        except (SluiceError, psycopg.Error) as error:
            if isinstance(error, psycopg.Error) and is_gone(error):
                raise
            if present(self.connection, live.id, self._selection).schema == live.schema:
                raise
            raise changed_meanwhile(live.id) from error

    def _definition_once(self, table: TableId) -> CatalogTable:
        """Return the definition that :meth:`schema` read, if that was of this table, else read it."""
        if self._live is not None and self._live.id == table:
            return self._live
        return present(self.connection, table, self._selection)


def _digested(column: ColumnDefinition) -> DigestColumn:
    """Return a column as it enters a checksum; the type of an enumerated one is no type of its own."""
    return DigestColumn(column.name, f"{LABEL}{column.type}" if column.labels else column.type)


def application_of(pipeline: str) -> str:
    """Return the name under which the server shows connections that copy rows."""
    return f"sluice {pipeline} copy"[:63]


@contextmanager
def open_chunk_reader(
    endpoint: Endpoint,
    marking: Marking,
    pipeline: str,
    *,
    standby: Endpoint | None = None,
    selection: Selection = NOTHING,
) -> Iterator[PostgresChunkReader]:
    """Open a reader for one thread of a dump. ``standby``: where rows come from, None for the source itself.

    ``marking`` may be GTID, too: who reads rows of a few keys and does not place them among the changes asks for it, as
    it needs nothing at a server.

    Raises ConfigError for another marking than this kind of source has, and for a server that is no standby of it.
    """
    if marking is Marking.TABLE:
        raise ConfigError(f"dumps of a PostgreSQL source are marked by snapshots, not by {marking.value}")
    application = application_of(pipeline)
    if standby is not None:
        with (
            connected(endpoint, application) as primary,
            connected(standby, application) as connection,
            connected(standby, application, **_ROWS) as reader,
            source_errors(standby, "copying rows from the standby"),
        ):
            require_standby(primary, connection, f"connection {standby.connection_id}, {standby.address}")
            marks = StandbyMarks(primary, reader)
            marks.caught_up()  # a table that was made a moment ago
            yield PostgresChunkReader(
                standby, connection, reader, marks, pipeline=pipeline, selection=selection, primary=primary
            )
        return
    with (
        connected(endpoint, application) as connection,
        connected(endpoint, application, **_ROWS) as reader,
        source_errors(endpoint, "copying rows"),
    ):
        recovering = rows_of(connection, "SELECT pg_is_in_recovery()")[0][0]
        marker = StandbyMarks(None, reader) if recovering else SnapshotMarks(reader)
        yield PostgresChunkReader(endpoint, connection, reader, marker, pipeline=pipeline, selection=selection)


@contextmanager
def open_load(endpoint: Endpoint) -> Iterator[PostgresLoad]:
    """Open a standby of the source whose lag a dump watches."""
    with connected(endpoint, "sluice lag") as connection:
        yield PostgresLoad(endpoint, connection, "asking a standby of the source")


__all__ = ["PostgresChunkReader", "PostgresLoad", "open_chunk_reader", "open_load"]
