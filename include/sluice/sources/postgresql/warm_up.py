"""Compiles every kernel of the PostgreSQL source once, on a small made-up log; Numba keeps the result on disk."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from sluice.model.tables import TableId, TableSchema
from sluice.postgresql.column_types import neutral_column
from sluice.sources.postgresql.decoder.in_progress import TransactionsInProgress
from sluice.sources.postgresql.decoder.messages import Relation
from sluice.sources.postgresql.decoder.rows import RowMessages, decode_arena
from sluice.sources.postgresql.decoder.scanner import Scanner
from sluice.sources.postgresql.decoder.table_plan import TablePlan
from sluice.sources.postgresql.position import Position
from sluice.sources.postgresql.protocol.copy_kernel import compile_for_libpq
from sluice.sources.postgresql.snapshot.copy_rows import read_rows

_OID = 16_400
_COLUMNS = (
    ("id", "bigint", "1"),
    ("decided", "boolean", "t"),
    ("price", "numeric(10,2)", "1.50"),
    ("large", "numeric(38,2)", "1.50"),
    ("code", "character(3)", "a  "),
    ("name", "text", "x"),
    ("flags", "bit(3)", "101"),
    ("day", "date", "2026-01-31"),
    ("at", "timestamp with time zone", "2026-01-31 10:00:00.5+00"),
    ("clock", "time without time zone", "10:00:00.5"),
    ("bytes", "bytea", "\\x00ff"),
)
"""Name, type and a value in the server's words: one column for each way to decode."""


class _Relations:
    """One table, whatever the log describes."""

    def __init__(self) -> None:
        columns = tuple(neutral_column(name, words) for name, words, _ in _COLUMNS)
        identity = np.zeros(len(columns), np.uint8)
        identity[0] = 1
        self.plan = TablePlan(TableSchema(TableId("s", "t"), columns, ("id",)), identity)

    def relation(self, relation: Relation, lsn: int, *, has_rows: bool) -> TablePlan | None:
        return self.plan

    def truncate(self, oids: tuple[int, ...], lsn: int) -> bool:
        return False

    def emptied(self, oids: tuple[int, ...]) -> set[int]:
        return set()

    def statement(self, content: bytes, lsn: int) -> None:
        """Nothing is noted."""


def compile_kernels() -> None:
    """Run everything once."""
    relations = _Relations()
    sealed: list[RowMessages] = []
    scanner = Scanner(Position("postgresql:1", 1, 100), arena_bytes=1 << 14)
    scanner.begin(
        relations, sealed.append, events=7, max_changes=10, max_bytes=1 << 20, max_message=1 << 13, stop=0
    )  # fmt: skip
    key, row = (
        _tuple([value if not at else None for at, (*_, value) in enumerate(_COLUMNS)]),
        _tuple([value for *_, value in _COLUMNS]),
    )
    for message in (
        _relation(),
        b"B" + struct.pack(">QqI", 200, 1, 7),
        b"I" + struct.pack(">I", _OID) + b"N" + row,
        b"U" + struct.pack(">I", _OID) + b"K" + key + b"N" + row,
        b"D" + struct.pack(">I", _OID) + b"K" + key,
        b"C\0" + struct.pack(">QQq", 200, 208, 1),
    ):
        _feed(scanner, b"w" + struct.pack(">QQq", 0, 0, 0) + message)
    scanner.scan()
    _compile_for_transactions_in_progress(scanner)
    scanner.finish()
    for rows in sealed:
        list(decode_arena(rows, lambda _, __, count: np.zeros(count, np.uint8)))
    copied = struct.pack(">H", len(_COLUMNS)) + b"".join(
        struct.pack(">I", len(value)) + value.encode() for *_, value in _COLUMNS
    )
    read_rows(copied, relations.plan.schema.columns)
    compile_for_libpq()


class _Block:
    """A connection that gives a transaction in progress, and its commit."""

    def read(self, arena: Scanner, wait_s: float) -> int:
        for message in (
            b"S" + struct.pack(">IB", 9, 1),
            b"Y" + struct.pack(">II", 9, 1) + b"s\0t\0",
            b"E",
            b"c" + struct.pack(">IBQQq", 9, 0, 300, 308, 1),
        ):
            _feed(arena, b"w" + struct.pack(">QQq", 0, 0, 0) + message)
        return 1


def _compile_for_transactions_in_progress(scanner: Scanner) -> None:
    transactions = TransactionsInProgress()
    for _ in range(2):
        transactions.read(_Block(), scanner, 0.0)
        scanner.scan()


def _tuple(values: list[Any]) -> bytes:
    parts = [b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value.encode() for value in values]
    return struct.pack(">H", len(values)) + b"".join(parts)


def _relation() -> bytes:
    columns = b"".join(
        bytes([not at]) + name.encode() + b"\0" + struct.pack(">Ii", 25, -1) for at, (name, *_) in enumerate(_COLUMNS)
    )
    return b"R" + struct.pack(">I", _OID) + b"s\0t\0d" + struct.pack(">H", len(_COLUMNS)) + columns


def _feed(scanner: Scanner, message: bytes) -> None:
    at = scanner.room(len(message))
    framed = len(message).to_bytes(4, "little") + message
    scanner.arena[at : at + len(framed)] = np.frombuffer(framed, np.uint8)
    scanner.received(at + len(framed))


__all__ = ["compile_kernels"]
