"""Rows of a select as Arrow tables, decoded from the bytes of the connection: the same types and conventions as rows of
the log.

The select runs as a prepared statement, because only the binary protocol carries FLOAT and DOUBLE as they are;
``character_set_results`` is NULL, so that text comes in the column's own charset and goes through the same tables as
text of the log.
"""

from __future__ import annotations

import select as select_module
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql
from pymysql.connections import Connection
from pymysql.constants import COMMAND

from sluice.config.connections import Endpoint
from sluice.errors import DecodeError, SourceUnavailable
from sluice.model.tables import ENUM_ERROR_VALUE, Column, TableSchema, quoted
from sluice.mysql.column_types import Wire, type_named
from sluice.sources import arrow_buffers
from sluice.sources.mysql.decoder import column_kernels
from sluice.sources.mysql.decoder.rows import _array, _binary, _sets
from sluice.sources.mysql.decoder.transcode import to_utf8
from sluice.sources.mysql.server.connection import connect_settings, log_in, rows_of, source_errors
from sluice.sources.mysql.snapshot import rowset_kernels

PIECE_BYTES = 16 * 2**20
"""Rows are decoded when this many bytes of them are there: bounds the memory of a chunk of wide rows.

A chunk of the usual size is one piece, and its columns need not be joined.
"""

_GATHERED_S = 0.0005
_RECEIVED_BYTES = 2**19
_SPARE = 16
_ROWS_A_PIECE = 1 << 16
_SILENCE_S = 900
"""A select may be silent for long before its first row (a sort); longer than this, the connection counts as dead."""

_NUMBERS = {1: 1, 2: 2, 3: 4, 8: 8, 9: 4}
"""Bytes of a number in the protocol, by its type there."""
_FIXED = {**{code: (size, True) for code, size in _NUMBERS.items()}, 4: (4, False), 5: (8, False), 13: (2, True)}
"""Type in the protocol -> (bytes, True for whole numbers): FLOAT, DOUBLE and YEAR, too."""
_UNSIGNED = 32
_MOMENTS = {Wire.DATE: {10, 14}, Wire.DATETIME: {12}, Wire.TIMESTAMP: {7}, Wire.TIME: {11}}
_ALL_MOMENTS = set().union(*_MOMENTS.values())
_TEMPORAL = {Wire.DATE: 0, Wire.DATETIME: 1, Wire.TIMESTAMP: 2, Wire.TIME: 3}
"""The kernel's number of each."""


def expression(column: Column) -> str:
    """Return what to select so that the column's stored value is sent: ENUM and SET as their numbers, as in the log."""
    name = quoted(column.name)
    return f"CAST({name} AS UNSIGNED)" if type_named(column.sql_type).wire in {Wire.LABEL, Wire.LABELS} else name


@contextmanager
def open_reader(endpoint: Endpoint) -> Iterator[Connection[Any]]:
    """Open a connection for selects: read-only, READ COMMITTED, UTC, text in its own charset, no time limit."""
    settings = connect_settings(endpoint) | {"read_timeout": _SILENCE_S}
    with source_errors(endpoint, "connecting to the source", login=True):
        connection = log_in(endpoint, pymysql.connect, settings)
    try:
        with source_errors(endpoint, "reading rows of the source"):
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute("SET SESSION TRANSACTION READ ONLY")
                cursor.execute("SELECT VERSION()")
                version = str((cursor.fetchone() or ("",))[0])
                limit = "max_statement_time" if "mariadb" in version.lower() else "max_execution_time"
                cursor.execute(f"SET SESSION {limit} = 0")
                cursor.execute("SET character_set_results = NULL")
            yield connection
    finally:
        connection.close()


def text_rows(connection: Connection[Any], sql: str, args: Any = None) -> list[tuple[Any, ...]]:
    """Return the rows of a query about the server, as text: meanwhile, results are sent as UTF-8."""
    rows_of(connection, "SET character_set_results = utf8mb4")
    try:
        return rows_of(connection, sql, args)
    finally:
        rows_of(connection, "SET character_set_results = NULL")


