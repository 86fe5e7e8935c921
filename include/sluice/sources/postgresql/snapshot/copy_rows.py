"""The rows of a select, by ``COPY … (FORMAT binary)`` of values that are text: framed and decoded in compiled code."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import pq
from psycopg.errors import error_from_result

from sluice.errors import DecodeError
from sluice.kernels import kernel
from sluice.model.tables import Column, stored_name
from sluice.postgresql.connection import Connection
from sluice.sources.postgresql.protocol import copy_kernel
from sluice.sources.postgresql.values.decode import decode

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
PIECE_BYTES = 16 << 20
"""Bytes of rows after which a piece is handed over; a row may be larger."""
_HEAD_BYTES = 19
"""A signature of 11 bytes, flags, and the length of an extension that no server sends."""
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_DAMAGED = -2
_GATHERED_S = 0.0005
_ROOM = 1 << 20
"""Bytes behind a full piece, so that a row seldom needs a larger array."""


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
    number = (
        np.int64(data[at]) << 24 | np.int64(data[at + 1]) << 16 | np.int64(data[at + 2]) << 8 | np.int64(data[at + 3])
    )
    return number - 0x100000000 if number >= 0x80000000 else number


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
    begun = False
    with connection.cursor() as cursor, cursor.copy(f"COPY ({sql}) TO STDOUT (FORMAT binary)".encode()) as copy:
        library = copy_kernel.library_of(connection.pgconn)
        stream = _ByPsycopg(copy) if library is None else _ByLibrary(connection.pgconn, library)
        while not stream.ended:
            stream.fill()
            start = 0 if begun else _head(stream.bytes)
            begun = True
            rows, end = _rows(stream.bytes[start:], columns, schema)
            stream.drop(start + end)
            if rows.num_rows and not stream.ended:
                yield rows
    if len(stream.bytes):
        raise DecodeError(f"the copy of rows ends with {len(stream.bytes)} bytes that are no whole row")
    yield rows


class _Stream:
    """The bytes of a copy that have arrived and are not rows yet."""

    def __init__(self) -> None:
        self.ended = False
        self._buffer = np.empty(PIECE_BYTES + _ROOM, np.uint8)
        self._used = 0

    @property
    def bytes(self) -> Bytes:
        return self._buffer[: self._used]

    def fill(self) -> None:
        """Take more bytes, until a piece is full or the copy ends."""
        raise NotImplementedError

    def drop(self, count: int) -> None:
        """Forget bytes at the beginning."""
        rest = self._buffer[count : self._used].copy()
        self._buffer[: len(rest)] = rest
        self._used = len(rest)

    def _enlarge(self, size: int) -> None:
        """Make room for so many more bytes."""
        if self._used + size > len(self._buffer):
            larger = np.empty(self._used + size + _ROOM, np.uint8)
            larger[: self._used] = self.bytes
            self._buffer = larger


class _ByLibrary(_Stream):
    """Rows without Python."""

    def __init__(self, connection: pq.abc.PGconn, library: copy_kernel.Library) -> None:
        super().__init__()
        self._connection, self._library = connection, library
        self._poll = select.poll()
        self._poll.register(connection.socket, select.POLLIN)

    def fill(self) -> None:
        pointer, address = np.zeros(2, np.int64), int(self._connection.pgconn_ptr or 0)
        full = max(PIECE_BYTES, self._used)
        while True:
            bounds = np.array([self._used, full, len(self._buffer), 0], np.int64)
            code = self._library.take_bytes(address, self._buffer, bounds, pointer)
            self._used = int(bounds[0])
            if code == copy_kernel.NEEDS_ROOM:
                self._enlarge(int(pointer[1]))
                self._library.append(self._buffer, self._used, pointer)
                self._used += int(pointer[1])
            elif code == copy_kernel.NOTHING:
                self._wait()  # the kernel takes what arrives
            elif code == copy_kernel.FULL:
                return
            elif code == copy_kernel.UNREAD:
                raise psycopg.OperationalError(f"reading rows: {self._connection.get_error_message()}")
            else:
                self._end()
                return

    def _wait(self) -> None:
        """Wait for more, and a moment longer. A connection that is dead ends by its keepalives, as an error of reading.

        A server sends 8 KiB at a time, and to wake up for each takes longer than to read it.
        """
        while not self._poll.poll(1000):
            pass
        time.sleep(_GATHERED_S)

    def _end(self) -> None:
        """Take what the server says after the rows. Raises the error that ended them."""
        failed: pq.abc.PGresult | None = None
        while (result := self._result()) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                failed = failed or result
        if failed is not None:
            raise error_from_result(failed)
        self.ended = True

    def _result(self) -> pq.abc.PGresult | None:
        while self._connection.is_busy():
            self._wait()
            self._connection.consume_input()
        return self._connection.get_result()


class _ByPsycopg(_Stream):
    """Rows one by one."""

    def __init__(self, copy: psycopg.Copy) -> None:
        super().__init__()
        self._copy = copy

    def fill(self) -> None:
        full = max(PIECE_BYTES, self._used)
        while self._used <= full:
            data = self._copy.read()
            if not data:
                self.ended = True
                return
            self._enlarge(len(data))
            self._buffer[self._used : self._used + len(data)] = np.frombuffer(data, np.uint8)
            self._used += len(data)


def _head(data: Bytes) -> int:
    """Return the bytes of the head, with which a copy begins."""
    head = data[:_HEAD_BYTES].tobytes()
    if not head.startswith(_SIGNATURE) or len(head) < _HEAD_BYTES:
        raise DecodeError(f"the copy of rows does not begin as PostgreSQL's do: {data[:20].tobytes()!r}")
    return _HEAD_BYTES


def read_rows(data: bytes, columns: Sequence[Column]) -> tuple[pa.Table, bytes]:
    """Return the whole rows of a copy without its head, and the bytes after them."""
    rows, end = _rows(np.frombuffer(bytearray(data), np.uint8), columns, _schema_of(columns))
    return rows, data[end:]


def _schema_of(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(stored_name(column.name), column.arrow_type) for column in columns])


def _rows(data: Bytes, columns: Sequence[Column], schema: pa.Schema) -> tuple[pa.Table, int]:
    """Return the whole rows, and where the bytes after them begin."""
    count, end, _ = _count_rows(data, len(columns))
    if count < 0:
        raise DecodeError("the copy of rows has a row with another number of values than columns were asked for")
    starts = np.empty((len(columns), count), np.int64)
    lengths = np.empty((len(columns), count), np.int32)
    _frame(data, starts, lengths)
    arrays = [decode(column, data, starts[i], lengths[i]) for i, column in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=schema), int(end)


__all__ = ["copy_rows", "read_rows"]
