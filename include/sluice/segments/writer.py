"""Writes a batch: Parquet parts by table, then the manifest, with many small parts in its file.

Bounded memory, no open files between parts.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.errors import SluiceError
from sluice.model.batches import Op
from sluice.model.digests import RangeDigest
from sluice.model.offset import Offset
from sluice.model.packing import SMALL_FILES
from sluice.model.schema_changes import SchemaStatement
from sluice.model.sizes import Sizes, row_bytes
from sluice.model.tables import TableId, TableSchema, plain_numbers
from sluice.segments.buckets import key_bucket
from sluice.segments.checksums import ChecksumSink
from sluice.segments.footers import footer_crc32
from sluice.segments.manifest import DdlRecord, DigestRecord, MarkRecord, ReplaceRecord, SegmentFile, SegmentManifest
from sluice.segments.packed import fitting, packed
from sluice.segments.store import SegmentStore

ROW_GROUP_ROWS = 8_192
"""Small enough that a work unit which reads an eighth of the buckets reads little else: 70,000 changes to a part, 0.2 s
instead of 0.5 s.
"""
ROW_GROUP_BYTES = 2 * 2**20
"""Bytes of a group's rows in memory: wide rows make small groups, so that what a reader takes at once is bounded."""
_UNEVEN = 2
"""A bucket with this many times its share of a file has its size noted."""
_FILES_AT_ONCE = 8
_PARTS_OF_A_BRANCH = 100_000
_HELD_BRANCH = 9_999
"""Number of the branch that writes held files: no batch has as many readers."""
_DICTIONARY = ["_op", "_file", "_origin"]
"""Few values each.

GTIDs and commit times of small transactions overflow a dictionary: larger and slower (18 % of all encoding) than plain.
"""


LogDigester = Callable[[TableSchema, pa.Table], RangeDigest | str]
"""Computes what SEGMENT_ROWS do to the digest of their table (rows and checksum); a text: why it cannot."""


@dataclass
class _Pending:
    schema: TableSchema
    tables: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    sorted: bool = True


