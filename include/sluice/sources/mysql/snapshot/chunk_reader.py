"""One thread of a dump at the server: a connection for questions and marks, one for the rows of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa
import pymysql

from sluice.config.connections import Endpoint
from sluice.errors import DumpRefused, RetryableError, SluiceError
from sluice.model.digests import SHARED, RangeDigest, kind_and_words
from sluice.model.dumps import Chunk, TablePlanned, TableRequest
from sluice.model.tables import Column, TableId, TableSchema, quoted
from sluice.mysql import shared_digest
from sluice.mysql.key_sql import after, among, key_literals, upto
from sluice.mysql.range_digest import KIND, DigestColumn, digest_sql, digest_word
from sluice.sources.mysql.catalog.live_table import LiveTable, read_definition
from sluice.sources.mysql.server.connection import collations, rows_of, source_errors
from sluice.sources.mysql.snapshot.border_guess import BorderGuesses
from sluice.sources.mysql.snapshot.chunk_queries import (
    NULLS,
    border_sql,
    has_nulls,
    key_of,
    nulls,
    place_of,
    range_of,
    selection_sql,
)
from sluice.sources.mysql.snapshot.result_set import select
from sluice.sources.mysql.snapshot.watermarks import end_of_log, quiet_snapshot
from sluice.sources.port import SnapshotDigest, Watermarker, changed_meanwhile
from sluice.sources.table_filter import Selection

MAY_PASS = {
    1021, 1028, 1030, 1037, 1038, 1040, 1041, 1042, 1043, 1053, 1077, 1078, 1079, 1105, 1114, 1135, 1152, 1158, 1159,
    1160, 1161, 1184, 1203, 1205,
    1213, 1226, 1290, 1317, 1412, 1615, 1927, 1969, 3024, 3169, 4031,
}  # fmt: skip
"""Server errors unrelated to the user's condition: shutdown, full disk, overload, a killed statement."""


class MySQLLoad:
    """The load of a server; see :class:`sluice.sources.port.SourceLoad`."""

    def __init__(self, endpoint: Endpoint, connection: Any, doing: str) -> None:
        self.endpoint = endpoint
        self.connection = connection
        self._doing = doing

    def running(self) -> int:
        """Return ``Threads_running``. Raises SourceUnavailable."""
        with source_errors(self.endpoint, self._doing):
            return int(rows_of(self.connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])

    def replica_lag_s(self) -> float | None:
        """Return :func:`replica_lag_s` of the connection. Raises SourceUnavailable."""
        with source_errors(self.endpoint, self._doing):
            return replica_lag_s(self.connection)


