"""The hash of a decoded row is that of the text that the server makes of it; real servers agree in
tests/integration/verify/test_log_digests.py.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from sluice.model.column_types import ColumnKind as K
from sluice.model.column_types import ColumnType
from sluice.model.digests import RangeDigest
from sluice.model.tables import META_FIELDS, Column, TableId, TableSchema
from sluice.mysql.row_digest import HashedColumn, digest_of, hashes_of, not_covered
from sluice.sources.log_digests import hashed_columns, log_digest, not_digested

ID = HashedColumn("id", "int", ColumnType(K.INT))
NOTE = HashedColumn("note", "varchar(9)", ColumnType(K.VARCHAR, charset="utf8mb4"))
PRICE = HashedColumn("price", "decimal(12,8)", ColumnType(K.DECIMAL, 12, 8))
AT = HashedColumn("at", "datetime(3)", ColumnType(K.DATETIME, digits=3))


def hashed(*texts: bytes) -> RangeDigest:
    found = 0
    for text in texts:
        found ^= int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
    return RangeDigest(len(texts), found)


def test_numbers_lengths_and_nulls_are_packed_and_texts_follow() -> None:
    values = [pa.array([7, -1], pa.int32()), pa.array(["a,\u00e9", None]), pa.array(["x", "y"])]
    seven = (7 << 1) | (4 << 35)  # the last string needs no length
    none = ((2**32 - 1) << 1) | (1 << 33)
    found = digest_of([ID, NOTE, NOTE], values)
    assert found == hashed(f"{seven},a,\u00e9x".encode(), f"{none},y".encode())


def test_a_row_without_any_value_has_a_text() -> None:
    values = [pa.array([None, Decimal("1.00000000")], pa.decimal128(12, 8)), pa.array([None, None], pa.string())]
    assert digest_of([PRICE, NOTE], values) == hashed(b"3,,", b"2,1.00000000,")


def test_decimals_and_times_are_printed_as_the_server_does() -> None:
    values = [pa.array([Decimal("0.00000001")], pa.decimal128(12, 8)), pa.array([dt.datetime(2024, 2, 29, 1, 2, 3)])]
    assert digest_of([PRICE, AT], values) == hashed(b"0,0.00000001,2024-02-29 01:02:03.000")


@pytest.mark.parametrize(
    ("declared", "made", "why"),
    [
        ("float", ColumnType(K.FLOAT), "in its own way"),
        ("double", ColumnType(K.DOUBLE), "in its own way"),
        ("geometry", ColumnType(K.GEOMETRY), "no checksum"),
        ("varchar(9)", ColumnType(K.VARCHAR, charset="sjis"), "character set sjis"),
        ("varchar(9)", ColumnType(K.VARCHAR, charset="latin1"), ""),
        ("json", ColumnType(K.JSON), ""),
    ],
)
def test_a_column_that_is_not_covered_is_named(declared: str, made: ColumnType, why: str) -> None:
    said = not_covered(HashedColumn("c", declared, made))
    assert why in said
    assert bool(said) == bool(why)


SCHEMA = TableSchema(
    TableId("shop", "orders"),
    (Column("id", K.INT, "int"), Column("note", K.VARCHAR, "varchar(9)", charset="utf8mb4")),
    ("id",),
)


def changes(*rows: tuple[str, tuple[int, Any], tuple[int, Any] | None], present: bytes | None = None) -> pa.Table:
    """SEGMENT_ROWS: (operation, the row, the row before)."""
    users = {
        "id": pa.array([row[0] for _, row, _ in rows], pa.int32()),
        "note": pa.array([row[1] for _, row, _ in rows], pa.string()),
    }
    before = pa.array(
        [None if old is None else {"id": old[0], "note": old[1]} for _, _, old in rows],
        SCHEMA.arrow_schema.field("_before").type,
    )
    metas = {field.name: pa.nulls(len(rows), field.type) for field in META_FIELDS}
    metas["_op"] = pa.array([op for op, _, _ in rows])
    metas["_present"] = pa.array([present] * len(rows), pa.binary())
    return pa.table({**users, **metas, "_before": before})


def digest(*rows: tuple[int, Any]) -> RangeDigest:
    values = [pa.array([row[0] for row in rows], pa.int32()), pa.array([row[1] for row in rows], pa.string())]
    return digest_of([ID, NOTE], values)


HASHES = partial(hashes_of, list(map(HashedColumn.of, hashed_columns(SCHEMA))))


def test_changes_add_up_to_the_digest_of_the_rows_that_are_left() -> None:
    log = changes(
        ("i", (1, "one"), None),
        ("i", (2, None), None),
        ("i", (3, "three"), None),
        ("u", (1, None), (1, "one")),
        ("k", (2, None), (2, None)),  # the key moves: the update stands for both
        ("u", (20, None), (2, None)),
        ("d", (3, "three"), None),
        ("r", (9, "read by a dump"), None),
    )
    assert log_digest(SCHEMA, log, HASHES) == digest((1, None), (20, None))


def test_rows_of_which_the_log_has_a_part_are_told() -> None:
    said = log_digest(SCHEMA, changes(("u", (1, None), (1, "one")), present=b"\x01"), HASHES)
    assert "binlog_row_image" in str(said)


def test_a_table_without_a_key_has_no_digest() -> None:
    assert "no primary key" in not_digested(TableSchema(SCHEMA.table, SCHEMA.columns), lambda column: "")
