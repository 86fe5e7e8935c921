"""Segments of a table of two columns, for tests that write batches by themselves."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluice.model.column_types import ColumnKind
from sluice.model.offset import Offset
from sluice.model.tables import Column, TableId, TableSchema
from sluice.segments.buckets import key_bucket
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter

POSITION = Offset.at("u", "binlog.000001", 4)


def schema_of(table: str = "t") -> TableSchema:
    columns = (
        Column("id", ColumnKind.BIGINT, "bigint"),
        Column("v", ColumnKind.VARCHAR, "varchar(20)", charset="utf8mb4"),
    )
    return TableSchema(TableId("s.1", table), columns, ("id",))


def rows(schema: TableSchema, ids: list[int], seq: int = 0) -> pa.Table:
    count = len(ids)
    keys = pa.array(ids, pa.int64())
    fields = [schema.field(c) for c in schema.columns]
    data = {
        "id": keys, "v": pa.array([f"v{i}" for i in ids]), "_op": pa.array(["i"] * count),
        "_seq": pa.array(range(seq, seq + count), pa.uint64()),
        "_file": pa.array(["binlog.000001"] * count), "_offset": pa.array(range(count), pa.uint64()),
        "_row": pa.array([0] * count, pa.uint32()),
        "_commit_ts": pa.array([1] * count, pa.timestamp("us", tz="UTC")), "_gtid": pa.nulls(count, pa.string()),
        "_txn": pa.array(range(seq, seq + count), pa.uint64()), "_origin": pa.array([1] * count, pa.uint32()),
        "_bucket": pa.array(key_bucket("s.1", schema.table.table, [keys]), pa.uint8()),
        "_present": pa.nulls(count, pa.binary()),
        "_before": pa.nulls(count, pa.struct(fields)),
    }  # fmt: skip
    return pa.table(data, schema=schema.arrow_schema)


def written(store: SegmentStore, tables: int, batch: int = 1, **options: Any) -> SegmentManifest:
    """Write a batch of ``tables`` tables t0, t1, … with the rows of the keys N and 7."""
    writer = SegmentWriter(store, batch, 1, **options)
    for number in range(tables):
        schema = schema_of(f"t{number}")
        writer.add(schema, rows(schema, [number, 7], number * 2))
    return writer.finish(POSITION, POSITION, transactions=tables)
