"""Is the log still the one that was read? The last event before a position is read again and compared, before anything
after it is read.

A server that was restored from a backup, or whose log was reset, gives the same file names, offsets and GTIDs to other
transactions.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import structlog

from sluice.config.connections import Endpoint
from sluice.errors import LostPosition, SluiceError, SourceUnavailable
from sluice.model.log_files import split_file
from sluice.sources.mysql.decoder.scanner import READ_AGAIN_BYTES
from sluice.sources.mysql.events import control as ev
from sluice.sources.mysql.events.server_error import server_error
from sluice.sources.mysql.position import LastEvent, Position
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump, PrefetchedLogin
from sluice.sources.mysql.protocol.log_archive import open_log
from sluice.sources.mysql.server.connection import open_connection, rows_of

_log = structlog.get_logger()

_GTIDS = {33, 42, 162}
_LAST_ADDRESSABLE = 2**32 - 1
_STEP_S = 1.0
_SEARCHED_BYTES = 32 * 2**20
"""The GTID of the transaction that was found is looked for in so much of a file; it is only there to be shown."""
_NOT_THERE = "could not find first log file"
_OTHER_REASONS = ("can not handle", "misconfigured", "gtid_mode", "could not open")
"""Words of refusals of a dump that have nothing to do with what stands at its place."""


class _NoSuchFile(Exception):
    """The server does not have the file any more."""


@dataclass(frozen=True, slots=True)
class _Event:
    """An event of the file as it was sent: the whole packet, and the event without its checksum."""

    packet: bytes
    body: bytes

    @property
    def size(self) -> int:
        return int.from_bytes(self.body[9:13], "little")

    @property
    def end(self) -> int:
        """The lower 32 bits of the offset of the next event."""
        return int.from_bytes(self.body[13:17], "little")

    @property
    def of_the_file(self) -> bool:
        flags = int.from_bytes(self.body[17:19], "little")
        return self.body[4] not in {ev.ROTATE, ev.FORMAT} and self.end != 0 and not flags & ev.ARTIFICIAL


class _Packets:
    """The packets of a stream, one by one, and what was received beyond them."""

    def __init__(self, stream: BinlogDump, start: Position) -> None:
        self._stream, self._start = stream, start
        self._buffer = np.zeros(2**16, np.uint8)
        self._data = bytearray()
        self._checksum = stream.checksum

    @property
    def rest(self) -> bytes:
        return bytes(self._data)

    def __iter__(self) -> Iterator[_Event]:
        """Yield events until the server has nothing more to send.

        Raises what the server says as the errors of the stream; ValueError for nonsense.
        """
        while True:
            packet = self._packet()
            if packet[4] == 0xFF:
                failure = server_error(packet[4:], self._start)
                if _NOT_THERE in failure.message.lower():
                    raise _NoSuchFile from failure
                raise failure
            if packet[4] != 0:
                return
            event = packet[5:]
            if len(event) < ev.HEADER or int.from_bytes(event[9:13], "little") != len(event):
                raise ValueError("what stands there is no event")
            if event[4] in ev.HEARTBEATS:
                return
            if event[4] == ev.FORMAT:
                self._checksum = ev.parse_format(event)[1]
            elif self._checksum:
                if len(event) < ev.HEADER + 4 or zlib.crc32(event[:-4]) != struct.unpack("<I", event[-4:])[0]:
                    raise ValueError("what stands there is no event: its checksum is wrong")
                event = event[:-4]
            yield _Event(packet, event)

    def _packet(self) -> bytes:
        while len(self._data) < 4 or len(self._data) < 4 + int.from_bytes(self._data[:3], "little"):
            count = self._stream.receive(self._buffer, 0, _STEP_S, 1)
            if not count:
                self._stream.check_alive()
            self._data += self._buffer[:count].tobytes()
        size = 4 + int.from_bytes(self._data[:3], "little")
        packet = bytes(self._data[:size])
        del self._data[:size]
        if size < 5:
            raise ValueError("an empty packet")
        return packet


def reread(
    endpoint: Endpoint, start: Position, *, server_id: int, mariadb: bool = False, login: PrefetchedLogin | None = None
) -> BinlogDump | None:
    """Return the log from ``start``, if the last event before it is still there.

    None if nothing can be read on from there at once, or if there is nothing to compare: the position has no last event
    yet, or the event's file was purged since.

    Raises:
        LostPosition: another log is there. SourceUnavailable, ConfigError.
    """
    expected = start.last_event
    if expected is None or expected.offset > _LAST_ADDRESSABLE:
        return None
    near = expected.file == start.file and 0 < start.offset - expected.offset <= READ_AGAIN_BYTES + 2**16
    from_there = replace(start, file=expected.file, offset=expected.offset, last_event=None)
    stream = open_log(endpoint, server_id=server_id, start=from_there, mariadb=mariadb, login=login)
    actual: str | None = None
    try:
        actual, rest = _compare(stream, from_there, expected, start.offset if near else None)
    except _NoSuchFile as error:
        stream.close()
        if expected.file == start.file:
            raise LostPosition(
                f"the server no longer has the file of {start}",
                where=str(start),
                hint="SHOW BINARY LOGS lists what there is",
            ) from error
        return None
    except BaseException:
        stream.close()
        raise
    if actual is not None:
        stream.close()
        raise _another_log(endpoint, start, expected, actual, server_id=server_id, mariadb=mariadb)
    if not near:
        stream.close()
        return None
    stream.give_back(rest)
    return stream


def same_log(endpoint: Endpoint, position: Position, *, server_id: int, mariadb: bool = False) -> bool:
    """Return True unless another log is at ``position`` than the one that was read.

    Raises SourceUnavailable, ConfigError.
    """
    try:
        stream = reread(endpoint, position, server_id=server_id, mariadb=mariadb)
    except LostPosition:
        return False
    if stream is not None:
        stream.close()
    return True


def _compare(stream: BinlogDump, start: Position, expected: LastEvent, until: int | None) -> tuple[str | None, bytes]:
    """Return what is in the place of ``expected`` (None: itself), and what the stream sends from ``until`` on.

    The latter begins with its format event.
    """
    packets = _Packets(stream, start)
    format_packets = b""
    met = False
    try:
        for event in packets:
            if not event.of_the_file:
                format_packets += event.packet if event.body[4] == ev.FORMAT else b""
                continue
            if not met:
                same = (event.size, zlib.crc32(event.body), event.body[4]) == (
                    expected.size,
                    expected.checksum,
                    expected.kind,
                )
                if not same or event.end != expected.end & 0xFFFFFFFF:
                    return _described(event), b""
                met = True
            if until is None or event.end == until & 0xFFFFFFFF:
                return None, format_packets + packets.rest
            if event.end > until:
                return f"an event that ends at {event.end}", b""
        return ("a log that ends before it" if not met else f"no event that ends at {until}"), b""
    except ValueError as error:
        return f"no event ({error})", b""
    except SourceUnavailable:
        raise
    except SluiceError as error:  # the server cannot read an event there
        if any(words in error.message.lower() for words in _OTHER_REASONS):
            raise
        return f"no event that the server can read ({error.message.partition(': ')[2] or error.message})", b""


def _described(event: _Event) -> str:
    kind = ev.NAMES.get(event.body[4], f"kind {event.body[4]}")
    return (
        f"{kind} of {event.size} bytes, {_time(int.from_bytes(event.body[:4], 'little'))}, CRC32 "
        f"{zlib.crc32(event.body):#010x}"
    )


def _time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _another_log(
    endpoint: Endpoint, start: Position, expected: LastEvent, actual: str, *, server_id: int, mariadb: bool
) -> LostPosition:
    """Return the error, with what can be found out about its cause."""
    name = ev.NAMES.get(expected.kind, f"kind {expected.kind}")
    gtid = f", GTID {expected.gtid}" if expected.gtid else ""
    gtid_before, why = "", "its log was reset, or the server was restored from a backup or set up anew"
    with suppress(SluiceError, ValueError, _NoSuchFile):
        gtid_before = _gtid_before(endpoint, expected, start, server_id=server_id, mariadb=mariadb)
    with suppress(SluiceError, ValueError, _NoSuchFile):
        why = _how(endpoint, expected, start, server_id=server_id, mariadb=mariadb)
    return LostPosition(
        f"the log of this server is not the one that was captured up to {start}: at {expected} stood {name} of "
        f"{expected.size} bytes, "
        f"{_time(expected.time_s)}, CRC32 {expected.checksum:#010x}{gtid}; now there is {actual}{gtid_before}. "
        f"{why[0].upper()}{why[1:]}. Rows that were captured may not exist there any more, and others were written "
        "since",
        where=str(start),
        hint="choose: restore the server that was captured, and nothing is lost; or make the targets equal to this "
        "one: "
        "`sluice seek PIPELINE latest`, then `sluice dump start PIPELINE --replace`; or let the next capture do that: "
        "capture.on_lost_position: dump",
    )


def _gtid_before(endpoint: Endpoint, expected: LastEvent, start: Position, *, server_id: int, mariadb: bool) -> str:
    """Return the GTID of the transaction that is at the position now."""
    if not expected.gtid or expected.offset > _SEARCHED_BYTES:
        return ""
    gtid = ""
    for event in _events(endpoint, start, expected.file, server_id=server_id, mariadb=mariadb):
        if event.body[4] in _GTIDS:
            gtid = _gtid(event.body)
        if event.end > expected.offset:
            break
    return f", GTID {gtid}" if gtid else ""


def _gtid(event: bytes) -> str:
    if event[4] == 162:
        mariadb_gtid = ev.parse_mariadb_gtid(event)
        return f"{mariadb_gtid.domain}-{mariadb_gtid.server}-{mariadb_gtid.number}"
    if event[4] == 42:
        tagged = ev.parse_tagged_gtid(event)
        return f"{tagged.source}:{tagged.number}"
    source, number = (
        event[ev.HEADER + 1 : ev.HEADER + 17].hex(),
        int.from_bytes(event[ev.HEADER + 17 : ev.HEADER + 25], "little"),
    )
    return f"{source[:8]}-{source[8:12]}-{source[12:16]}-{source[16:20]}-{source[20:]}:{number}"


def _how(endpoint: Endpoint, expected: LastEvent, start: Position, *, server_id: int, mariadb: bool) -> str:
    """Explain by the times at which the first file and the position's file were begun."""
    with open_connection(endpoint) as connection:
        names = [str(row[0]) for row in rows_of(connection, "SHOW BINARY LOGS")]
    first, own = (
        _begun(endpoint, start, name, server_id=server_id, mariadb=mariadb) for name in (names[0], expected.file)
    )
    if split_file(names[0])[1] == 1 and first > expected.time_s:
        command = "RESET MASTER" if mariadb else "RESET BINARY LOGS AND GTIDS"
        begins = f"its log begins anew with {names[0]} of {_time(first)}, later than what was captured"
        return f"{begins}: it was reset ({command}), or the server was set up anew"
    if own > expected.time_s:
        return (
            f"{expected.file} was begun {_time(own)}, later than what was captured from it: the server was restored "
            "from a backup, or its data directory was copied back"
        )
    return "the server was restored from a backup or a snapshot, or its data directory was copied back"


def _begun(endpoint: Endpoint, start: Position, file: str, *, server_id: int, mariadb: bool) -> int:
    for event in _events(endpoint, start, file, server_id=server_id, mariadb=mariadb):
        if event.body[4] == ev.FORMAT:
            return int.from_bytes(event.body[:4], "little")
    return 0


def _events(endpoint: Endpoint, start: Position, file: str, *, server_id: int, mariadb: bool) -> Iterator[_Event]:
    """Yield the events of a file from its first on."""
    place = replace(start, file=file, offset=4, last_event=None)
    stream = open_log(endpoint, server_id=server_id, start=place, mariadb=mariadb)
    try:
        yield from _Packets(stream, place)
    finally:
        stream.close()
