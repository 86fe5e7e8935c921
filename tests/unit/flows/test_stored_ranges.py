"""Ranges that batches hold, as every version stored them, are read as values."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from sluice.flows.dump.key_lists import write_keys
from sluice.flows.dump.reconcile import planned, read_range, write_kept
from sluice.mapping import Mapping
from sluice.model.column_types import ColumnKind
from sluice.model.exact_values import AS_TYPED
from sluice.model.tables import Column, TableId, TableSchema
from sluice.segments.manifest import ReplaceRecord
from sluice.segments.store import SegmentStore
from sluice.sources.mysql.source import MySQLKeyText
from sluice.targets.port import KeyRange, StoredRange

K = ColumnKind
TABLE = TableId("shop", "orders")
SCHEMA = TableSchema(
    TABLE,
    (
        Column("n", K.DECIMAL, "decimal(10,1)", nullable=False, precision=10, scale=1),
        Column("w", K.VARCHAR, "varchar(9)", nullable=False, charset="utf8mb4"),
        Column("d", K.DATE, "date", nullable=False),
    ),
    ("n", "w", "d"),
)
STORED = {
    "schema": "shop", "table": "orders", "dump": "d1", "chunk": "0000-00000001", "key": ["n", "w", "d"],
    "flavour": "mysql",
    "lower": ["1.55", "_utf8mb4 x'61'", "_utf8mb4 x'323032342d30322d3239'"], "upper": [], "listed": "",
    "kept": "kept.parquet",
    "after": ["2.0", "_utf8mb4 x'c3a9'", "'0000-00-00'"], "upto": ["7.5", "_utf8mb4 x''", "'2024-02-29'"],
}  # fmt: skip
"""A range in the form of manifests of 0.1: literals that the source wrote, and such that a person typed."""


def key(n: str, w: str, d: str) -> tuple[str, ...]:
    return n, f"_utf8mb4 x'{w.encode().hex()}'", f"'{d}'"


def read(store: SegmentStore, stored: dict[str, object]) -> KeyRange:
    record = ReplaceRecord.model_validate(stored)
    again = json.loads(record.model_dump_json(by_alias=True))
    assert {name: again[name] for name in stored} == stored, "it is stored as it was"
    route = Mapping.compile(()).route(TABLE)
    kept = pa.table([[Decimal("2.5")], ["k"], pa.array([19782], pa.int32()).view(pa.date32())], names=["n", "w", "d"])
    write_kept(store, "kept.parquet", SCHEMA, SCHEMA.primary_key, [kept])
    return read_range(store, StoredRange(planned(store, record, route), (record, route, MySQLKeyText())))


def test_bounds_are_values_of_the_key(tmp_path: Path) -> None:
    found = read(SegmentStore(str(tmp_path), "p"), STORED)
    assert (found.names, found.upper, found.listed) == (("n", "w", "d"), None, None)
    types = [column.arrow_type for column in SCHEMA.columns]
    assert found.lower is not None
    assert found.lower.schema.types == [pa.decimal128(3, 2), *types[1:]], "1.55 is no value of DECIMAL(10,1)"
    assert MySQLKeyText().literals(SCHEMA.columns, found.lower) == [key("1.55", "a", "2024-02-29")]
    for bound, name in ((found.after, "after"), (found.upto, "upto")):
        assert bound is not None
        assert bound.schema.types == types
        assert MySQLKeyText().literals(SCHEMA.columns, bound) == [tuple(STORED[name])]


def test_lists_are_values_of_the_key(tmp_path: Path) -> None:
    store = SegmentStore(str(tmp_path), "p")
    keys = [key("1.0", "a", "2024-01-31"), key("2.5", "", "2024-00-00")]
    write_keys(store, "keys.parquet", keys)
    bounds = {name: [] for name in ("lower", "upper", "after", "upto")}
    found = read(store, {**STORED, **bounds, "listed": "keys.parquet"})
    assert (found.lower, found.upper, found.after, found.upto) == (None, None, None, None)
    assert found.listed is not None
    assert found.listed.schema.types == [column.arrow_type for column in SCHEMA.columns]
    assert MySQLKeyText().literals(SCHEMA.columns, found.listed) == keys
    typed = [*keys, (*keys[0][:2], f"_utf8mb4 x'{b'2024-1-31'.hex()}'")]
    write_keys(store, "keys.parquet", typed)
    found = read(store, {**STORED, **bounds, "listed": "keys.parquet"})
    assert found.listed is not None
    assert found.listed.schema.types[2] == AS_TYPED, "only the server reads 2024-1-31"
    assert found.listed.column(2).to_pylist() == ["2024-01-31", "2024-00-00", "2024-1-31"]
