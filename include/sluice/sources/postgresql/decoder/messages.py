"""The messages of pgoutput that Python reads, since they are rare: relations, truncates, logical messages.

Their layout is in the server's manual, *Logical Replication Message Formats*.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import DecodeError
from sluice.model.tables import TableId

RELATION, TRUNCATE, MESSAGE, ORIGIN, INSERT = b"R", b"T", b"M", b"O", b"I"

_NAMES = {
    b"S": "a transaction in progress (streaming)", b"E": "a transaction in progress (streaming)",
    b"A": "a transaction in progress (streaming)", b"c": "a transaction in progress (streaming)",
    b"b": "a prepared transaction (two_phase)", b"P": "a prepared transaction (two_phase)",
    b"K": "a prepared transaction (two_phase)", b"r": "a prepared transaction (two_phase)",
    b"p": "a prepared transaction (two_phase)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a relation as the log names it; ``identity``: it is part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation as of the rows that follow.

    ``replica_identity``: d(efault), n(othing), f(ull), i(ndex).
    """

    oid: int
    table: TableId
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """A TRUNCATE: of which relations; ``cascade``, ``restart_identity``: how it was asked for."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message that ``pg_logical_emit_message`` wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class _Bytes:
    """Reads a message from its second byte on. Raises DecodeError for one that ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 1

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.bytes(size), "big", signed=signed)

    def bytes(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise DecodeError(f"a message {self._data[:1]!r} of the log ends too early")
        piece, self._at = self._data[self._at : end], end
        return piece

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise DecodeError(f"a message {self._data[:1]!r} of the log ends too early")
        piece, self._at = self._data[self._at : end], end + 1
        return piece.decode()


def parse_relation(data: bytes) -> Relation:
    """Parse a Relation message. Raises DecodeError."""
    read = _Bytes(data)
    oid, schema, name = read.number(4), read.text() or "pg_catalog", read.text()
    identity = read.bytes(1).decode("ascii", "replace")
    columns = []
    for _ in range(read.number(2)):
        flags, column = read.number(1), read.text()
        columns.append(RelationColumn(column, read.number(4), read.number(4, signed=True), bool(flags & 1)))
    return Relation(oid, TableId(schema, name), identity, tuple(columns))


def parse_truncate(data: bytes) -> Truncate:
    """Parse a Truncate message. Raises DecodeError."""
    read = _Bytes(data)
    count, flags = read.number(4), read.number(1)
    return Truncate(tuple(read.number(4) for _ in range(count)), bool(flags & 1), bool(flags & 2))


def parse_message(data: bytes) -> LogicalMessage:
    """Parse a Message message. Raises DecodeError."""
    read = _Bytes(data)
    flags, lsn, prefix = read.number(1), read.number(8), read.text()
    return LogicalMessage(bool(flags & 1), lsn, prefix, read.bytes(read.number(4)))


def parse_insert(data: bytes) -> list[bytes | None]:
    """Parse an Insert message; return the text of each value. Raises DecodeError."""
    read = _Bytes(data)
    read.number(4)
    if read.bytes(1) != b"N":
        raise DecodeError("an inserted row of the log has no values")
    return [read.bytes(read.number(4)) if read.bytes(1) == b"t" else None for _ in range(read.number(2))]


def message_name(kind: bytes) -> str:
    """Return the name of a message that is not understood here, for an error."""
    return _NAMES.get(kind, f"a message {kind!r}")
