"""Feeds recorded logs to the scanner as a server would send them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import UnsupportedType
from sluice.model.tables import META_COLUMNS
from sluice.model.temporal import to_text
from sluice.mysql.ddl.catalog import SchemaState
from sluice.segments.buckets import key_bucket
from sluice.sources.mysql.catalog.history_tracker import SchemaTracker
from sluice.sources.mysql.decoder.row_layout import RowLayout, plan_table
from sluice.sources.mysql.decoder.rows import RowEvents, decode_arena
from sluice.sources.mysql.decoder.scanner import LoggedStatement, Scanner
from sluice.sources.mysql.events.table_map import TableMap
from sluice.sources.mysql.position import Position

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
FLAVOURS = sorted(path.stem for path in GOLDEN.glob("*.binlog"))


class Golden:
    """A recorded log and what it must give."""

    def __init__(self, flavour: str) -> None:
        about = json.loads((GOLDEN / f"{flavour}.json").read_text(encoding="utf-8"))
        self.file: str = about["file"]
        self.rows: list[Any] = about["rows"]
        self.transactions: int = about.get("transactions", 5)
        self.columns: list[str] = about["columns"]
        self.collations = {int(k): tuple(v) for k, v in about["collations"].items()}
        self.definitions: dict[str, Any] | None = about.get("definitions")
        self.mariadb = flavour.startswith("mariadb")
        self.data = (GOLDEN / f"{flavour}.binlog").read_bytes()

    def collation(self, number: int) -> tuple[str, str]:
        if number not in self.collations:
            raise UnsupportedType(f"collation {number}")
        return self.collations[number]

    def events(self) -> list[bytes]:
        found, at = [], 4
        while at < len(self.data):
            size = struct.unpack_from("<I", self.data, at + 9)[0]
            found.append(self.data[at : at + size])
            at += size
        return found

    def wire(self) -> bytes:
        return packets(self.events())

    def scanner(self, sealed: list[RowEvents], arena_bytes: int = 1 << 20) -> Scanner:
        start = Position("mariadb:1" if self.mariadb else "uuid", self.file, 4)
        tracker: SchemaTracker | None = None
        if self.definitions is not None:
            state = SchemaState.from_json(self.definitions)
            tracker = SchemaTracker(lambda: state, lambda: self.collations)

        def plan(table_map: TableMap, where: str) -> RowLayout:
            if tracker is not None:
                table_map = tracker.complete(table_map, start, where)
            return plan_table(table_map, self.collation, where=where)

        def statement(found: LoggedStatement) -> bool:
            if tracker is not None and tracker.statement(found):
                scanner.definitions_changed()
            return False

        scanner = Scanner(
            start, tables=plan, statement=statement, seal=sealed.append, mariadb=self.mariadb, arena_bytes=arena_bytes
        )
        return scanner


def packets(events: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(e) + 1)[:3] + b"\x00\x00" + e for e in events)


def run(scanner: Scanner, wire: bytes, cuts: list[int]) -> None:
    """Feed ``wire`` in pieces that end at ``cuts``."""
    buffer = np.zeros(len(wire) + 16, np.uint8)
    used = end = 0
    for cut in [*sorted(c for c in cuts if c < len(wire)), len(wire)]:
        buffer[end:cut] = np.frombuffer(wire[end:cut], np.uint8)
        end = cut
        used, _ = scanner.feed(buffer, end, used)
    assert used == end
    scanner.finish()


def table_of(sealed: list[RowEvents], columns: list[str] | None = None) -> pa.Table:
    """All rows in log order; ``columns``: those that every definition met has."""
    tables = []
    for rows in sealed:
        for _, table in decode_arena(rows, lambda s, keys, n: key_bucket(s.table.schema, s.table.table, keys, n)):
            tables.append(table if columns is None else _narrowed(table, columns))
    whole = pa.concat_tables(tables)
    return whole.filter(pa.compute.not_equal(whole["_op"], "k")).sort_by("_seq").combine_chunks()


def _narrowed(table: pa.Table, columns: list[str]) -> pa.Table:
    old = table["_before"].combine_chunks()
    children = [pa.compute.struct_field(old, name) for name in columns]
    before = pa.StructArray.from_arrays(children, names=columns, mask=pa.compute.is_null(old))
    kept = [name for name in META_COLUMNS if name in table.schema.names and name != "_before"]
    fields = [table.schema.field(name) for name in columns]
    return pa.table(
        [*(table[name] for name in columns), *(table[name] for name in kept), before],
        schema=pa.schema([*fields, *(table.schema.field(name) for name in kept), pa.field("_before", before.type)]),
    )


def printed(column: pa.Array, field: pa.Field) -> list[str | None]:
    kind = column.type
    if pa.types.is_temporal(kind):
        return to_text(
            column, fsp=int(field.metadata[b"sluice.type"].decode().partition("(")[2].rstrip(")") or 0)
        ).to_pylist()
    if pa.types.is_binary(kind):
        return [None if v is None else v.hex().upper() for v in column.to_pylist()]
    if field.metadata[b"sluice.type"] == b"year":
        return [None if v is None else f"{v:04d}" for v in column.to_pylist()]
    return [None if v is None else str(v) for v in column.to_pylist()]


def rows_of(table: pa.Table, columns: list[str]) -> list[Any]:
    """[op, before, after] of every change, as text."""
    main = [
        printed(table[c].chunk(0) if table[c].num_chunks else table[c].combine_chunks(), table.schema.field(c))
        for c in columns
    ]
    old = table["_before"].combine_chunks()
    old = old.chunk(0) if isinstance(old, pa.ChunkedArray) else old
    befores = [printed(old.field(c), table.schema.field(c)) for c in columns]
    out = []
    for i, op in enumerate(table["_op"].to_pylist()):
        row, before = [m[i] for m in main], [b[i] for b in befores]
        out.append(["d", row, None] if op == "d" else [op, before if op == "u" else None, row])
    return out
