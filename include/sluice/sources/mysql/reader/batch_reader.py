"""The capture's engine: read the log from a position, cut it into a batch at the end of a transaction, hand its rows to
a writer.

The calling thread receives, frames, verifies and walks; two workers turn sealed arenas into Arrow tables and give them
to the writer, which writes Parquet in the same worker. Kernels, zstd and the socket release the interpreter lock, so
the stages overlap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic

import pymysql
import structlog
from typing_extensions import TypeVar

from sluice.config.connections import Endpoint
from sluice.errors import CaptureError, ConfigError, SourceUnavailable, UnknownEvent
from sluice.model.schema_changes import SchemaStatement, TableChange
from sluice.model.tables import TableId
from sluice.mysql.ddl.catalog import SchemaState
from sluice.mysql.ddl.lexer import Dialect
from sluice.sources.decoding_batch import DecodingBatch
from sluice.sources.mysql.catalog.history_tracker import Rereader, once
from sluice.sources.mysql.catalog.resolver import TableResolver
from sluice.sources.mysql.decoder import row_layout as planning
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.mark_table import mark_layout
from sluice.sources.mysql.decoder.rows import RowEvents, decode_arena
from sluice.sources.mysql.decoder.scanner import LoggedStatement, Scanner
from sluice.sources.mysql.decoder.watermark_table import mark_plan
from sluice.sources.mysql.events.query_status import parse_status, session_of
from sluice.sources.mysql.events.read_totals import ReadTotals
from sluice.sources.mysql.events.statement_effects import Effect, effects_of
from sluice.sources.mysql.events.table_map import TableMap
from sluice.sources.mysql.events.unreadable import AROUND
from sluice.sources.mysql.position import Position, is_mariadb
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump
from sluice.sources.mysql.protocol.log_archive import open_log
from sluice.sources.mysql.reader.feed import ScannerFeed
from sluice.sources.mysql.reader.file_reader import BinlogRangeReader
from sluice.sources.mysql.reader.log_part import Backlog, LogReading, OpenConnections
from sluice.sources.mysql.reader.parallel import SEQ_STEP, BinlogRange, closed_pieces, read_pieces
from sluice.sources.mysql.reader.xa_reread import PreparedReader
from sluice.sources.mysql.server.connection import open_connection
from sluice.sources.mysql.server.server_ids import reader_id
from sluice.sources.port import ChangeSink, StreamLimits, StreamResult
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()

M = TypeVar("M", default=Any)

_PROGRESS_EVERY_S = 0.25
_REMEMBERED_LAYOUTS = 10_000
_LOOK_S = 0.005
"""How often a batch whose time is over looks whether it still has to stay open."""


def capture(
    reading: LogReading,
    start: Position,
    writer_factory: Callable[[], ChangeSink[M]],
    *,
    progress: Callable[..., None] | None = None,
    redefine: Rereader | None = None,
    backlog: Backlog | None = None,
    opened: OpenConnections | None = None,
) -> StreamResult[M]:
    """Read the log from ``start`` until a limit closes the batch, or nothing comes.

    Args:
        writer_factory: called at the first change. progress: called a few times a second (``changes=…, position=…``);
            what it raises ends the capture. redefine: see
                :data:`sluice.sources.mysql.catalog.history_tracker.Rereader`.

    Raises:
        SourceUnavailable, ConfigError, LostPosition, UnknownEvent, UnsupportedType, DecodeError, ChecksumMismatch: the
            writer was aborted.
        If whole transactions were captured in front of what cannot be read, ``whole_until`` of the CaptureError is the
            end of the last of
        them: with it as ``stop_at`` the same call gives a batch.
        Whatever the writer raises.
    """
    opened = opened or OpenConnections()
    stop = _stop(reading.limits)
    if stop is not None and not stop.follows(start):
        if opened.log is not None:
            opened.log.close()
        return StreamResult(start.as_offset(), None, 0, 0, 0, True, "head")
    reading = replace(reading, history=once(reading.history) if reading.history is not None else None)
    endpoint, mariadb, tell = reading.endpoint, is_mariadb(start.server_uuid), progress or _quiet
    with DecodingBatch(writer_factory, decode_arena) as batch:
        ahead, stream = ReadTotals(start), opened.log
        backlog = backlog or Backlog()
        pieces = _pieces(reading, start, backlog)
        if pieces:
            if stream is not None:
                stream.close()  # the first of the readers has the same replica id
                stream = None
            ahead = _read_ahead(reading, start, pieces, backlog.readers, batch, tell)
        catalog = TableResolver(
            lambda: _free(endpoint, opened.sql) if opened.sql is not None else open_connection(endpoint),
            endpoint,
            mariadb=mariadb,
            history=reading.history,
            reread=redefine,
            selection=reading.selection,
        )
        session = BinlogReader(catalog, reading, batch, ahead, opened.layouts)
        if stream is None:
            stream = open_log(
                endpoint, server_id=reading.server_id, start=ahead.last, mariadb=mariadb, login=opened.login
            )
        keeps_stream = False
        try:
            result = session.run(stream, start, tell)
            if opened.keep is not None:
                session.leave(stream)
                opened.keep(stream, result.last)
                keeps_stream = True
            return result
        finally:
            if not keeps_stream:
                stream.close()
            session.close()


def _stop(limits: StreamLimits) -> Position | None:
    return Position.of(limits.stop_at) if limits.stop_at is not None else None


def _pieces(reading: LogReading, start: Position, backlog: Backlog) -> list[BinlogRange]:
    """Return the closed files that are read in parallel, if that is wanted and there are several."""
    if backlog.readers < 2:
        return []
    limits = reading.limits
    return closed_pieces(
        start, backlog.logs, max_bytes=limits.max_bytes, stop_at=_stop(limits), piece_bytes=backlog.piece_bytes
    )


def _read_ahead(
    reading: LogReading,
    start: Position,
    pieces: Sequence[BinlogRange],
    readers: int,
    batch: DecodingBatch[M, RowEvents],
    progress: Callable[..., None],
) -> ReadTotals:
    """Read ``pieces`` in parallel into the batch; what was accepted of them."""

    def made(piece: BinlogRange, thread: int) -> BinlogRangeReader:
        return BinlogRangeReader(
            piece,
            replace(reading, server_id=reader_id(reading.server_id, thread)),
            sink=lambda: batch.open().branch(piece.number + 1, readers),
            keep=lambda sink: batch.open().absorb(sink),
        )

    return read_pieces(
        pieces,
        start=start,
        readers=readers,
        max_changes=reading.limits.max_changes,
        max_bytes=reading.limits.max_bytes,
        mariadb=is_mariadb(start.server_uuid),
        make=made,
        progress=progress,
    )


@contextmanager
def _free(endpoint: Endpoint, connection: Any) -> Iterator[Any]:
    """Yield a connection that is alive: a new one if this one was silent for longer than the server allows."""
    try:
        connection.ping(reconnect=False)
    except (pymysql.err.MySQLError, OSError):
        with open_connection(endpoint) as fresh:
            yield fresh
        return
    yield connection


def _quiet(**_: Any) -> None:
    return None


_WITH_TRANSACTIONS = frozenset({"innodb", "rocksdb", "tokudb", "ndbcluster", "xtradb"})
"""Engines that take rows back when a transaction is rolled back."""


class BinlogReader(Generic[M]):
    """One drain: a scanner, what it asks for, and the clock."""

    def __init__(
        self,
        catalog: TableResolver,
        reading: LogReading,
        batch: DecodingBatch[M, RowEvents],
        ahead: ReadTotals,
        layouts: dict[bytes, planning.RowLayout] | None = None,
    ) -> None:
        self._layouts = {} if layouts is None else layouts
        self._reading = reading
        self.selection = reading.selection
        self.marks = reading.marks
        self.loads = reading.loads
        self.limits = reading.limits
        self.batch = batch
        self.catalog = catalog
        self._mariadb = is_mariadb(ahead.last.server_uuid)
        self.statements = 0
        self._last_seal = False
        self.scanner = Scanner(
            ahead.last,
            tables=self._plan,
            statement=self._statement,
            seal=lambda rows: batch.seal(rows, last=self._last_seal),
            row_events=reading.selection.row_events,
            reread=PreparedReader(reading.endpoint, server_id=reading.server_id, mariadb=self._mariadb),
            mariadb=self._mariadb,
            arena_bytes=reading.arena_bytes,
            first_seq=ahead.pieces * SEQ_STEP,
            marks=reading.loads,
            transactional=lambda layout: catalog.engine(layout.schema.table, layout.definition) in _WITH_TRANSACTIONS,
        )
        self._log_bytes = ahead.log_bytes
        self._intake: ScannerFeed | None = None
        self.scanner.go_on_from(ahead)

    def close(self) -> None:
        """Close the catalog's connection."""
        self.catalog.close()

    def _plan(self, table_map: TableMap, where: str) -> planning.RowLayout | None:
        if table_map.table == self.marks:
            return mark_plan(table_map, where)
        if self._reading.is_marking(table_map.table):
            return mark_layout(table_map)
        if not self.selection.wants(table_map.table):
            return None
        if self._mariadb and self.catalog.is_sequence(table_map):
            return None
        layout = self._layouts.get(table_map.body)
        if layout is None:
            layout = self.catalog.plan(table_map, self.scanner.position(), where)
            if self._reading.lacks_key(layout):
                raise _no_key(table_map.table, where)
            if len(self._layouts) < _REMEMBERED_LAYOUTS:
                self._layouts[table_map.body] = layout
        return layout

    def _statement(self, statement: LoggedStatement) -> bool:
        """Fold DDL into the schema history and note it if it concerns us; stop at a statement that changes captured
        rows without naming them.
        """
        query = statement.query
        wants = self.selection.wants
        changes: list[TableChange] = []
        sql, sql_mode, schema = query.sql, parse_status(query.status).sql_mode, query.schema
        tracker = self.catalog.tracker
        others: set[TableId] = set()
        if tracker is not None:
            sql, sql_mode, schema = tracker.text(query), tracker.sql_mode(query), tracker.schema(query)
            others = set(tracker.state.others)
            changes = tracker.statement(statement)
            others |= tracker.state.others
            self._layouts.clear()
            if changes:
                self.scanner.definitions_changed()
        known_changes = [
            c for c in changes if any(wants(t) if t.table else self.selection.wants_schema(t.schema) for t in c.tables)
        ]
        for effect in effects_of(sql, schema, Dialect(self._mariadb, 0, sql_mode)):
            tables = effect.tables if tracker is None else map(tracker.state.canonical, effect.tables)
            touched = [table for table in tables if wants(table) and table not in others]
            if effect.kind is Effect.ROWS and touched:
                raise UnknownEvent(
                    f"a statement that changes rows stands in the log without its rows: {sql[:120]}",
                    where=str(statement.position),
                    hint=f"a session set binlog_format to STATEMENT: set it back to ROW; {AROUND}",
                )
            if self.loads is not None and (mark := self.loads.of_statement(query.sql)) and self.loads.drops(mark):
                continue
            named = effect.kind is Effect.DEFINITION and touched
            if (named or known_changes) and self.selection.ddl:
                noted = SchemaStatement(
                    position=statement.position.as_offset(),
                    schema=schema,
                    table=touched[0] if touched else None,
                    sql=sql,
                    seq=statement.seq,
                    gtid=statement.gtid,
                    commit_time_us=statement.commit_us,
                    sql_mode=sql_mode,
                    session=session_of(query),
                    changes=tuple(known_changes),
                )
                self.batch.open().note_ddl(noted)
                self.statements += 1
                return True
        return False

    def run(self, stream: BinlogDump, start: Position, progress: Callable[..., None]) -> StreamResult[M]:
        scanner, limits, stop = self.scanner, self.limits, _stop(self.limits)
        scanner.s[sc.S_CRC] = int(stream.checksum)
        scanner.limit(max_changes=limits.max_changes, max_bytes=limits.max_bytes, stop=stop)
        intake = self._intake = ScannerFeed(stream, scanner, max_event_bytes=limits.max_event_bytes)
        began = time.monotonic()
        first_change = 0.0
        next_progress = began + _PROGRESS_EVERY_S
        reason = ""
        while not reason:
            now = time.monotonic()
            if now >= next_progress:
                progress(changes=scanner.changes, file=scanner.file, offset=int(scanner.s[sc.S_LAST_END]))
                next_progress = now + _PROGRESS_EVERY_S
            captured = scanner.changes > 0 or self.statements > 0
            if captured and not first_change:
                first_change = now
            outside = scanner.between_transactions
            deadline = (first_change + limits.max_wait_s) if captured else (began + limits.idle_wait_s)
            if captured and now >= deadline and limits.stays_open is not None and limits.stays_open():
                deadline = now + _LOOK_S
            if stop is not None and outside and scanner.reached(stop):
                reason = "head"
                break
            if now >= deadline:
                if outside:
                    reason = "time" if captured else "idle"
                    break
                if captured:
                    scanner.stop_at_end()
            pause = min(max(deadline - now, 0.001), 1.0, max(next_progress - now, 0.001))
            if self._step(intake, pause):
                reason = self._reason()
        log_bytes = self._log_bytes + intake.log_bytes
        last = scanner.position().as_offset()
        self._last_seal = True
        if not (scanner.changes or self.statements):
            at_head = reason in {"head", "idle"}
            return StreamResult(last, None, 0, 0, log_bytes, at_head, reason, self._schema(), scanner.partner)
        scanner.finish()
        self.batch.wait()
        manifest = self.batch.finish(
            start.as_offset(),
            last,
            changes=scanner.changes,
            transactions=scanner.transactions,
            log_bytes=log_bytes,
            first_commit_time_us=scanner.first_commit_us or scanner.last_commit_us,
            last_commit_time_us=scanner.last_commit_us,
            skipped=self._skipped(),
        )
        at_head = reason == "head"
        return StreamResult(
            last,
            manifest,
            scanner.changes,
            scanner.transactions,
            log_bytes,
            at_head,
            reason,
            self._schema(),
            scanner.partner,
        )

    def leave(self, stream: BinlogDump) -> None:
        """Leave the stream to the reader of the next batch, at the place where this one ended."""
        assert self._intake is not None
        self._intake.give_back()
        stream.checksum = bool(self.scanner.s[sc.S_CRC])  # as of the file that is read now
        if self._schema() is not None:  # also where a table map contradicted what was known
            self._layouts.clear()

    def _step(self, intake: ScannerFeed, pause_s: float) -> bool:
        try:
            return intake.step(pause_s)
        except CaptureError as error:
            if self.scanner.transactions:
                error.whole_until = self.scanner.position().as_offset()
            raise

    def _schema(self) -> SchemaState | None:
        tracker = self.catalog.tracker
        return tracker.state if tracker is not None and tracker.changed else None

    def _reason(self) -> str:
        scanner, limits, stop = self.scanner, self.limits, _stop(self.limits)
        if scanner.ended_by_statement:
            return "ddl"
        if stop is not None and scanner.reached(stop):
            return "head"
        if scanner.changes >= limits.max_changes:
            return "changes"
        if int(scanner.s[sc.S_BYTES]) >= limits.max_bytes:
            return "bytes"
        return "time"

    def _skipped(self) -> dict[str, int]:
        state = self.scanner.s
        counts = {
            "other tables": int(state[sc.S_SKIPPED_TABLE]),
            "other kinds of change": int(state[sc.S_SKIPPED_KIND]),
            **self.scanner.skipped,
        }
        return {reason: count for reason, count in counts.items() if count}


def _no_key(table: TableId, where: str) -> ConfigError:
    return ConfigError(
        f"{table} has no primary key, and its channel loops back: rows that come back would be loaded twice",
        where=where,
        hint=f"give {table} a primary key, or leave it out: capture.exclude in both pipelines",
    )


__all__ = ["ChangeSink", "Selection", "SourceUnavailable", "StreamLimits", "StreamResult", "capture"]
