"""Changes of one small table, as the merge reads them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema

COMMIT = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
SCHEMA = TableSchema(
    TableId("shop", "t"),
    (
        Column("a", ColumnKind.INT, "int", nullable=False),
        Column("b", ColumnKind.VARCHAR, "varchar(20)", charset="utf8mb4"),
        Column("v", ColumnKind.DECIMAL, "decimal(12,2)", precision=12, scale=2),
    ),
    ("a", "b"),
)
KEY = ["a", "b"]
KEYLESS = TableSchema(SCHEMA.table, SCHEMA.columns)


def change(op: str, seq: int, row: tuple[Any, ...], before: tuple[Any, ...] | None = None) -> dict[str, Any]:
    names = ("a", "b", "v")
    return {
        **dict(zip(names, row, strict=True)), "_op": op, "_seq": seq, "_file": "binlog.000001", "_offset": seq,
        "_row": 0,
        "_commit_ts": COMMIT, "_gtid": None, "_txn": seq, "_origin": 1, "_bucket": 0, "_present": None,
        "_before": None if before is None else dict(zip(names, before, strict=True)),
    }  # fmt: skip


def table(changes: list[dict[str, Any]], schema: TableSchema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(changes, schema=schema.arrow_schema)
