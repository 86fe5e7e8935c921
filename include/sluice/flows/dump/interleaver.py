"""Placing: the capture's part of a dump. Chunks that were read outside of the log get their place in it.

A chunk's window lies between the position before it was read (low) and a later position (high). What the log changed in
the window is newer than the chunk's rows, or the same; so those keys are dropped from the chunk and the rest is placed
at the high mark, before every later change. With marks in the log, high is where the capture meets the high mark. A
chunk whose high mark the capture has already passed (nothing marks it, or the mark was read before the chunk was known)
is placed at the start of the next batch. Only its window gets longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog

from sluice.coordination.port import Step
from sluice.coordination.state import PipelineState
from sluice.errors import SegmentError, SluiceError
from sluice.flows.dump.key_lists import stored_keys, write_keys
from sluice.flows.dump.moved_keys import dump_moved
from sluice.flows.dump.reconcile import write_kept
from sluice.merge.column_presence import masks
from sluice.merge.group_codes import group_codes
from sluice.merge.window import survivors
from sluice.model.batches import Op
from sluice.model.dialects import MYSQL, Dialect
from sluice.model.dumps import (
    POSITION_LOST,
    Chunk,
    ChunkState,
    Dump,
    DumpState,
    Mark,
    Marking,
    TablePlaced,
    TableRequest,
)
from sluice.model.offset import Offset
from sluice.model.packing import SMALL_FILES
from sluice.model.tables import META_COLUMNS, TableId, TableSchema, stored_name
from sluice.segments.chunk_file import read_keys
from sluice.segments.manifest import MarkRecord, PlaceRecord, ReplaceRecord, SegmentFile, SegmentManifest
from sluice.segments.reader import read_file, read_pieces
from sluice.segments.store import SegmentStore
from sluice.segments.writer import LogDigester, SegmentWriter
from sluice.sources.port import Source

_log = structlog.get_logger()

_PART = "_part"
_WRITTEN = "the table has no key and was written meanwhile"
MAX_LATE_ROWS = 500_000
"""Rows of late chunks that one batch takes; further ones wait for the next batch."""


class OtherKey(Exception):
    """A file of the window has other key columns than the chunk: the table was redefined before the window, in the same
    batch.
    """


@dataclass(frozen=True, slots=True)
class WatermarkWindow:
    """The begin of a chunk's window.

    Attributes:
        batch: the batch that it begins in.
        seq: it begins after this change of that batch (-1: it includes all of it).
        after_low: the source's own test of each change, if it has one.
        is_exact: that test is about what the select saw, so that the changes it covers are those that the copy lacks.
    """

    batch: int
    seq: int = -1
    after_low: Callable[[pa.Table], np.ndarray[Any, Any]] | None = None
    is_exact: bool = False

    def covers(self, rows: pa.Table, batch: int) -> np.ndarray[Any, Any]:
        """Return a mask of the changes of ``batch`` that lie after the low mark."""
        if self.after_low is not None:
            return self.after_low(rows)
        if batch == self.batch and self.seq >= 0:
            return np.asarray(rows["_seq"].to_numpy().astype(np.int64) > self.seq)
        return np.ones(rows.num_rows, bool)


class InterleavingSegmentWriter(SegmentWriter):
    """A segment writer that knows marks from rows, holds back what waits for a copy, and takes placed chunks before its
    manifest is written.
    """

    def __init__(
        self,
        store: SegmentStore,
        batch: int,
        epoch: int,
        *,
        mark_table: TableId | None = None,
        held: frozenset[TableId] = frozenset(),
        watched: frozenset[TableId] = frozenset(),
        stores_held: bool = False,
        **options: Any,
    ) -> None:
        """``stores_held``: changes that wait for a copy are stored beside the batch, for a copy that lacks them."""
        super().__init__(store, batch, epoch, **options)
        self._mark_table, self._held, self._watched = mark_table, held, watched
        self._stores_held = stores_held
        self._kept: dict[TableId, list[tuple[TableSchema, pa.Table]]] = {}
        self._ended: tuple[Offset, Offset, int, dict[str, Any]] | None = None

    def add(self, schema: TableSchema, rows: pa.Table | pa.RecordBatch, *, in_order: bool = False) -> None:
        """Write rows of the log; rows of the marking table go to the interleaver."""
        if schema.table == self._mark_table:
            self._note_marks(rows)
        elif schema.table in self._held or schema.table in self._watched:
            table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
            with self._lock:
                self._kept.setdefault(schema.table, []).append((schema, table))
        else:
            super().add(schema, rows, in_order=in_order)

    def add_placed(self, schema: TableSchema, chunk: Chunk, place: PlaceRecord, rows: int) -> None:
        """Move the file of a chunk into the batch as it is; ``rows`` of its rows count."""
        folder = self.store.table_path(self.batch, schema.table.schema, schema.table.table)
        path = (
            f"{folder}/{schema.version}-e{self.epoch:06d}-{chunk.id.dump}-{chunk.id.name}-{chunk.attempt:04d}.parquet"
        )
        self.store.move(chunk.path, path)
        file = SegmentFile(
            path=path,
            schema_=schema.table.schema,
            table=schema.table.table,
            schema_version=schema.version,
            primary_key=schema.primary_key,
            rows=chunk.rows,
            reads=rows,
            size_bytes=chunk.size_bytes,
            crc32=chunk.crc32,
            bucket_min=chunk.buckets[0],
            bucket_max=chunk.buckets[1],
            place=place,
        )
        with self._lock:
            self._files.append(file)

    def finish(  # type: ignore[override] # its manifest is written by seal(), after the chunks have their places
        self, first: Offset, last: Offset, *, changes: int | None = None, **named: Any
    ) -> InterleavingSegmentWriter:
        """Note that the log's part of the batch is read. Writes nothing to ZooKeeper, and no manifest."""
        self._ended = (first, last, changes or 0, named)
        return self

    @property
    def first(self) -> Offset:
        """The position where the batch begins."""
        assert self._ended is not None
        return self._ended[0]

    def apply(self, plan: InterleavePlan, replaces: Sequence[ReplaceRecord]) -> None:
        """Add the chunks of a plan and the changes that were held back for them.

        Files move; the chunks' nodes in ZooKeeper stay as they are.
        """
        for placement in plan.placements:
            if placement.kept:
                self.add_placed(placement.schema, placement.chunk, placement.place, placement.kept)
            self._catch_up(placement)
        self.replaces += replaces
        self._left_out = self._let_go(plan.released)
        self.flush(pack=True)

    def _catch_up(self, placement: Placement) -> None:
        """Write the changes of earlier batches that a copy lacks behind it, at its place in the log."""
        for batch, file in placement.lacking:
            for piece in read_pieces(self.store, file):
                rows = piece.filter(pa.array(placement.window.covers(piece, batch)))
                places = pa.repeat(pa.scalar(placement.place.seq, pa.uint64()), rows.num_rows)
                rows = rows.set_column(rows.schema.get_field_index("_seq"), "_seq", places)
                super().add(placement.schema, rows.cast(placement.schema.arrow_schema))
                self._caught_up += rows.num_rows

    def seal(self, plan: InterleavePlan) -> SegmentManifest:
        """Write the manifest."""
        assert self._ended is not None
        first, last, changes, named = self._ended
        total = changes - self.mark_rows - self._left_out + plan.rows + self._caught_up
        return super().finish(first, last, changes=total, **named)

    def kept_between(self, table: TableId, low: int, high: int) -> bool:
        """Return True if a row of a held table was changed between two places of this batch."""
        return any(
            bool(
                (
                    (rows["_seq"].to_numpy().astype(np.int64) > low) & (rows["_seq"].to_numpy().astype(np.int64) < high)
                ).any()
            )
            for _, rows in self._kept.get(table, [])
        )

    def _let_go(self, released: Mapping[TableId, int]) -> int:
        """Write what was held back after the place of its table's copy; the rest is in that copy, or will be.

        Returns rows left out.
        """
        left_out = 0
        waiting: list[tuple[TableSchema, pa.Table]] = []
        for table, pieces in self._kept.items():
            behind = released.get(table)
            for schema, rows in pieces:
                places = rows["_seq"].to_numpy().astype(np.int64)
                waits = behind is None and table in self._held
                alive = np.zeros(len(places), bool) if waits else places > (-1 if behind is None else behind)
                left_out += int((~alive).sum())
                if (~alive).any():
                    self.held[str(table)] = max(self.held.get(str(table), 0), int(places[~alive].max()))
                if alive.any():
                    super().add(schema, rows.filter(pa.array(alive)))
                if waits:
                    waiting.append((schema, rows))
        if waiting and self._stores_held:
            self.write_held(waiting)
        self._kept = {}
        return left_out

    mark_rows = 0
    _left_out = 0
    _caught_up = 0

    def _note_marks(self, rows: pa.Table | pa.RecordBatch) -> None:
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        for row in table.select(["mark", "_op", "_seq", "_file", "_offset"]).to_pylist():
            self.mark_rows += row["_op"] != Op.KEY_MOVED
            mark = Mark.parse(row["mark"] or "")
            if mark and row["_op"] in {Op.INSERT, Op.UPDATE}:
                record = MarkRecord(mark=row["mark"], seq=row["_seq"], file=row["_file"], offset=row["_offset"])
                with self._lock:
                    self._marks.append(record)

    @property
    def marks(self) -> list[MarkRecord]:
        """Marks met so far, in log order."""
        return sorted(self._marks, key=lambda m: m.seq)

    @property
    def files(self) -> list[SegmentFile]:
        """Files written so far."""
        return list(self._files)

    def changed_since(self, seq: int, upto: int, table: TableId) -> bool:
        """Return True if a statement between two changes altered the table's definition."""
        return any(seq < d.seq <= upto and d.table in {None, str(table)} for d in self._ddl)