def select(connection: Any, sql: str, columns: Sequence[Column], where: str) -> Iterator[pa.Table]:
    """Run a select whose columns are ``expression(c)`` of each of ``columns``; its rows in pieces of about PIECE_BYTES.

    Args:
        connection: of :func:`open_reader`. where: what is read, for errors.

    Raises:
        pymysql.err.MySQLError: the server refuses (SourceUnavailable, PreflightError through ``source_errors``).
        DecodeError, UnsupportedType: see there.
    """
    statement, count = _prepare(connection, sql)
    if count != len(columns):
        raise DecodeError(f"the server sends {count} columns, {len(columns)} were asked for", where=where)
    connection._execute_command(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", statement, 0, 1))
    connection._read_packet()  # the number of columns
    packets = [connection._read_packet()._data for _ in range(count)]
    kinds = [packet[-6] for packet in packets]
    if not all(
        _is_planned(column, packet[-6], bool(packet[-5] & _UNSIGNED))
        for column, packet in zip(columns, packets, strict=True)
    ):
        raise DecodeError("the server sends columns of other types than were planned", where=where)
    connection._read_packet()
    yield from _Reader(connection, columns, kinds, where).pieces()
    connection._execute_command(COMMAND.COM_STMT_CLOSE, struct.pack("<I", statement))


def _is_planned(column: Column, wire_type: int, unsigned: bool) -> bool:
    """Return True if the server's type of a selected column is that of the plan, as far as it tells them apart."""
    row = type_named(column.sql_type)
    if row.wire is Wire.NUMBER:
        size, is_integer = _FIXED.get(wire_type, (0, False))
        return size == row.wire_bytes and (not is_integer or not row.signed or unsigned == column.unsigned)
    if row.wire in _TEMPORAL:
        return wire_type in _MOMENTS[row.wire]
    return row.wire in {Wire.LABEL, Wire.LABELS} or (wire_type not in _FIXED and wire_type not in _ALL_MOMENTS)


def _is_there(connection: socket.socket, poll: select_module.poll) -> bool:
    """Return True if bytes can be received at once; of those that are decrypted already ``poll`` knows nothing."""
    pending = getattr(connection, "pending", None)
    return bool((pending is not None and pending()) or poll.poll(0))


def _poll_of(connection: socket.socket) -> select_module.poll:
    poll = select_module.poll()
    poll.register(connection, select_module.POLLIN)
    return poll


def _prepare(connection: Any, sql: str) -> tuple[int, int]:
    connection._execute_command(COMMAND.COM_STMT_PREPARE, sql.encode())
    answer = connection._read_packet()
    _, statement, columns, parameters = struct.unpack_from("<BIHH", answer._data, 0)
    for count in (parameters, columns):
        for _ in range(count + 1 if count else 0):
            connection._read_packet()
    return statement, columns


@dataclass(frozen=True, slots=True)
class _Cells:
    """One column's values in a piece of rows: where each lies in ``buffer``, its bytes, and what to fill with 1 where
    there is one.
    """

    buffer: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    every: np.ndarray[Any, Any]
    valid: np.ndarray[Any, Any]


@dataclass
class _Reader:
    """Reads, frames and decodes one result set."""

    connection: Any
    columns: Sequence[Column]
    types: Sequence[int]
    where: str
    _poll: select_module.poll | None = None
    begun: bool = False
    """True once the bytes that PyMySQL had read ahead are taken."""

    def pieces(self) -> Iterator[pa.Table]:
        self.kinds = np.array([_wire_kind(c, t) for c, t in zip(self.columns, self.types, strict=True)], np.int64)
        buffer = np.empty(PIECE_BYTES + 2**20 + _SPARE, np.uint8)
        starts, ends = np.empty(_ROWS_A_PIECE, np.int64), np.empty(_ROWS_A_PIECE, np.int64)
        state = np.zeros(2, np.int64)
        at = end = rows = 0
        while True:
            rows += rowset_kernels.frame(buffer, at, end, starts[rows:], ends[rows:], state)
            at, why = int(state[0]), int(state[1])
            if why == rowset_kernels.BAD:
                raise DecodeError("a row of the source has no bytes", where=self.where)
            if why == rowset_kernels.BIG:
                large_row = self._big(buffer, at, end)
                if large_row is not None:
                    starts[rows], ends[rows] = at + 4, large_row[0]
                    buffer, at, end = self._grown(buffer, 0), large_row[0], large_row[1]
                    rows += 1
                    if rows < len(starts) and at < PIECE_BYTES:
                        continue
                    why = rowset_kernels.FULL
            if why == rowset_kernels.FULL or why == rowset_kernels.END or (rows and at >= PIECE_BYTES):
                if rows:
                    yield self._decode(buffer, starts, ends, rows)
                    rows = 0
                    starts = np.empty(_ROWS_A_PIECE, np.int64)
                    buffer[: end - at] = buffer[at:end].copy()
                    at, end = 0, end - at
                if why == rowset_kernels.END:
                    self._end(buffer, at, end)
                    return
                continue
            if end + 2**20 > len(buffer) - _SPARE:
                buffer = self._grown(buffer, 2**20)
            end = self._receive(buffer, end)

    def _receive(self, buffer: np.ndarray[Any, Any], end: int) -> int:
        """Put what has arrived behind ``end``, at least something; return where it ends."""
        view = memoryview(buffer)[: min(len(buffer) - _SPARE, end + _RECEIVED_BYTES)]  # type: ignore[arg-type]
        try:
            if self.begun:
                return self._received(view, end)
            source = self.connection._rfile  # has read ahead
            buffered = source.peek(1)[: len(view) - end]
            view[end : end + len(buffered)] = source.read(len(buffered))
            self.begun = len(buffered) < len(view) - end
        except OSError as error:
            raise SourceUnavailable(f"reading rows: {error}", where=self.where) from error
        return self._more(end, len(buffered))

    def _received(self, view: memoryview, end: int) -> int:
        """Receive past the file object's buffer, without a look at each of the 16 KiB that a server sends at a time."""
        connection = self.connection._sock
        poll = self._poll = self._poll or _poll_of(connection)
        if not _is_there(connection, poll):
            timeout_s = connection.gettimeout()
            if poll.poll(None if timeout_s is None else timeout_s * 1000):
                time.sleep(_GATHERED_S)  # to wake up for each takes longer than to read it
        while True:
            end = self._more(end, connection.recv_into(view[end:]))
            if end == len(view) or not _is_there(connection, poll):
                return end

    def _more(self, end: int, count: int) -> int:
        if not count:
            raise SourceUnavailable("reading rows: the server closed the connection", where=self.where)
        return end + count

    @staticmethod
    def _grown(buffer: np.ndarray[Any, Any], room: int) -> np.ndarray[Any, Any]:
        return np.concatenate([buffer, np.zeros(len(buffer) + room, np.uint8)]) if room else buffer

    @staticmethod
    def _big(buffer: np.ndarray[Any, Any], at: int, end: int) -> tuple[int, int] | None:
        """Close the gaps in a row of several packets: (end of the row, end of the bytes), None if it is not all
        there.
        """
        p, size = at, 0xFFFFFF
        parts: list[tuple[int, int]] = []
        while size == 0xFFFFFF:
            if p + 4 > end:
                return None
            size = int(buffer[p]) | int(buffer[p + 1]) << 8 | int(buffer[p + 2]) << 16
            if p + 4 + size > end:
                return None
            parts.append((p + 4, size))
            p += 4 + size
        to = at + 4
        for start, length in parts:
            buffer[to : to + length] = buffer[start : start + length].copy()
            to += length
        rest = end - p
        buffer[to : to + rest] = buffer[p:end].copy()
        return to, to + rest

    def _end(self, buffer: np.ndarray[Any, Any], at: int, end: int) -> None:
        """Process the packet after the rows: the end, or an error."""
        size = int(buffer[at]) | int(buffer[at + 1]) << 8 | int(buffer[at + 2]) << 16
        while at + 4 + size > end:
            end = self._receive(buffer, end)
        packet = buffer[at + 4 : at + 4 + size].tobytes()
        if packet[0] == 0xFF:
            pymysql.err.raise_mysql_exception(packet)
        if packet[0] != 0xFE or size > 8:
            raise DecodeError("the rows of the source end in an unknown way", where=self.where)

    # -- values -------------------------------------------------------------------------------------------------------
    def _decode(
        self, buffer: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], rows: int
    ) -> pa.Table:
        offsets = np.empty((len(self.columns), rows), np.int64)
        sizes = np.empty((len(self.columns), rows), np.int64)
        bad = rowset_kernels.walk(buffer, starts, ends, rows, self.kinds, offsets, sizes)
        if bad >= 0:
            raise DecodeError("a row of the source contradicts the protocol", where=self.where)
        every = np.arange(rows)
        columns = [self._column(i, buffer, offsets[i], sizes[i], every) for i in range(len(self.columns))]
        return pa.Table.from_arrays(columns, names=[str(i) for i in range(len(columns))])

    def _column(
        self,
        index: int,
        buffer: np.ndarray[Any, Any],
        offsets: np.ndarray[Any, Any],
        sizes: np.ndarray[Any, Any],
        every: np.ndarray[Any, Any],
    ) -> pa.Array:
        column = self.columns[index]
        wire = type_named(column.sql_type, self.where).wire
        return WIRES[wire](self, index, _Cells(buffer, offsets, sizes, every, np.empty(len(every), np.uint8)))

    def _number(self, index: int, cells: _Cells) -> pa.Array:
        column, rows = self.columns[index], len(cells.every)
        width = type_named(column.sql_type).wire_bytes
        out = np.zeros(rows * width, np.uint8)
        nulls = column_kernels.fill_copy(cells.buffer, cells.offsets, cells.every, width, out, cells.valid)
        return _array(column.arrow_type, rows, cells.valid, nulls, out)

    def _numbers(self, index: int, cells: _Cells) -> tuple[np.ndarray[Any, Any], int]:
        numbers = np.empty(len(cells.every), np.int64)
        width = int(self.kinds[index])
        nulls = column_kernels.fill_little(cells.buffer, cells.offsets, cells.every, width, False, numbers, cells.valid)
        return numbers, nulls

    def _label(self, index: int, cells: _Cells) -> pa.Array:
        numbers, nulls = self._numbers(index, cells)
        return self._enum(self.columns[index], numbers, cells.valid, nulls)

    def _labels(self, index: int, cells: _Cells) -> pa.Array:
        numbers, nulls = self._numbers(index, cells)
        return _sets(self.columns[index].labels, numbers, cells.valid, nulls)

    def _temporal(self, index: int, cells: _Cells) -> pa.Array:
        column, rows = self.columns[index], len(cells.every)
        wire = type_named(column.sql_type).wire
        numbers = np.empty(rows, np.int64)
        nulls = self._checked(
            column,
            rowset_kernels.temporal(cells.buffer, cells.offsets, cells.sizes, _TEMPORAL[wire], numbers, cells.valid),
        )
        stored_numbers = numbers.astype(np.int32) if wire is Wire.DATE else numbers
        return _array(column.arrow_type, rows, cells.valid, nulls, stored_numbers)

    def _decimal(self, index: int, cells: _Cells) -> pa.Array:
        column, rows = self.columns[index], len(cells.every)
        limbs = 8 if column.precision > 38 else 4
        words = np.empty((rows, limbs), np.uint32)
        nulls = self._checked(
            column,
            rowset_kernels.decimals(cells.buffer, cells.offsets, cells.sizes, column.scale, limbs, words, cells.valid),
        )
        return _array(column.arrow_type, rows, cells.valid, nulls, words)

    def _bits(self, index: int, cells: _Cells) -> pa.Array:
        column, rows = self.columns[index], len(cells.every)
        numbers = np.empty(rows, np.int64)
        nulls = self._checked(
            column, rowset_kernels.big_endian(cells.buffer, cells.offsets, cells.sizes, numbers, cells.valid)
        )
        return _array(column.arrow_type, rows, cells.valid, nulls, numbers)

    def _counted(self, index: int, cells: _Cells) -> pa.Array:
        column, rows = self.columns[index], len(cells.every)
        ends = np.empty(rows + 1, np.int64)
        nulls = rowset_kernels.counted_ends(cells.offsets, cells.sizes, ends, cells.valid)
        data = np.empty(int(ends[-1]), np.uint8)
        rowset_kernels.counted_bytes(cells.buffer, cells.offsets, ends, data)
        if column.charset is not None:
            try:
                data, ends = to_utf8(column.charset, data, ends)
            except DecodeError as error:
                raise DecodeError(
                    f"column {column.name}: {error.message}", where=self.where, hint=error.hint
                ) from error
        return _binary(column.arrow_type, rows, cells.valid, nulls, ends, data)

    def _enum(self, column: Column, numbers: np.ndarray[Any, Any], valid: np.ndarray[Any, Any], nulls: int) -> pa.Array:
        if len(numbers) and int(numbers.max()) > len(column.labels):
            raise self._broken(column, "is an ENUM number without a label")
        texts = arrow_buffers.strings([ENUM_ERROR_VALUE if "" in column.labels else "", *column.labels])
        return texts.take(_array(pa.int64(), len(numbers), valid, nulls, numbers))

    def _checked(self, column: Column, nulls: int) -> int:
        if nulls < 0:
            raise self._broken(column, "contradicts its type")
        return int(nulls)

    def _broken(self, column: Column, why: str) -> DecodeError:
        return DecodeError(f"column {column.name}: a value {why}", where=self.where)