class SegmentWriter:
    """Collects a batch's rows and writes them.

    ``add`` may be called from several threads. A table is written as a part when it holds ``part_bytes``; when all
    tables together hold ``buffer_bytes`` the largest ones are written. Sorted rows of ``direct_bytes`` or more are a
    part of their own: no copy, no sort. A file is opened, written and closed in one go, so ten thousand tables don't
    need ten thousand open files. When nothing follows, small tables get a file each; more than ``small_files`` of them
    are packed with the manifest.

    Raises (all methods): StorageUnavailable.
    """

    def __init__(
        self,
        store: SegmentStore,
        batch: int,
        epoch: int,
        *,
        part_bytes: int = 96 * 2**20,
        direct_bytes: int = 12 * 2**20,
        buffer_bytes: int = 192 * 2**20,
        compression_level: int = 1,
        first_part: int = 0,
        small_files: int = SMALL_FILES,
    ) -> None:
        self.store = store
        self._small_files = small_files
        self._first_part = first_part
        self.batch = batch
        self.epoch = epoch
        self._part_bytes = part_bytes
        self._direct_bytes = direct_bytes
        self._buffer_bytes = buffer_bytes
        self._level = compression_level
        self._lock = threading.Lock()
        self._pending: dict[tuple[TableId, str], _Pending] = {}
        self._buffered = 0
        self._parts: dict[tuple[TableId, str], int] = {}
        self._files: list[SegmentFile] = []
        self._packed: list[tuple[SegmentFile, bytes]] = []
        self._ddl: list[DdlRecord] = []
        self._marks: list[MarkRecord] = []
        self.targets: tuple[str, ...] = ()
        self.snapshot, self.snapshot_replaces = 0, False
        self.held: dict[str, int] = {}
        self._held_files: list[SegmentFile] = []
        self.partner_batch = 0
        self.loads_saw: int | None = None
        self.replaces: list[ReplaceRecord] = []
        self.partial: dict[tuple[TableId, str], TableSchema] = {}
        self.digester: LogDigester | None = None
        self.stretch = 0
        self._digests: dict[str, DigestRecord] = {}
        store.check_space()

    def buckets(self, schema: TableSchema, keys: Sequence[pa.Array], rows: int) -> np.ndarray[Any, Any]:
        """Return the key bucket (uint8) of each of ``rows`` rows; ``keys`` are the columns of the primary key, in
        order.
        """
        return key_bucket(schema.table.schema, schema.table.table, keys, rows)

    def add(self, schema: TableSchema, rows: pa.Table | pa.RecordBatch, *, in_order: bool = False) -> None:
        """Take SEGMENT_ROWS of ``schema.arrow_schema``.

        ``in_order``: they are already sorted by (``_bucket``, ``_seq``).
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        if table.num_rows == 0:
            return
        size = table.nbytes
        ready: list[tuple[tuple[TableId, str], _Pending]] = []
        key = (schema.table, schema.version)
        if in_order and size >= self._direct_bytes:
            self._write(key, _Pending(schema, [table], size))
            return
        with self._lock:
            pending = self._pending.setdefault(key, _Pending(schema))
            pending.sorted = in_order and not pending.tables
            pending.tables.append(table)
            pending.bytes += size
            self._buffered += size
            if pending.bytes >= self._part_bytes:
                ready.append(self._take(key))
            while self._buffered > self._buffer_bytes:
                ready.append(self._take(max(self._pending, key=lambda k: self._pending[k].bytes)))
        for key, item in ready:
            self._write(key, item)

    def note_ddl(self, statement: SchemaStatement) -> None:
        """Note a statement that changed definitions."""
        file, offset = statement.position.row_place
        record = DdlRecord(
            file=file,
            offset=offset,
            gtid=statement.gtid,
            commit_time_us=statement.commit_time_us,
            schema_=statement.schema,
            table=str(statement.table) if statement.table else None,
            sql=statement.sql,
            seq=statement.seq,
            sql_mode=statement.sql_mode,
            session=statement.session,
            changes=tuple(change.to_json() for change in statement.changes),
        )
        with self._lock:
            self._ddl.append(record)

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
    ) -> SegmentManifest:
        """Write what is left, make all of it durable, then write the manifest
        (``store.manifest_path(batch, epoch)``).
        """
        self.flush(pack=True)
        files = tuple(sorted((*self._files, *(file for file, _ in self._packed)), key=lambda f: f.path))
        manifest = SegmentManifest(
            pipeline=self.store.pipeline,
            batch=self.batch,
            epoch=self.epoch,
            first=first,
            last=last,
            first_commit_time_us=first_commit_time_us,
            last_commit_time_us=last_commit_time_us,
            changes=sum(f.inserts + f.updates + f.deletes + f.reads for f in files) if changes is None else changes,
            transactions=transactions,
            log_bytes=log_bytes,
            files=files,
            ddl=tuple(sorted(self._ddl, key=lambda d: d.seq)),
            skipped=skipped or {},
            marks=tuple(sorted(self._marks, key=lambda m: m.seq)),
            held=self.held,
            held_files=tuple(sorted(self._held_files, key=lambda f: f.path)),
            replaces=tuple(self.replaces),
            targets=self.targets,
            snapshot=self.snapshot,
            snapshot_replaces=self.snapshot_replaces,
            partner_batch=self.partner_batch,
            loads_saw=self.loads_saw,
            stretch=self.stretch,
            digests=None if self.digester is None else dict(sorted(self._digests.items())),
        )
        if self._files or self._held_files:
            self.store.sync_batch(self.batch)
        path = self.store.manifest_path(self.batch, self.epoch)
        names = [file.path for file, _ in self._packed]

        def addressed(places: Sequence[str]) -> SegmentManifest:
            address_of = dict(zip(names, places, strict=True))
            moved = [f.model_copy(update={"path": address_of.get(f.path, f.path)}) for f in manifest.files]
            return manifest.model_copy(update={"files": tuple(moved)})

        data, places = packed(path, lambda at: addressed(at).to_json(), [image for _, image in self._packed])
        self.store.check_space(len(data))
        self.store.write_bytes(path, data)
        return addressed(places) if places else manifest

    def branch(self, number: int, of: int) -> SegmentWriter:
        """Return a writer of the same batch for one of ``of`` readers; ``number`` counts from 1.

        Its rows count once :meth:`absorb` takes them.
        """
        branch = SegmentWriter(
            self.store,
            self.batch,
            self.epoch,
            part_bytes=max(self._part_bytes // of, self._direct_bytes),
            direct_bytes=self._direct_bytes,
            buffer_bytes=self._buffer_bytes // of,
            compression_level=self._level,
            first_part=number * _PARTS_OF_A_BRANCH,
        )
        branch.digester = self.digester
        return branch

    def write_held(self, pieces: Iterable[tuple[TableSchema, pa.Table]]) -> None:
        """Write SEGMENT_ROWS into files of the batch that no target gets (``held_files``); once a batch."""
        branch = self.branch(_HELD_BRANCH, 1)
        branch.digester = None
        for schema, rows in pieces:
            branch.add(schema, rows)
        branch.flush()
        self._held_files = branch._files

    def absorb(self, branch: SegmentWriter) -> None:
        """Take the rows of a branch; they must have been flushed."""
        with self._lock:
            self._files += branch._files
            self.partial |= branch.partial
            branch._files = []
            for table, digest in branch._digests.items():
                self._add_digest(table, digest)

    def flush(self, *, pack: bool = False) -> None:
        """Write all rows that are collected so far.

        ``pack``: no rows follow, and many small tables are written with the manifest.
        """
        with self._lock:
            pending = [self._take(key) for key in list(self._pending)]
        if pack:
            small = fitting([item.bytes for _, item in pending])
            for index in sorted(small):
                self._pack(*pending[index])
            pending = [entry for index, entry in enumerate(pending) if index not in small]
            if len(self._packed) <= self._small_files:
                self.unpack()
        if len(pending) <= _FILES_AT_ONCE:
            for key, item in pending:
                self._write(key, item)
            return
        with ThreadPoolExecutor(
            _FILES_AT_ONCE, thread_name_prefix="write"
        ) as pool:  # the disk takes several syncs at once
            for _ in pool.map(lambda entry: self._write(*entry), pending):
                pass

    def abort(self) -> None:
        """Delete what was written; what cannot be deleted stays as an orphan that retention removes."""
        with self._lock:
            self._pending.clear()
            self._packed.clear()
            files = [*self._files, *self._held_files]
            self._files, self._held_files = [], []
        for file in files:
            with suppress(SluiceError):
                self.store.delete(file.path)

    # -----------------------------------------------------------------------------------------------------------------
    def _take(self, key: tuple[TableId, str]) -> tuple[tuple[TableId, str], _Pending]:
        item = self._pending.pop(key)
        self._buffered -= item.bytes
        return key, item

    def _write(self, key: tuple[TableId, str], item: _Pending) -> None:
        table, buckets = _in_order(item)
        path = self._next_path(key, item.schema)
        self.store.check_space(item.bytes)
        with self.store.open_output(path) as sink:
            record = self._encoded(path, item.schema, table, buckets, sink)
        with self._lock:
            self._files.append(record)

    def _pack(self, key: tuple[TableId, str], item: _Pending) -> None:
        """Write like :meth:`_write`, but into memory, for the manifest's file."""
        raw = io.BytesIO()
        record = self._encoded(self._next_path(key, item.schema), item.schema, *_in_order(item), ChecksumSink(raw))
        self._packed.append((record, raw.getvalue()))

    def _add_digest(self, table: str, digest: DigestRecord) -> None:
        """Add what some rows of the batch do to the digest of a table."""
        digest_before = self._digests.get(table, DigestRecord())
        checksum = int(digest_before.checksum, 16) ^ int(digest.checksum, 16)
        self._digests[table] = DigestRecord(
            rows=digest_before.rows + digest.rows, checksum=f"{checksum:016x}", gap=digest_before.gap or digest.gap
        )

    def unpack(self) -> None:
        """Write files of their own instead of those packed so far, e.g. as their rows are needed before there is a
        manifest.
        """
        files, self._packed = self._packed, []
        if files:
            self.store.check_space(sum(len(image) for _, image in files))
            self.store.write_files([(record.path, image) for record, image in files])
            with self._lock:
                self._files += [record for record, _ in files]

    def _next_path(self, key: tuple[TableId, str], schema: TableSchema) -> str:
        with self._lock:
            part = self._parts.get(key, self._first_part)
            self._parts[key] = part + 1
        folder = self.store.table_path(self.batch, schema.table.schema, schema.table.table)
        return f"{folder}/{schema.version}-e{self.epoch:06d}-{part:04d}.parquet"

    def _encoded(
        self, path: str, schema: TableSchema, table: pa.Table, buckets: np.ndarray[Any, Any], sink: ChecksumSink
    ) -> SegmentFile:
        sizes = row_bytes(table)
        options = parquet_options(schema, self._level)
        with sink.gathering() as file, pq.ParquetWriter(file, table.schema, **options) as writer:
            for start, stop in row_groups(buckets, ROW_GROUP_ROWS, sizes):
                writer.write_table(table.slice(start, stop - start), row_group_size=stop - start)
        ops = {row["values"]: row["counts"] for row in pc.value_counts(table.column("_op")).to_pylist()}
        partial = table["_present"].null_count < table.num_rows
        if partial:
            with self._lock:
                self.partial[schema.table, schema.version] = schema
        if self.digester is not None:
            digest = _recorded(self.digester(schema, table))
            with self._lock:
                self._add_digest(str(schema.table), digest)
        return SegmentFile(
            path=path,
            schema_=schema.table.schema,
            table=schema.table.table,
            schema_version=schema.version,
            primary_key=schema.primary_key,
            rows=table.num_rows,
            inserts=ops.get(Op.INSERT.value, 0),
            updates=ops.get(Op.UPDATE.value, 0),
            deletes=ops.get(Op.DELETE.value, 0),
            reads=ops.get(Op.READ.value, 0),
            moved_partially=ops.get(Op.KEY_MOVED.value, 0) > 0 and partial,
            size_bytes=sink.size_bytes,
            crc32=f"{sink.crc32:08x}",
            footer_crc32=footer_crc32(sink.tail()),
            bucket_min=int(buckets[0]),
            bucket_max=int(buckets[-1]),
            arrow_bytes=int(sizes.sum()),
            bucket_bytes=uneven(buckets, sizes),
        )


