"""Reads segments back: by bucket range for work units, or change by change in log order for streams."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.errors import SegmentError, first_line
from sluice.model import decimals
from sluice.model.batches import Op
from sluice.model.changes import Change
from sluice.model.fields import true_name
from sluice.model.tables import KEY_BUCKETS, META_COLUMNS, TableId, member, one_chunk
from sluice.model.temporal import to_python
from sluice.segments.footers import opened
from sluice.segments.manifest import PlaceRecord, SegmentFile, SegmentManifest
from sluice.segments.store import SegmentStore, ways_on

PIECE_BYTES = 32 * 2**20
"""Rows of this many bytes are read from a file at a time, however many of them are wanted."""


def verify_file(store: SegmentStore, file: SegmentFile) -> None:
    """Compare size and CRC32 of the whole file with the manifest. Raises SegmentError."""
    _require_intact(store, file, store.read_bytes(file.path))


def _intact(store: SegmentStore, file: SegmentFile, source: Any) -> pa.BufferReader:
    data = source.read_buffer(source.size()) if hasattr(source, "read_buffer") else source.read()
    _require_intact(store, file, data)
    return pa.BufferReader(data)


def _require_intact(store: SegmentStore, file: SegmentFile, data: Any) -> None:
    if len(data) != file.size_bytes or f"{zlib.crc32(data):08x}" != file.crc32:
        raise _damaged(store, file, "its size or CRC32 is not the one in the manifest")


def read_file(
    store: SegmentStore,
    file: SegmentFile,
    bucket_range: tuple[int, int] = (0, KEY_BUCKETS),
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
) -> pa.Table:
    """Read the SEGMENT_ROWS of a segment file (:mod:`sluice.model.layouts`).

    Args:
        bucket_range: (lo, hi): rows with ``lo <= _bucket < hi``; row groups outside of it are not read.
        columns: names to read (``_bucket`` is read anyway where rows have to be filtered); None: all.
        verify: page checksums are checked on every read; the CRC32 of the whole file too when all buckets are read.

    Returns:
        A table in (``_bucket``, ``_seq``) order. Raises SegmentError on damage, StorageUnavailable.
    """
    tables = list(read_pieces(store, file, bucket_range, columns, verify=verify))
    table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    left_out = len(file.place.left_out) if file.place else 0
    if columns is None and _is_whole(file, bucket_range) and table.num_rows != file.rows - left_out:
        raise _damaged(store, file, f"it holds {table.num_rows} rows, and the manifest says {file.rows - left_out}")
    return table


def read_pieces(
    store: SegmentStore,
    file: SegmentFile,
    bucket_range: tuple[int, int] = (0, KEY_BUCKETS),
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
) -> Iterator[pa.Table]:
    """Read like :func:`read_file`, in pieces of about :data:`PIECE_BYTES`, counted before rows of other buckets go.

    Yields at least one piece.
    """
    lo, hi = bucket_range
    all_buckets = _is_whole(file, bucket_range)
    try:
        with store.open_input(file.path) as source:
            if verify and all_buckets:
                source = _intact(store, file, source)
            reader = opened(source, file.footer_crc32, verify=verify and not all_buckets)
            names = None if columns is None else list(columns)
            if names is not None and not all_buckets and "_bucket" not in names:
                names.append("_bucket")
            if names is not None and file.place and file.place.left_out and "_row" not in names:
                names.append("_row")
            groups = range(reader.num_row_groups) if all_buckets else _groups(reader, lo, hi)
            for run in _runs(reader.metadata, groups):
                table = reader.read_row_groups(run, columns=names, use_threads=False)
                if not all_buckets:
                    bucket = table.column("_bucket")
                    keep = pc.and_(
                        pc.greater_equal(bucket, pa.scalar(lo, pa.uint8())), pc.less(bucket, pa.scalar(hi, pa.uint8()))
                    )
                    table = table.filter(keep)
                yield table if file.place is None else _placed(table, file.place, columns)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(store, file, first_line(error)) from error


def read_projected(store: SegmentStore, file: SegmentFile, wants: Callable[[pa.Field], bool] | None) -> pa.Table:
    """Read all rows of a segment file without ``_bucket``, and only user columns that ``wants`` accepts (None: all).

    Columns that are not read are null, in the row and in ``_before``, so that the columns keep their numbers. ``_op``
    and ``_file`` are dictionaries. The CRC32 of the whole file is compared: a header of a page has no checksum. Raises
    SegmentError, StorageUnavailable.
    """
    try:
        with store.open_input(file.path) as source:
            reader = pq.ParquetFile(_intact(store, file, source), read_dictionary=["_op", "_file"])
            stored = reader.schema_arrow
            schema = pa.schema([field for field in stored if field.name != "_bucket"], stored.metadata)
            names = schema.names if wants is None else _paths(schema, wants)
            rows = reader.read(columns=names, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _damaged(store, file, first_line(error)) from error
    if rows.num_rows != file.rows:
        raise _damaged(store, file, f"it holds {rows.num_rows} rows, and the manifest says {file.rows}")
    complete = rows if wants is None else _with_unread(rows, schema)
    return complete if file.place is None else _placed(complete, file.place, None)


def first_seq(store: SegmentStore, file: SegmentFile) -> int:
    """Return the least ``_seq`` that a row of the file may have; 0 if its footer does not say it.

    Raises SegmentError, StorageUnavailable.
    """
    if file.place is not None:
        return file.place.seq
    try:
        with store.open_input(file.path) as source:
            footer = opened(source, file.footer_crc32).metadata
    except (pa.ArrowException, OSError) as error:
        raise _damaged(store, file, first_line(error)) from error
    leaf = next((i for i in range(footer.num_columns) if footer.schema.column(i).path == "_seq"), -1)
    statistics = [footer.row_group(group).column(leaf).statistics for group in range(footer.num_row_groups)]
    if leaf < 0 or any(group_statistics is None or not group_statistics.has_min_max for group_statistics in statistics):
        return 0
    return min((int(group_statistics.min) for group_statistics in statistics), default=0)


def _paths(schema: pa.Schema, wants: Callable[[pa.Field], bool]) -> list[str]:
    """Return Parquet's names of the columns to read.

    At least one column of ``_before`` is among them: it tells where there was a row.
    """
    users = [field for field in schema if field.name not in META_COLUMNS]
    selected = [field.name for field in users if wants(field)]
    before = [f"_before.{name}" for name in selected or [field.name for field in users[:1]]]
    return [*selected, *(name for name in schema.names if name in META_COLUMNS and name != "_before"), *before]


def _with_unread(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    count = rows.num_rows
    fields, columns = [], []
    for field in schema:
        if field.name == "_before":
            struct = one_chunk(rows[field.name])
            have = {child.name for child in struct.type}
            children = [
                member(struct, child.name) if child.name in have else pa.nulls(count, child.type)
                for child in field.type
            ]
            columns.append(pa.StructArray.from_arrays(children, fields=list(field.type), mask=pc.is_null(struct)))
        elif field.name in rows.schema.names:
            columns.append(rows[field.name])
            field = field.with_type(rows[field.name].type)
        else:
            columns.append(pa.nulls(count, field.type))
            field = field.with_nullable(True)
        fields.append(field)
    return pa.table(columns, schema=pa.schema(fields))


def _is_whole(file: SegmentFile, bucket_range: tuple[int, int]) -> bool:
    return bucket_range[0] <= file.bucket_min and bucket_range[1] > file.bucket_max


def _runs(footer: pq.FileMetaData, groups: Sequence[int]) -> Iterator[list[int]]:
    """Yield row groups that are read together."""
    run: list[int] = []
    size = 0
    for group in groups:
        more = footer.row_group(group).total_byte_size
        if run and size + more > PIECE_BYTES:
            yield run
            run, size = [], 0
        run.append(group)
        size += more
    yield run


def _placed(table: pa.Table, place: PlaceRecord, columns: Sequence[str] | None) -> pa.Table:
    """Add the position in the log to rows that a dump read."""
    if place.left_out:
        superseded = pc.is_in(table.column("_row"), value_set=pa.array(place.left_out, pa.uint32()))
        table = table.filter(pc.invert(superseded))
    values = {
        "_seq": place.seq, "_file": place.file, "_offset": place.offset, "_commit_ts": place.commit_time_us,
        "_origin": place.origin,
    }  # fmt: skip
    for name, value in values.items():
        index = table.schema.get_field_index(name)
        if index >= 0:
            field = table.schema.field(index)
            table = table.set_column(index, field, pa.repeat(pa.scalar(value, field.type), table.num_rows))
    if columns is not None and "_row" not in columns and "_row" in table.schema.names:
        table = table.drop_columns(["_row"])
    return table.replace_schema_metadata(None)


def iter_changes(store: SegmentStore, manifest: SegmentManifest) -> Iterator[Change]:
    """Yield every change of a batch in log order, without the rows that only merge needs (``_op`` = ``k``)."""
    streams = [_file_changes(store, file) for file in manifest.files]
    pending: Change | None = None
    number = 0
    for change in heapq.merge(*streams, key=lambda c: (c.seq, c.op != Op.READ)):
        if pending is not None:
            goes_on = pending.txn == change.txn
            yield pending if goes_on else replace(pending, last_in_txn=True)
            number = number + 1 if goes_on else 0
        pending = replace(change, txn_row=number) if number else change
    if pending is not None:
        yield replace(pending, last_in_txn=True)


def _file_changes(store: SegmentStore, file: SegmentFile) -> Iterator[Change]:
    table = read_file(store, file)
    table = table.filter(pc.not_equal(table.column("_op"), Op.KEY_MOVED.value)).sort_by("_seq")
    for batch in table.to_batches(max_chunksize=4096):
        yield from batch_changes(file, batch)


class OfTable(Protocol):
    """The table that rows belong to."""

    @property
    def table_id(self) -> TableId:
        """The table whose changes the file holds."""

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key's columns, in their order."""


