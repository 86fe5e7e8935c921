"""Placing: the drain's side of a dump. Chunks that were read outside of the log get their place in it.

A chunk's window lies between the position before it was read (low) and a later position (high). What the log changed in the window
is newer than what the chunk says of it, or the same; so those keys are dropped from the chunk and the rest stands at the high place, before
every later change. With marks in the log, high is where the drain meets the high mark. A chunk whose high place is behind the drain already
(nothing marks it, or the mark came before the chunk was known) stands at the beginning of the next batch: its window is longer, no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from sluice.merge.group_codes import group_codes
from sluice.merge.window import survivors
from sluice.model.batches import Op
from sluice.model.dumps import POSITION_LOST, Chunk, ChunkState, Dump, DumpState, Mark, Marking, TablePlaced
from sluice.model.positions import Position, order_of
from sluice.model.tables import TableId, TableSchema, stored_name
from sluice.segments.chunk_file import read_keys
from sluice.segments.manifest import MarkRecord, PlaceRecord, ReplaceRecord, SegmentFile, SegmentManifest
from sluice.segments.reader import read_file
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
from sluice.sources.base import Source

_log = structlog.get_logger()

_PART = "_part"
MAX_LATE_ROWS = 500_000
"""Rows of late chunks that one batch takes; more wait for the next."""


class _OtherKey(Exception):
    """A file of the window has other key columns than the chunk: the table was redefined before the window, in the same batch."""


@dataclass(frozen=True, slots=True)
class WatermarkWindow:
    """Where a chunk's window begins.

    ``batch``: the batch it begins in; ``seq``: after this change of that batch (-1: all of it); ``after_low``: as the source says of each change.
    """

    batch: int
    seq: int = -1
    after_low: Callable[[pa.Table], np.ndarray[Any, Any]] | None = None

    def covers(self, rows: pa.Table, batch: int) -> np.ndarray[Any, Any]:
        """Mask: which changes of ``batch`` lie behind the low mark."""
        if self.after_low is not None:
            return self.after_low(rows)
        if batch == self.batch and self.seq >= 0:
            return np.asarray(rows["_seq"].to_numpy().astype(np.int64) > self.seq)
        return np.ones(rows.num_rows, bool)


class InterleavingSegmentWriter(SegmentWriter):
    """A segment writer that knows marks from rows, and places chunks before it finishes."""

    def __init__(
        self, store: SegmentStore, batch: int, epoch: int, *, placer: ChunkInterleaver, **options: Any
    ) -> None:
        super().__init__(store, batch, epoch, **options)
        self._placer = placer
        self._kept: dict[TableId, list[tuple[TableSchema, pa.Table]]] = {}

    def add(self, schema: TableSchema, rows: pa.Table | pa.RecordBatch, *, in_order: bool = False) -> None:
        if schema.table == self._placer.mark_table:
            self._note_marks(rows)
        elif schema.table in self._placer.held or schema.table in self._placer.watched:
            table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
            with self._lock:
                self._kept.setdefault(schema.table, []).append((schema, table))
        else:
            super().add(schema, rows, in_order=in_order)

    def add_placed(self, schema: TableSchema, chunk: Chunk, place: PlaceRecord, rows: int) -> None:
        """Take the file of a chunk as it is; ``rows`` of it count."""
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

    def finish(self, first: Position, last: Position, *, changes: int | None = None, **named: Any) -> SegmentManifest:
        """Place what there is to place, then as ever."""
        total = changes or 0
        read = self._placer.place(self, first)
        left_out = self._let_go()
        self.flush(pack=True)
        if self.partial and (running := self._placer.state.dumps.active()):
            self.unpack()
            dump_moved(
                self._placer.state,
                self.store,
                self._placer.source.keys,
                self.files,
                self.partial,
                running,
                batch=self.batch,
                epoch=self.epoch,
            )
        return super().finish(first, last, changes=total - self.mark_rows - left_out + read, **named)

    def kept_between(self, table: TableId, low: int, high: int) -> bool:
        """Was a row of a table that is held back changed between two places of this batch?"""
        return any(
            bool(
                (
                    (rows["_seq"].to_numpy().astype(np.int64) > low) & (rows["_seq"].to_numpy().astype(np.int64) < high)
                ).any()
            )
            for _, rows in self._kept.get(table, [])
        )

    def _let_go(self) -> int:
        """Write what was held back behind the place of its table's copy; the rest is in that copy, or will be. Returns rows left out."""
        left_out = 0
        for table, pieces in self._kept.items():
            behind = self._placer.released.get(table)
            for schema, rows in pieces:
                places = rows["_seq"].to_numpy().astype(np.int64)
                waits = behind is None and table in self._placer.held
                alive = np.zeros(len(places), bool) if waits else places > (-1 if behind is None else behind)
                left_out += int((~alive).sum())
                if (~alive).any():
                    self.held[str(table)] = max(self.held.get(str(table), 0), int(places[~alive].max()))
                if alive.any():
                    super().add(schema, rows.filter(pa.array(alive)))
        self._kept = {}
        return left_out

    mark_rows = 0

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
        """Did a statement between two changes touch the table's definition?"""
        return any(seq < d.seq <= upto and d.table in {None, str(table)} for d in self._ddl)


