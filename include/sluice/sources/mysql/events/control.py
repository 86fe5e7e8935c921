"""The rare control events, parsed from their bytes: format description, rotate, query, tagged GTID, transaction
payload.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.errors import ChecksumMismatch, DecodeError, UnknownEvent

HEADER = 19
STOP, ROTATE, FORMAT, START_ENCRYPTION = 3, 4, 15, 164
HEARTBEATS = frozenset({27, 41})
ARTIFICIAL = 0x20
"""A flag of events that the server sends and that are not in the file."""
_PIECE_BYTES = 4 * 2**20

NAMES = {
    2: "query", 3: "stop", 4: "rotate", 5: "intvar", 9: "append block", 11: "delete file", 13: "rand", 14: "user var",
    15: "format description",
    16: "xid", 17: "begin load query", 18: "execute load query", 19: "table map", 23: "write rows v1",
    24: "update rows v1",
    25: "delete rows v1", 26: "incident", 27: "heartbeat", 28: "ignorable", 29: "rows query", 30: "write rows",
    31: "update rows",
    32: "delete rows", 33: "gtid", 34: "anonymous gtid", 35: "previous gtids", 36: "transaction context",
    37: "view change",
    38: "xa prepare", 39: "partial update rows", 40: "transaction payload", 41: "heartbeat v2", 42: "tagged gtid",
    160: "annotate rows", 161: "binlog checkpoint", 162: "gtid (MariaDB)", 163: "gtid list", 164: "start encryption",
    165: "compressed query", 166: "compressed write rows v1", 167: "compressed update rows v1",
    168: "compressed delete rows v1",
    169: "compressed write rows", 170: "compressed update rows", 171: "compressed delete rows",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rotate:
    """The log goes on in ``file`` at ``offset``."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class Query:
    """A statement. ``sql`` is text (undecodable bytes escaped), ``schema`` the session's default schema.

    ``status``: the session's variables (:mod:`sluice.sources.mysql.events.query_status`); ``raw``: the statement's
    bytes in the session's charset; ``began_s``: when the statement began, in seconds since 1970.
    """

    schema: str
    sql: str
    error_code: int
    status: bytes = b""
    raw: bytes = b""
    began_s: int = 0


@dataclass(frozen=True, slots=True)
class TaggedGtid:
    """A GTID of MySQL 8.3+ with a tag. ``commit_us``: microseconds since 1970."""

    source: str
    number: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class MariaGtid:
    """A GTID of MariaDB.

    ``prepares``: its transaction ends with an XA prepare; ``xid``: of an XA transaction, else None.
    """

    domain: int
    server: int
    number: int
    commit_us: int
    prepares: bool
    xid: tuple[int, bytes, bytes] | None


def without_checksum(event: bytes) -> bytes:
    """Correct the length in the header of an event that was cut before its checksum."""
    return event[:9] + struct.pack("<I", len(event)) + event[13:]


def parse_rotate(event: bytes) -> Rotate:
    """Parse a rotate event with header, without checksum."""
    if len(event) < HEADER + 9:
        raise DecodeError("a rotate event is too short")
    offset = struct.unpack_from("<Q", event, HEADER)[0]
    if not 4 <= offset < 2**48:
        raise DecodeError(f"a rotate event names the offset {offset}, where no file can begin or go on")
    file = event[HEADER + 8 :].decode("utf-8")
    if not file.rpartition(".")[2].isdecimal():
        raise DecodeError(f"a rotate event names {file!r}, which is no log file (base.number)")
    return Rotate(file, offset)


def parse_format(event: bytes) -> tuple[str, bool]:
    """Return (server version, checksums on) of a format description event with all of its bytes.

    Verifies its checksum.
    """
    if len(event) < HEADER + 57 + 5:
        raise DecodeError("a format description event is too short")
    version = struct.unpack_from("<H", event, HEADER)[0]
    if version != 4:
        raise UnknownEvent(f"the log has format version {version}; this version reads 4 (MySQL 5.0 and later)")
    server = event[HEADER + 2 : HEADER + 52].split(b"\0")[0].decode("ascii", "replace")
    algorithm = event[-5]
    if algorithm == 1 and zlib.crc32(event[:-4]) != struct.unpack("<I", event[-4:])[0]:
        flagged = bytearray(
            event[:-4]
        )  # a file that is being written has the in-use flag set, which the sum leaves out
        flagged[17] &= 0xFE
        if zlib.crc32(bytes(flagged)) != struct.unpack("<I", event[-4:])[0]:
            raise ChecksumMismatch("the checksum of a format description event is wrong")
    if algorithm not in {0, 1, 255}:
        raise UnknownEvent(f"the log has checksums of the unknown kind {algorithm}")
    return server, algorithm == 1


