"""Transactions that the server sends while they are in progress (``streaming``), as whole transactions in commit order.

Blocks of such a transaction come between those of others. Each is kept in a file until its commit comes: only then is
it handed to the scanner, as the messages that the server would have sent at the commit. So nothing behind this module
knows of streaming, and nothing that may be rolled back goes on.

The files have no name: the system removes them with the process, whatever ends it. A connection that is opened anew
gets transactions in progress from their begin.
"""

from __future__ import annotations

import struct
import tempfile
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from sluice.errors import DecodeError, StorageUnavailable
from sluice.sources.postgresql.decoder import in_progress_kernel as ip
from sluice.sources.postgresql.position import lsn_text

_DATA = b"w" + bytes(24)
"""What stands in front of a message of pgoutput."""
_SPARE = 64
_HINT = "take source.streaming out of the pipeline file, and report it with this line"


class Arena(Protocol):
    """The place where messages go, see :class:`sluice.sources.postgresql.protocol.replication.Arena`.

    Attributes:
        arena: the bytes.
    """

    arena: np.ndarray[Any, Any]

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Bytes used, bytes from which it is time to scan, bytes that fit."""

    @property
    def unscanned(self) -> int:
        """Where the first message stands that was not scanned."""

    def room(self, size: int) -> int:
        """Make room for a message of ``size`` bytes and its length; return where it goes."""

    def clear(self, size: int) -> None:
        """Put away what was scanned, so that ``size`` bytes have room."""

    def received(self, used: int) -> None:
        """Take note of as many bytes used."""


class Receiver(Protocol):
    """The connection to the log."""

    def read(self, arena: Any, wait_s: float) -> int:
        """Put messages into the arena; return how many."""


class _Transaction:
    """A transaction in progress: a file with its messages, and where those of its sub-transactions begin."""

    def __init__(self, xid: int) -> None:
        self.xid = xid
        self.size = 0
        self.file = tempfile.TemporaryFile(prefix="sluice-transaction-", buffering=0)  # noqa: SIM115 - closed by close
        self.marks = np.empty((2, 256), np.int64)
        self.marked = 0
        self.last = xid

    def write(self, data: memoryview) -> None:
        while data:
            written = self.file.write(data)
            self.size += written
            data = data[written:]

    def take_back(self, xid: int) -> None:
        """Forget a sub-transaction that was rolled back, and with it what came after its begin: that is part of it."""
        places = np.flatnonzero(self.marks[0, : self.marked] == xid)
        if not len(places):
            return
        self.marked = int(places[0])
        self.size = int(self.marks[1, self.marked])
        self.last = self.xid
        self.file.truncate(self.size)
        self.file.seek(self.size)

    def close(self) -> None:
        with suppress(OSError):
            self.file.close()


class TransactionsInProgress:
    """The blocks of transactions in progress that one connection received.

    Memory is that of two arenas, and 16 bytes for each sub-transaction; all else is in files.

    Raises:
        DecodeError: the server sent something that does not fit.
        StorageUnavailable: the temporary folder has no room.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Transaction] = {}
        self._open: _Transaction | None = None
        self._given: _Transaction | None = None
        self._given_at = 0
        self._begin = self._end = b""
        self._rest: np.ndarray[Any, Any] | None = None
        self._out = np.empty(0, np.uint8)

    def read(self, receiver: Receiver, arena: Arena, wait_s: float) -> int:
        """Put messages of whole transactions into the arena; return how many, or 1 for some.

        Waits up to ``wait_s`` for a first one. The arena's messages must have been scanned.
        """
        try:
            if self._given is not None:
                self._give(arena)
                return 1
            if self._rest is not None:
                rest, self._rest = self._rest, None
                arena.clear(len(rest))
                used = arena.bounds[0]
                arena.arena[used : used + len(rest)] = rest
                arena.received(used + len(rest))
                count = 1
            else:
                count = receiver.read(arena, wait_s)
            if count:
                self._sort_out(arena)
            return count
        except OSError as error:
            raise StorageUnavailable(
                f"a transaction in progress cannot be kept: {error}",
                where=tempfile.gettempdir(),
                hint="make room there, or set TMPDIR to a folder that has it, or take source.streaming out of the "
                "pipeline file",
            ) from error

    def close(self) -> None:
        """Forget everything: a new connection sends it again."""
        for transaction in (*self._known.values(), *filter(None, (self._given,))):
            transaction.close()
        self._known.clear()
        self._open = self._given = self._rest = None

    # -- what came in --------------------------------------------------------------------------------------------------
    def _sort_out(self, arena: Arena) -> None:
        """Take blocks out of what the arena received, up to the first commit of one."""
        data, at, used = arena.arena, arena.unscanned, arena.bounds[0]
        kept_end = at
        while at < used:
            if self._open is not None:
                at, kept_end = self._take_block(data, at, used, kept_end)
            else:
                border = int(ip.next_border(data, at, used))
                if border > at and kept_end < at:
                    data[kept_end : kept_end + border - at] = data[at:border].copy()
                kept_end, at = kept_end + max(border - at, 0), border
            if at < 0:
                raise _unfit("a message ends too early")
            if at < used:
                size = int.from_bytes(bytes(data[at : at + 4]), "little")
                message = bytes(data[at + ip.HEADER : at + 4 + size])
                at += 4 + size
                if self._border(message):
                    self._rest = data[at:used].copy() if at < used else None
                    break
        arena.received(kept_end)

    def _take_block(self, data: np.ndarray[Any, Any], at: int, used: int, kept_end: int) -> tuple[int, int]:
        """Move the messages of the open block to its file. Return where it stopped, and where kept messages end."""
        transaction = self._open
        assert transaction is not None
        if len(self._out) < used - at:
            self._out = np.empty(max(used - at, len(data)) + _SPARE, np.uint8)
        while True:
            n = np.array([0, kept_end, transaction.marked, transaction.last, transaction.xid], np.int64)
            first, before = transaction.marked, transaction.size
            stopped = int(ip.take_block(data, at, used, self._out, transaction.marks, n))
            written, kept_end, transaction.marked, transaction.last, _ = n.tolist()
            transaction.marks[1, first : transaction.marked] += before
            transaction.write(self._out.data[:written])
            full = transaction.marked == transaction.marks.shape[1]
            if full:
                transaction.marks = np.concatenate([transaction.marks, np.empty_like(transaction.marks)], axis=1)
            if not full or stopped < 0:
                return stopped, kept_end
            at = stopped

    def _border(self, message: bytes) -> bool:
        """Take a message that begins, ends, commits or aborts. Return True if a transaction is to be given."""
        kind = message[0]
        if self._open is not None and kind != ip.STREAM_STOP:
            raise _unfit("a block does not end")
        try:
            if kind == ip.STREAM_START:
                self._start(*struct.unpack_from(">IB", message, 1))
            elif kind == ip.STREAM_STOP:
                if self._open is None:
                    raise _unfit("a block ends that did not begin")
                self._open = None
            elif kind == ip.STREAM_ABORT:
                self._abort(*struct.unpack_from(">II", message, 1))
            else:
                self._commit(*struct.unpack_from(">IBQQq", message, 1))
                return True
        except struct.error as error:
            raise _unfit("a message ends too early") from error
        return False

    def _start(self, xid: int, first: int) -> None:
        if first and (stale := self._known.pop(xid, None)) is not None:
            stale.close()
        if first:
            self._known[xid] = _Transaction(xid)
        elif xid not in self._known:
            raise _unfit(f"a block continues transaction {xid}, which did not begin")
        self._open = self._known[xid]

    def _abort(self, xid: int, sub: int) -> None:
        transaction = self._known.get(xid)
        if transaction is None:
            return
        if xid == sub:
            del self._known[xid]
            transaction.close()
        else:
            transaction.take_back(sub)

    def _commit(self, xid: int, flags: int, lsn: int, end: int, time: int) -> None:
        transaction = self._known.pop(xid, None)
        if transaction is None:
            raise _unfit(f"transaction {xid} commits at {lsn_text(lsn)}, which did not begin")
        self._end = b"C" + struct.pack(">BQQq", flags, lsn, end, time)
        self._given, self._given_at = transaction, -1
        self._begin = b"B" + struct.pack(">QqI", lsn, time, xid)
        transaction.file.seek(0)

    # -- what goes out -------------------------------------------------------------------------------------------------
    def _give(self, arena: Arena) -> None:
        """Put the next messages of the transaction that committed into the arena."""
        transaction = self._given
        assert transaction is not None
        if self._given_at < 0:
            self._put(arena, self._begin)
            self._given_at = 0
        used, full, end = arena.bounds
        if used > full:
            arena.clear(0)
            used, _, end = arena.bounds
        room = min(end - used, transaction.size - self._given_at)
        read = _read_into(transaction, arena.arena[used : used + room])
        complete_end = int(ip.whole_until(arena.arena, used, used + read))
        if complete_end == used and self._given_at < transaction.size:
            self._give_large(transaction, arena, bytes(arena.arena[used : used + 4]) if read >= 4 else b"")
        else:
            self._given_at += complete_end - used
            arena.received(complete_end)
        if self._given_at >= transaction.size:
            self._put(arena, self._end)
            transaction.close()
            self._given = None
        else:
            transaction.file.seek(self._given_at)

    def _give_large(self, transaction: _Transaction, arena: Arena, length: bytes) -> None:
        """Put a message into the arena that had no room."""
        transaction.file.seek(self._given_at)
        if not length:
            length = transaction.file.read(4)
            transaction.file.seek(self._given_at)
        size = int.from_bytes(length, "little")
        at = arena.room(size)
        if _read_into(transaction, arena.arena[at : at + 4 + size]) < 4 + size:
            raise _unfit(f"the file of transaction {transaction.xid} ends too early")
        self._given_at += 4 + size
        arena.received(at + 4 + size)

    @staticmethod
    def _put(arena: Arena, message: bytes) -> None:
        framed = (len(_DATA) + len(message)).to_bytes(4, "little") + _DATA + message
        at = arena.room(len(framed) - 4)
        arena.arena[at : at + len(framed)] = np.frombuffer(framed, np.uint8)
        arena.received(at + len(framed))


def _read_into(transaction: _Transaction, target: np.ndarray[Any, Any]) -> int:
    """Fill ``target`` from the file, as far as that goes; return how many bytes."""
    view, count = target.data, 0
    while count < len(view):
        read = transaction.file.readinto(view[count:])
        if not read:
            break
        count += read
    return count


def _unfit(what: str) -> DecodeError:
    return DecodeError(f"the log has a transaction in progress that does not fit: {what}", hint=_HINT)


__all__ = ["TransactionsInProgress"]