class OpenBatch(Protocol):
    """The batch that is being made, as far as the log is read."""

    batch: int

    @property
    def marks(self) -> list[MarkRecord]:
        """Marks met in it, in the order of the log."""

    @property
    def files(self) -> list[SegmentFile]:
        """The files of the batch so far."""

    def kept_between(self, table: TableId, low: int, high: int) -> bool:
        """Return True if a row of a held table was changed between two places of this batch."""

    def changed_since(self, seq: int, upto: int, table: TableId) -> bool:
        """Return True if a statement between two changes altered the table's definition."""


class StoredRows(Protocol):
    """The stored batches and chunks that a plan reads. Every method raises SegmentError."""

    def manifest(self, batch: int) -> SegmentManifest | None:
        """Return the manifest of a committed batch; None if it is no longer stored."""

    def changes(self, file: SegmentFile, columns: Sequence[str]) -> pa.Table:
        """Return columns of a file's changes, without rows that a dump placed there.

        ``_present`` is null for a row that is whole now: a deleted one, and one of which only old values are unknown.
        Raises OtherKey if it lacks one of them.
        """

    def chunk(self, chunk: Chunk, identity: tuple[str, ...]) -> tuple[TableSchema, pa.Table] | None:
        """Return a chunk's definition and the key columns of its rows with ``_row``; None if its file is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A chunk that is in the batch: ``kept`` of its rows count, at ``place``; ``window``, ``rows`` (keys): by what that
    was found. ``lacking``: batches before this one, and their files with changes that the copy did not see.
    """

    chunk: Chunk
    dump: Dump
    schema: TableSchema
    rows: pa.Table
    kept: int
    place: PlaceRecord
    window: WatermarkWindow
    lacking: Sequence[tuple[int, SegmentFile]] = ()

    @property
    def request(self) -> TableRequest:
        """Return what the chunk's dump asks of the chunk's table."""
        return self.dump.tables[self.chunk.id.table]