class MySQLChunkReader(MySQLLoad):
    """See :class:`sluice.sources.port.ChunkReader`."""

    def __init__(
        self,
        endpoint: Endpoint,
        connection: Any,
        reader: Any,
        watermarks: Watermarker,
        *,
        pipeline: str,
        selection: Selection,
    ) -> None:
        super().__init__(endpoint, connection, "asking the source")
        self.watermarks = watermarks
        self._reader = reader
        self._pipeline = pipeline
        self._selection = selection
        self._collations: dict[int, tuple[str, str]] | None = None
        self._live: LiveTable | None = None
        self._guesses = BorderGuesses(connection)

    def end_of_log(self) -> str:
        """Ask the server for the present end of its log, as ``file:offset``."""
        return end_of_log(self.connection)

    def schema(self, table: TableId) -> TableSchema:
        """Read the present definition, which the next :meth:`rows` of this table uses too."""
        self._live = self._definition(table)
        return self._live.plan.schema

    def next_border(self, request: TableRequest, planned: TablePlanned, rows: int) -> tuple[tuple[str, ...], bool]:
        """Return the key that ends the next chunk; rows whose key has a NULL are the first chunk, alone.

        It is guessed if the last chunk tells how dense the keys are, else selected.
        """
        key = key_of(self._definition(request.table), request)
        if not key.columns:
            return (), True
        if not planned.chunks and has_nulls(request, key):
            return NULLS, False
        low, high = range_of(request, key)
        start = place_of(key, planned.upto)
        conditions = (low, high, nulls(key, False))
        guess = self._guesses.border(request, key, start, rows, *conditions, mariadb=self._mariadb)
        if guess is not None:
            return guess
        sql = border_sql(request.table, key, rows, *conditions, after(key.names, start))
        pieces = list(select(self._reader, sql, key.columns, f"keys of {request.table}"))
        piece = pieces[0] if pieces else None
        if piece is None or not piece.num_rows:
            return (), True
        border = key_literals(key.columns, piece)[0]
        self._guesses.learn(request, key, start, border, rows)
        return border, False

    def rows(
        self, request: TableRequest, chunk: Chunk, keys: Iterable[Sequence[tuple[str, ...]]] = ()
    ) -> Iterator[pa.Table]:
        """Select the rows of the chunk on the connection for rows, and yield them as they arrive.

        Raises DumpRefused if the server fails on some row because of the request's condition.
        """
        live = self._definition_once(request.table)
        with self._asked(request, chunk):
            try:
                yield from self._rows(request, live, chunk, keys)
            except (SluiceError, pymysql.err.MySQLError) as error:
                if isinstance(error, RetryableError) or self._definition(request.table).plan.schema == live.plan.schema:
                    raise
                raise changed_meanwhile(request.table) from error

    def _rows(
        self, request: TableRequest, live: LiveTable, chunk: Chunk, keys: Iterable[Sequence[tuple[str, ...]]]
    ) -> Iterator[pa.Table]:
        key = key_of(live, request)
        columns = live.plan.schema.columns
        where = f"({request.where})" if request.where else ""
        place = f"rows of {request.table}"
        # The user's condition may name tables without a schema.
        rows_of(self._reader, f"USE {quoted(request.table.schema)}")
        if request.key_file:
            for some in keys:
                sql = selection_sql(request.table, columns, key, among(request.identity or key.names, some), where)
                yield from select(self._reader, sql, columns, place)
            return
        if chunk.upto == NULLS:
            sql = selection_sql(request.table, columns, key, nulls(key, True), where)
            yield from select(self._reader, sql, columns, place)
            return
        low, high = range_of(request, key)
        behind, end = after(key.names, place_of(key, chunk.after)), upto(key.names, chunk.upto)
        conditions = (low, high, behind, end, nulls(key, False), where)
        count = 0
        for piece in select(self._reader, selection_sql(request.table, columns, key, *conditions), columns, place):
            count += piece.num_rows
            yield piece
        if not where:
            self._guesses.learn(request, key, place_of(key, chunk.after), chunk.upto, count)

    def digest_words(self, table: TableId, columns: Sequence[str]) -> tuple[str, ...]:
        """See :class:`sluice.sources.port.DigestReader`."""
        mariadb = self._mariadb
        return self._words(
            KIND, table, columns, lambda column: digest_word(column.sql_type, column.charset, mariadb=mariadb)
        )

    def digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> RangeDigest:
        """See :class:`sluice.sources.port.DigestReader`."""
        index = key_of(self._definition_once(request.table), request).index

        def sql(table: TableId, known_columns: Sequence[DigestColumn], *bounds: str, mariadb: bool) -> str:
            return digest_sql(table, known_columns, index, *bounds, mariadb=mariadb)

        return self._computed(sql, request, chunk, columns)

    def snapshot_digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> SnapshotDigest:
        """See :class:`sluice.sources.port.SnapshotDigestReader`."""
        live = self._definition_once(request.table)
        known_columns = {c.name: DigestColumn(c.name, c.sql_type, c.nullable) for c in live.plan.schema.columns}
        sql = digest_sql(request.table, [known_columns[name] for name in columns], "", mariadb=self._mariadb)
        with quiet_snapshot(self.connection, self._reader, self.watermarks, chunk) as moment:
            digest = RangeDigest().plus(*rows_of(self._reader, sql)[0])
        return SnapshotDigest(digest, moment.low, moment.start, moment.end)

    def shared_digest_words(self, table: TableId, columns: Sequence[str]) -> tuple[str, ...]:
        """See :class:`sluice.sources.port.SharedDigestReader`."""
        return self._words(SHARED, table, columns, lambda column: shared_digest.shared_word(column.sql_type))

    def shared_digest(self, request: TableRequest, chunk: Chunk, columns: Sequence[str]) -> RangeDigest:
        """See :class:`sluice.sources.port.SharedDigestReader`."""
        return self._computed(shared_digest.shared_digest_sql, request, chunk, columns)

    def _words(
        self, kind: str, table: TableId, columns: Sequence[str], word_of: Callable[[Column], str]
    ) -> tuple[str, ...]:
        known_columns = {column.name: column for column in self._definition(table).plan.schema.columns}
        return kind_and_words(kind, (word_of(known_columns[name]) for name in columns))

    def _computed(
        self, sql: Callable[..., str], request: TableRequest, chunk: Chunk, columns: Sequence[str]
    ) -> RangeDigest:
        live = self._definition_once(request.table)
        key = key_of(live, request)
        known_columns = {c.name: DigestColumn(c.name, c.sql_type, c.nullable) for c in live.plan.schema.columns}
        bounds = after(key.names, place_of(key, chunk.after)), upto(key.names, chunk.upto)
        chosen = [known_columns[name] for name in columns]
        [digest_row] = rows_of(self._reader, sql(request.table, chosen, *bounds, mariadb=self._mariadb))
        return RangeDigest().plus(*digest_row)

    @cached_property
    def _mariadb(self) -> bool:
        return "mariadb" in str(rows_of(self.connection, "SELECT VERSION()")[0][0]).lower()

    @contextmanager
    def _asked(self, request: TableRequest, chunk: Chunk) -> Iterator[None]:
        """Turn the failure of an accepted condition on some row into DumpRefused: it does not pass by itself."""
        try:
            yield
        except pymysql.err.MySQLError as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            if not request.where or code in MAY_PASS or not (1000 <= code < 2000 or 3000 <= code < 5000):
                raise
            raise DumpRefused(
                f"the source cannot read rows of {request.table} under the condition {request.where!r}: "
                f"{error.args[-1]} ({code})",
                where=f"dump {chunk.id.dump}",
                hint=f"`sluice dump cancel {self._pipeline} {chunk.id.dump}`, then ask for it with a condition that "
                "holds for every row",
            ) from error

    def _definition_once(self, table: TableId) -> LiveTable:
        """Return the definition that :meth:`schema` read, if that was of this table, else read it."""
        if self._live is not None and self._live.plan.schema.table == table:
            return self._live
        return self._definition(table)

    def _definition(self, table: TableId) -> LiveTable:
        return read_definition(self.connection, table, self._all_collations).kept(self._selection)

    def _all_collations(self) -> dict[int, tuple[str, str]]:
        if self._collations is None:
            self._collations = collations(self.connection)
        return self._collations


def replica_lag_s(connection: Any) -> float | None:
    """Return the seconds that a server lags, None if it follows no server; infinite for a replica that has stopped.

    Raises what the driver raises: a server that does not answer is not one without lag.
    """
    with connection.cursor() as cursor:
        try:
            cursor.execute("SHOW REPLICA STATUS")
        except pymysql.err.ProgrammingError:  # a server that knows only the older words
            cursor.execute("SHOW SLAVE STATUS")
        rows = cursor.fetchall()
        names = [d[0].lower() for d in cursor.description or ()]
    lags = []
    for row in rows:
        status = dict(zip(names, row, strict=True))
        value = status.get("seconds_behind_source", status.get("seconds_behind_master"))
        lags.append(float("inf") if value is None else float(value))
    return max(lags) if lags else None
