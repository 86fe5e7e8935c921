"""Shuffle parts of a batch that no key bucket cuts small enough: their files are written again, in finer buckets,
before they are merged.

Such a part is a large table without a key (all of its rows are in one bucket, as equal rows are counted), one whose key
the mapping names, or a bucket of a very large table. Its rows are shuffled over the buckets again, by a hash that is
independent of the first one: of the key, or without a key of all values. Rows that belong together stay together, so
that each bucket is merged by itself, and what a merge does not need is left out on the way: of a row that was changed a
million times, three changes are written.

The files are in the attempt's folder, as large as the part during the merge, and deleted after it; those of an attempt
that died are deleted with the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.errors import SluiceError
from sluice.flows.transform.segment_rows import MergePart, wanted_columns
from sluice.merge.compact import compact, thinned, user_columns
from sluice.merge.key_override import rekeyed
from sluice.model.fields import key_columns
from sluice.model.packing import memory_of
from sluice.model.sizes import row_bytes
from sluice.model.tables import one_chunk
from sluice.segments.buckets import key_bucket
from sluice.segments.changeset import changeset_folder
from sluice.segments.footers import footer_crc32
from sluice.segments.manifest import SegmentFile
from sluice.segments.reader import PIECE_BYTES, read_pieces
from sluice.segments.store import SegmentStore
from sluice.segments.writer import ROW_GROUP_ROWS, row_groups, uneven

LEVELS = 2
"""The number of times that a part is shuffled, each time by another hash, while it is too large; what is too large then
is one row, or equal rows.
"""

_BUCKET = pa.field("_bucket", pa.uint8(), nullable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleUnit:
    """One file of a part.

    ``level``: how often its rows were shuffled before; ``number``: tells the files of an attempt apart.
    """

    store_uri: str
    pipeline: str
    batch: int
    attempt: str
    number: int
    part: MergePart
    level: int

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.part.cost

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process: rows are read, searched and written piece by piece."""
        return memory_of(min(self.part.size_bytes, 2 * PIECE_BYTES))


def plan_shuffle(
    store: SegmentStore, batch: int, attempt: str, parts: Sequence[MergePart], level: int
) -> list[list[ShuffleUnit]]:
    """Return, for each part, one unit per file."""
    units, number = [], 0
    for part in parts:
        part_units = []
        for file in part.files:
            alone = MergePart(part.source, (file,), part.buckets, part.key)
            part_units.append(
                ShuffleUnit(
                    store_uri=store.uri,
                    pipeline=store.pipeline,
                    batch=batch,
                    attempt=attempt,
                    number=number,
                    part=alone,
                    level=level,
                )
            )
            number += 1
        units.append(part_units)
    return units


def run_shuffle_unit(unit: ShuffleUnit) -> list[SegmentFile]:
    """Shuffle the rows of a file by new key buckets. Raises SegmentError, MappingError, StorageUnavailable."""
    store = SegmentStore(unit.store_uri, unit.pipeline)
    part, [file] = unit.part, unit.part.files
    folder = f"{changeset_folder(store, unit.batch, unit.attempt)}/spread-{unit.level}"
    shuffle_unit: list[SegmentFile] = []
    pieces, number = _pieces(store, part, file), 0
    while piece := list(islice(pieces, 1)):
        rows, buckets = _shuffled(piece, part, unit.level)
        if rows.num_rows:
            path = f"{folder}/{unit.number:05d}-{number:04d}.parquet"
            shuffle_unit.append(_write(store, path, file, rows, buckets))
        number += 1
    return shuffle_unit


def delete_shuffled(store: SegmentStore, files: Sequence[SegmentFile]) -> None:
    """Delete the shuffled files once their rows are merged. What cannot be deleted is deleted with the batch."""
    for file in files:
        with suppress(SluiceError):
            store.delete(file.path)


def _pieces(store: SegmentStore, part: MergePart, file: SegmentFile) -> Iterator[pa.Table]:
    """Yield the rows of a file in pieces that are large enough to be worth thinning."""
    buffer: list[pa.Table] = []
    for piece in read_pieces(store, file, part.buckets, wanted_columns(store, file)):
        buffer.append(piece.drop_columns(["_bucket"]) if "_bucket" in piece.schema.names else piece)
        if sum(table.nbytes for table in buffer) >= PIECE_BYTES:
            yield _together(buffer)
    if buffer:
        yield _together(buffer)


def _together(tables: list[pa.Table]) -> pa.Table:
    """Return the tables as one, and empty the list: who reads the pieces decides how long their rows stay."""
    rows = pa.concat_tables(tables)
    tables.clear()
    return rows


def _shuffled(
    piece: list[pa.Table], part: MergePart, level: int
) -> tuple[pa.Table, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """Return the rows that a merge needs, in the order of their new buckets, and these buckets.

    The rows are taken out of ``piece``, so that they are freed as soon as there is a copy.
    """
    key = key_columns(piece[0].schema)
    if part.key and not key:
        piece.append(rekeyed(piece.pop(), part.source, part.key))
        key = key_columns(piece[0].schema)
    rows = thinned(piece.pop(), key) if key else compact(piece.pop(), ())
    by = [one_chunk(rows[name]) for name in key or user_columns(rows.schema)]
    buckets = np.asarray(key_bucket(f"spread {level}", "", by, rows.num_rows), np.uint8)
    order = np.lexsort((rows["_seq"].to_numpy(), buckets))
    return rows.take(pa.array(order)), buckets[order]


def _write(
    store: SegmentStore,
    path: str,
    source: SegmentFile,
    rows: pa.Table,
    buckets: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> SegmentFile:
    rows = rows.append_column(_BUCKET, pa.array(buckets))
    sizes = row_bytes(rows)
    with (
        store.open_output(path) as sink,
        pq.ParquetWriter(
            pa.PythonFile(sink, mode="w"),
            rows.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=["_bucket"],
            write_page_checksum=True,
        ) as writer,
    ):
        for start, stop in row_groups(buckets, ROW_GROUP_ROWS, sizes):
            writer.write_table(rows.slice(start, stop - start), row_group_size=stop - start)
    ops = {row["values"]: row["counts"] for row in pc.value_counts(rows["_op"]).to_pylist()}
    return source.model_copy(
        update={
            "path": path,
            "rows": rows.num_rows,
            "inserts": ops.get("i", 0),
            "updates": ops.get("u", 0),
            "deletes": ops.get("d", 0),
            "reads": ops.get("r", 0),
            "size_bytes": sink.size_bytes,
            "crc32": f"{sink.crc32:08x}",
            "footer_crc32": footer_crc32(sink.tail()),
            "bucket_min": int(buckets[0]),
            "bucket_max": int(buckets[-1]),
            "arrow_bytes": int(sizes.sum()),
            "bucket_bytes": uneven(buckets, sizes),
            "place": None,
        }
    )


def can_shuffle(part: MergePart) -> bool:
    """Return False for rows that are followed from key to key, and for rows that were shuffled and stayed together."""
    if any(file.moved_partially for file in part.files):
        return False
    return part.buckets[1] - part.buckets[0] == 1 or not part.segments
