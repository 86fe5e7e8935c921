"""Types, names, statements and options of a target of type clickhouse, without a server."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from sluice.config.connections import Endpoint
from sluice.config.receiver import Receiver
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.model.temporal import special_date
from sluice.targets.clickhouse.checkpoint import Record
from sluice.targets.clickhouse.column_types import OWN, enum_type, held_type, lost, own_type, takes
from sluice.targets.clickhouse.options import ClickHouseOptions
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.sql import literal, name
from sluice.targets.clickhouse.tables import _key, make_statements
from sluice.targets.clickhouse.values import ALL_YEARS, FEW_YEARS, default_sql, sent
from sluice.targets.port import Checkpoint

K = ColumnKind


def place(*, every: bool = False, **options: Any) -> Place:
    """A place without a server."""
    return Place(
        Receiver(Endpoint("c", "clickhouse", "localhost")), ClickHouseOptions(**options), "p", "copy", every=every
    )


def test_every_kind_has_a_type_that_takes_its_values() -> None:
    assert set(OWN) == set(ColumnKind)
    for kind in ColumnKind:
        made = ColumnType(kind, 65, 30, 6, 1, labels=("a",)).plain
        assert takes(made, held_type(own_type(made))), kind


@pytest.mark.parametrize(
    ("made", "declared", "fits"),
    [
        (ColumnType(K.BIGINT, unsigned=True), "Int64", False),
        (ColumnType(K.BIGINT, unsigned=True), "Int128", True),
        (ColumnType(K.BIGINT, unsigned=True), "Decimal(20, 0)", True),
        (ColumnType(K.INT), "Nullable(Int64)", True),
        (ColumnType(K.INT), "String", False),
        (ColumnType(K.DECIMAL, 12, 2), "Decimal(38, 1)", False),
        (ColumnType(K.DECIMAL, 12, 2), "Nullable(Decimal(14, 4))", True),
        (ColumnType(K.DATETIME, digits=6), "DateTime64(3, 'UTC')", False),
        (ColumnType(K.DATETIME), "DateTime", True),
        (ColumnType(K.ENUM, labels=("a", "b")), "Enum8('' = 0, 'a' = 1, 'b' = 2)", True),
        (ColumnType(K.ENUM, labels=("a", "it's")), "Enum8('' = 0, 'a' = 1)", False),
        (ColumnType(K.ENUM, labels=("it's",)), r"Nullable(Enum8('' = 0, 'it\'s' = 1))", True),
        (ColumnType(K.DOUBLE), "Float32", False),
        (ColumnType(K.UUID), "UUID", True),
        (ColumnType(K.VARCHAR), "LowCardinality(Nullable(String))", True),
        (ColumnType(K.VARCHAR), "FixedString(9)", False),
    ],
)  # fmt: skip
def test_what_a_column_takes(made: ColumnType, declared: str, *, fits: bool) -> None:
    assert takes(made, held_type(declared)) is fits


def test_types_are_written_as_the_server_has_them() -> None:
    assert own_type(ColumnType(K.DECIMAL, 65, 30)) == "Decimal(65, 30)"
    assert own_type(ColumnType(K.BIT, length=1)) == "UInt8"
    assert held_type("String").as_nullable(True) == "Nullable(String)"
    assert held_type("LowCardinality(String)").as_nullable(True) == "LowCardinality(Nullable(String))"
    assert held_type("LowCardinality(Nullable(String))").as_nullable(False) == "LowCardinality(String)"
    assert enum_type(("a", "b")) == "Enum8('' = 0, 'a' = 1, 'b' = 2)"
    assert enum_type(("new", "a"), {"": 0, "a": 1, "gone": 2}) == "Enum8('' = 0, 'a' = 1, 'gone' = 2, 'new' = 3)"
    assert enum_type(tuple(map(str, range(200)))).startswith("Enum16(")
    assert enum_type(tuple(map(str, range(40_000)))) == ""
    assert "JSON" not in lost(ColumnType(K.JSON), held_type("String"))
    assert "verify" in lost(ColumnType(K.JSON), held_type("JSON"))


def test_names_and_texts_are_quoted() -> None:
    assert name("a`b\\") == r"`a\`b\\`"
    assert literal("it's \\\n\0") == r"'it\'s \\\n\0'"
    assert _key("id, `a b`, `c\\`d`") == ("id", "a b", "c`d")
    assert _key("(`id`)") == ("id",)
    assert _key("toDate(at), id") is None


def test_dates_that_do_not_fit_become_null() -> None:
    odd = special_date(2024, 2, 31)
    days = pa.array([odd, -719_162, 0, None], pa.int32()).view(pa.date32())
    values, mask = sent(days, ColumnType(K.DATE), held_type("Date32"), ALL_YEARS)
    assert mask is not None
    assert (mask.tolist(), values.null_count) == ([True, False, False, False], 2)
    values, mask = sent(days, ColumnType(K.DATE), held_type("Nullable(Date32)"), FEW_YEARS)
    assert mask is not None
    assert mask.tolist() == [True, True, False, False]
    texts, mask = sent(days, ColumnType(K.DATE), held_type("String"), FEW_YEARS)
    assert mask is None
    assert texts.to_pylist() == ["2024-02-31", "0001-01-01", "1970-01-01", None]
    last = pa.array([dt.datetime(2106, 2, 7)], pa.timestamp("us"))
    assert sent(last, ColumnType(K.DATETIME), held_type("DateTime"), ALL_YEARS)[1] is not None
    assert sent(last, ColumnType(K.DATETIME), held_type("DateTime64(6)"), FEW_YEARS)[1] is None


@pytest.mark.parametrize(
    ("values", "made", "declared", "said"),
    [
        (pa.array([7], pa.int32()), ColumnType(K.INT), "Int32", "CAST('7', 'Int32')"),
        (pa.array([None], pa.int32()), ColumnType(K.INT), "Nullable(Int32)", "NULL"),
        (pa.array([b"\x00'"], pa.binary()), ColumnType(K.VARBINARY), "String", "unhex('0027')"),
        (pa.array(["it's"]), ColumnType(K.VARCHAR), "String", r"CAST('it\'s', 'String')"),
        (pa.array([Decimal("1E-7")], pa.decimal128(9, 7)), ColumnType(K.DECIMAL, 9, 7), "Decimal(9, 7)", "CAST('0.0000001', 'Decimal(9, 7)')"),
    ],
)  # fmt: skip
def test_defaults_as_sql(values: pa.Array, made: ColumnType, declared: str, said: str) -> None:
    assert default_sql(values, made, held_type(declared)) == said


def _plan() -> PlannedTable:
    columns = (
        PlannedColumn("id", "int", 1, type=ColumnType(K.INT)),
        PlannedColumn("_op", "varchar(9)", type=ColumnType(K.VARCHAR, length=9)),
        PlannedColumn("twice", "int", generated=True, type=ColumnType(K.INT)),
    )
    return PlannedTable(TableId("shop", "t"), TableId("shop", "t"), columns)


def test_statements_of_a_new_table() -> None:
    """Statements of replicated tables are only written here: no cluster is at hand to run them on."""
    given = place(
        view="{table}_now", partition_by={"shop.t": "id % 4"}, settings={"index_granularity": 1024}, replicated=True
    )
    database, table, view = make_statements(given, _plan())
    assert database == "CREATE DATABASE IF NOT EXISTS `shop`"
    assert table == (
        "CREATE TABLE IF NOT EXISTS `shop`.`t` (\n    `id` Int32,\n    `_op` Nullable(String),\n    `_sluice_version` UInt64,\n"
        "    `_sluice_deleted` UInt8,\n    `_sluice_writer` LowCardinality(String)\n"
        ") ENGINE = ReplicatedReplacingMergeTree(_sluice_version, _sluice_deleted)\nPARTITION BY id % 4\nORDER BY (`id`)\n"
        "SETTINGS replicated_deduplication_window = 10000, index_granularity = 1024"
    )
    assert view.endswith("FROM `shop`.`t` FINAL")
    _, changes = make_statements(place(every=True), _plan())
    assert "`$_op` Nullable(String)" in changes
    assert changes.count("ENGINE = MergeTree\nORDER BY (`_batch`, `_seq`, `_row`, `_part`)") == 1
    assert "non_replicated_deduplication_window = 10000, fsync_after_insert = 1" in changes


def test_a_later_term_wins_then_a_later_batch_then_a_row_that_stays() -> None:
    first = Record(Checkpoint(9, 1), term=5)
    versions = [
        first.version(1, stays=False),
        first.version(1, stays=True),
        first.version(2, stays=False),
        Record(Checkpoint(1, 0), term=6).version(0, stays=False),
    ]
    assert versions == sorted(set(versions))
    assert versions[-1] < 2**64
    assert Record(Checkpoint(1, 1), term=2**34).next_term == 2**34 + 1
    assert first.next_term > 1_700_000_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"types": {"shop.t": "Int64"}}, "must be schema.table.column"),
        ({"types": {"shop.t.c": "Array(Int8)"}}, "is no type that Sluice writes"),
        ({"partition_by": {"t": "id"}}, "must be schema.table"),
        ({"view": "now"}, "view must have {table}"),
        ({"view": "{table}"}, "view must have {table} and something else"),
        ({"settings": {"a = 1, b": 1}}, "is no name of a setting"),
        ({"nope": 1}, "Extra inputs are not permitted"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ClickHouseOptions(**options)
