"""XA transactions: their rows wait, from the prepare to the outcome, which may come many files later or never.

Decision. A prepared transaction does not hold the position back: the batch ends after it, and the position carries a
list of what is prepared and where (:class:`Prepared`, as text in ``Position.prepared``). Within a capture the row
events are kept in memory, up to HELD_BYTES for all of them; at the commit they are scanned as if they stood there. What
is not in memory (prepared before this capture, or too large) is read again from the log, at the place that the list
names; what the list does not name (a position that a user gave) is looked for backwards in the log. So memory is
bounded, no store outside the log is needed, and a lost list costs time, never rows. The price: the log file with the
prepare must still be there when the commit comes; if it is not, the capture stops (LostPosition), and the pre-flight
warns before. It would be wrong where transactions stay prepared for longer than the log is kept: then their rows would
have to be stored at the prepare.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from sluice.errors import DecodeError

HELD_BYTES = 64 * 2**20
LISTED = 2000
"""Prepared transactions named in a position; older ones would be looked for in the log."""

_STATEMENT = re.compile(r"^XA\s+(START|BEGIN|END|COMMIT|ROLLBACK|PREPARE)\s+(.*?)(?:\s+ONE\s+PHASE)?\s*$", re.I | re.S)
_XID = re.compile(r"^X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)$", re.I)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction: its id as the log writes it (``X'61',X'62',7``), and where its first event stands."""

    xid: str
    file: str
    offset: int

    def __str__(self) -> str:
        return f"{self.xid}@{quote(self.file, safe='')}:{self.offset}"


def print_prepared(items: Iterable[Prepared]) -> str:
    """Print transactions as :attr:`Position.prepared` stores them, oldest first; at most LISTED, the newest."""
    return " ".join(str(item) for item in list(items)[-LISTED:])


def parse_prepared(text: str) -> list[Prepared]:
    """Parse the text of :func:`print_prepared`."""
    prepared = []
    for part in text.split():
        xid, _, place = part.rpartition("@")
        file, _, offset = place.rpartition(":")
        prepared.append(Prepared(xid, unquote(file), int(offset)))
    return prepared


def xid_text(format_id: int, gtrid: bytes, bqual: bytes) -> str:
    """Return an id as the log's statements write it."""
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id}"


def parse_statement(sql: str) -> tuple[str, str]:
    """Return (verb in capitals, id) of an XA statement in the log. Raises DecodeError."""
    match = _STATEMENT.match(sql.strip())
    xid = _XID.match(match[2].strip()) if match else None
    if match is None or xid is None:
        raise DecodeError(f"an XA statement in the log is not understood: {sql[:120]}")
    return match[1].upper(), xid_text(int(xid[3]), bytes.fromhex(xid[1]), bytes.fromhex(xid[2]))


def parse_prepare(body: bytes) -> tuple[bool, str]:
    """Return (one phase, id) of an XA prepare event's body. Raises DecodeError."""
    if len(body) < 13:
        raise DecodeError("an XA prepare event is too short")
    one_phase, format_id, gtrid_size, bqual_size = struct.unpack_from("<BIII", body)
    data = body[13 : 13 + gtrid_size + bqual_size]
    if gtrid_size > 64 or bqual_size > 64 or len(data) != gtrid_size + bqual_size:
        raise DecodeError("an XA prepare event ends too early")
    return bool(one_phase), xid_text(format_id, data[:gtrid_size], data[gtrid_size:])


@dataclass(slots=True)
class BufferedTransaction:
    """The row events (and their table maps) of one transaction; ``events`` is None once they were too many to keep."""

    file: str
    offset: int
    events: list[bytes] | None = field(default_factory=list)
    size: int = 0


class PreparedTransactions:
    """All prepared transactions as of the scanner's position, oldest first."""

    def __init__(self, prepared: Iterable[Prepared], held_bytes: int = HELD_BYTES) -> None:
        self._held = {item.xid: BufferedTransaction(item.file, item.offset, None) for item in prepared}
        self._room = held_bytes
        self.open: BufferedTransaction | None = None

    def begin(self, file: str, offset: int) -> None:
        """Begin a transaction whose outcome is not known; its first event is at ``file``:``offset``."""
        self.open = BufferedTransaction(file, offset)

    def hold(self, event: bytes) -> None:
        """Keep an event of it."""
        held_transaction = self.open
        assert held_transaction is not None
        if held_transaction.events is None:
            return
        if len(event) > self._room:
            self._drop(held_transaction)
            return
        held_transaction.events.append(event)
        held_transaction.size += len(event)
        self._room -= len(event)

    def prepared(self, xid: str) -> None:
        """Record that the open transaction is prepared."""
        assert self.open is not None
        self.take(xid)
        self._held[xid], self.open = self.open, None

    def take_open(self) -> BufferedTransaction:
        """Remove the open transaction, which committed in one phase."""
        held_transaction, self.open = self.open, None
        assert held_transaction is not None
        self._room += held_transaction.size
        return held_transaction

    def forget_open(self) -> None:
        """Forget the open transaction, which was never prepared."""
        if self.open is not None:
            self.take_open()

    def take(self, xid: str) -> BufferedTransaction | None:
        """Remove a transaction whose outcome is known.

        Return its events, or where they are; None if nothing is known of it.
        """
        held_transaction = self._held.pop(xid, None)
        if held_transaction is not None:
            self._room += held_transaction.size
        return held_transaction

    def list(self) -> list[Prepared]:
        """Return the transactions that are prepared now."""
        return [Prepared(xid, transaction.file, transaction.offset) for xid, transaction in self._held.items()]

    def _drop(self, held_transaction: BufferedTransaction) -> None:
        self._room += held_transaction.size
        held_transaction.events, held_transaction.size = None, 0
