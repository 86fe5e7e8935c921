"""Routes of tables and columns."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from sluice.config.pipeline import TableMapping
from sluice.errors import MappingError
from sluice.mapping import Mapping
from sluice.merge.compact import merged_schema
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema

ORDERS = TableSchema(
    TableId("shop", "orders"),
    (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("ts", ColumnKind.VARCHAR, "varchar(20)", charset="utf8mb4"),
        Column("note", ColumnKind.VARCHAR, "varchar(20)", charset="utf8mb4"),
    ),
    ("id",),
)


def rows() -> pa.Table:
    commit = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
    return pa.Table.from_pylist(
        [
            {"id": 1, "ts": "t", "note": "n", "_op": "i", "_seq": 1, "_commit_ts": commit, "_before": None},
            {"id": 2, "ts": "t", "note": "n", "_op": "u", "_seq": 2, "_commit_ts": commit,
                "_before": {"id": 2, "ts": "s", "note": "m"}},
        ],
        schema=merged_schema(ORDERS.arrow_schema),
    )  # fmt: skip


def mapping(*lines: dict[str, object]) -> Mapping:
    return Mapping.compile([TableMapping.model_validate(line) for line in lines])


def test_a_table_not_named_keeps_its_name_and_rows_untouched() -> None:
    route = mapping().route(ORDERS.table)
    assert route.target == ORDERS.table
    table = rows()
    assert route.apply(table) is table


def test_the_more_exact_line_wins() -> None:
    compiled = mapping(
        {"from": r"shop\.or.*s", "to": "x.pattern"},
        {"from": "shop.*", "to": "reporting.*", "weight": 3},
        {"from": "shop.orders", "to": "reporting.all_orders", "weight": 10},
        {"from": r"shop_(\d+)\.(\w+)", "to": r"shard\1.\2"},
    )
    assert compiled.route(TableId("shop", "orders")).target == TableId("reporting", "all_orders")
    assert compiled.route(TableId("shop", "orders")).weight == 10
    assert compiled.route(TableId("shop", "lines")).target == TableId("reporting", "lines")
    assert compiled.route(TableId("shop_7", "lines")).target == TableId("shard7", "lines")
    assert compiled.route(TableId("shopping", "lines")).target == TableId("shopping", "lines")


def test_columns_are_selected_and_renamed_in_row_and_before() -> None:
    route = mapping({
        "from": "shop.orders",
        "to": "r.o",
        "columns": {"exclude": ["note"], "rename": {"ts": "_op", "id": "order_id"}},
    }).route(ORDERS.table)
    result = route.apply(rows())
    assert result.schema.names == ["order_id", "$_op", "_op", "_seq", "_commit_ts", "_origin", "_before"]
    assert result.schema.field("$_op").metadata[b"sluice.name"] == b"_op"
    assert result.schema.field("order_id").metadata[b"sluice.key"] == b"1"
    assert result["_before"].to_pylist() == [None, {"order_id": 2, "$_op": "s"}]


def test_keys_always_go_with_include() -> None:
    route = mapping({"from": "shop.orders", "to": "r.o", "columns": {"include": ["note"]}}).route(ORDERS.table)
    assert route.apply(rows()).schema.names[:2] == ["id", "note"]


def test_an_excluded_key_is_an_error() -> None:
    route = mapping({"from": "shop.orders", "to": "r.o", "columns": {"exclude": ["id"]}}).route(ORDERS.table)
    with pytest.raises(MappingError, match=r"key column 'id' of shop\.orders"):
        route.apply(rows())


def test_two_columns_of_one_name_are_an_error() -> None:
    route = mapping({"from": "shop.orders", "to": "r.o", "columns": {"rename": {"ts": "note"}}}).route(ORDERS.table)
    with pytest.raises(MappingError, match="'note'"):
        route.apply(rows())


def test_one_table_twice_is_an_error() -> None:
    with pytest.raises(MappingError, match=r"shop\.orders twice"):
        mapping({"from": "shop.orders", "to": "a.b"}, {"from": "shop.orders", "to": "a.c"})


@pytest.mark.parametrize("pattern", [r"shop_(\d+).*", r"shop_(\d+)\..*"])
def test_whole_schemas_by_pattern(pattern: str) -> None:
    mapping = Mapping.compile([
        TableMapping(from_=pattern, to=r"copy_\1.*"),
        TableMapping(from_=r"old_\w+.*", to="old.*"),
    ])
    route = mapping.route(TableId("shop_12", "orders"))
    assert (route.target, route.shared) == (TableId("copy_12", "orders"), False)
    route = mapping.route(TableId("old_a", "orders"))
    assert (route.target, route.shared) == (TableId("old", "orders"), True)
    assert mapping.route(TableId("shop_x", "orders")).target == TableId("shop_x", "orders")


def test_shards_know_that_they_share_a_table() -> None:
    mapping = Mapping.compile([
        TableMapping(from_=r"shop\.orders_(\d+)", to="all.orders"),
        TableMapping(from_=r"shop\.lines_(\d+)", to=r"all.lines_\1"),
    ])
    assert mapping.route(TableId("shop", "orders_1")).shared
    assert not mapping.route(TableId("shop", "lines_1")).shared


def test_names_by_position() -> None:
    line = TableMapping.model_validate({
        "from": "shop.orders",
        "to": "x.y",
        "columns": {"include": ["id", "ts"], "as": ["key", "at"]},
    })
    made = Mapping.compile([line]).route(ORDERS.table).apply(rows())
    assert [name for name in made.schema.names if not name.startswith("_")] == ["key", "at"]
    with pytest.raises(ValueError, match="1 names for the 2 columns"):
        TableMapping.model_validate({"from": "a.b", "to": "x.y", "columns": {"include": ["id", "ts"], "as": ["key"]}})
