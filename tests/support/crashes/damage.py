"""Damage to stored files: where the rows are, so that whoever reads them must notice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def flip(path: Path) -> None:
    """Change a byte of the first column's values: in a Parquet file, or in the first one that is packed into a
    manifest.
    """
    data = bytearray(path.read_bytes())
    start = 0 if path.suffix == ".parquet" else data.index(0) + 1
    column = pq.ParquetFile(pa.BufferReader(bytes(data[start:]))).metadata.row_group(0).column(0)
    first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    data[start + first + column.total_compressed_size - 1] ^= 0x55
    path.write_bytes(data)