def _recorded(digest: RangeDigest | str) -> DigestRecord:
    if isinstance(digest, str):
        return DigestRecord(gap=digest)
    return DigestRecord(rows=digest.rows, checksum=f"{digest.checksum:016x}")


def _in_order(item: _Pending) -> tuple[pa.Table, np.ndarray[Any, Any]]:
    """Return the rows sorted by (``_bucket``, ``_seq``), and their buckets."""
    table = pa.concat_tables(item.tables) if len(item.tables) > 1 else item.tables[0]
    buckets = plain_numbers(table.column("_bucket"))
    if item.sorted:
        return table, buckets
    order = np.lexsort((plain_numbers(table.column("_seq")), buckets))
    rows = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
    return table.combine_chunks().take(rows), buckets[order]


def parquet_options(schema: TableSchema, level: int = 1) -> dict[str, Any]:
    """Return how segment files are written: zstd, page checksums, statistics only where a reader uses them."""
    labelled = [c.name for c in schema.columns if c.labels]
    return {
        "compression": "zstd",
        "compression_level": level,
        "use_dictionary": [*_DICTIONARY, *labelled],
        "write_statistics": ["_bucket", "_seq"],
        "column_encoding": {"_seq": "DELTA_BINARY_PACKED", "_offset": "DELTA_BINARY_PACKED"},
        "write_page_checksum": True,
        "store_schema": True,
    }


