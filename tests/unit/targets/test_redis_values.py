"""The text of values of every type of MySQL in Redis, as a field, as JSON and in a key."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.model.temporal import special_date, special_timestamp
from sluice.targets.messages.row_texts import (
    OWN,
    alike,
    iso_texts,
    json_texts,
    key_texts,
    own_type,
    read_text,
    texts,
)
from sluice.targets.mongodb.column_types import OFFERED, Form, document_values, key_value

K = ColumnKind
_ZERO_DAY, _ZERO_TIME = special_date(0, 0, 0), special_timestamp(2024, 0, 15, 3_600_000_000)
_SMALL = f"0.{'0' * 29}1"
CASES: list[tuple[ColumnType, pa.Array, str | bytes, Any, str]] = [
    (ColumnType(K.TINYINT), pa.array([-128], pa.int8()), "-128", -128, "-128"),
    (ColumnType(K.BIGINT, unsigned=True), pa.array([2**64 - 1], pa.uint64()), str(2**64 - 1), 2**64 - 1,
        str(2**64 - 1)),
    (ColumnType(K.BIT, length=64), pa.array([2**63], pa.uint64()), str(2**63), 2**63, str(2**63)),
    (ColumnType(K.YEAR), pa.array([1901], pa.uint16()), "1901", 1901, "1901"),
    (ColumnType(K.DECIMAL, 20, 4), pa.array([Decimal("1.5000")], pa.decimal128(20, 4)), "1.5000", "1.5000", "1.5"),
    (ColumnType(K.DECIMAL, 38, 30), pa.array([Decimal("1e-30")], pa.decimal128(38, 30)), _SMALL, _SMALL, _SMALL),
    (ColumnType(K.DECIMAL, 38, 30), pa.array([Decimal(0)], pa.decimal128(38, 30)), "0." + "0" * 30, "0." + "0" * 30,
        "0"),
    (ColumnType(K.DECIMAL, 65, 0), pa.array([Decimal("9" * 65)], pa.decimal256(65, 0)), "9" * 65, "9" * 65, "9" * 65),
    (ColumnType(K.DECIMAL, 5, 0), pa.array([Decimal(100)], pa.decimal128(5, 0)), "100", "100", "100"),
    (ColumnType(K.FLOAT), pa.array([0.1], pa.float32()), "0.1", 0.1, "0.1"),
    (ColumnType(K.DOUBLE), pa.array([5e-324], pa.float64()), "5e-324", 5e-324, "5e-324"),
    (ColumnType(K.DATE), pa.array([dt.date(2024, 2, 29)]), "2024-02-29", "2024-02-29", "2024-02-29"),
    (ColumnType(K.DATE), pa.array([_ZERO_DAY], pa.int32()).view(pa.date32()), "0000-00-00", "0000-00-00", "0000-00-00"),
    (ColumnType(K.DATETIME), pa.array([dt.datetime(1000, 1, 1)], pa.timestamp("us")), "1000-01-01 00:00:00",
     "1000-01-01 00:00:00", "1000-01-01 00%3A00%3A00"),
    (ColumnType(K.DATETIME, digits=3), pa.array([dt.datetime(2024, 1, 1, 1, 2, 3, 500_000)], pa.timestamp("us")),
        "2024-01-01 01:02:03.500",
     "2024-01-01 01:02:03.500", "2024-01-01 01%3A02%3A03.5"),
    (ColumnType(K.DATETIME, digits=6), pa.array([_ZERO_TIME], pa.int64()).view(pa.timestamp("us")),
        "2024-00-15 01:00:00.000000",
     "2024-00-15 01:00:00.000000", "2024-00-15 01%3A00%3A00"),
    (ColumnType(K.TIMESTAMP), pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        "2024-01-01 00:00:00",
     "2024-01-01 00:00:00", "2024-01-01 00%3A00%3A00"),
    (ColumnType(K.TIME, digits=6), pa.array([-dt.timedelta(hours=838, minutes=59, seconds=59, microseconds=1)],
        pa.duration("us")),
     "-838:59:59.000001", "-838:59:59.000001", "-838%3A59%3A59.000001"),
    (ColumnType(K.VARCHAR, length=9), pa.array(['ä"\\\n%:']), 'ä"\\\n%:', 'ä"\\\n%:', 'ä"\\\n%25%3A'),
    (ColumnType(K.CHAR, length=9), pa.array(["1.50"]), "1.50", "1.50", "1.50"),
    (ColumnType(K.ENUM, labels=("a",)), pa.array([ENUM_ERROR_VALUE]), "", "", ""),
    (ColumnType(K.SET, labels=("a", "b")), pa.array(["a,b"]), "a,b", "a,b", "a,b"),
    (ColumnType(K.JSON), pa.array(['{"a": null}']), '{"a": null}', '{"a": null}', '{"a"%3A null}'),
    (ColumnType(K.VARBINARY, length=9), pa.array([b"\x00\xff:"], pa.binary()), b"\x00\xff:", "AP86", "00ff3a"),
    (ColumnType(K.GEOMETRY), pa.array([b"\x00\x00\x00\x00\x01"], pa.binary()), b"\x00\x00\x00\x00\x01", "AAAAAAE=",
        "0000000001"),
    (ColumnType(K.UUID), pa.array(["6ccd780c-baba-1026-9564-5b8c656024db"]), "6ccd780c-baba-1026-9564-5b8c656024db",
     "6ccd780c-baba-1026-9564-5b8c656024db", "6ccd780c-baba-1026-9564-5b8c656024db"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "values", "field", "document", "key"), CASES, ids=lambda one: str(getattr(one, "kind", ""))[:20]
)
def test_values_as_text(made: ColumnType, values: pa.Array, field: str | bytes, document: Any, key: str) -> None:
    both = pa.concat_arrays([values, pa.nulls(1, values.type)])
    wanted = field if isinstance(field, bytes) else field.encode()
    assert texts(both, made).to_pylist() == [wanted, None]
    [written, nothing] = json_texts(both, made).to_pylist()
    assert (json.loads(written), nothing) == (document, None)
    assert key_texts(both, made).to_pylist() == [key, None]
    if own_type(made).read is not None and made.kind is not K.ENUM:
        again = read_text(made, key.replace("%3A", ":").replace("%25", "%"))
        assert pa.array([again], values.type).equals(values)


@pytest.mark.parametrize("kind", [K.DATE, K.DATETIME, K.TIMESTAMP])
def test_dates_that_python_lacks_are_read_back_from_keys_and_documents(kind: ColumnKind) -> None:
    """Years before Christ and after 9999, infinite dates, and dates that no calendar has."""
    made = ColumnType(kind, digits=6)
    days = [-(10**6), 4 * 10**6, special_date(2024, 0, 15), 2**31 - 1, -(2**31)]
    times = [day * 86_400_000_000 + 1 for day in days[:2]]
    stored = days if kind is K.DATE else [*times, special_timestamp(0, 0, 0, 9), 2**63 - 1, -(2**63)]
    values = pa.array(stored, pa.int32() if kind is K.DATE else pa.int64()).view(made.arrow_type)
    written = key_texts(values, made).to_pylist()
    for text in (written, iso_texts(values, made).to_pylist()) if kind is not K.DATE else (written,):
        again = [read_text(made, one.replace("%3A", ":")) for one in text]
        assert pa.array(again, made.arrow_type).equals(values)
    for form in OFFERED[kind] if kind is K.DATE else (Form.TEXT,):
        kept = document_values(values, made, form)
        assert pa.array([key_value(made, one) for one in kept], made.arrow_type).equals(values)


def test_every_kind_has_a_text() -> None:
    assert set(OWN) == set(ColumnKind)


def test_a_wider_column_holds_the_same_values() -> None:
    made = ColumnType(K.DECIMAL, 12, 4)
    assert alike(made, b"1.5000", b"1.50")
    assert not alike(made, b"100", b"1")
    assert not alike(made, b"1.5", None)
    assert not alike(ColumnType(K.VARCHAR), b"1.50", b"1.5")