@dataclass
class InterleavePlan:
    """The chunks that this batch places and where, and those that have to be read again and why.

    ``released``: the change after which the changes of a held table count.
    """

    placements: list[Placement] = field(default_factory=list)
    repeats: list[tuple[Chunk, TableId, str]] = field(default_factory=list)
    released: dict[TableId, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of chunk rows that count."""
        return sum(placement.kept for placement in self.placements)


Todo = Sequence[tuple[Chunk, Dump, MarkRecord | None]]
"""Chunks to place, their dumps, and their high marks in this batch; None: the chunk stands at its beginning."""


@dataclass
class InterleavePlanner:
    """Makes a plan from marks, manifests and keys. Writes nothing: a plan that is dropped leaves no trace."""

    stored: StoredRows
    after_low: Callable[[Marking, str, pa.Table], np.ndarray[Any, Any]]
    is_exact: Callable[[Marking, str], bool]
    held: frozenset[TableId] = frozenset()
    watched: frozenset[TableId] = frozenset()
    origin: int = 0

    def plan(self, writer: OpenBatch, first: Offset, todo: Todo) -> InterleavePlan:
        """Plan the place of each chunk in the batch that begins at ``first``."""
        plan = InterleavePlan()
        for chunk, dump, high in todo:
            try:
                why = self._place(plan, writer, chunk, dump, high, first)
            except (OtherKey, pa.ArrowInvalid, pa.ArrowNotImplementedError):
                why = "the table's key changed meanwhile"  # old keys do not compare with new ones
            if why:
                plan.repeats.append((chunk, dump.tables[chunk.id.table].table, why))
        return plan

    def _place(
        self,
        plan: InterleavePlan,
        writer: OpenBatch,
        chunk: Chunk,
        dump: Dump,
        high: MarkRecord | None,
        first: Offset,
    ) -> str:
        """Place a chunk. Return "", or why it has to be read again."""
        request = dump.tables[chunk.id.table]
        table = request.table
        if request.keyless and table not in self.held | self.watched:
            return ""  # this capture started before the dump: the chunk is placed at the start of the next batch
        window = self._window(writer, dump, chunk, first)
        if window is None:
            return "its window is no longer stored"
        if self._redefined(writer, window, high, table):
            return "the table's definition changed meanwhile"
        if request.keyless and not window.is_exact and self._written(writer, window, high, table):
            return _WRITTEN
        stored_chunk = self.stored.chunk(chunk, request.identity)
        if stored_chunk is None:  # a capture that died already had it in its batch
            return "its file is gone"
        schema, rows = stored_chunk
        lacking = self._lacking(window, writer.batch, schema) if request.keyless and window.is_exact else ()
        if lacking is None:
            return _WRITTEN
        alive = np.ones(rows.num_rows, bool)
        if not request.keyless:
            key = [stored_name(name) for name in request.identity or schema.primary_key]
            changed = list(self._changed(writer, window, high.seq if high else -1, table, key))
            alive = survivors(rows, changed, key, group_codes)
            if not survivors(rows, [t.filter(t[_PART]) for t in changed], key, group_codes).all():
                return "the log holds only a part of rows that changed meanwhile"
        else:
            plan.released[table] = high.seq if high else -1
        place = self._place_record(rows["_row"].to_numpy()[~alive], high, first)
        plan.placements.append(
            Placement(
                chunk=chunk,
                dump=dump,
                schema=schema,
                rows=rows,
                kept=int(alive.sum()),
                place=place,
                window=window,
                lacking=lacking,
            )
        )
        return ""

    # -- the window ----------------------------------------------------------------------------------------------------
    def _window(self, writer: OpenBatch, dump: Dump, chunk: Chunk, first: Offset) -> WatermarkWindow | None:
        """Search back, batch by batch, for the low mark; return None if a batch that may hold it is gone.

        A batch that was over when the dump was recorded does not hold it. It may say what is not so any more, if the
        log behind it was lost: its changes must not count as newer than the chunk's rows.
        """
        begin = first.order_of(chunk.position)
        low = Mark(chunk.id, chunk.attempt, high=False).text
        batch, marks = writer.batch, writer.marks
        while True:
            seqs = [m.seq for m in marks if m.mark == low]
            if seqs:
                return WatermarkWindow(batch, seqs[0])
            here = self.stored.manifest(batch)
            starts = here.first.order if here else first.order
            if starts <= begin or batch <= max(dump.since_batch, 1):
                return self._anchored(dump, chunk, batch)
            before = self.stored.manifest(batch - 1)
            if before is None:
                return None
            batch, marks = batch - 1, list(before.marks)

    def _anchored(self, dump: Dump, chunk: Chunk, batch: int) -> WatermarkWindow | None:
        if dump.marking is not Marking.TABLE:
            test = partial(self.after_low, dump.marking, chunk.low)
            return WatermarkWindow(batch, after_low=test, is_exact=self.is_exact(dump.marking, chunk.low))
        return WatermarkWindow(batch)  # the low mark was never found: everything after the place where it was written

    def _written(self, writer: OpenBatch, window: WatermarkWindow, high: MarkRecord | None, table: TableId) -> bool:
        """Return True if a table without a key was written in the window: it cannot be known which of those rows the
        copy has.
        """
        if high is not None and writer.kept_between(
            table, window.seq if window.batch == writer.batch else -1, high.seq
        ):
            return True
        for batch in range(window.batch, writer.batch):
            manifest = self.stored.manifest(batch)
            after = window.seq if batch == window.batch else -1
            if manifest and manifest.held.get(str(table), -1) > after:
                return True
            for file in manifest.files if manifest else ():
                if file.table_id == table and _has_changes(file):
                    rows = self.stored.changes(file, ["_seq", "_file", "_offset", "_gtid"])
                    if window.covers(rows, batch).any():
                        return True
        return False

    def _lacking(
        self, window: WatermarkWindow, until: int, schema: TableSchema
    ) -> Sequence[tuple[int, SegmentFile]] | None:
        """Return the files with changes of a table without a key that a copy did not see, by the batches from the
        window's first one up to ``until`` (excluded).

        None: they cannot follow the copy. They were not stored, or in other columns than the copy's, or targets that
        are not emptied have them already.
        """
        lacking: list[tuple[int, SegmentFile]] = []
        table = schema.table
        for batch in range(window.batch, until):
            manifest = self.stored.manifest(batch)
            held_files = [file for file in manifest.held_files if file.table_id == table] if manifest else []
            if manifest is None or (str(table) in manifest.held and not held_files):
                return None
            for file in (*manifest.files, *held_files):
                if file.table_id != table or not _has_changes(file):
                    continue
                rows = self.stored.changes(file, ["_seq", "_file", "_offset", "_gtid"])
                if not window.covers(rows, batch).any():
                    continue
                is_delivered = file not in held_files and table in self.held
                if is_delivered or file.schema_version != schema.version:
                    return None
                lacking.append((batch, file))
        return lacking

    def _redefined(self, writer: OpenBatch, window: WatermarkWindow, high: MarkRecord | None, table: TableId) -> bool:
        if high is not None and writer.changed_since(
            window.seq if window.batch == writer.batch else -1, high.seq, table
        ):
            return True
        for batch in range(window.batch, writer.batch):
            manifest = self.stored.manifest(batch)
            after = window.seq if batch == window.batch else -1
            if manifest and any(d.seq > after and d.table in {None, str(table)} for d in manifest.ddl):
                return True
        return False

    def _changed(
        self, writer: OpenBatch, window: WatermarkWindow, upto: int, table: TableId, key: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Yield the keys that the log changed in the window, batch by batch.

        ``_PART`` marks those of which the log holds only some columns.
        """
        columns = [*key, "_seq", "_file", "_offset", "_gtid", "_present"]
        for batch in range(window.batch, writer.batch + 1):
            if batch == writer.batch and upto < 0:
                return
            for file in _files(self.stored, writer, batch):
                if file.table_id != table or not _has_changes(file):
                    continue
                rows = self.stored.changes(file, columns)
                mask = window.covers(rows, batch)
                if batch == writer.batch:
                    mask &= rows["_seq"].to_numpy().astype(np.int64) < upto
                if mask.any():
                    found = rows.filter(pa.array(mask))
                    yield found.select(list(key)).append_column(_PART, pc.is_valid(found["_present"]))

    # -- rows ----------------------------------------------------------------------------------------------------------
    def _place_record(self, left_out: np.ndarray[Any, Any], high: MarkRecord | None, first: Offset) -> PlaceRecord:
        """Return the one place of all rows of a chunk: the place of its high mark, or the beginning of the batch."""
        file, offset = (high.file, high.offset) if high else first.row_place
        return PlaceRecord(
            seq=high.seq if high else 0,
            file=file,
            offset=offset,
            commit_time_us=time.time_ns() // 1000,
            origin=self.origin,
            left_out=tuple(int(row) for row in left_out),
        )


def _has_changes(file: SegmentFile) -> bool:
    return bool(file.inserts + file.updates + file.deletes)


def _files(stored: StoredRows, writer: OpenBatch, batch: int) -> Sequence[SegmentFile]:
    if batch == writer.batch:
        return writer.files
    manifest = stored.manifest(batch)
    return manifest.files if manifest else ()


def _without_old_gaps(rows: pa.Table, columns: int) -> pa.Table:
    """Return the rows with ``_present`` null where all of the ``columns`` are known of the row as it is now.

    The second row of an update of a key, under the old key, is as whole as the update that has the same ``_seq``.
    """
    present = rows["_present"]
    if present.null_count == rows.num_rows:
        return rows
    known_mask, _ = masks(present, columns)
    is_whole = known_mask.all(axis=1) | np.asarray(pc.equal(rows["_op"], Op.DELETE.value).to_numpy())
    moved = np.asarray(pc.equal(rows["_op"], Op.KEY_MOVED.value).to_numpy())
    if moved.any():
        seq = rows["_seq"].to_numpy()
        is_whole |= moved & np.isin(seq, seq[is_whole & ~moved])
    new_present = pc.if_else(pa.array(is_whole), pa.scalar(None, present.type), present)
    return rows.set_column(rows.schema.get_field_index("_present"), "_present", new_present)


class _Stored:
    """The :class:`StoredRows` of a pipeline."""

    def __init__(self, state: PipelineState, store: SegmentStore) -> None:
        self.state, self.store = state, store
        self._manifests: dict[int, SegmentManifest] = {}

    def manifest(self, batch: int) -> SegmentManifest | None:
        if batch <= 0:
            return None
        if batch not in self._manifests:
            record = self.state.batches.get(batch)
            try:
                if record is None:
                    return None
                self._manifests[batch] = self.store.read_manifest(record.manifest)
            except SegmentError:
                return None
        return self._manifests[batch]

    def changes(self, file: SegmentFile, columns: Sequence[str]) -> pa.Table:
        with self.store.open_input(file.path) as source:
            names = pq.read_schema(source).names
        missing = [c for c in columns if c not in names]
        if missing:
            raise OtherKey
        rows = read_file(self.store, file, columns=[*columns, "_op"], verify=False)
        rows = rows.filter(pc.not_equal(rows["_op"], Op.READ.value)) if file.reads else rows
        return (
            _without_old_gaps(rows, sum(name not in META_COLUMNS for name in names)) if "_present" in columns else rows
        )

    def chunk(self, chunk: Chunk, identity: tuple[str, ...]) -> tuple[TableSchema, pa.Table] | None:
        return read_keys(self.store, chunk, identity) if self.store.exists(chunk.path) else None


@dataclass
class ChunkInterleaver:
    """Places the chunks of a pipeline's dumps into one batch, in the steps settle, plan, apply, commit and clean up.

    A process may die between any two steps. ``settle`` records what the log already says. ``plan`` writes nothing.
    ``apply`` moves files into the batch's folder; a chunk whose file went to a batch that was never committed is read
    again. The commit of the batch removes the nodes of the placed chunks in the same transaction. ``ask_again`` follows
    it: a chunk that is not asked for again by then stands before the cursor, and the next capture plans it once more,
    with the same result.

    Args:
        late: chunks whose place is the beginning of this batch.
        held: tables without a key that are copied from nothing: their changes count from the place of the copy on.
        watched: tables without a key that a copy replaces: in the batch of its place, what stands before it is left
            out.
        dialect: the one whose order of keys a chunk's range means.
        small_files: see :class:`~sluice.segments.writer.SegmentWriter`.
        digester: computes what the log does to the digests of tables; None: nothing does.
        stretch: of the log, see :class:`~sluice.coordination.cursor.Cursor`.
    """

    state: PipelineState
    store: SegmentStore
    source: Source
    mark_table: TableId | None
    server_id: int = 0
    late: Sequence[Chunk] = ()
    held: frozenset[TableId] = frozenset()
    watched: frozenset[TableId] = frozenset()
    dialect: Dialect = MYSQL
    small_files: int = SMALL_FILES
    digester: LogDigester | None = None
    stretch: int = 0

    def __post_init__(self) -> None:
        self._dumps: dict[str, Dump | None] = {}
        self._stored = _Stored(self.state, self.store)
        self.plan = InterleavePlan()

    def writer(self, batch: int, epoch: int) -> InterleavingSegmentWriter:
        """Return the writer of the batch."""
        writer = InterleavingSegmentWriter(
            self.store,
            batch,
            epoch,
            mark_table=self.mark_table,
            held=self.held,
            watched=self.watched,
            stores_held=bool(self.held) and any(dump.marking is Marking.SNAPSHOT for dump in self.state.dumps.active()),
            small_files=self.small_files,
        )
        writer.digester, writer.stretch = self.digester, self.stretch
        return writer

    def interleave(self, writer: InterleavingSegmentWriter) -> SegmentManifest:
        """Place the chunks after the log is read and return the manifest of the whole batch.

        A failure leaves nothing but orphaned files.
        """
        try:
            todo = self.settle(writer.marks)
            if todo:
                writer.flush()
            source = self.source
            planner = InterleavePlanner(
                self._stored, source.after_low, source.is_exact, self.held, self.watched, self.server_id
            )
            self.plan = plan = planner.plan(writer, writer.first, todo)
            if writer.partner_batch:
                writer.partner_batch = min([writer.partner_batch, *map(self._partner_batch, plan.placements)])
            writer.apply(plan, [self._replace(writer, p) for p in plan.placements if p.request.replace])
            if writer.partial and (running := self.state.dumps.active()):
                writer.unpack()
                dump_moved(
                    self.state,
                    self.store,
                    self.source.keys,
                    writer.files,
                    writer.partial,
                    running,
                    batch=writer.batch,
                    epoch=writer.epoch,
                )
            return writer.seal(plan)
        except BaseException:
            writer.abort()
            raise

    def settle(self, marks: Sequence[MarkRecord]) -> Todo:
        """Return the chunks to place and settle their nodes.

        A chunk whose high mark is in this batch has been read, whatever its worker does.
        """
        todo = [(chunk, dump, None) for chunk in self.late if (dump := self._dump(chunk.id.dump)) is not None]
        to_place: list[tuple[Chunk, Dump, MarkRecord | None]] = [*todo]
        for record in marks:
            mark = Mark.parse(record.mark)
            chunk = self._marked(mark, record) if mark and mark.high else None
            dump = self._dump(chunk.id.dump) if chunk is not None else None
            if chunk is not None and dump is not None and all(chunk.id != queued.id for queued, _, _ in to_place):
                to_place.append((chunk, dump, record))
        return to_place

    def _marked(self, mark: Mark, record: MarkRecord) -> Chunk | None:
        """Return the chunk that a high mark stands for and settle its node; None if the chunk is not to be placed
        here.
        """
        dump, chunk = self._dump(mark.chunk.dump), self.state.dumps.chunk(mark.chunk)
        if dump is None or dump.targets or dump.state is DumpState.CANCELLED or chunk is None:
            return None
        if chunk.state is ChunkState.STORED:  # its worker is about to record the same, and the second of the two fails
            place = f"{record.file}:{record.offset}"
            chunk = self.state.dumps.move(chunk, ChunkState.MARKED, end=place) or self.state.dumps.chunk(chunk.id)
        if chunk is None or chunk.attempt != mark.attempt or chunk.state is not ChunkState.MARKED:
            return None
        return chunk

    def steps(self, batch: int) -> list[Step]:
        """Return what the commit of ``batch`` does to the nodes of placed chunks."""
        counts: dict[tuple[str, int], TablePlaced] = {}
        now, delivered = int(time.time() * 1000), self.state.delivered() if self.plan.placements else 0
        for placement in self.plan.placements:
            where = placement.chunk.id.dump, placement.chunk.id.table
            known_count = counts.get(where) or self.state.dumps.placed(*where)
            counts[where] = replace(
                known_count,
                chunks=known_count.chunks + 1,
                rows=known_count.rows + placement.kept,
                overtaken=known_count.overtaken + placement.rows.num_rows - placement.kept,
                first_ms=known_count.first_ms or now,
                last_ms=now,
                batches=known_count.in_batch(batch, placement.kept, delivered),
            )
        placed = [placement.chunk for placement in self.plan.placements]
        return self.state.dumps.placing([(chunk, counts[chunk.id.dump, chunk.id.table]) for chunk in placed])

    def ask_again(self) -> None:
        """Reset the chunks that could not be placed, after the commit, so that they are read again."""
        for chunk, table, why in self.plan.repeats:
            _log.info("chunk_reset", dump=chunk.id.dump, chunk=chunk.id.name, table=str(table), reason=why)
            self.state.dumps.redo(chunk)

    def forget_files(self) -> None:
        """Delete the files of placed chunks, whose rows are in segments now.

        What cannot be deleted goes when the dump is deleted.
        """
        for placement in self.plan.placements:
            with suppress(SluiceError):
                self.store.delete(placement.chunk.path)

    # -- what the chunk replaces ---------------------------------------------------------------------------------------
    def _replace(
        self,
        writer: InterleavingSegmentWriter,
        placement: Placement,
    ) -> ReplaceRecord:
        """Return the chunk's range and the keys that stay in it: its own, and all that the log changed from the
        window's first batch on.
        """
        chunk, dump, schema, rows = placement.chunk, placement.dump, placement.schema, placement.rows
        request, window = placement.request, placement.window
        table, key = request.table, schema.primary_key
        base = f"{self.store.table_path(writer.batch, table.schema, table.table)}/replace-e{writer.epoch:06d}-{dump.id}-{chunk.id.name}"  # noqa: E501
        replace_record = ReplaceRecord(
            schema_=table.schema,
            table=table.table,
            dump=dump.id,
            chunk=chunk.id.name,
            flavour=self.dialect.name,
            optional=dump.reason == POSITION_LOST,
        )
        if request.keyless:
            return replace_record
        names = [stored_name(name) for name in key]
        touched = [
            self._stored.changes(file, names)
            for batch in range(window.batch, writer.batch + 1)
            for file in _files(self._stored, writer, batch)
            if file.table_id == table and _has_changes(file)
        ]
        write_kept(self.store, f"{base}-kept.parquet", schema, key, [rows, *touched])
        replace_record = replace_record.model_copy(update={"key": key, "kept": f"{base}-kept.parquet"})
        if not request.key_file:
            bounds = {"lower": request.lower, "upper": request.upper, "after": chunk.after, "upto": chunk.upto}
            return replace_record.model_copy(update=bounds)
        start = int(chunk.after[0]) if chunk.after else 0
        listed = [k for keys in stored_keys(self.store, request.key_file, start, int(chunk.upto[0])) for k in keys]
        write_keys(self.store, f"{base}-listed.parquet", listed)
        return replace_record.model_copy(update={"listed": f"{base}-listed.parquet"})

    def _partner_batch(self, placement: Placement) -> int:
        """Return the partner's batch that the source held at least before the chunk was read; what came since may be
        newer than the chunk.
        """
        before = self._stored.manifest(placement.window.batch - 1)
        return before.partner_batch if before is not None else 0

    def _dump(self, name: str) -> Dump | None:
        if name not in self._dumps:
            self._dumps[name] = self.state.dumps.get(name)
        return self._dumps[name]


def held_tables(state: PipelineState) -> tuple[frozenset[TableId], frozenset[TableId]]:
    """Return the tables without a key that are not placed yet: (those copied from nothing, those that a copy
    replaces).
    """
    held_tables: set[TableId] = set()
    watched: set[TableId] = set()
    for dump in state.dumps.active():
        for ordinal, request in enumerate(dump.tables):
            if request.keyless and not state.dumps.placed(dump.id, ordinal).chunks:
                (watched if request.replace else held_tables).add(request.table)
    return frozenset(held_tables), frozenset(watched)


def late_chunks(state: PipelineState, cursor: Offset) -> list[tuple[tuple[str, ...], list[Chunk]]]:
    """Return chunks that are read and whose high mark the capture has already passed, by the targets that they are for
    (empty: all).
    """
    chunks: dict[tuple[str, ...], list[Chunk]] = {}
    rows: dict[tuple[str, ...], int] = {}
    for dump in state.dumps.active():
        for chunk in state.dumps.chunks(dump.id):
            if chunk.state is not ChunkState.MARKED or not chunk.end or not cursor.has_reached(chunk.end):
                continue
            if rows.get(dump.targets, 0) and rows[dump.targets] + chunk.rows > MAX_LATE_ROWS:
                continue
            chunks.setdefault(dump.targets, []).append(chunk)
            rows[dump.targets] = rows.get(dump.targets, 0) + chunk.rows
    return sorted(chunks.items())
