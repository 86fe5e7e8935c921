"""The stored rows of a chunk: a segment file before it has a place, with the definition its rows were read by.

The metadata columns contain only the operation (``r``), the key bucket and the row's number. The capture gives the
whole file its place in the log (:class:`sluice.segments.manifest.PlaceRecord`) without touching its rows, so that
placing costs the log next to nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.errors import SegmentError
from sluice.model.batches import Op
from sluice.model.dumps import Chunk, schema_from_json, schema_to_json
from sluice.model.sizes import row_bytes
from sluice.model.tables import META_FIELDS, TableSchema, one_chunk, stored_name
from sluice.segments.buckets import key_bucket
from sluice.segments.store import SegmentStore
from sluice.segments.writer import ROW_GROUP_ROWS, parquet_options, row_groups

_DEFINITION = b"sluice.definition"
RUN_BYTES = 64 * 2**20
"""Rows of this many bytes are sorted by key bucket together: bounds the memory of a chunk of wide rows."""


@dataclass(frozen=True, slots=True)
class Written:
    """The file that :func:`write_chunk` wrote."""

    rows: int
    size_bytes: int
    crc32: str
    buckets: tuple[int, int]


def chunk_path(chunk: Chunk) -> str:
    """Return the path of an attempt's file, relative to the pipeline's store."""
    return f"dumps/{chunk.id.dump}/{chunk.id.name}-{chunk.attempt:04d}.parquet"


def write_chunk(store: SegmentStore, path: str, schema: TableSchema, pieces: Iterator[pa.Table]) -> Written:
    """Write ``pieces`` (SELECTED_ROWS) as they come, as SEGMENT_ROWS in runs that are sorted by key bucket."""
    layout = schema.arrow_schema.with_metadata({_DEFINITION: schema_to_json(schema)})
    rows, low, high = 0, 63, 0
    run: list[pa.Table] = []
    with (
        store.open_output(path) as sink,
        sink.gathering() as file,
        pq.ParquetWriter(file, layout, **parquet_options(schema)) as writer,
    ):

        def flush() -> None:
            nonlocal rows, low, high
            table = _laid_out(pa.concat_tables(run), schema, layout, rows)
            buckets = table.column("_bucket").to_numpy()
            for start, stop in row_groups(buckets, ROW_GROUP_ROWS, row_bytes(table)):
                writer.write_table(table.slice(start, stop - start), row_group_size=stop - start)
            rows += table.num_rows
            low, high = min(low, int(buckets[0])), max(high, int(buckets[-1]))
            run.clear()

        for piece in pieces:
            if piece.num_rows:
                run.append(piece)
            if sum(table.nbytes for table in run) >= RUN_BYTES:
                flush()
        if run:
            flush()
    return Written(rows, sink.size_bytes, f"{sink.crc32:08x}", (low, high) if rows else (0, 0))


def _laid_out(rows: pa.Table, schema: TableSchema, layout: pa.Schema, first_row: int) -> pa.Table:
    """Turn SELECTED_ROWS into SEGMENT_ROWS, sorted by their buckets."""
    count = rows.num_rows
    users = [one_chunk(rows.column(i)) for i in range(len(schema.columns))]
    keys = [users[i] for name in schema.primary_key for i, c in enumerate(schema.columns) if c.name == name]
    buckets = np.asarray(key_bucket(schema.table.schema, schema.table.table, keys, count), np.uint8)
    if keys:
        order = np.argsort(buckets, kind="stable")
        buckets = buckets[order]
        users = [column.take(pa.array(order)) for column in users]
    values = {
        "_bucket": pa.array(buckets),
        "_row": pa.array(np.arange(first_row, first_row + count, dtype=np.uint32)),
    }
    plain = {"_op": Op.READ.value, "_file": ""}
    meta = [
        values[f.name]
        if f.name in values
        else pa.nulls(count, f.type)
        if f.nullable
        else pa.repeat(pa.scalar(plain.get(f.name, 0), f.type), count)
        for f in META_FIELDS
    ]
    return pa.Table.from_arrays([*users, *meta, pa.nulls(count, layout.field("_before").type)], schema=layout)


def read_keys(store: SegmentStore, chunk: Chunk, identity: tuple[str, ...] = ()) -> tuple[TableSchema, pa.Table]:
    """Return the definition, and the key columns (``identity``, else the primary key) of all rows with their ``_row``.

    Raises SegmentError if the file is damaged or gone.
    """
    data = store.read_bytes(chunk.path)
    if len(data) != chunk.size_bytes or f"{zlib.crc32(data):08x}" != chunk.crc32:
        raise SegmentError(
            "the stored rows of a dump are damaged: size or CRC32 is not the one recorded",
            where=chunk.path,
            hint=f"`sluice dump cancel PIPELINE {chunk.id.dump}`, then start it again",
        )
    file = pq.ParquetFile(pa.BufferReader(data))
    schema = schema_from_json(file.schema_arrow.metadata[_DEFINITION])
    key_columns = [stored_name(name) for name in identity or schema.primary_key]
    return schema, file.read(columns=[*key_columns, "_row"], use_threads=False)
