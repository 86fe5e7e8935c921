"""The stored rows of a chunk: Parquet with the definition they were read by, checksummed as segments are."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from sluice.errors import SegmentError
from sluice.model.dumps import Chunk, schema_from_json, schema_to_json
from sluice.model.tables import TableSchema
from sluice.segments.store import SegmentStore
from sluice.segments.writer import parquet_options

_DEFINITION = b"sluice.definition"


def chunk_path(chunk: Chunk) -> str:
    """Path of the file of an attempt, relative to the pipeline's store."""
    return f"dumps/{chunk.id.dump}/{chunk.id.name}-{chunk.attempt:04d}.parquet"


def write_chunk(
    store: SegmentStore, path: str, schema: TableSchema, pieces: Iterator[pa.Table]
) -> tuple[int, int, str]:
    """Write the rows as they come: (rows, bytes, CRC32)."""
    fields = pa.schema([schema.field(c) for c in schema.columns], metadata={_DEFINITION: schema_to_json(schema)})
    rows = 0
    options = {**parquet_options(schema), "use_dictionary": [c.name for c in schema.columns if c.labels]}
    options.pop("column_encoding")
    options["write_statistics"] = False
    with store.open_output(path) as sink, pq.ParquetWriter(pa.PythonFile(sink, mode="w"), fields, **options) as writer:
        for piece in pieces:
            table = pa.Table.from_arrays(piece.columns, schema=fields)
            writer.write_table(table)
            rows += table.num_rows
    return rows, sink.size_bytes, f"{sink.crc32:08x}"


def read_chunk(store: SegmentStore, chunk: Chunk) -> tuple[TableSchema, pa.Table]:
    """The definition and all rows. Raises SegmentError if the file is damaged or gone."""
    data = store.read_bytes(chunk.path)
    if len(data) != chunk.size_bytes or f"{zlib.crc32(data):08x}" != chunk.crc32:
        raise SegmentError(
            "the stored rows of a dump are damaged: size or CRC32 is not the one recorded",
            where=chunk.path,
            hint=f"`sluice dump cancel PIPELINE {chunk.id.dump}`, then start it again",
        )
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    return schema_from_json(table.schema.metadata[_DEFINITION]), table