def row_groups(
    buckets: np.ndarray[Any, Any], target: int, sizes: Sizes | None = None, max_bytes: int = ROW_GROUP_BYTES
) -> list[tuple[int, int]]:
    """Return (start, stop) of each row group: cut at bucket borders, about ``target`` rows each.

    A small part is one group. ``sizes``: bytes of each row. A group also ends at the border where it holds
    ``max_bytes``, and inside of a bucket that alone is larger.
    """
    total = len(buckets)
    ends = np.concatenate([[0], np.cumsum(sizes)]) if sizes is not None else np.zeros(total + 1, np.int64)
    if total <= target and ends[-1] <= max_bytes:
        return [(0, total)]
    borders = np.flatnonzero(np.diff(buckets)) + 1
    groups: list[tuple[int, int]] = []
    start = 0
    for border in [*borders.tolist(), total]:
        while ends[border] - ends[start] > 2 * max_bytes:
            stop = int(np.searchsorted(ends, ends[start] + max_bytes, side="right")) - 1
            groups.append((start, max(stop, start + 1)))
            start = groups[-1][1]
        if start < border and (border - start >= target or ends[border] - ends[start] >= max_bytes or border == total):
            groups.append((start, border))
            start = border
    return groups


def uneven(buckets: np.ndarray[Any, Any], sizes: Sizes) -> tuple[int, ...]:
    """Return the bytes by bucket from the first to the last, if one bucket has much more than its share; else nothing.

    A file that is too small to be cut gets nothing, either.
    """
    first, last = int(buckets[0]), int(buckets[-1])
    total = int(sizes.sum())
    if first == last or total < ROW_GROUP_BYTES:
        return ()
    by_bucket = np.bincount(buckets - first, weights=sizes, minlength=last - first + 1).astype(np.int64)
    return tuple(by_bucket.tolist()) if by_bucket.max() * len(by_bucket) > _UNEVEN * total else ()
