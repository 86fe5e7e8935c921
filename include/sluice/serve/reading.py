"""One read: the batches that a request means, row by row, and a mark after each batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from sluice.coordination.state import PipelineState
from sluice.errors import AccessDenied, ConfigError
from sluice.flows.runtime import Runtime
from sluice.model.nearest import meant
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.segments.manifest import SegmentManifest
from sluice.serve.access import Reader
from sluice.serve.batch_range import StoredBatches
from sluice.serve.batch_rows import BatchRows
from sluice.serve.feed import Feed
from sluice.serve.requests import ReadRequest
from sluice.serve.row_shapes import StreamShape
from sluice.serve.table_index import TableIndex

ROWS_AT_ONCE = 65_536
"""Of a record batch, at most."""

Sent = tuple[pa.RecordBatch, bytes]
"""Rows, and what is said with them (JSON); an empty record batch with a mark ends a stored batch."""


@dataclass
class Reading:
    """A read that is about to begin.

    Attributes:
        index, feed: of the pipeline, for all its readers; join: puts the runtime on the process's session, a new one if the last is over.
        shape: the columns of the stream; first: the batch it begins with; last: the last one that is stored when it begins.
    """

    runtime: Runtime
    request: ReadRequest
    reader: Reader
    index: TableIndex
    feed: Feed
    join: Callable[[], None]
    rows: BatchRows = field(init=False)
    shape: StreamShape = field(init=False)
    first: int = field(init=False)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        """Raises AccessDenied, BatchesGone, ConfigError, SegmentError, RuleError, StorageUnavailable, CoordinationUnavailable."""
        request = self.request
        refused = [table for table in request.named if not self.reader.may_read(request.pipeline, table)]
        if refused:
            raise AccessDenied(f"{self.reader.name} may not read {refused[0]} of pipeline {request.pipeline}")
        self.rows = BatchRows(self.runtime, request.form)
        with self.runtime.state() as state:
            stored = StoredBatches.of(self.runtime, state)
            self.first = stored.first(request, state)
            self.last = stored.following - 1 if request.to is None else min(request.to, stored.following - 1)
            self.index.refresh(stored, state)
            begun = stored.manifest(self.first, state) if self.first <= self.last else None
        now = self.rows.columns(begun, self.wants) if begun is not None else iter(())
        tables = list(chain(now, self.index.columns(self.rows, self.wants)))
        self._require_known({table for table, _ in tables})
        self.shape = StreamShape.of(request, tables)

    def wants(self, table: TableId) -> bool:
        """True if rows of the table are sent."""
        return self.request.asks_for(table) and self.reader.may_read(self.request.pipeline, table)

    def _require_known(self, known: set[TableId]) -> None:
        for table in self.request.named:
            if table not in known:
                every = self.index.columns(self.rows, lambda t: self.reader.may_read(self.request.pipeline, t))
                names = sorted({str(found) for found, _ in every})
                raise ConfigError(
                    f"no stored batch of {self.request.pipeline} has changes of {table}{meant(str(table), names)}",
                    hint=f"tables that are read: {', '.join(names[:50]) or 'none yet'}",
                )

    def sent(self, is_over: Callable[[], bool]) -> Iterator[Sent]:
        """What the stream has. Memory: one file of a table, and rows of it that are put in order. Raises as :class:`Reading`, and SchemaMoved.

        Args:
            is_over: asked while a read that follows waits; it ends then.
        """
        for number in self._numbers(is_over):
            self.join()
            with self.runtime.state() as state:
                manifest = self._manifest(number, state)
            if manifest is not None:
                yield from self._of_batch(manifest)

    def _numbers(self, is_over: Callable[[], bool]) -> Iterator[int]:
        yield from range(self.first, self.last + 1)
        number = max(self.first, self.last + 1)
        while self.request.follow:
            following = self.feed.after(number, self._look, is_over)
            if following is None:
                return
            yield from range(number, following)
            number = following

    def _look(self, changed: Callable[..., None]) -> int:
        self.join()
        with self.runtime.state() as state:
            state.notify_cursor(changed)
            cursor = state.cursor()
        return cursor.next_batch if cursor else 1

    def _manifest(self, number: int, state: PipelineState) -> SegmentManifest | None:
        return StoredBatches(self.runtime, [], number).manifest(number, state)

    def _of_batch(self, manifest: SegmentManifest) -> Iterator[Sent]:
        shape, batch = self.shape, manifest.batch
        if not any(self.rows.ruling.concerning(file.table_id) for file in manifest.files):
            for table, columns in self.rows.columns(manifest, self.wants):  # before any row of the batch is sent
                shape.require(columns, table, batch)
        for _, rows in self.rows.rows(manifest, self.wants, lambda table, rows: shape.rows(rows, table, batch)):
            for piece in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
                if piece.num_rows:
                    yield piece, b""
        yield pa.RecordBatch.from_pylist([], schema=shape.schema), _mark(manifest, self._statements(manifest))

    def _statements(self, manifest: SegmentManifest) -> list[dict[str, Any]]:
        """What statements did to tables that are read: no row says it."""
        found = []
        for record in manifest.ddl:
            for data in record.changes:
                change = TableChange.from_json(data)
                table = self.rows.routes.route(change.table).target
                if self.wants(table):
                    kinds = [kind.value for kind in change.kinds]
                    found.append({"table": str(table), "kinds": kinds, "seq": record.seq})
        return found


def _mark(manifest: SegmentManifest, statements: list[dict[str, Any]]) -> bytes:
    """Said after the last row of a batch."""
    said = {
        "batch": manifest.batch,
        "position": manifest.last.position.place,
        "gtid_set": manifest.last.gtid_set,
        "commit_time_us": manifest.last.commit_time_us,
        "statements": statements,
    }
    return json.dumps(said, separators=(",", ":")).encode()