WIRES: Mapping[Wire, Callable[[_Reader, int, _Cells], pa.Array]] = {
    Wire.NUMBER: _Reader._number,
    Wire.DATE: _Reader._temporal,
    Wire.DATETIME: _Reader._temporal,
    Wire.TIMESTAMP: _Reader._temporal,
    Wire.TIME: _Reader._temporal,
    Wire.DECIMAL: _Reader._decimal,
    Wire.BITS: _Reader._bits,
    Wire.LABEL: _Reader._label,
    Wire.LABELS: _Reader._labels,
    Wire.COUNTED: _Reader._counted,
}
"""The function of each way in which a result set sends a type (:class:`sluice.mysql.column_types.Wire`)."""


def _wire_kind(column: Column, wire_type: int) -> int:
    """Return the bytes of a fixed value, or the kind of a variable one.

    The server chooses the width of ENUM and SET numbers.
    """
    row = type_named(column.sql_type)
    if row.wire in {Wire.LABEL, Wire.LABELS}:
        return _NUMBERS.get(wire_type, 8)
    if row.wire is Wire.NUMBER:
        return row.wire_bytes
    return rowset_kernels.TIMED if row.wire in _TEMPORAL else rowset_kernels.COUNTED


def named(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Return a piece of :func:`select` under the stored names of all of a definition's columns, with their metadata."""
    return pa.Table.from_arrays(table.columns, schema=pa.schema([schema.field(c) for c in schema.columns]))
