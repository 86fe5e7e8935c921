"""Reads the rows of a prepared XA transaction again, when its commit comes and they are no longer in memory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymysql
import structlog

from sluice.config.connections import Endpoint
from sluice.errors import ChecksumMismatch, DecodeError, LostPosition, SourceUnavailable
from sluice.model.log_files import split_file
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.scanner import Scanner
from sluice.sources.mysql.decoder.xa_buffer import ROW_KINDS
from sluice.sources.mysql.events import control as ev
from sluice.sources.mysql.events import xa
from sluice.sources.mysql.events.packets import bytes_of_next
from sluice.sources.mysql.events.unreadable import AROUND
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump
from sluice.sources.mysql.protocol.log_archive import open_log
from sluice.sources.mysql.server.connection import open_connection, rows_of, source_errors
from sluice.sources.mysql.server.server_ids import prepared_id

_log = structlog.get_logger()

_PIECE_BYTES = 2**20
_BUFFER_BYTES = 4 * 2**20
_SPARE = 16
_FIRST_OFFSET = 4
_LAST_ADDRESSABLE = 2**32 - 1
_ROWS = ROW_KINDS | {19, 166, 167, 168, 169, 170, 171}


class PreparedReader:
    """Finds prepared transactions in the source's log. Callable as the scanner's ``reread``.

    Args:
        server_id: of the capture; dumps from here use another one, derived from it, so that they don't cut off the
            capture's.

    Raises:
        LostPosition: the log no longer has the transaction. SourceUnavailable, CaptureError.
    """

    def __init__(self, endpoint: Endpoint, *, server_id: int, mariadb: bool) -> None:
        self._endpoint = endpoint
        self._server_id = prepared_id(server_id)
        self._mariadb = mariadb

    def __call__(self, xid: str, place: xa.Prepared | None, before: Position) -> Iterator[bytes]:
        """Yield the transaction's table maps and row events, in pieces of about a megabyte.

        ``before``: a position after its prepare.
        """
        prepared = place or self._find(xid, before)
        if prepared is None:
            raise LostPosition(
                f"the XA transaction {xid} commits, but its rows are not in the log: they were written before the "
                "oldest file",
                hint=AROUND,
            )
        _log.info("xa_rows_found", xid=xid, file=prepared.file, offset=prepared.offset)
        return self._read(prepared, before.at(file=prepared.file, offset=prepared.offset))

    def _read(self, prepared: xa.Prepared, start: Position) -> Iterator[bytes]:
        if start.offset > _LAST_ADDRESSABLE:
            raise LostPosition(f"the rows of XA transaction {prepared.xid} stand beyond 4 GiB in {prepared.file}")
        piece: list[bytes] = []
        size = 0
        for event in self._events(start, prepared):
            if event[4] == 38:
                break
            piece.append(event)
            size += len(event)
            if size >= _PIECE_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
        yield b"".join(piece)

    def _events(self, start: Position, prepared: xa.Prepared) -> Iterator[bytes]:
        """Yield rows, table maps and the final XA prepare (kind 38) of the transaction that begins at ``start``."""
        inside = False
        for event in self._log(start):
            kind = event[4]
            if kind == 40:
                nested = list(_split(b"".join(ev.payload_pieces(event))))
            elif 166 <= kind <= 171:
                nested = [ev.parse_rows_compressed(event)]
            else:
                nested = [event]
            for inner_event in nested:
                kind = inner_event[4]
                if not inside:
                    xid = _begins(inner_event)
                    if xid is not None and xid != prepared.xid:
                        raise DecodeError(f"the XA transaction {prepared.xid} is not at {start}; {xid} is")
                    inside = xid is not None
                elif kind in _ROWS or kind == 38:
                    yield inner_event
                    if kind == 38:
                        return

    def _log(self, start: Position) -> Iterator[bytes]:
        """Yield events from a position on, without their checksums."""
        stream = open_log(self._endpoint, server_id=self._server_id, start=start, mariadb=self._mariadb)
        checksum = stream.checksum
        try:
            while True:
                event = self._next(stream, start)
                if len(event) < ev.HEADER:
                    raise DecodeError("an event is too short", where=str(start))
                if event[4] == 15:
                    checksum = ev.parse_format(event)[1]
                elif checksum:
                    if zlib.crc32(event[:-4]) != struct.unpack("<I", event[-4:])[0]:
                        raise ChecksumMismatch("the checksum of an event is wrong", where=str(start))
                    event = ev.without_checksum(event[:-4])
                yield event
        finally:
            stream.close()

    def _next(self, stream: BinlogDump, start: Position) -> bytes:
        try:
            with source_errors(self._endpoint, f"reading a prepared XA transaction again from {start}"):
                return bytes(stream.connection._read_packet()._data[1:])
        except SourceUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, pymysql.err.MySQLError) and cause.args[:1] == (1236,):
                raise LostPosition(
                    f"the rows of a prepared XA transaction are no longer in the server's log: {cause.args[1]}",
                    where=str(start),
                    hint=AROUND,
                ) from error
            raise

    # -- a transaction whose place is not known ------------------------------------------------------------------------
    def _find(self, xid: str, before: Position) -> xa.Prepared | None:
        """Look through the log backwards, a file at a time."""
        with open_connection(self._endpoint) as connection:
            names = [str(row[0]) for row in rows_of(connection, "SHOW BINARY LOGS")]
        last = split_file(before.file)[1]
        stop = before
        for name in reversed([n for n in names if split_file(n)[1] <= last]):
            start = before.at(file=name, offset=_FIRST_OFFSET)
            _log.info("xa_search_started", xid=xid, file=name)
            for item in self._survey(start, stop):
                if item.xid == xid:
                    return item
            stop = start
        return None

    def _survey(self, start: Position, stop: Position) -> list[xa.Prepared]:
        """Return what was prepared in a part of the log and is still waiting at its end."""
        scanner = _Survey(start, stop, mariadb=self._mariadb)
        stream = open_log(self._endpoint, server_id=self._server_id, start=start, mariadb=self._mariadb)
        buffer = np.zeros(_BUFFER_BYTES + _SPARE, np.uint8)
        used = end = 0
        try:
            scanner.s[sc.S_CRC] = int(stream.checksum)
            while scanner.found is None:
                if end + 2**20 > len(buffer) - _SPARE or used == end:
                    buffer[: end - used] = buffer[used:end]
                    used, end = 0, end - used
                need = bytes_of_next(buffer, end, used)
                if need + _SPARE > len(buffer):
                    buffer = np.concatenate([buffer, np.zeros(need, np.uint8)])
                count = stream.receive(buffer[: len(buffer) - _SPARE], end, 1.0)
                if count == 0:
                    stream.check_alive()
                    continue
                end += count
                used, _ = scanner.feed(buffer, end, used)
                scanner.look()
        finally:
            stream.close()
        return scanner.found


class _Survey(Scanner):
    """Reads no rows; ``found`` is what was prepared when it came to ``stop``."""

    def __init__(self, start: Position, stop: Position, *, mariadb: bool) -> None:
        self._until = stop
        self.found: list[xa.Prepared] | None = None
        super().__init__(
            start,
            tables=lambda *_: None,
            statement=lambda _: False,
            seal=lambda _: None,
            reread=lambda *_: (),
            mariadb=mariadb,
        )

    def look(self) -> None:
        """Note what is prepared, if this is the place."""
        if self.found is None and self.reached(self._until):
            self.found = self.prepared

    def _answer(self, code: int, buffer: np.ndarray[Any, Any]) -> bool:
        self.look()
        return super()._answer(code, buffer)


def _begins(event: bytes) -> str | None:
    """Return the id of the XA transaction that this event begins, None if it begins none."""
    if event[4] == 2:
        sql = ev.parse_query(event).sql
        if sql.upper().startswith(("XA START", "XA BEGIN")):
            return xa.parse_statement(sql)[1]
    elif event[4] == 162:
        gtid = ev.parse_mariadb_gtid(event)
        if gtid.prepares and gtid.xid is not None:
            return xa.xid_text(*gtid.xid)
    return None


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + ev.HEADER <= len(data):
        size = struct.unpack_from("<I", data, at + 9)[0]
        if size < ev.HEADER:
            raise DecodeError("an event in a transaction payload is too short")
        yield data[at : at + size]
        at += size