def batch_changes(file: OfTable, batch: pa.RecordBatch) -> Iterator[Change]:
    """Yield the rows of a segment as changes, in their order."""
    fields = tuple(field for field in batch.schema if field.name not in META_COLUMNS)
    names = [true_name(field) for field in fields]
    rows = list(zip(*(_values(batch.column(field.name)) for field in fields), strict=True))
    before = batch.column("_before")
    before_valid = before.is_valid().to_pylist()
    olds = list(zip(*(_values(child) for child in before.flatten()), strict=True))
    meta = {
        name: batch.column(name).to_pylist()
        for name in ("_op", "_seq", "_file", "_offset", "_row", "_gtid", "_txn", "_origin")
    }
    commit = batch.column("_commit_ts").view(pa.int64()).to_pylist()
    presence = batch.column("_present").to_pylist() if "_present" in batch.schema.names else [None] * batch.num_rows
    for i in range(batch.num_rows):
        op = meta["_op"][i]
        row = dict(zip(names, rows[i], strict=True))
        old = dict(zip(names, olds[i], strict=True)) if before_valid[i] else None
        bits = presence[i]
        if bits is not None:  # the log lacks some columns (binlog_row_image)
            half = (len(names) + 7) >> 3
            row = _only(row, bits[:half])
            old = _only(old, bits[half:]) if old is not None else None
        yield Change(
            table=file.table_id,
            op=op,
            seq=meta["_seq"][i],
            file=meta["_file"][i],
            offset=meta["_offset"][i],
            row=meta["_row"][i],
            commit_time_us=commit[i],
            gtid=meta["_gtid"][i],
            txn=meta["_txn"][i],
            origin=meta["_origin"][i],
            before=row if op == Op.DELETE else old,
            after=None if op == Op.DELETE else row,
            fields=fields,
            key=file.primary_key,
        )


def _only(row: dict[str, Any], bits: bytes) -> dict[str, Any]:
    """Return the columns whose bit is set."""
    return {name: value for i, (name, value) in enumerate(row.items()) if bits[i >> 3] >> (i & 7) & 1}


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return to_python(column)
    return decimals.to_python(column) if pa.types.is_decimal(kind) else list(column.to_pylist())


def _groups(reader: pq.ParquetFile, lo: int, hi: int) -> list[int]:
    metadata = reader.metadata
    index = metadata.schema.to_arrow_schema().get_field_index("_bucket")
    leaf = (
        next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == "_bucket")
        if index >= 0
        else -1
    )
    groups = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(leaf).statistics
        if statistics is None or not statistics.has_min_max or (statistics.min < hi and statistics.max >= lo):
            groups.append(group)
    return groups


def _damaged(store: SegmentStore, file: SegmentFile, why: str) -> SegmentError:
    return SegmentError(f"the segment file is damaged: {why}", where=file.path, hint=ways_on(store.pipeline))
