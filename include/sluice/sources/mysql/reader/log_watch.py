"""A watch of a server's log: which tables were written to since the last look. It serves every pipeline of the server.

It costs two connections and a question a look. Rows are skipped unread: of a transaction only the table maps are looked
at. What cannot be told by them (a statement, an XA transaction, an event of an unknown kind) counts as a change of
every table.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from sluice.config.connections import Endpoint
from sluice.errors import SluiceError, SourceUnavailable
from sluice.model.log_files import split_file
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.sources.mysql.events import control as ev
from sluice.sources.mysql.events.gtids import MariaDbGtidState
from sluice.sources.mysql.events.server_error import server_error
from sluice.sources.mysql.position import LastEvent, Position
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump
from sluice.sources.mysql.server.connection import connected, log_status, rows_of, source_errors

_READ_BACK_BYTES = 64 * 2**20
"""The first look reads at most so much log that was written before it; a pipeline that is further behind has to look
for itself.
"""

_STEP_S = 2.0
"""A look reads no longer; the next one goes on. It is called several times a second, and reads some 100 MB a second."""

_HEAD = 4
_QUERY, _TABLE_MAP, _PAYLOAD = 2, 19, 40
_GTID, _TAGGED_GTID, _MARIADB_GTID, _MARIADB_GTID_LIST = 33, 42, 162, 163
_SILENT = frozenset({
    3, 5, 13, 14, 15, 16, 23, 24, 25, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 39, 41, 42, 160, 161, 162, 163, 164,
    166, 167, 168, 169, 170, 171,
})  # fmt: skip
"""Kinds that change no table, or whose table a table map has named."""
_HARMLESS = (
    b"BEGIN", b"COMMIT", b"ROLLBACK", b"SAVEPOINT ", b"RELEASE SAVEPOINT ", b"# DUM",
    b"GRANT ", b"REVOKE ", b"CREATE USER ", b"ALTER USER ", b"DROP USER ", b"SET PASSWORD ", b"FLUSH ", b"ANALYZE ",
)  # fmt: skip
"""How statements begin that bound transactions, are about users, or stand for an event that MariaDB does not send."""

Order = tuple[int, int]


class LogWatch:
    """See :class:`sluice.sources.port.LogWatch`. Not for several threads.

    Attributes:
        touched: table -> order of the last change of it that was seen.
        fresh: tables that the last look saw changes of; None: any table may have changed.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._opened = ExitStack()
        self._connection: Any = None
        self._dump: BinlogDump | None = None
        self._uuid = self._base = ""
        self._mariadb = False
        self._end: tuple[str, int, str] = ("", 0, "")
        self._known_from: Order = (0, 0)
        self._file, self._offset = "", 0
        self._all: Order = (0, 0)
        self._buffer: np.ndarray[Any, Any] = np.zeros(2**20, np.uint8)
        self._data = bytearray()
        self._skip = 0
        self._goes_on = False
        self._last: tuple[int, bytes] | None = None
        self._last_gtid = ""
        self._domains: MariaDbGtidState | None = None
        self._time_s = 0
        self.touched: dict[TableId, Order] = {}
        self.fresh: set[TableId] | None = set()

    def look(self, since: Offset | None = None) -> bool:
        """Ask where the log ends, and read what was written since the last look. True if it moved.

        ``since``: of the first look: the place from which the log is of interest. Raises SourceUnavailable,
        ConfigError, LostPosition.
        """
        self._open()
        with source_errors(self._endpoint, "asking the source where its log ends"):
            end = log_status(self._connection)
        self.fresh = set()
        if end == self._end and self._read_to >= self._order_of_end:
            return False
        before, self._end = self._end, end
        if not end[0]:
            self.fresh = None
            return True
        if self._dump is None or split_file(end[0])[0] != self._base or self._order_of_end < self._read_to:
            self._begin(Position.of(since) if since is not None and not before[0] else None)
        self._read()
        return True

    def may_concern(self, since: Offset, wants: Callable[[TableId], bool]) -> bool:
        """Return True if something after ``since`` may be about a table that ``wants`` accepts.

        Call it after a look that was made after ``since`` was read.
        """
        if not self._end[0]:
            return True
        if since.row_place == self._end[:2]:
            return False
        known_position = Position.of(since)
        if (
            known_position.prepared
            or known_position.server_uuid != self._uuid
            or split_file(known_position.file)[0] != self._base
        ):
            return True
        at = known_position.order
        if at < self._known_from or at > self._order_of_end or self._all > at:
            return True
        return any(order > at and wants(table) for table, order in self.touched.items())

    @property
    def end(self) -> Offset | None:
        """The end of the log, if all of it up to there was looked at; None: not known just now, or not in such a way
        that a capture can begin there.
        """
        if self._last is None or (self._file, self._offset) != self._end[:2]:
            return None
        if self._mariadb and self._domains is None:
            return None
        kind, event = self._last
        crc, size = zlib.crc32(event[:-4]), len(event)
        if crc != int.from_bytes(event[-4:], "little"):
            if self._dump is None or self._dump.checksum:
                return None
            crc = zlib.crc32(event)
        last = LastEvent(self._file, self._offset - size, size, crc, kind, self._time_s, self._last_gtid)
        executed = str(self._domains) if self._mariadb else self._end[2]
        reached = Position(self._uuid, self._file, self._offset, executed, self._time_s * 1_000_000, "", last)
        return reached.as_offset()

    def close(self) -> None:
        """Close the connections."""
        if self._dump is not None:
            self._dump.close()
            self._dump = None
        self._opened.close()
        self._connection = None

    # -- inside --------------------------------------------------------------------------------------------------------
    @property
    def _read_to(self) -> Order:
        return (split_file(self._file)[1], self._offset) if self._file else (0, 0)

    @property
    def _order_of_end(self) -> Order:
        return (split_file(self._end[0])[1], self._end[1]) if self._end[0] else (0, 0)

    def _open(self) -> None:
        if self._connection is not None:
            return
        self._connection = self._opened.enter_context(connected(self._endpoint))
        with source_errors(self._endpoint, "asking the source who it is"):
            [(version, number)] = rows_of(self._connection, "SELECT VERSION(), @@GLOBAL.server_id")
            self._mariadb = "mariadb" in str(version).lower()
            uuid = None if self._mariadb else rows_of(self._connection, "SELECT @@GLOBAL.server_uuid")[0][0]
        self._uuid = f"mariadb:{number}" if self._mariadb else str(uuid)

    def _begin(self, since: Position | None) -> None:
        """Read the log from ``since`` on, if that is near; else from its end."""
        if self._dump is not None:
            self._dump.close()
            self._dump = None
        self._data.clear()
        self._skip, self._goes_on, self._last, self._last_gtid = 0, False, None, ""
        self._domains = None  # until a file begins, which says what was executed before it
        self._file, self._offset = self._end[:2]
        self._base = split_file(self._file)[0]
        if self._offset <= _READ_BACK_BYTES:
            self._offset = 4
        elif (
            since is not None
            and (since.server_uuid, since.file) == (self._uuid, self._file)
            and 0 <= self._offset - since.offset <= _READ_BACK_BYTES
        ):
            self._offset = since.offset
            self._domains = MariaDbGtidState(since.gtid_set) if self._mariadb else None
        self._known_from, self._all, self.touched = self._read_to, (0, 0), {}
        self.fresh = None
        start = Position(self._uuid, self._file, self._offset)
        self._dump = BinlogDump(self._endpoint, server_id=_own_id(), start=start, mariadb=self._mariadb)

    def _read(self) -> None:
        assert self._dump is not None
        deadline = time.monotonic() + _STEP_S
        while self._read_to < self._order_of_end and time.monotonic() < deadline:
            count = self._dump.receive(self._buffer, 0, 0.2)
            if not count:
                self._dump.check_alive()
                continue
            data = memoryview(self._buffer)[:count]  # type: ignore[arg-type]
            if self._skip:  # the rest of an event that is of no interest
                skipped = min(self._skip, count)
                self._skip -= skipped
                data = data[skipped:]
            self._data += data
            self._packets()

    def _packets(self) -> None:
        data, at = self._data, 0
        while len(data) - at >= _HEAD + 1 + ev.HEADER or (len(data) - at >= _HEAD + 1 and _short(data, at)):
            size = int.from_bytes(data[at : at + 3], "little")
            end = at + _HEAD + size
            if self._goes_on:  # the next piece of an event of 16 MB and more
                self._goes_on = size == 0xFFFFFF
                at = self._skipped(end)
                continue
            status = data[at + _HEAD]
            if status == 0xFF and end <= len(data):
                raise server_error(bytes(data[at + _HEAD : end]), Position(self._uuid, self._file, self._offset))
            if status not in {0, 0xFF}:
                raise SourceUnavailable("reading the log: the server ended it", where=self._endpoint.address)
            begin = at + _HEAD + 1
            kind = data[begin + 4]
            if end > len(data) and (size < 2**20 or kind == _PAYLOAD) and size < 0xFFFFFF:
                break  # the rest of it is on its way
            self._goes_on = size == 0xFFFFFF
            self._event(kind, begin, min(end, len(data)), whole=end <= len(data) and not self._goes_on)
            at = self._skipped(end)
        del data[: min(at, len(data))]

    def _skipped(self, end: int) -> int:
        """Return where the next packet begins in the received data. The rest of an incomplete packet is not kept."""
        self._skip = max(end - len(self._data), 0)
        return min(end, len(self._data))

    def _event(self, kind: int, begin: int, end: int, *, whole: bool) -> None:
        data = self._data
        next_pos = int.from_bytes(data[begin + 13 : begin + 17], "little")
        flags = int.from_bytes(data[begin + 17 : begin + 19], "little")
        checked = 4 if self._dump is not None and self._dump.checksum else 0
        if kind == ev.ROTATE:
            at = begin + ev.HEADER
            name = bytes(data[at + 8 : end - checked]).decode("utf-8", "replace")
            self._file, self._offset = name.rstrip("\0"), int.from_bytes(data[at : at + 8], "little")
            self._last = None
            return
        if not next_pos or flags & ev.ARTIFICIAL or kind in ev.HEARTBEATS:
            return
        at_most = (self._offset & ~0xFFFFFFFF) | next_pos
        self._offset = at_most if at_most >= self._offset else at_most + 2**32
        self._time_s = int.from_bytes(data[begin : begin + 4], "little") or self._time_s
        here = self._read_to
        self._last = (kind, bytes(data[begin:end])) if whole and end - begin < 2**16 and kind != ev.FORMAT else None
        if kind == _TABLE_MAP:
            self._touch(data, begin, here)
        elif kind == _QUERY:
            if not whole or not _harmless(data, begin, end):
                self._touch_all(here)
        elif kind == _PAYLOAD:
            self._payload(bytes(data[begin : end - checked]) if whole else b"", here)
        elif kind == _GTID and whole:
            sid = bytes(data[begin + 20 : begin + 36]).hex()
            number = int.from_bytes(data[begin + 36 : begin + 44], "little")
            self._last_gtid = f"{sid[:8]}-{sid[8:12]}-{sid[12:16]}-{sid[16:20]}-{sid[20:]}:{number}"
        elif kind == _TAGGED_GTID and whole:
            tagged_gtid = ev.parse_tagged_gtid(bytes(data[begin : end - checked]))
            self._last_gtid = f"{tagged_gtid.source}:{tagged_gtid.number}"
        elif kind == _MARIADB_GTID:
            self._mariadb_gtid(bytes(data[begin : end - checked]))
        elif kind == _MARIADB_GTID_LIST:
            self._domains = MariaDbGtidState() if whole else None
            if self._domains is not None:
                self._domains.see_all(ev.parse_mariadb_gtid_list(bytes(data[begin : end - checked])))
        elif kind not in _SILENT:
            self._touch_all(here)

    def _mariadb_gtid(self, event: bytes) -> None:
        mariadb_gtid = ev.parse_mariadb_gtid(event)
        self._last_gtid = f"{mariadb_gtid.domain}-{mariadb_gtid.server}-{mariadb_gtid.number}"
        if self._domains is not None:
            self._domains.see(mariadb_gtid.domain, mariadb_gtid.server, mariadb_gtid.number)

    def _touch(self, data: bytes | bytearray, begin: int, here: Order) -> None:
        at = begin + ev.HEADER + 8
        schema = bytes(data[at + 1 : at + 1 + data[at]])
        at += data[at] + 2
        name = bytes(data[at + 1 : at + 1 + data[at]])
        with suppress(UnicodeDecodeError):
            table = TableId(schema.decode(), name.decode())
            self.touched[table] = here
            if self.fresh is not None:
                self.fresh.add(table)
            return
        self._touch_all(here)

    def _touch_all(self, here: Order) -> None:
        self._all, self.fresh = here, None

    def _payload(self, event: bytes, here: Order) -> None:
        """Process the events of a compressed transaction."""
        data = b""
        try:
            for piece in ev.payload_pieces(event):
                data += piece
                at = 0
                while len(data) - at >= ev.HEADER:
                    size = int.from_bytes(data[at + 9 : at + 13], "little")
                    if len(data) - at < size or size < ev.HEADER:
                        break
                    kind = data[at + 4]
                    if kind == _TABLE_MAP:
                        self._touch(data, at, here)
                    elif kind not in _SILENT and not (kind == _QUERY and _harmless(data, at, at + size)):
                        self._touch_all(here)
                    at += size
                data = data[at:]
        except SluiceError:  # whatever it is, the capture says it
            data = b"?"
        if data:
            self._touch_all(here)


def _short(data: bytearray, at: int) -> bool:
    """Return True for a packet that is no event: the server's last word."""
    return int.from_bytes(data[at : at + 3], "little") < 1 + ev.HEADER and len(data) - at >= _HEAD + 1


def _harmless(data: bytes | bytearray, begin: int, end: int) -> bool:
    """Return True for a query event that changes no table and no definition."""
    schema = data[begin + ev.HEADER + 8]
    status = int.from_bytes(data[begin + ev.HEADER + 11 : begin + ev.HEADER + 13], "little")
    at = begin + ev.HEADER + 13 + status + schema + 1
    return bytes(data[at : min(at + 20, end)]).upper().startswith(_HARMLESS)


def _own_id() -> int:
    """Return a random replica id of the upper half.

    Two replicas with one id would disconnect each other again and again.
    """
    return 2**31 + int.from_bytes(os.urandom(4), "little") % (2**31 - 1)


__all__ = ["LogWatch"]