def parse_query(event: bytes) -> Query:
    """Parse a query event with header, without checksum."""
    if len(event) < HEADER + 13:
        raise DecodeError("a query event is too short")
    schema_size = event[HEADER + 8]
    error_code, status_size = struct.unpack_from("<HH", event, HEADER + 9)
    at = HEADER + 13 + status_size
    schema = event[at : at + schema_size].decode("utf-8", "surrogateescape")
    raw = event[at + schema_size + 1 :]
    if at + schema_size + 1 > len(event):
        raise DecodeError("a query event ends too early")
    return Query(
        schema,
        raw.decode("utf-8", "backslashreplace"),
        error_code,
        event[HEADER + 13 : at],
        raw,
        int.from_bytes(event[:4], "little"),
    )


def parse_query_compressed(event: bytes) -> bytes:
    """Turn MariaDB's compressed query event into a plain one."""
    schema_size = event[HEADER + 8]
    status_size = struct.unpack_from("<H", event, HEADER + 11)[0]
    at = HEADER + 13 + status_size + schema_size + 1
    return event[:at] + inflate(event[at:])


def inflate(data: bytes) -> bytes:
    """Inflate MariaDB's compressed part of an event.

    It has a header byte (low 3 bits: length bytes, big-endian), the length, a zlib stream.
    """
    if not data or data[0] & 0x80 == 0 or (data[0] & 0x70) >> 4 != 0:
        raise DecodeError("a compressed event has an unknown method")
    count = data[0] & 7
    size = int.from_bytes(data[1 : 1 + count], "big")
    try:
        out = zlib.decompress(data[1 + count :])
    except zlib.error as error:
        raise DecodeError(f"a compressed event is broken: {error}") from error
    if len(out) != size:
        raise DecodeError("a compressed event has another length than it says")
    return out


