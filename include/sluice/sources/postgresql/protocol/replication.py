"""The connection to the log: a slot is read by START_REPLICATION, and the server is told how far.

psycopg has no replication cursor, but its libpq level has all that is needed: COPY in both directions.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import psycopg
import structlog
from psycopg import pq, sql

from sluice.config.connections import Endpoint
from sluice.errors import CaptureError, LostPosition, SluiceError, SourceUnavailable
from sluice.postgresql.connection import connect
from sluice.sources.postgresql.position import lsn_text
from sluice.sources.postgresql.protocol import copy_kernel
from sluice.sources.postgresql.server.connection import SESSION, source_errors

_log = structlog.get_logger()

STATUS_EVERY_S = 10.0
"""How often the server hears from us, whether it asks or not: its ``wal_sender_timeout`` is 60 s by default."""
_ACTIVE_S = 15.0
"""How long to wait for a slot that another connection still has: that of a process that died, mostly."""
_TAKEN_S = 0.1
"""How long messages are taken, at most, before they are looked at."""
_ASKS, _ASKS_S = 20, 2.0
"""A server that asks so often, in so many seconds, is shutting down."""
_EPOCH_US = 946_684_800_000_000
_WHOLE, _WITH_STREAMING = "1", "2"
"""The versions of the protocol without and with transactions in progress; later ones add nothing that is asked for."""
_IN_USE = "55006"
_GONE = {"42704", "55000", "58P01"}
"""No such slot; a slot that was invalidated; a WAL segment that was removed."""


_OPEN: dict[tuple[str, str], ReplicationStream] = {}
"""The slots that this process reads, by the server's address and their name."""


def released_here(endpoint: Endpoint, slot: str, lsn: int) -> bool:
    """Release a slot that this process reads, whichever session does. Return False if it reads none of that name."""
    stream = _OPEN.get((endpoint.address, slot))
    if stream is None:
        return False
    stream.release(lsn)
    return True


