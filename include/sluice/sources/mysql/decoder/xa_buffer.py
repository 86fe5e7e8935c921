"""XA transactions as the scanner meets them: their rows are held from the prepare to the outcome.

:mod:`sluice.sources.mysql.events.xa` decides which outcome counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from sluice.errors import DecodeError, LostPosition, SluiceError
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.table_slots import TableSlots
from sluice.sources.mysql.decoder.transactions import TransactionTable
from sluice.sources.mysql.events import control as ev
from sluice.sources.mysql.events import xa
from sluice.sources.mysql.position import Position

ROW_KINDS = frozenset({23, 24, 25, 30, 31, 32, 39})
Reread = Callable[[str, xa.Prepared | None, Position], Iterable[bytes]]


class XaScanner(Protocol):
    """The part of the scanner that held rows need."""

    s: np.ndarray[Any, Any]
    slots: TableSlots
    ledger: TransactionTable

    def behind(self) -> Position:
        """Return the end of the last complete transaction, without its GTIDs."""

    def event(self, event: bytes) -> bool:
        """Process an event as anywhere. Return True if a limit is reached."""

    def query(self, query: ev.Query) -> bool:
        """Process a statement as anywhere. Return True if a limit is reached."""

    def end_transaction(self) -> bool:
        """End the transaction at hand. Return True if a limit is reached."""

    def rows_here(self, data: bytes, first_row: int) -> int:
        """Scan events as if they stood where the event at hand does; returns the number of the next row."""

    def unknown_table(self, event: bytes) -> SluiceError:
        """Return the error for rows of a table that no table map introduced."""


class XaBuffer:
    """Holds rows, and gives them to the scan at their commit.

    Args:
        waiting: what is prepared as of the scanner's position. reread: gives the events (without checksums, in pieces)
            of a prepared transaction, by its id, its place (None: not known) and a position after its prepare; None:
            such a transaction stops the scan.
    """

    def __init__(self, host: XaScanner, waiting: xa.PreparedTransactions, reread: Reread | None) -> None:
        self._host, self._waiting, self._reread = host, waiting, reread

    def prepared(self) -> list[xa.Prepared]:
        """Return the transactions that are prepared and wait for their outcome, oldest first."""
        return self._waiting.list()

    def torn(self) -> None:
        """Forget the transaction at hand: the log goes on without its prepare."""
        self._waiting.forget_open()

    def mariadb_gtid(self, gtid: ev.MariaGtid) -> None:
        """Begin a transaction that MariaDB prepares, or whose prepared rows it commits or rolls back.

        The kernel leaves those to Python.
        """
        self._host.ledger.begin_mariadb(gtid.domain, gtid.server, gtid.number, gtid.commit_us)
        if gtid.prepares:
            self._begin()

    def statement(self, sql: str) -> bool:
        """Process an XA statement. Return True if a limit is reached."""
        host = self._host
        verb, xid = xa.parse_statement(sql)
        if not host.s[sc.S_HAS_GTID] and not host.s[sc.S_IN_TXN]:
            host.ledger.begin_anonymous(int(host.s[sc.S_LAST_TS]))
        if verb in {"START", "BEGIN"}:
            self._begin()
            return False
        held_transaction = self._waiting.take(xid)
        if verb == "COMMIT":
            return self._commit(xid, held_transaction)
        if verb != "ROLLBACK":
            raise DecodeError(f"an XA statement stands outside a transaction: {sql[:120]}")
        return host.end_transaction()

    def hold(self, event: bytes) -> bool:
        """Process an event between XA START and XA PREPARE.

        Wanted rows wait, with their table maps; a statement is processed as anywhere. Return True if a limit is
        reached.
        """
        host = self._host
        kind = event[4]
        body = event[ev.HEADER :]
        if 166 <= kind <= 171:
            event = ev.parse_rows_compressed(event)
            kind = event[4]
        if kind == 38:
            one_phase, xid = xa.parse_prepare(body)
            if one_phase:
                return self._commit(xid, self._waiting.take_open())
            self._waiting.prepared(xid)
            return host.end_transaction()
        if kind == 19:
            if host.slots.meet(body) >= 0:
                self._waiting.hold(ev.without_checksum(event))
        elif kind in ROW_KINDS:
            slot = host.slots.slot_of(int.from_bytes(body[:6], "little"))
            if slot is None:
                raise host.unknown_table(event)
            if slot >= 0:
                self._waiting.hold(ev.without_checksum(event))
        elif kind in {2, 165}:
            query = ev.parse_query(event if kind == 2 else ev.parse_query_compressed(event))
            if not query.sql.upper().startswith("XA END"):
                return host.query(query)
        elif not sc.QUIET[kind]:
            return host.event(event)
        return False

    def _begin(self) -> None:
        place = self._host.behind()
        self._waiting.begin(place.file, place.offset)
        s = self._host.s
        s[sc.S_HELD] = s[sc.S_IN_TXN] = 1
        s[sc.S_TXN_MARK] = 0

    def _commit(self, xid: str, held_transaction: xa.BufferedTransaction | None) -> bool:
        """Scan the rows of a prepared transaction as if they stood here."""
        host = self._host
        s = host.s
        s[sc.S_IN_TXN], s[sc.S_HELD], s[sc.S_TXN_MARK] = 1, 0, 0
        first_row = 0
        for data in self._events(xid, held_transaction):
            first_row = host.rows_here(data, first_row)
        host.slots.forget()  # ids of the time of the prepare, which may name other tables by now
        return host.end_transaction()

    def _events(self, xid: str, held_transaction: xa.BufferedTransaction | None) -> Iterable[bytes]:
        if held_transaction is not None and held_transaction.events is not None:
            return [b"".join(held_transaction.events)]
        if self._reread is None:
            raise LostPosition(f"the rows of the XA transaction {xid} were prepared before this part of the log")
        place = None if held_transaction is None else xa.Prepared(xid, held_transaction.file, held_transaction.offset)
        return self._reread(xid, place, self._host.behind())