def parse_rows_compressed(event: bytes) -> bytes:
    """Turn MariaDB's compressed rows event into a plain rows event (kinds 166-168 -> 23-25, 169-171 -> 30-32)."""
    kind = event[4]
    plain = kind - 166 + 23 if kind <= 168 else kind - 169 + 30
    at = HEADER + 8
    if kind >= 169:
        at += struct.unpack_from("<H", event, at)[0]
    columns = event[at]
    at += 1
    if columns == 252:
        columns = struct.unpack_from("<H", event, at)[0]
        at += 2
    bitmaps = 2 if plain in {24, 31} else 1
    at += bitmaps * ((columns + 7) // 8)
    out = bytearray(event[:at] + inflate(event[at:]))
    out[4] = plain
    struct.pack_into("<I", out, 9, len(out))
    return bytes(out)


def payload_pieces(event: bytes) -> Iterator[bytes]:
    """Yield the events inside a transaction payload event (kind 40), without checksums, in pieces of some megabytes.

    However much they are unpacked, no more than a piece is in memory. Raises DecodeError, UnknownEvent.
    """
    at = HEADER
    size = algorithm = None
    expected = None
    try:
        while True:
            field, at = _packed(event, at)
            if field == 0:
                break
            length, at = _packed(event, at)
            value, _ = _packed(event, at)
            if field == 1:
                size = value
            elif field == 2:
                algorithm = value
            elif field == 3:
                expected = value
            at += length
    except IndexError:
        raise DecodeError("a transaction payload event ends too early") from None
    data = memoryview(event)[at:]
    if size is not None and size != len(data):
        raise DecodeError("a transaction payload event has another length than it says")
    if algorithm == 255:
        yield bytes(data)
        return
    if algorithm != 0:
        raise UnknownEvent(f"a transaction payload is compressed by the unknown method {algorithm}")
    import zstandard

    unpacked = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(
            data, read_across_frames=True
        ) as reader:  # there may be several
            while piece := reader.read(_PIECE_BYTES):
                unpacked += len(piece)
                yield piece
    except zstandard.ZstdError as error:
        raise DecodeError(f"a transaction payload is broken: {error}") from error
    if expected is not None and unpacked != expected:
        raise DecodeError("a transaction payload has another length than it says")


def _packed(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 251:
        return first, at + 1
    count = {252: 2, 253: 3, 254: 8}.get(first)
    if count is None or at + 1 + count > len(data):
        raise IndexError
    return int.from_bytes(data[at + 1 : at + 1 + count], "little"), at + 1 + count


def parse_tagged_gtid(event: bytes) -> TaggedGtid:
    """Parse a GTID event of kind 42.

    Source: libs/mysql/binlog/event/control_events.h and the mysql::serialization library.
    """
    at = HEADER
    values: dict[int, int] = {}
    source = b""
    tag = ""
    try:
        _, at = _varlen(event, at)  # version of the format
        _, at = _varlen(event, at)  # size of the message
        _, at = _varlen(event, at)  # last field that may not be ignored
        while at < len(event):
            field, at = _varlen(event, at)
            if field == 1:
                digits = []
                for _ in range(16):
                    digit, at = _varlen(event, at)
                    digits.append(digit)
                source = bytes(digits)
            elif field == 3:
                size, at = _varlen(event, at)
                tag = event[at : at + size].decode("ascii")
                at += size
            else:
                values[field], at = _varlen(event, at)
    except (IndexError, ValueError) as error:
        raise DecodeError(f"a tagged GTID event is broken: {error}") from error
    if len(source) != 16 or 2 not in values:
        raise DecodeError("a tagged GTID event lacks its source id or number")
    name = str(uuid.UUID(bytes=source))
    seconds = struct.unpack_from("<I", event, 0)[0]
    number = values[2] >> 1  # signed numbers are stored in zigzag form
    return TaggedGtid(f"{name}:{tag}" if tag else name, number, values.get(6, seconds * 1_000_000))


def parse_mariadb_gtid(event: bytes) -> MariaGtid:
    """Parse a GTID event of MariaDB. Raises DecodeError.

    Source: ``Gtid_log_event`` in MariaDB's sql/log_event.cc.
    """
    try:
        number, domain, flags = struct.unpack_from("<QIB", event, HEADER)
        at = HEADER + 13 + (8 if flags & 2 else 0)  # FL_GROUP_COMMIT_ID
        xid = None
        if flags & 0xC0:  # FL_PREPARED_XA, FL_COMPLETED_XA
            format_id, gtrid_size, bqual_size = struct.unpack_from("<IBB", event, at)
            data = event[at + 6 : at + 6 + gtrid_size + bqual_size]
            if len(data) != gtrid_size + bqual_size:
                raise DecodeError("a GTID event ends too early")
            xid = (format_id, data[:gtrid_size], data[gtrid_size:])
    except struct.error as error:
        raise DecodeError(f"a GTID event is too short: {error}") from error
    stamp, server = struct.unpack_from("<I", event)[0], struct.unpack_from("<I", event, 5)[0]
    return MariaGtid(domain, server, number, stamp * 1_000_000, bool(flags & 0x40), xid)


def parse_mariadb_gtid_list(event: bytes) -> list[tuple[int, int, int]]:
    """Return (domain, server, number) of what MariaDB executed before a log file. The last of a domain is its newest.

    Source: ``Gtid_list_log_event`` in MariaDB's sql/log_event.cc. Raises DecodeError.
    """
    try:
        count = struct.unpack_from("<I", event, HEADER)[0] & 0x0FFFFFFF  # the upper bits are flags
        return [struct.unpack_from("<IIQ", event, HEADER + 4 + 16 * number) for number in range(count)]
    except struct.error as error:
        raise DecodeError(f"a list of GTIDs is too short: {error}") from error


def _varlen(data: bytes, at: int) -> tuple[int, int]:
    """Read the serialization library's integer: as many trailing one bits in the first byte as bytes follow."""
    first = data[at]
    extra = 0
    while extra < 8 and first >> extra & 1:
        extra += 1
    if at + 1 + extra > len(data):
        raise IndexError("a number ends too late")
    if extra == 8:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    value = int.from_bytes(data[at : at + 1 + extra], "little") >> (extra + 1)
    return value, at + 1 + extra
