"""Changes of a table without a key that wait for its copy: stored beside their batch, and no part of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sluice.flows.dump.interleaver import InterleavePlan, InterleavingSegmentWriter
from sluice.model.column_types import ColumnKind
from sluice.model.offset import Offset
from sluice.model.tables import Column, TableId, TableSchema
from sluice.segments.manifest import SegmentManifest
from sluice.segments.reader import read_file
from sluice.segments.store import SegmentStore

SCHEMA = TableSchema(TableId("s", "t"), (Column("v", ColumnKind.INT, "int"),))
FIRST = Offset.at("uuid", "log.000001", 100)


def piece(*seqs: int) -> pa.Table:
    """Inserts as the capture writes them."""
    values = {
        "v": pa.array(seqs, pa.int32()),
        "_op": ["i"] * len(seqs),
        "_seq": pa.array(seqs, pa.uint64()),
        "_bucket": pa.array([0] * len(seqs), pa.uint8()),
    }
    fields = SCHEMA.arrow_schema
    return pa.table(
        [pa.array(values[f.name]).cast(f.type) if f.name in values else pa.nulls(len(seqs), f.type) for f in fields],
        schema=pa.schema([field.with_nullable(True) for field in fields]),
    )


def test_all_pieces_of_a_batch_are_stored(tmp_path: Path) -> None:
    store = SegmentStore(f"file://{tmp_path}", "p")
    writer = InterleavingSegmentWriter(store, 1, 1, held=frozenset({SCHEMA.table}), stores_held=True)
    writer.add(SCHEMA, piece(1, 2))
    writer.add(SCHEMA, piece(3))
    writer.finish(FIRST, FIRST, changes=3)
    plan = InterleavePlan()
    writer.apply(plan, [])
    writer.seal(plan)
    manifest = SegmentManifest.from_json(store.read_bytes(store.manifest_path(1, 1)))
    assert (manifest.files, manifest.changes, manifest.held) == ((), 0, {"s.t": 3})
    rows = [value for file in manifest.held_files for value in read_file(store, file)["v"].to_pylist()]
    assert sorted(rows) == [1, 2, 3]
