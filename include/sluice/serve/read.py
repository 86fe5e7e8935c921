"""One read: the batches that a request means, row by row, and a mark after each batch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import structlog

from sluice.coordination.state import PipelineState
from sluice.errors import AccessDenied, BatchesGone, ConfigError, MappingError, SegmentError
from sluice.flows.runtime import Runtime
from sluice.model.nearest import meant
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.segments.manifest import SegmentManifest
from sluice.serve.access import Reader
from sluice.serve.batch_range import StoredBatches, is_gone, missing_batch, read_manifest
from sluice.serve.batch_rows import BatchRows, Following, nothing_follows
from sluice.serve.feed import Feed
from sluice.serve.requests import ReadRequest
from sluice.serve.row_shapes import StreamShape, stored
from sluice.serve.snapshot_start import SnapshotStart
from sluice.serve.table_index import TableIndex, defined_tables
from sluice.sources import executed

TIMED_OUT = {"timed_out": True}
"""Why a read ended: no batch was stored for as long as its reader wanted to wait."""

TIMED_OUT_MESSAGE = json.dumps({"end": TIMED_OUT}, separators=(",", ":")).encode()


class BatchWait:
    """The clock of one read. It runs while the read waits for a batch, and not while the reader takes one.

    ``limit_s``: after this time without a batch the wait is over; ``math.inf`` for never.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until: float | None = None

    def begin(self) -> None:
        """Start the clock, unless it runs."""
        if self._until is None:
            self._until = time.monotonic() + self._limit_s

    def reset(self) -> None:
        """Stop the clock: a batch came, or something else than a batch is waited for."""
        self._until = None

    @property
    def is_over(self) -> bool:
        """Return True if the clock has run for the whole time."""
        return self._until is not None and time.monotonic() >= self._until