class Arena(Protocol):
    """The place where messages go: each behind its length, four bytes, little-endian.

    Attributes:
        arena: the bytes. used: of them. full: with as many it is time to scan. end: as many fit.
    """

    arena: np.ndarray[Any, Any]

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Bytes used, bytes from which it is time to scan, bytes that fit."""

    def room(self, size: int) -> int:
        """Make room for a message of ``size`` bytes and its length; return where it goes."""

    def received(self, used: int) -> None:
        """Take note of as many bytes used."""


class ReplicationStream:
    """A slot that is being read.

    A thread tells the server every few seconds that somebody is there, also while nobody reads.

    Args:
        start: the LSN from which transactions are wanted.
        publications: names of publications.
        origin: "none" leaves out changes that have a replication origin (version 16 and later).
        streaming: large transactions are sent while they are in progress, too.

    Raises:
        SourceUnavailable, ConfigError.
        LostPosition: the slot is gone, or the server has removed what it kept.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        slot: str,
        publications: Sequence[str],
        start: int,
        origin: str = "any",
        streaming: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.slot = slot
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._received = self._flushed = 0
        self._next_status = 0.0
        self._asked: deque[float] = deque(maxlen=_ASKS)
        with source_errors(endpoint, "connecting for the log"):
            self._connection = connect(endpoint, f"sluice {slot}", settings=SESSION, replication=True)
        try:
            with source_errors(endpoint, f"reading slot {slot}"):
                self._start(publications, start, origin, streaming=streaming)
        except BaseException:
            self._connection.close()
            raise
        self._library = copy_kernel.library_of(self._pg)
        self._beat = threading.Thread(target=self._heartbeat, name=f"status of slot {slot}", daemon=True)
        self._beat.start()
        _OPEN[endpoint.address, slot] = self

    @property
    def _pg(self) -> pq.abc.PGconn:
        return self._connection.pgconn

    def _start(self, publications: Sequence[str], start: int, origin: str, *, streaming: bool) -> None:
        names = ", ".join(sql.Identifier(name).as_string(self._connection) for name in publications)
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version {}, publication_names {}, messages 'true'{}{})"
        ).format(
            sql.Identifier(self.slot),
            sql.SQL(lsn_text(start)),
            sql.Literal(_WITH_STREAMING if streaming else _WHOLE),
            sql.Literal(names),
            sql.SQL(", origin {}").format(sql.Literal(origin)) if origin != "any" else sql.SQL(""),
            sql.SQL(", streaming 'on'" if streaming else ""),
        )
        text = command.as_string(self._connection).encode()
        until = time.monotonic() + _ACTIVE_S
        while True:
            self._pg.send_query(text)
            self._flush()
            result = self._result()
            if result is not None and result.status == pq.ExecStatus.COPY_BOTH:
                return
            self._drain()
            state = _state(result)
            if state == _IN_USE and time.monotonic() < until:
                time.sleep(0.2)
                continue
            raise self._refused(state, _message(result))

    def _refused(self, state: str, message: str) -> SluiceError:
        where = f"{self.endpoint.address}, slot {self.slot}"
        if state == _IN_USE:
            return SourceUnavailable(
                f"another connection reads the slot: {message}",
                where=where,
                hint="each pipeline needs its own slot (source.slot); if its reader is gone, end it: "
                "pg_terminate_backend(active_pid), see pg_replication_slots",
            )
        if state in _GONE:
            return LostPosition(
                f"the slot cannot be read: {message}", where=where, hint="`sluice check PIPELINE` says what is wrong"
            )
        return CaptureError(
            f"the server refused to send the log: {message}",
            where=where,
            hint="`sluice check PIPELINE` says what is wrong",
        )

    # -- libpq ---------------------------------------------------------------------------------------------------------
    def _wait(self, timeout_s: float, *, write: bool = False) -> bool:
        """Wait until the socket can be read (or written). Return False if the time is over."""
        poll = select.poll()
        poll.register(self._pg.socket, select.POLLIN | (select.POLLOUT if write else 0))
        return bool(poll.poll(max(timeout_s, 0.0) * 1000))

    def _flush(self) -> None:
        until = time.monotonic() + STATUS_EVERY_S
        while self._pg.flush():
            if time.monotonic() > until:
                raise psycopg.OperationalError("the server takes no message")
            if self._wait(1.0, write=True):
                self._pg.consume_input()

    def _result(self) -> pq.abc.PGresult | None:
        until = time.monotonic() + 60.0
        while self._pg.is_busy():
            if time.monotonic() > until:
                raise psycopg.OperationalError("the server does not answer")
            if self._wait(1.0):
                self._pg.consume_input()
        return self._pg.get_result()

    def _drain(self) -> None:
        while self._result() is not None:
            pass

    # -- reading -------------------------------------------------------------------------------------------------------
    def read(self, arena: Arena, wait_s: float) -> int:
        """Put messages into the arena until nothing more has arrived or it is full; return how many.

        Waits up to ``wait_s`` for a first one.
        """
        with source_errors(self.endpoint, "reading the log"):
            count = self._take(arena)
            if count or wait_s <= 0:
                return count
            if self._wait(wait_s):
                count = self._take(arena)
            return count

    def _take(self, arena: Arena) -> int:
        """Take what has arrived, and what arrives meanwhile."""
        count, until = 0, time.monotonic() + _TAKEN_S
        with self._lock:
            while True:
                part, code = self._taken(arena) if self._library is not None else self._taken_by_psycopg(arena)
                count += part
                if code == copy_kernel.FULL or (count and time.monotonic() > until):
                    return count
                if code in {copy_kernel.ENDED, copy_kernel.FAILED}:
                    raise self._ended()
                if not self._wait(0.0):
                    return count
                self._pg.consume_input()

    def _taken(self, arena: Arena) -> tuple[int, int]:
        """Take messages without Python; return how many, and why it ended."""
        assert self._library is not None
        pointer, connection = np.zeros(2, np.int64), int(self._pg.pgconn_ptr or 0)
        count = 0
        while True:
            bounds = np.array([*arena.bounds, 0], np.int64)
            code = self._library.take(connection, arena.arena, bounds, pointer)
            arena.received(int(bounds[0]))
            count += int(bounds[3])
            if code != copy_kernel.NEEDS_ROOM:
                return count, code
            at = arena.room(int(pointer[1]))
            self._library.put(arena.arena, at, pointer)
            arena.received(at + 4 + int(pointer[1]))
            count += 1

    def _taken_by_psycopg(self, arena: Arena) -> tuple[int, int]:
        """Take messages one by one."""
        count = 0
        while arena.bounds[0] <= arena.bounds[1]:
            size, data = self._pg.get_copy_data(1)
            if size <= 0:
                return count, size
            at = arena.room(size)
            buffer = arena.arena.data
            buffer[at : at + 4] = size.to_bytes(4, "little")
            buffer[at + 4 : at + 4 + size] = data
            arena.received(at + 4 + size)
            count += 1
        return count, copy_kernel.FULL

    def _ended(self) -> SluiceError | psycopg.OperationalError:
        result = self._result()
        state = _state(result)
        if state in _GONE:
            return self._refused(state, _message(result))
        ended: psycopg.OperationalError = psycopg.OperationalError(
            f"the server ended the log: {_message(result) or 'it is shutting down'}"
        )
        return ended

    # -- telling -------------------------------------------------------------------------------------------------------
    def seen(self, lsn: int) -> None:
        """Note that everything up to ``lsn`` was read; the server hears it when a status is due."""
        self._received = max(self._received, lsn)

    def answer(self, *, ask: bool = False) -> None:
        """Send a status now. ``ask``: the server shall say how far it is."""
        with source_errors(self.endpoint, "answering the server"):
            self._status(ask=ask)

    def asked(self) -> None:
        """Answer a server that asks for a status.

        One that shuts down asks again at once, until its readers have confirmed all that it sent or are gone. What the
        targets do not have yet cannot be confirmed: the connection ends, and the slot keeps it.

        Raises SourceUnavailable if the server shuts down.
        """
        self._asked.append(time.monotonic())
        if len(self._asked) == _ASKS and self._asked[-1] - self._asked[0] < _ASKS_S:
            raise SourceUnavailable(
                "the server is shutting down: it waits for the readers of its log to go",
                where=f"{self.endpoint.address}, slot {self.slot}",
            )
        self.answer()

    def release(self, lsn: int) -> None:
        """Tell the server that it need not keep what is in front of ``lsn``."""
        self._flushed = max(self._flushed, lsn)
        self._received = max(self._received, lsn)
        self.answer()

    def _status(self, *, ask: bool = False) -> None:
        now = int(time.time() * 1_000_000) - _EPOCH_US
        with self._lock:
            received, flushed = self._received, self._flushed
            self._pg.put_copy_data(b"r" + struct.pack(">QQQqB", received, flushed, flushed, now, int(ask)))
            self._flush()
            self._next_status = time.monotonic() + STATUS_EVERY_S

    def _heartbeat(self) -> None:
        while not self._closed.wait(STATUS_EVERY_S / 4):
            if time.monotonic() < self._next_status:
                continue
            try:
                self._status()
            except (psycopg.Error, OSError) as error:  # whoever reads next sees it, too
                _log.info("status_not_sent", slot=self.slot, error=str(error).strip())
                return

    def close(self) -> None:
        """End the connection. May be called again."""
        self._closed.set()
        if _OPEN.get((self.endpoint.address, self.slot)) is self:
            del _OPEN[self.endpoint.address, self.slot]
        with self._lock, suppress(psycopg.Error, OSError):
            self._connection.close()


def _state(result: pq.abc.PGresult | None) -> str:
    field = result.error_field(pq.DiagnosticField.SQLSTATE) if result is not None else None
    return field.decode() if field else ""


def _message(result: pq.abc.PGresult | None) -> str:
    field = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) if result is not None else None
    return field.decode("utf-8", "replace") if field else ""
