"""The rows of a select, by ``COPY … (FORMAT binary)`` of values that are text: framed and decoded in compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import DecodeError
from sluice.kernels import kernel
from sluice.model.tables import Column, stored_name
from sluice.postgresql.connection import Connection
from sluice.sources.postgresql.values.decode import decode

PIECE_BYTES = 16 << 20
"""Bytes of rows after which a piece is handed over; a row may be larger."""
_HEAD_BYTES = 19
"""A signature of 11 bytes, flags, and the length of an extension that no server sends."""
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_DAMAGED = -2


@kernel
def _count_rows(data: Any, columns: Any) -> Any:
    """Return (rows that are whole, where the next begins, whether the end was met); -2 rows: it is no such stream."""
    at, rows, size = np.int64(0), np.int64(0), data.shape[0]
    while at + 2 <= size:
        count = np.int64(data[at]) << 8 | np.int64(data[at + 1])
        if count == 0xFFFF:
            return rows, at + 2, True
        if count != columns:
            return np.int64(_DAMAGED), at, False
        end = at + 2
        for _ in range(columns):
            if end + 4 > size:
                return rows, at, False
            length = _length(data, end)
            end += 4 + max(length, 0)
        if end > size:
            return rows, at, False
        at = end
        rows += 1
    return rows, at, False


@kernel
def _length(data: Any, at: Any) -> Any:
    found = (
        np.int64(data[at]) << 24 | np.int64(data[at + 1]) << 16 | np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
    )
    return found - 0x100000000 if found >= 0x80000000 else found


@kernel
def _frame(data: Any, starts: Any, lengths: Any) -> Any:
    """Fill where each value begins, and its bytes (-1: NULL), by column and row."""
    at = np.int64(0)
    for row in range(starts.shape[1]):
        at += 2
        for column in range(starts.shape[0]):
            length = _length(data, at)
            at += 4
            starts[column, row] = at
            lengths[column, row] = length
            at += max(length, 0)


def copy_rows(connection: Connection, sql: str, columns: Sequence[Column]) -> Iterator[pa.Table]:
    """Yield the rows of a select, whose values are texts of ``columns``, piece by piece.

    Raises what psycopg raises; UnsupportedType and DecodeError, see :func:`decode`.
    """
    schema = _schema_of(columns)
    held: list[bytes] = []
    size, begun = 0, False
    with connection.cursor() as cursor, cursor.copy(f"COPY ({sql}) TO STDOUT (FORMAT binary)".encode()) as copy:
        for block in copy:
            held.append(bytes(block))
            size += len(block)
            if size >= PIECE_BYTES:
                data, begun = _without_head(b"".join(held), begun)
                rows, rest = _rows(data, columns, schema)
                held, size = [rest], len(rest)
                if rows.num_rows:
                    yield rows
        data, begun = _without_head(b"".join(held), begun)
        rows, rest = _rows(data, columns, schema)
    if rest:
        raise DecodeError(f"the copy of rows ends with {len(rest)} bytes that are no whole row")
    yield rows


def _without_head(data: bytes, begun: bool) -> tuple[bytes, bool]:
    if begun:
        return data, True
    if not data.startswith(_SIGNATURE) or len(data) < _HEAD_BYTES:
        raise DecodeError(f"the copy of rows does not begin as PostgreSQL's do: {data[:20]!r}")
    return data[_HEAD_BYTES:], True


def read_rows(data: bytes, columns: Sequence[Column]) -> tuple[pa.Table, bytes]:
    """Return the whole rows of a copy without its head, and the bytes after them."""
    return _rows(data, columns, _schema_of(columns))


def _schema_of(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(stored_name(column.name), column.arrow_type) for column in columns])


def _rows(data: bytes, columns: Sequence[Column], schema: pa.Schema) -> tuple[pa.Table, bytes]:
    """Return the whole rows, and the bytes after them."""
    view = np.frombuffer(data, np.uint8)
    count, end, _ = _count_rows(view, len(columns))
    if count < 0:
        raise DecodeError("the copy of rows has a row with another number of values than columns were asked for")
    starts = np.empty((len(columns), count), np.int64)
    lengths = np.empty((len(columns), count), np.int32)
    _frame(view, starts, lengths)
    arrays = [decode(column, view, starts[i], lengths[i]) for i, column in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=schema), data[int(end) :]


__all__ = ["copy_rows", "read_rows"]