@dataclass(frozen=True)
class PieceSize:
    """The most that one piece has. None: as the service likes."""

    rows: int | None = None
    size_bytes: int | None = None

    def split(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a record batch in pieces that are no larger, in order. A row that is larger is a piece of its own."""
        if self.rows is None and self.size_bytes is None:
            yield piece
            return
        start = 0
        while start < piece.num_rows:
            count = self._fitting(piece, start)
            yield piece.slice(start, count)
            start += count

    def _fitting(self, piece: pa.RecordBatch, start: int) -> int:
        """Return how many rows from ``start`` on fit, at least one."""
        remaining_rows: int = piece.num_rows - start
        low, high = 1, min(remaining_rows, self.rows or remaining_rows)
        if self.size_bytes is None or piece.slice(start, high).nbytes <= self.size_bytes:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if piece.slice(start, middle).nbytes <= self.size_bytes:
                low = middle
            else:
                high = middle
        return low


_log = structlog.get_logger()

_ATTEMPTS, _PAUSE_S = 10, 0.05
"""To begin while retention removes what it was to begin with."""

Sent = tuple[pa.RecordBatch, bytes]
"""Rows, and what is said with them (JSON); an empty record batch with a mark ends a stored batch, one with ``reset``
comes before a snapshot, and one with ``end`` after the last batch where the reader's wait is over.
"""


class _ClientGone(Exception):
    """The client of a read hung up."""


class Shape(Protocol):
    """The shape of a read's rows: one schema for all, and rows brought into it. See :class:`StreamShape`."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of what is sent."""

    def require(self, columns: pa.Schema, table: TableId, batch: int) -> None:
        """Raise SchemaMoved if rows of these columns do not fit."""

    def rows(self, rows: pa.Table, table: TableId, batch: int) -> pa.Table:
        """Return those rows of a batch that are sent, with ``_op`` and ``_seq``, in any order.

        All rows of a table and batch have one schema. Raises SchemaMoved.
        """

    def sent(self, rows: pa.Table, table: TableId, batch: int) -> Iterator[pa.RecordBatch]:
        """Yield what is sent of such rows once they are in order."""

    def with_records(self, pieces: Iterable[tuple[pa.Table, TableId]], batch: int) -> Iterator[pa.RecordBatch]:
        """Yield what is sent of all rows of a batch, in log order over all tables, with the records of transactions."""


Shaping = Callable[[ReadRequest, Sequence[tuple[TableId, pa.Schema]]], Shape]
"""Makes the shape of a read of these tables. Raises ConfigError for what is asked for, and not there."""


@dataclass
class Reading:
    """A read that is about to begin.

    Attributes:
        index, feed: of the pipeline, for all its readers; join: puts the runtime on the process's session, a new one if
            the last is over.
        shaping: makes ``shape``, what the stream's rows look like; first: the batch it begins with; last: the last one
            that is stored when it begins.
        snapshot: what comes before the first batch, if the read starts from there: because it asked for that, or
            batches are no longer stored.
    """

    runtime: Runtime
    request: ReadRequest
    reader: Reader
    index: TableIndex
    feed: Feed
    join: Callable[[], None]
    shaping: Shaping = StreamShape.of
    rows: BatchRows = field(init=False)
    shape: Shape = field(init=False)
    snapshot: SnapshotStart | None = field(init=False)
    first: int = field(init=False)
    last: int = field(init=False)
    _is_gone: Callable[[], bool] | None = field(init=False, default=None, repr=False)
    _wait: BatchWait = field(init=False, repr=False)
    _has_waited: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        """Open the read.

        Raises AccessDenied, BatchesGone, ConfigError, SegmentError, RuleError, StorageUnavailable,
        CoordinationUnavailable.
        """
        request = self.request
        self._wait = BatchWait(request.wait_s)
        refused = [table for table in request.named if not self.reader.may_read(request.pipeline, table)]
        if refused:
            raise AccessDenied(f"{self.reader.name} may not read {refused[0]} of pipeline {request.pipeline}")
        self.rows = BatchRows(self.runtime, request.form, self._needed())
        tables = self._find_start()
        self._require_known({table for table, _ in tables})
        self.shape = self.shaping(request, tables)
        self.last = self._limited(self.last)

    def _find_start(self) -> list[tuple[TableId, pa.Schema]]:
        """Find out where it begins, and which tables it has.

        What retention removes between two looks is as what was gone before.
        """
        for attempt in range(_ATTEMPTS):
            with self.runtime.state() as state:
                stored = StoredBatches.of(self.runtime, state)
                self.snapshot, self.first = self._beginning(stored, state)
                end = stored.following - 1
                self.last = end if self.request.to is None else min(self.request.to, end)
                self.index.refresh(stored, state)
                try:
                    begun = read_manifest(self.runtime, self.first, state) if self.first <= self.last else None
                    now = list(self.rows.columns(begun, self.wants)) if begun is not None else []
                    break
                except (BatchesGone, SegmentError):
                    if attempt == _ATTEMPTS - 1 or not is_gone(self.runtime, self.first):
                        raise
                    time.sleep(_PAUSE_S)
        before = self.snapshot.columns() if self.snapshot is not None else iter(())
        tables = list(chain(now, before, self.index.columns(self.rows, self.wants)))
        missing = set(self.request.named) - {table for table, _ in tables}
        if missing:  # no batch that is stored has changes of it: none has come yet, or retention removed those
            with self.runtime.state() as state:
                tables += defined_tables(
                    self.runtime, state, self.rows, lambda table: table in missing and self.wants(table)
                )
        return tables

    def _needed(self) -> frozenset[str] | None:
        """Return the columns that are read, as tables have them; None for all."""
        reads = self.request.reads
        return None if reads is None else frozenset(map(stored, reads))

    def _beginning(self, stored: StoredBatches, state: PipelineState) -> tuple[SnapshotStart | None, int]:
        """Return the snapshot that comes first, if any, and the batch after it."""
        request = self.request
        if request.from_ == "snapshot":
            snapshot = SnapshotStart.of(self.runtime, state, self.rows, self.wants)
            return snapshot, snapshot.batch + 1
        try:
            return None, stored.first(request, state)
        except BatchesGone as error:
            snapshot = self._instead(error, state)
        _log.info(
            "read_restarted_from_snapshot", pipeline=request.pipeline, reader=self.reader.name, batch=snapshot.batch
        )
        return snapshot, snapshot.batch + 1

    def _instead(self, error: BatchesGone, state: PipelineState) -> SnapshotStart:
        """Return the snapshot that replaces lost batches.

        Raises their error, or why a requested snapshot cannot be read.
        """
        on_lost, has_snapshot = self.request.on_lost_batches, self.runtime.pipeline.snapshot is not None
        if on_lost != "snapshot" and (on_lost == "stop" or self.request.to is not None or not has_snapshot):
            raise error
        try:
            return SnapshotStart.of(self.runtime, state, self.rows, self.wants)
        except (ConfigError, MappingError):
            if on_lost is None:
                raise error from None
            raise

    def wants(self, table: TableId) -> bool:
        """Return True if rows of the table are sent."""
        return self.request.asks_for(table) and self.reader.may_read(self.request.pipeline, table)

    def _require_known(self, known_tables: set[TableId]) -> None:
        for table in self.request.named:
            if table not in known_tables:
                every = self.index.columns(self.rows, lambda t: self.reader.may_read(self.request.pipeline, t))
                names = sorted({str(stored_table) for stored_table, _ in every})
                raise ConfigError(
                    f"no stored batch of {self.request.pipeline} has changes of {table}{meant(str(table), names)}",
                    hint=f"tables that are read: {', '.join(names[:50]) or 'none yet'}",
                )

    def _limited(self, last: int) -> int:
        """Return the batch with which a read of so many rows or bytes ends, ``last`` at most."""
        most_rows, most_bytes = self.request.max_rows, self.request.max_bytes
        if most_rows is None and most_bytes is None:
            return last
        rows, size_bytes = 0, 0
        for number in range(self.first, last + 1):
            try:
                manifest = self.manifest(number)
            except (BatchesGone, SegmentError):
                return number  # the read says so when it comes there
            for file in manifest.files if manifest is not None else ():
                if self.rows.may_give(file.table_id, self.wants):
                    rows += file.inserts + file.updates + file.deletes + file.reads
                    size_bytes += file.arrow_bytes or file.size_bytes
            if rows >= (most_rows or math.inf) or size_bytes >= (most_bytes or math.inf):
                return number
        return last

    def await_first(self, is_over: Callable[[], bool]) -> None:
        """Wait until the batch is stored that a read begins with which does not follow.

        It ends when that took as long as the reader wants to wait, or ``is_over`` says that it is enough. Only the
        first call waits: ``last`` stays as it is after it. Raises as :class:`Reading`.
        """
        end = self.request.to
        is_first, self._has_waited = not self._has_waited, True
        waits = is_first and not self.request.follow and self.request.wait_s > 0
        if waits and self.first > self.last and (end is None or end >= self.first):
            self._wait.begin()
            following = self.feed.after(self.first, self._next_batch, lambda: is_over() or self._wait.is_over)
            if following is not None:
                self.last = self._limited(following - 1 if end is None else min(end, following - 1))

    def sent(
        self, is_over: Callable[[], bool], is_gone: Callable[[], bool] = lambda: False
    ) -> Generator[Sent, None, None]:
        """Yield the stream.

        Memory: two files of a table, and rows that wait for others. Raises as :class:`Reading`, and SchemaMoved.

        Args:
            is_over: asked while a read that follows waits; it ends then.
            is_gone: asked between pieces of a file, also where nothing of them is sent: no client takes what comes, so
                it ends where it stands.
        """
        self._is_gone = is_gone
        with suppress(_ClientGone), closing(self.rows):
            if self.snapshot is not None:
                yield from self.of_snapshot(self.snapshot)
            self.await_first(is_over)
            for number, last in self._numbers(is_over):
                self._require_client()
                manifest = self.manifest(number)
                if manifest is not None:
                    following = partial(self.manifest, number + 1) if number < last else nothing_follows
                    yield from self.of_batch(manifest, following)
                    self._wait.reset()
            if self.request.follow and self._wait.is_over:
                yield pa.RecordBatch.from_pylist([], schema=self.shape.schema), TIMED_OUT_MESSAGE

    def _require_client(self) -> None:
        if self._is_gone is not None and self._is_gone():
            raise _ClientGone

    def _shaped(self, rows: pa.Table, table: TableId, batch: int) -> pa.Table:
        self._require_client()
        return self.shape.rows(rows, table, batch)

    def of_snapshot(self, start: SnapshotStart) -> Generator[Sent, None, None]:
        """Yield the rows of the snapshot that a read begins with. It is announced first, and a mark ends it."""
        shape = self.shape
        yield pa.RecordBatch.from_pylist([], schema=shape.schema), start.reset
        for table, rows in start.pieces(lambda table, rows: self._shaped(rows, table, start.batch)):
            for piece in shape.sent(rows, table, start.batch):
                yield from self._sized(piece)
        yield pa.RecordBatch.from_pylist([], schema=shape.schema), start.mark

    def _numbers(self, is_over: Callable[[], bool]) -> Iterator[tuple[int, int]]:
        """Yield the number of each batch, with that of the last one that is known to be stored."""
        yield from ((number, self.last) for number in range(self.first, self.last + 1))
        number = max(self.first, self.last + 1)
        while self.request.follow:
            self._wait.begin()
            following = self.after(number, lambda: is_over() or self._wait.is_over)
            if following is None:
                return
            yield from ((stored, following - 1) for stored in range(number, following))
            number = following

    def after(self, number: int, is_over: Callable[[], bool]) -> int | None:
        """See :meth:`Feed.after`."""
        return self.feed.after(number, self._next_batch, is_over)

    def _next_batch(self, changed: Callable[..., None]) -> int:
        self.join()
        with self.runtime.state() as state:
            state.notify_cursor(changed)
            cursor = state.cursor()
        return cursor.next_batch if cursor else 1

    def manifest(self, number: int) -> SegmentManifest | None:
        """See :func:`read_manifest`."""
        self.join()
        with self.runtime.state() as state:
            return read_manifest(self.runtime, number, state)

    def of_batch(
        self, manifest: SegmentManifest, following: Following = nothing_follows
    ) -> Generator[Sent, None, None]:
        """Yield the rows of a batch, and the mark that ends it. ``following``: see :meth:`BatchRows.rows`.

        Raises BatchesGone if retention removes it meanwhile.
        """
        try:
            yield from self._of_batch(manifest, following)
        except SegmentError:
            self.join()
            if not is_gone(self.runtime, manifest.batch):
                raise
            raise missing_batch(self.runtime.pipeline, self.runtime.store, manifest.batch) from None

    def _of_batch(self, manifest: SegmentManifest, following: Following) -> Iterator[Sent]:
        shape, batch = self.shape, manifest.batch
        if not any(self.rows.ruling.concerning(file.table_id) for file in manifest.files):
            for table, columns in self.rows.columns(manifest, self.wants):  # before any row of the batch is sent
                shape.require(columns, table, batch)
        rows = self.rows.rows(manifest, self.wants, lambda table, rows: self._shaped(rows, table, batch), following)
        pieces = (
            shape.with_records(((rows, table) for table, rows in rows), batch)
            if self.request.transactions
            else (piece for table, rows in rows for piece in shape.sent(rows, table, batch))
        )
        for piece in pieces:
            yield from self._sized(piece)
        yield pa.RecordBatch.from_pylist([], schema=shape.schema), self._mark(manifest)

    def _sized(self, piece: pa.RecordBatch) -> Iterator[Sent]:
        """Yield the rows in pieces of the size that the reader chose."""
        size = PieceSize(self.request.piece_rows, self.request.piece_bytes)
        return ((part, b"") for part in size.split(piece) if part.num_rows)

    def _mark(self, manifest: SegmentManifest) -> bytes:
        """Return the mark that follows the last row of a batch."""
        mark = {
            "batch": manifest.batch,
            "position": manifest.last.place,
            "gtid_set": executed(self.runtime.pipeline.source.type, manifest.last),
            "commit_time_us": manifest.last.commit_time_us,
            "statements": self._statements(manifest),
        }
        return json.dumps(mark, separators=(",", ":")).encode()

    def _statements(self, manifest: SegmentManifest) -> list[dict[str, Any]]:
        """Return what statements did to tables that are read, since no row says it."""
        statements = []
        for record in manifest.ddl:
            for data in record.changes:
                change = TableChange.from_json(data)
                table = self.rows.routes.route(change.table).target
                if self.wants(table):
                    kinds = [kind.value for kind in change.kinds]
                    statements.append({"table": str(table), "kinds": kinds, "seq": record.seq})
        return statements
