"""One closed log file on its way into a batch, read in parallel with others; see
:mod:`sluice.sources.mysql.reader.parallel`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sluice.errors import CaptureError
from sluice.model.tables import TableSchema
from sluice.mysql.ddl.lexer import Dialect
from sluice.sources.mysql.catalog.resolver import TableResolver
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.mark_table import mark_layout
from sluice.sources.mysql.decoder.row_layout import RowLayout
from sluice.sources.mysql.decoder.rows import RowEvents, decode_arena
from sluice.sources.mysql.decoder.scanner import LoggedStatement, Scanner
from sluice.sources.mysql.events.query_status import parse_status
from sluice.sources.mysql.events.statement_effects import Effect, effects_of
from sluice.sources.mysql.events.table_map import TableMap
from sluice.sources.mysql.position import Position, is_mariadb
from sluice.sources.mysql.protocol.log_archive import open_log
from sluice.sources.mysql.reader.feed import ScannerFeed
from sluice.sources.mysql.reader.log_part import LogReading
from sluice.sources.mysql.reader.parallel import SEQ_STEP, BinlogRange
from sluice.sources.mysql.server.connection import open_connection

_STEP_S = 0.5


class PieceSink(Protocol):
    """The receiver of a piece's rows; ``SegmentWriter.branch`` returns one."""

    def buckets(self, schema: TableSchema, keys: Sequence[pa.Array], rows: int) -> np.ndarray[Any, Any]:
        """Return the key bucket of each row."""

    def add(self, schema: TableSchema, rows: pa.Table, *, in_order: bool = False) -> None:
        """Take rows of one definition."""

    def flush(self) -> None:
        """Write what is held back."""

    def abort(self) -> None:
        """Delete what was written."""


class _InTurn(CaptureError):
    """The piece holds something that depends on what stands before it."""


class BinlogRangeReader:
    """Reads one piece in a thread: receive, scan, decode, write.

    Args:
        reading: of the batch; a piece that reaches one of its limits ends, and is read in its turn. Its history is that
            of the start of the batch: nothing in an accepted piece changes it. Rows of ``marks`` have to be met in the
            order of the log.
        sink, keep: makes the piece's writer; takes what it has written.
    """

    def __init__(
        self,
        piece: BinlogRange,
        reading: LogReading,
        *,
        sink: Callable[[], PieceSink],
        keep: Callable[[PieceSink], None],
    ) -> None:
        self._piece, self._reading = piece, reading
        self._mariadb = is_mariadb(piece.start.server_uuid)
        self._make_sink, self._keep = sink, keep
        self._sink: PieceSink | None = None
        endpoint = reading.endpoint
        self._catalog = TableResolver(
            lambda: open_connection(endpoint),
            endpoint,
            mariadb=self._mariadb,
            history=reading.history,
            selection=reading.selection,
        )
        self._intake: ScannerFeed | None = None
        self._scanner = Scanner(
            piece.start,
            tables=self._plan,
            statement=self._statement,
            seal=self._write,
            row_events=reading.selection.row_events,
            reread=_prepared_elsewhere,
            mariadb=self._mariadb,
            arena_bytes=reading.arena_bytes,
            first_seq=piece.number * SEQ_STEP,
            marks=reading.loads,
        )
        limits = reading.limits
        self._scanner.limit(max_changes=limits.max_changes, max_bytes=limits.max_bytes, stop=piece.stop)

    @property
    def state(self) -> np.ndarray[Any, Any]:
        """The scanner's state."""
        return self._scanner.s

    @property
    def last(self) -> Position:
        """The position that it has reached."""
        return self._scanner.position()

    @property
    def log_bytes(self) -> int:
        """Bytes received."""
        return self._intake.log_bytes if self._intake else 0

    @property
    def skipped(self) -> dict[str, int]:
        """The changes that the scanner left out, by reason."""
        return self._scanner.skipped

    def run(self, cancelled: threading.Event) -> bool:
        """Read to the end of the piece. False if it can only be read in its turn, or it is no longer wanted."""
        reading = self._reading
        stream = open_log(reading.endpoint, server_id=reading.server_id, start=self._piece.start, mariadb=self._mariadb)
        try:
            self._scanner.s[sc.S_CRC] = int(stream.checksum)
            self._intake = ScannerFeed(stream, self._scanner, max_event_bytes=reading.limits.max_event_bytes)
            while not self._intake.step(_STEP_S):
                if cancelled.is_set():
                    return False
        except _InTurn:
            return False
        finally:
            stream.close()
            self._catalog.close()
        if not self._scanner.reached(self._piece.stop) or self._scanner.prepared:
            return False
        self._scanner.finish()
        if self._sink is not None:
            self._sink.flush()
        return True

    def accept(self) -> None:
        """Make its rows a part of the batch."""
        if self._sink is not None:
            self._keep(self._sink)

    def drop(self) -> None:
        """Forget its rows."""
        if self._sink is not None:
            self._sink.abort()

    # -----------------------------------------------------------------------------------------------------------------
    def _plan(self, table_map: TableMap, where: str) -> RowLayout | None:
        if table_map.table == self._reading.marks:
            raise _InTurn("a watermark")
        if self._reading.is_marking(table_map.table):
            return mark_layout(table_map)
        if not self._reading.selection.wants(table_map.table):
            return None
        if not table_map.named:
            raise _InTurn("a table map without names")
        layout = self._catalog.plan(table_map, self._piece.start, where)
        if self._reading.lacks_key(layout):
            raise _InTurn("a table without a key, in a channel that loops back")
        return layout

    def _statement(self, statement: LoggedStatement) -> bool:
        query = statement.query
        dialect = Dialect(self._mariadb, 0, parse_status(query.status).sql_mode)
        if any(effect.kind is not Effect.NONE for effect in effects_of(query.sql, query.schema, dialect)):
            raise _InTurn("a statement that changes definitions or rows")
        return False

    def _write(self, rows: RowEvents) -> None:
        if self._sink is None:
            self._sink = self._make_sink()
        for schema, table in decode_arena(rows, self._sink.buckets):
            self._sink.add(schema, table, in_order=True)


def _prepared_elsewhere(*_: object) -> Iterable[bytes]:
    raise _InTurn("the outcome of an XA transaction whose rows stand in another piece")
