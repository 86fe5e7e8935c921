"""Compiles every kernel once, on a small made-up log; Numba keeps the result on disk."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.model.tables import TableSchema
from sluice.mysql import type_codes as t
from sluice.mysql.column_types import FORMS, Collated
from sluice.sources.mysql.decoder import column_kernels, json_text
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.row_layout import plan_table
from sluice.sources.mysql.decoder.rows import RowEvents, decode_arena
from sluice.sources.mysql.decoder.scanner import Scanner
from sluice.sources.mysql.decoder.transcode import to_utf8
from sluice.sources.mysql.events.table_map import TableMap, parse_table_map
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.snapshot import rowset_kernels


def event(kind: int, body: bytes, *, log_pos: int = 0, server_id: int = 1, stamp: int = 1) -> bytes:
    """Return a packet with one event, with checksum."""
    size = 19 + len(body) + 4
    data = struct.pack("<IBIIIH", stamp, kind, server_id, size, log_pos, 0) + body
    data += struct.pack("<I", zlib.crc32(data))
    return struct.pack("<I", len(data) + 1)[:3] + b"\0" + b"\0" + data


def table_map_body(
    table_id: int, schema: str, table: str, columns: list[tuple[str, int, bytes]], key: list[int]
) -> bytes:
    """Return the body of a table map with names. All columns are nullable, signed, of charset 255 (utf8mb4_0900_ai_ci).

    ``columns``: (name, type, metadata bytes).
    """
    names = b"".join(bytes([len(n)]) + n.encode() for n, _, _ in columns)
    metas = b"".join(m for _, _, m in columns)
    text = [c for c in columns if FORMS[c[1]].collated is Collated.CHARACTER]
    body = struct.pack("<IHH", table_id, 0, 1) + bytes([len(schema)]) + schema.encode() + b"\0"
    body += bytes([len(table)]) + table.encode() + b"\0" + bytes([len(columns)]) + bytes(c[1] for c in columns)
    body += bytes([len(metas)]) + metas + b"\xff" * ((len(columns) + 7) // 8)
    body += bytes([4, len(names)]) + names
    if text:
        charset = b"\xfc\xff\x00"
        body += bytes([2, len(charset)]) + charset
    return body + bytes([8, len(key)]) + bytes(key)


def _image(number: int) -> bytes:
    values = b"\x02hi" + b"\x80\0\0\0\x01" + b"\x99\xa0\0\0\0\0\0\0" + b"\1\0\0" + b"\1"
    return b"\0" + struct.pack("<I", number) + values


def compile_kernels() -> None:
    """Run everything once."""
    columns = [
        ("a", t.LONG, b""),
        ("b", t.VARCHAR, b"\x64\x00"),
        ("c", t.NEWDECIMAL, b"\x0a\x02"),
        ("d", t.DATETIME2, b"\x06"),
        ("e", t.INT24, b""),
        ("f", t.BIT, b"\x03\x00"),
    ]
    table = table_map_body(7, "s", "t", columns, [0, 1])
    rows = struct.pack("<IHHH", 7, 0, 0, 2) + bytes([6]) + b"\x3f"
    update = struct.pack("<IHHH", 7, 0, 0, 2) + bytes([6]) + b"\x3f\x3f"
    gtid = b"\0" + bytes(16) + struct.pack("<Q", 1) + b"\2" + bytes(16) + bytes(7)
    begin = struct.pack("<IIBHH", 0, 0, 0, 0, 0) + b"\0BEGIN"
    events = [event(33, gtid), event(2, begin), event(19, table), event(30, rows + _image(1))]
    events += [event(31, update + _image(1) + _image(2)), event(16, bytes(8))]
    log = b"".join(events)
    sealed: list[RowEvents] = []
    names = {255: ("utf8mb4_0900_ai_ci", "utf8mb4")}

    def plan(table_map: TableMap, _: str) -> Any:
        return plan_table(table_map, names.__getitem__)

    scanner = Scanner(
        Position("", "b.1", 4), tables=plan, statement=lambda _: False, seal=sealed.append, arena_bytes=1 << 16
    )
    buffer = np.zeros(len(log) + 16, np.uint8)
    buffer[: len(log)] = np.frombuffer(log, np.uint8)
    scanner.feed(buffer, len(log), 0)
    scanner.finish()
    sc.whole_events(buffer, 0)

    def buckets(_: TableSchema, __: Any, count: int) -> np.ndarray[Any, Any]:
        return np.zeros(count, np.uint8)

    for rows_of_arena in sealed:
        list(decode_arena(rows_of_arena, buckets))
    ends = np.zeros(2, np.int64)
    some = np.zeros(16, np.uint8)
    to_utf8("latin1", some, ends)
    one_cell, valid = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    column_kernels.fill_padded(some, one_cell, one_cell, 1, 4, ends, some.copy(), valid)
    one_cell[0], valid[0] = 1, 1
    json_text.json_texts(np.frombuffer(bytearray(b"\x0b" + bytes(8)), np.uint8), np.array([0, 9]), valid)
    assert parse_table_map(table).named
    assert pa.__version__
    rowset_kernels.warm_up()