@dataclass
class ChunkInterleaver:
    """Places the chunks of a pipeline's dumps into one batch.

    Args:
        late: chunks whose place is the beginning of this batch.
        held: tables without a key that are being copied from nothing: their changes count from the place of the copy on.
        watched: those that a copy is to replace: in the batch of its place, what stands before it is left out.
        flavour: MySQL or MariaDB, whose order of keys a chunk's range means.
    """

    state: PipelineState
    store: SegmentStore
    source: Source
    mark_table: TableId | None
    server_id: int = 0
    late: Sequence[Chunk] = ()
    held: frozenset[TableId] = frozenset()
    watched: frozenset[TableId] = frozenset()
    flavour: str = "MySQL"

    def __post_init__(self) -> None:
        self.released: dict[TableId, int] = {}
        self._dumps: dict[str, Dump | None] = {}
        self._counts: dict[tuple[str, int], TablePlaced] = {}
        self._done: list[Chunk] = []
        self._manifests: dict[int, SegmentManifest] = {}

    @property
    def placed(self) -> list[Chunk]:
        """Chunks that are in the batch."""
        return self._done

    def steps(self) -> list[Step]:
        """What the batch's commit does to their nodes."""
        return self.state.dumps.placing([(c, self._counts[c.id.dump, c.id.table]) for c in self._done])

    def forget_files(self) -> None:
        """The placed rows are in segments now; their own files go. What cannot be deleted goes with the dump."""
        for chunk in self._done:
            with suppress(SluiceError):
                self.store.delete(chunk.path)

    def place(self, writer: InterleavingSegmentWriter, first: Position) -> int:
        """Add the rows of all chunks whose place is in this batch. Returns how many rows."""
        todo: list[tuple[Chunk, MarkRecord | None]] = [(chunk, None) for chunk in self.late]
        for record in writer.marks:
            mark = Mark.parse(record.mark)
            chunk = self._marked(mark, record) if mark and mark.high else None
            if chunk is not None and all(chunk.id != known.id for known, _ in todo):
                todo.append((chunk, record))
        if todo:
            writer.flush()
        return sum(self._place(writer, chunk, record, first) for chunk, record in todo)

    def _marked(self, mark: Mark, record: MarkRecord) -> Chunk | None:
        """The chunk that a high mark stands for, its node at rest; None if it is not to be placed here."""
        dump, chunk = self._dump(mark.chunk.dump), self.state.dumps.chunk(mark.chunk)
        if dump is None or dump.targets or dump.state is DumpState.CANCELLED or chunk is None:
            return None
        if chunk.state is ChunkState.STORED:  # its worker is about to say the same, and whoever is second fails
            place = f"{record.file}:{record.offset}"
            chunk = self.state.dumps.move(chunk, ChunkState.MARKED, end=place) or self.state.dumps.chunk(chunk.id)
        if chunk is None or chunk.attempt != mark.attempt or chunk.state is not ChunkState.MARKED:
            return None
        return chunk

    def _place(self, writer: InterleavingSegmentWriter, chunk: Chunk, high: MarkRecord | None, first: Position) -> int:
        try:
            return self._place_in_window(writer, chunk, high, first)
        except (
            _OtherKey,
            pa.ArrowInvalid,
            pa.ArrowNotImplementedError,
        ):  # keys of then that don't compare with those of now
            table = self.state.dumps.require(chunk.id.dump).tables[chunk.id.table].table
            return self._again(chunk, table, "the table's key changed meanwhile")

    def _place_in_window(
        self, writer: InterleavingSegmentWriter, chunk: Chunk, high: MarkRecord | None, first: Position
    ) -> int:
        dump = self._dump(chunk.id.dump)
        assert dump is not None
        request = dump.tables[chunk.id.table]
        table = request.table
        if request.keyless and table not in self.held | self.watched:
            return 0  # this drain began before the dump: the chunk stands at the beginning of the next batch
        window = self._window(writer, dump, chunk, first)
        if window is None:
            return self._again(chunk, table, "its window is no longer stored")
        if self._redefined(writer, window, high, table):
            return self._again(chunk, table, "the table's definition changed meanwhile")
        if request.keyless and self._written(writer, window, high, table):
            return self._again(chunk, table, "the table has no key and was written meanwhile")
        if not self.store.exists(chunk.path):  # a drain that died had it in its batch already
            return self._again(chunk, table, "its file is gone")
        schema, rows = read_keys(self.store, chunk, request.identity)
        alive = np.ones(rows.num_rows, bool)
        if request.keyless:
            self.released[table] = high.seq if high else -1
        else:
            key = [stored_name(name) for name in request.identity or schema.primary_key]
            changed = list(self._changed(writer, window, high.seq if high else -1, table, key))
            alive = survivors(rows, changed, key, group_codes)
            if not survivors(rows, [t.filter(t[_PART]) for t in changed], key, group_codes).all():
                return self._again(chunk, table, "the log holds only a part of rows that changed meanwhile")
        kept = int(alive.sum())
        if kept:
            left_out = rows["_row"].to_numpy()[~alive]
            writer.add_placed(schema, chunk, self._place_record(left_out, high, first), kept)
        if request.replace:
            writer.replaces.append(self._replace(writer, window, dump, chunk, schema, rows))
        self._count(chunk, kept, rows.num_rows - kept)
        self._done.append(chunk)
        return kept

    def _again(self, chunk: Chunk, table: TableId, why: str) -> int:
        """Have the chunk read again; no row of it is placed."""
        _log.info("chunk_again", dump=chunk.id.dump, chunk=chunk.id.name, table=str(table), why=why)
        self.state.dumps.redo(chunk)
        return 0

    # -- the window -----------------------------------------------------------------------------------------------------
    def _window(
        self, writer: InterleavingSegmentWriter, dump: Dump, chunk: Chunk, first: Position
    ) -> WatermarkWindow | None:
        """Look back, batch by batch, for the low mark; None if a batch that may hold it is gone."""
        begin = order_of(chunk.position)
        low = Mark(chunk.id, chunk.attempt, high=False).text
        batch, marks = writer.batch, writer.marks
        while True:
            there = [m.seq for m in marks if m.mark == low]
            if there:
                return WatermarkWindow(batch, there[0])
            here = self._manifest(batch)
            starts = here.first.position.order if here else first.order
            if starts <= begin or batch == 1:
                return self._anchored(dump, chunk, batch)
            before = self._manifest(batch - 1)
            if before is None:
                return None
            batch, marks = batch - 1, list(before.marks)

    def _anchored(self, dump: Dump, chunk: Chunk, batch: int) -> WatermarkWindow | None:
        if dump.marking is not Marking.TABLE:
            return WatermarkWindow(batch, after_low=partial(self.source.after_low, dump.marking, chunk.low))
        return WatermarkWindow(batch)  # the low mark itself was never met: all behind the place where it was written

    def _manifest(self, batch: int) -> SegmentManifest | None:
        if batch <= 0:
            return None
        if batch not in self._manifests:
            record = self.state.batch(batch)
            try:
                if record is None:
                    return None
                self._manifests[batch] = self.store.read_manifest(record.manifest)
            except SegmentError:
                return None
        return self._manifests[batch]

    def _written(
        self, writer: InterleavingSegmentWriter, window: WatermarkWindow, high: MarkRecord | None, table: TableId
    ) -> bool:
        """Was a table without a key written in the window? Then it cannot be known which of its rows the copy has."""
        if high is not None and writer.kept_between(
            table, window.seq if window.batch == writer.batch else -1, high.seq
        ):
            return True
        for batch in range(window.batch, writer.batch):
            manifest = self._manifest(batch)
            after = window.seq if batch == window.batch else -1
            if manifest and manifest.held.get(str(table), -1) > after:
                return True
            for file in manifest.files if manifest else ():
                if file.table_id == table and file.inserts + file.updates + file.deletes:
                    rows = self._keys(file, ["_seq", "_file", "_offset", "_gtid"])
                    if window.covers(rows, batch).any():
                        return True
        return False

    def _redefined(
        self, writer: InterleavingSegmentWriter, window: WatermarkWindow, high: MarkRecord | None, table: TableId
    ) -> bool:
        if high is not None and writer.changed_since(
            window.seq if window.batch == writer.batch else -1, high.seq, table
        ):
            return True
        for batch in range(window.batch, writer.batch):
            manifest = self._manifest(batch)
            after = window.seq if batch == window.batch else -1
            if manifest and any(d.seq > after and d.table in {None, str(table)} for d in manifest.ddl):
                return True
        return False

    def _changed(
        self, writer: InterleavingSegmentWriter, window: WatermarkWindow, upto: int, table: TableId, key: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Keys that the log changed in the window, batch by batch; ``_PART``: it holds only a part of the row's columns."""
        columns = [*key, "_seq", "_file", "_offset", "_gtid", "_present"]
        for batch in range(window.batch, writer.batch + 1):
            if batch == writer.batch and upto < 0:
                return
            for file in self._files(writer, batch):
                if file.table_id != table or not file.inserts + file.updates + file.deletes:
                    continue
                rows = self._keys(file, columns)
                mask = window.covers(rows, batch)
                if batch == writer.batch:
                    mask &= rows["_seq"].to_numpy().astype(np.int64) < upto
                if mask.any():
                    found = rows.filter(pa.array(mask))
                    yield found.select(list(key)).append_column(_PART, pc.is_valid(found["_present"]))

    def _keys(self, file: SegmentFile, columns: Sequence[str]) -> pa.Table:
        """Key columns of a file's changes, without rows that a dump placed there."""
        with self.store.open_input(file.path) as source:
            there = set(pq.read_schema(source).names)
        missing = [c for c in columns if c not in there]
        if missing:
            raise _OtherKey
        rows = read_file(self.store, file, columns=[*columns, "_op"], verify=False)
        return rows.filter(pc.not_equal(rows["_op"], Op.READ.value)) if file.reads else rows

    # -- what the chunk replaces ------------------------------------------------------------------------------------------
    def _replace(
        self,
        writer: InterleavingSegmentWriter,
        window: WatermarkWindow,
        dump: Dump,
        chunk: Chunk,
        schema: TableSchema,
        rows: pa.Table,
    ) -> ReplaceRecord:
        """The chunk's range, with the keys that stay in it: its own, and all that the log changed from the window's first batch on."""
        request = dump.tables[chunk.id.table]
        table, key = request.table, schema.primary_key
        base = f"{self.store.table_path(writer.batch, table.schema, table.table)}/replace-e{writer.epoch:06d}-{dump.id}-{chunk.id.name}"
        made = ReplaceRecord(
            schema_=table.schema,
            table=table.table,
            dump=dump.id,
            chunk=chunk.id.name,
            flavour=self.flavour,
            optional=dump.reason == POSITION_LOST,
        )
        if request.keyless:
            return made
        names = [stored_name(name) for name in key]
        touched = [
            self._keys(file, names)
            for batch in range(window.batch, writer.batch + 1)
            for file in self._files(writer, batch)
            if file.table_id == table and file.inserts + file.updates + file.deletes
        ]
        write_kept(self.store, f"{base}-kept.parquet", schema, key, [rows, *touched])
        made = made.model_copy(update={"key": key, "kept": f"{base}-kept.parquet"})
        if not request.key_file:
            bounds = {"lower": request.lower, "upper": request.upper, "after": chunk.after, "upto": chunk.upto}
            return made.model_copy(update=bounds)
        start = int(chunk.after[0]) if chunk.after else 0
        listed = [k for keys in stored_keys(self.store, request.key_file, start, int(chunk.upto[0])) for k in keys]
        write_keys(self.store, f"{base}-listed.parquet", listed)
        return made.model_copy(update={"listed": f"{base}-listed.parquet"})

    def _files(self, writer: InterleavingSegmentWriter, batch: int) -> Sequence[SegmentFile]:
        if batch == writer.batch:
            return writer.files
        manifest = self._manifest(batch)
        return manifest.files if manifest else ()

    # -- rows -----------------------------------------------------------------------------------------------------------
    def _place_record(self, left_out: np.ndarray[Any, Any], high: MarkRecord | None, first: Position) -> PlaceRecord:
        """All rows of a chunk stand at one place: where its high mark is, or at the beginning of the batch."""
        file, offset = (high.file, high.offset) if high else (first.file, first.offset)
        return PlaceRecord(
            seq=high.seq if high else 0,
            file=file,
            offset=offset,
            commit_time_us=time.time_ns() // 1000,
            origin=self.server_id,
            left_out=tuple(int(row) for row in left_out),
        )

    def _count(self, chunk: Chunk, rows: int, overtaken: int) -> None:
        where = chunk.id.dump, chunk.id.table
        known = self._counts.get(where) or self.state.dumps.placed(*where)
        now = int(time.time() * 1000)
        self._counts[where] = replace(
            known,
            chunks=known.chunks + 1,
            rows=known.rows + rows,
            overtaken=known.overtaken + overtaken,
            first_ms=known.first_ms or now,
            last_ms=now,
        )

    def _dump(self, name: str) -> Dump | None:
        if name not in self._dumps:
            self._dumps[name] = self.state.dumps.get(name)
        return self._dumps[name]


def held_tables(state: PipelineState) -> tuple[frozenset[TableId], frozenset[TableId]]:
    """Tables without a key that are not placed yet: those that are copied from nothing, and those that a copy is to replace."""
    held: set[TableId] = set()
    watched: set[TableId] = set()
    for dump in state.dumps.active():
        for ordinal, request in enumerate(dump.tables):
            if request.keyless and not state.dumps.placed(dump.id, ordinal).chunks:
                (watched if request.replace else held).add(request.table)
    return frozenset(held), frozenset(watched)


def late_chunks(state: PipelineState, cursor: Position) -> list[tuple[tuple[str, ...], list[Chunk]]]:
    """Chunks that are read and whose high place is behind the drain already, by the targets they are for (empty: all)."""
    found: dict[tuple[str, ...], list[Chunk]] = {}
    rows: dict[tuple[str, ...], int] = {}
    for dump in state.dumps.active():
        for chunk in state.dumps.chunks(dump.id):
            if chunk.state is not ChunkState.MARKED or not chunk.end or order_of(chunk.end) > cursor.order:
                continue
            if rows.get(dump.targets, 0) and rows[dump.targets] + chunk.rows > MAX_LATE_ROWS:
                continue
            found.setdefault(dump.targets, []).append(chunk)
            rows[dump.targets] = rows.get(dump.targets, 0) + chunk.rows
    return sorted(found.items())
