"""A table of customers, its merged rows, and an engine.yaml of one rule, for tests of rules."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.merge.compact import merged_schema
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.rules import Ruled, RuleSet

COMMIT = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
TABLE = TableId("shop", "customers")
SCHEMA = TableSchema(
    TABLE,
    (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("email", ColumnKind.VARCHAR, "varchar(80)", charset="utf8mb4"),
        Column("paid", ColumnKind.DECIMAL, "decimal(10,2)", precision=10, scale=2),
        Column("born", ColumnKind.DATE, "date"),
        Column("seen", ColumnKind.DATETIME, "datetime(6)", fsp=6),
        Column("rest", ColumnKind.TIME, "time(6)", fsp=6),
        Column("big", ColumnKind.DECIMAL, "decimal(65,30)", precision=65, scale=30),
        Column("raw", ColumnKind.VARBINARY, "varbinary(20)"),
        Column("n", ColumnKind.BIGINT, "bigint unsigned", unsigned=True),
    ),
    ("id",),
)
ROW: dict[str, Any] = {
    "id": 1,
    "email": "A@x",
    "paid": Decimal("1.50"),
    "born": dt.date(2000, 2, 29),
    "seen": dt.datetime(2026, 1, 2, 3, 4, 5, 678901),
    "rest": dt.timedelta(hours=-30, microseconds=1),
    "big": Decimal("12345678901234567890123456789012345.123456789012345678901234567890"),
    "raw": b"\x00\xff",
    "n": 2**64 - 1,
}
MERGED = merged_schema(SCHEMA.arrow_schema)


def row(op: str = "i", before: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    """A merged row; ``before``: what was different before the batch."""
    full = {**ROW, **values}
    old = None if before is None else {**full, **before}
    return {**full, "_op": op, "_seq": full["id"], "_commit_ts": COMMIT, "_origin": 7, "_before": old}


def rows(*items: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(items), schema=MERGED)


def engine(folder: Path, text: str, **files: str) -> RuleSet:
    """engine.yaml with ``text`` under ``rules:``; files by name, ``__`` for the dot."""
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")
    (folder / "engine.yaml").write_text(f"rules:\n{text}", encoding="utf-8")
    return RuleSet.load(folder / "engine.yaml")


def result(ruled: Ruled, table: TableId = TABLE) -> list[dict[str, Any]]:
    return sorted(ruled.tables[table].to_pylist(), key=lambda r: (str(r.get("id")), r["_op"]))
