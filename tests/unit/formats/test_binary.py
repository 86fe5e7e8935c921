"""Avro and Protobuf by the kernel: the bytes that fastavro and protobuf give, for columns of all types."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.model.changes import SourceName
from sluice.model.column_types import ColumnKind as K
from sluice.model.default_values import DefaultValue
from sluice.model.offset import Offset
from sluice.model.tables import META_FIELDS, Column, TableId, TableSchema
from sluice.model.temporal import TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, date_number, timestamp_number
from sluice.targets.messages.documents import MessageWriter
from sluice.targets.messages.form import MessageForm
from sluice.targets.messages.transactions import NumberedPiece
from sluice.targets.port import ChangePiece

avro = pytest.importorskip("sluice.formats.avro")
protobuf = pytest.importorskip("sluice.formats.protobuf")
TABLE = TableId("shop", "odd-name")
COUNT = 80
NO_TIME = [timestamp_number("0000-00-00 00:00:00"), TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY]
Values = Callable[[random.Random], Any]


def whole(low: int, high: int) -> Values:
    """Numbers of all lengths, and the least and greatest."""
    return lambda r: r.choice([0, low, high, max(low, -1), r.randint(low, high), r.randint(0, high) >> r.randrange(64)])


def ints(kind: K, bits: int, *, unsigned: bool = False) -> tuple[dict[str, Any], Values]:
    half = 2 ** (bits - 1)
    described = {"kind": kind, "sql_type": kind.value + (" unsigned" if unsigned else ""), "unsigned": unsigned}
    return described, whole(0, 2 * half - 1) if unsigned else whole(-half, half - 1)


def decimals(precision: int) -> tuple[dict[str, Any], Values]:
    number = whole(-(10**precision) + 1, 10**precision - 1)
    column = {"kind": K.DECIMAL, "sql_type": f"decimal({precision},4)", "precision": precision, "scale": 4}
    return column, lambda r: Decimal(f"{number(r)}e-4")


def times(kind: K, digits: int, *, far: bool = False) -> tuple[dict[str, Any], Values]:
    first, last = timestamp_number("0001-01-01 00:00:00"), timestamp_number("9999-12-31 23:59:59.999999")
    column = {"kind": kind, "sql_type": f"{kind.value}({digits})", "fsp": digits}
    return column, lambda r: r.choice([*(NO_TIME if far else ()), first, last, r.randint(first, last)])


def floats(r: random.Random) -> float:
    some = [0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 0.1, 3.4e38, 1e-45, r.uniform(-9, 9)]
    return float(np.float32(r.choice(some)))


def point(r: random.Random) -> bytes:
    return struct.pack("<IBIdd", r.choice([0, 4326]), 1, 1, floats(r), floats(r))


def text(r: random.Random) -> str:
    return "".join(r.choice(' "\\aé😀\0\n') for _ in range(r.choice([0, 1, 63, 64, 127, 128, 9000])))


def binary(r: random.Random) -> bytes:
    return r.randbytes(r.choice([0, 1, 20, 128]))


TYPES: dict[str, tuple[dict[str, Any], Values]] = {
    "tinyint": ints(K.TINYINT, 8), "int": ints(K.INT, 32), "bigint": ints(K.BIGINT, 64),
    "mediumint": ints(K.MEDIUMINT, 24), "unsigned int": ints(K.INT, 32, unsigned=True),
    "unsigned bigint": ints(K.BIGINT, 64, unsigned=True), "decimal": decimals(12), "long decimal": decimals(60),
    "float": ({"kind": K.FLOAT, "sql_type": "float"}, floats), "double": ({"kind": K.DOUBLE, "sql_type": "double"}, floats),
    "bit": ({"kind": K.BIT, "sql_type": "bit(1)"}, whole(0, 1)),
    "bits": ({"kind": K.BIT, "sql_type": "bit(12)"}, whole(0, 4095)),
    "date": ({"kind": K.DATE, "sql_type": "date"}, whole(date_number("0001-01-01"), date_number("9999-12-31"))),
    "no date": ({"kind": K.DATE, "sql_type": "date"}, lambda r: r.choice([date_number("0000-00-00"), 1])),
    "datetime": times(K.DATETIME, 0), "far datetime": times(K.DATETIME, 6, far=True),
    "timestamp": times(K.TIMESTAMP, 3), "far timestamp": times(K.TIMESTAMP, 6, far=True),
    "time": ({"kind": K.TIME, "sql_type": "time(6)", "fsp": 6}, whole(-(2**41), 2**41)), "year": ints(K.YEAR, 11, unsigned=True),
    "text": ({"kind": K.TEXT, "sql_type": "text", "charset": "utf8mb4"}, text),
    "bytes": ({"kind": K.BLOB, "sql_type": "blob"}, binary),
    "enum": ({"kind": K.ENUM, "sql_type": "enum('a','b')", "labels": ("a", "b")}, lambda r: r.choice("ab")),
    "json": ({"kind": K.JSON, "sql_type": "json"}, lambda r: r.choice(["{}", '{"a":"é"}'])),
    "point": ({"kind": K.GEOMETRY, "sql_type": "point", "shape": "point"}, point),
    "geometry": ({"kind": K.GEOMETRY, "sql_type": "geometry", "shape": "geometry"}, lambda r: point(r) + binary(r)),
    "vector": ({"kind": K.VECTOR, "sql_type": "vector(99)"},
        lambda r: np.array([r.uniform(-9, 9)] * r.choice([0, 1, 64]), "<f4").tobytes()),
    "uuid": ({"kind": K.UUID, "sql_type": "uuid"}, lambda r: str(uuid.UUID(int=r.getrandbits(128)))),
}  # fmt: skip
COLUMNS = (
    Column("id", K.BIGINT, "bigint unsigned", nullable=False, unsigned=True),
    *(Column(name, **described) for name, (described, _) in TYPES.items()),
    *(Column(f"required {name}", nullable=False, **described) for name, (described, _) in TYPES.items()),
)
SCHEMA = TableSchema(TABLE, COLUMNS, ("id",))


class Numbers:
    def number_of(self, table: TableId | str, side: str, record: str, schema: str, kind: str) -> int:
        return 70_000


def piece_of(r: random.Random, *, merged: bool) -> ChangePiece:
    """Rows with and without an image before, of all operations."""
    ops = [r.choice("iudr") for _ in range(COUNT)]
    existed = [op == "u" or (op == "d" and merged) for op in ops]
    fields = [SCHEMA.field(column) for column in COLUMNS]
    keys = pa.array([r.getrandbits(64) for _ in ops], pa.uint64())

    def image() -> list[pa.Array]:
        values = [
            [
                None if column.nullable and r.random() < 0.3 else TYPES[column.name.removeprefix("required ")][1](r)
                for _ in ops
            ]
            for column in COLUMNS[1:]
        ]
        return [keys, *(pa.array(some, f.type) for some, f in zip(values, fields[1:], strict=True))]

    seq = np.arange(COUNT, dtype=np.uint64)
    meta = {
        "_op": pa.array(list(ops)), "_seq": pa.array(seq), "_file": pa.array(["binlog.000042"] * COUNT),
        "_offset": pa.array(seq * np.uint64(2**40)), "_row": pa.array(np.zeros(COUNT, np.uint32)),
        "_commit_ts": pa.array(1_763_683_200_123_456 + np.arange(COUNT)).cast(pa.timestamp("us", tz="UTC")),
        "_gtid": pa.array([str(n) if n % 3 else None for n in range(COUNT)]), "_txn": pa.array(seq),
        "_origin": pa.array(np.full(COUNT, 2**32 - 1, np.uint32)), "_bucket": pa.array(np.zeros(COUNT, np.uint8)),
    }  # fmt: skip
    before = pa.StructArray.from_arrays(image(), fields=fields, mask=pa.array([not one for one in existed]))
    names = [field for field in META_FIELDS if field.name in meta]
    rows = pa.table(
        [*image(), *(meta[field.name] for field in names), before],
        schema=pa.schema([*fields, *names, pa.field("_before", before.type)]),
    )
    if merged:
        rows = rows.drop_columns(["_file", "_offset", "_row", "_gtid", "_txn", "_origin", "_bucket"])
    nothing = pa.array(np.zeros(COUNT, np.uint64))
    piece = ChangePiece(TABLE, ("id",), rows, nothing, nothing.cast(pa.uint32()))
    if merged:
        return piece
    orders, ids = pa.array(seq), pa.array([None if op == "r" else f"tx{n}" for n, op in enumerate(ops)])
    return NumberedPiece(piece.table, piece.key, rows, piece.txn_row, piece.part, ids, orders, orders)


@pytest.mark.parametrize("source", ["shop", SourceName("shop", "postgresql", "")], ids=["mysql", "postgresql"])
@pytest.mark.parametrize("merged", [False, True], ids=["all", "latest"])
@pytest.mark.parametrize("form", ["debezium-avro", "debezium-protobuf"])
def test_the_bytes_of_the_formats_own_encoders(form: str, merged: bool, source: str, monkeypatch: Any) -> None:
    piece = piece_of(random.Random(f"{form} {merged} {source}"), merged=merged)
    at = Offset.at("u", "binlog.000042", 2**40) if merged else None
    defaults = {TABLE: {"text": DefaultValue(pa.scalar("é")), "bytes": DefaultValue(pa.scalar(b"\xff"))}}
    writer = MessageWriter(MessageForm(format=form), source, 1, at, Numbers(), defaults)
    slow = writer.one_by_one(piece)
    for module in (avro, protobuf):
        monkeypatch.delattr(module.Encoder, "encode")
    quick = writer.messages(piece)
    for side in ("keys", "values", "routes"):
        for number, pair in enumerate(zip(getattr(quick, side), getattr(slow, side), strict=True)):
            assert pair[0] == pair[1], f"{side} {number}"


def test_what_the_kernel_cannot_encode() -> None:
    """The encoder of documents has the last word: a NULL where the schema has none, and a text in place of a vector."""
    for name, values in (("required int", pa.nulls(COUNT, pa.int32())), ("vector", pa.array(["[1]"] * COUNT))):
        piece = piece_of(random.Random(1), merged=False)
        number = piece.rows.schema.get_field_index(name)
        rows = piece.rows.set_column(number, piece.rows.field(number).with_type(values.type), values)
        writer = MessageWriter(MessageForm(format="debezium-avro"), "shop", 1, None, Numbers())
        with pytest.raises((TypeError, ValueError)):
            writer.messages(replace(piece, rows=rows))
