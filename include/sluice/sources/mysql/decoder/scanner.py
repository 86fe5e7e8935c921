"""Drives the scan kernel: owns its arrays, answers the events it hands over, seals full arenas.

Knows no socket and no clock.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.errors import CaptureError, ChecksumMismatch, DecodeError, SluiceError, UnknownEvent
from sluice.model.load_marks import MarkRules, PartnerLoads
from sluice.model.log_files import split_file
from sluice.sources.machine import CRC_TABLES
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.decoder.mark_table import removed_token, written_token
from sluice.sources.mysql.decoder.row_layout import RowLayout
from sluice.sources.mysql.decoder.rows import RowEvents
from sluice.sources.mysql.decoder.table_slots import TableSlots, grown
from sluice.sources.mysql.decoder.transactions import TransactionTable
from sluice.sources.mysql.decoder.xa_buffer import ROW_KINDS, Reread, XaBuffer
from sluice.sources.mysql.events import control as ev
from sluice.sources.mysql.events import xa
from sluice.sources.mysql.events.packets import bytes_of_next, join
from sluice.sources.mysql.events.query_status import parse_status
from sluice.sources.mysql.events.read_totals import ReadTotals
from sluice.sources.mysql.events.server_error import server_error
from sluice.sources.mysql.events.table_map import TableMap
from sluice.sources.mysql.events.unreadable import AROUND
from sluice.sources.mysql.position import LastEvent, Position

ARENA_BYTES = 24 * 2**20
_FAR = 2**62
_TRANSIENT_KINDS = {3, 36, 37}  # stop, and group replication's
_NOT_OF_THE_FILE = ev.HEARTBEATS | {ev.ROTATE, ev.FORMAT}
"""Events that end no transaction and are not sent as the file has them."""

READ_AGAIN_BYTES = 2**18
"""An event of at most this size is read again to see whether the log is still the same; for a larger one, the event its
transaction begins with.
"""


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """A statement event that is not BEGIN or COMMIT, with where it stands."""

    query: ev.Query
    position: Position
    gtid: str | None
    commit_us: int
    in_transaction: bool
    seq: int


_SAVEPOINT = re.compile(r"(?:ROLLBACK\s+(?:WORK\s+)?TO\s+)?(?:SAVEPOINT\s+)?(.*)", re.I | re.S)


def _savepoint(sql: str) -> str:
    """Return the name in SAVEPOINT and ROLLBACK TO in lower case: the server ignores its case."""
    match = _SAVEPOINT.fullmatch(sql.strip().rstrip(";").strip())
    return (match[1] if match else sql).strip("`").lower()


class Scanner:
    """Turns log bytes into sealed arenas.

    Args:
        start: position of the first byte fed after the server's prelude.
        tables: a table map -> its plan, or None where its rows are not wanted.
        statement: called for every statement that is not BEGIN or COMMIT; returns True if the batch shall close after
            it.
        seal: called with the rows of a full arena.
        row_events: bits of the row changes wanted, by OP_*.
        reread: gives the events (without checksums, in pieces) of a prepared XA transaction, by its id, its place
            (None: not known) and a position after its prepare; None: such a transaction stops the scan.
        checksum: events carry a CRC32 from the first one on.
        first_seq: added to the sequence numbers of changes and to the ordinals of transactions.
        marks: what is done with changes between marks of a load; None: no mark is looked at.
        transactional: tells whether the engine of a table takes its rows back when a transaction is rolled back.
    """

    def __init__(
        self,
        start: Position,
        *,
        tables: Callable[[TableMap, str], RowLayout | None],
        statement: Callable[[LoggedStatement], bool],
        seal: Callable[[RowEvents], None],
        row_events: int = 7,
        reread: Reread | None = None,
        checksum: bool = True,
        mariadb: bool = False,
        arena_bytes: int = ARENA_BYTES,
        first_seq: int = 0,
        marks: MarkRules | None = None,
        transactional: Callable[[RowLayout], bool] = lambda layout: False,
    ) -> None:
        self.start = start
        self._first_seq = first_seq
        self._marks = marks
        self._token = ""
        self.partner = PartnerLoads()
        self.file = start.file
        self.mariadb = mariadb
        self._statement, self._seal = statement, seal
        self._arena_bytes = arena_bytes
        self.s = np.zeros(sc.STATE_SIZE, np.int64)
        s = self.s
        s[sc.S_FILE_POS] = s[sc.S_LAST_END] = start.offset
        s[sc.S_FRAMED] = 1
        s[sc.S_FIXED] = -1
        s[sc.S_CRC] = int(checksum)
        s[sc.S_MAX_CHANGES] = s[sc.S_MAX_BYTES] = s[sc.S_STOP_POS] = _FAR
        s[sc.S_LAST_TS] = start.commit_time_us
        self._arena = np.empty(0, np.uint8)
        self._rev = np.empty((sc.REV_FIELDS, 1 << 14), np.int64)
        self._images = np.empty(1 << 16, np.int64)
        self.slots = TableSlots(lambda table_map: tables(table_map, self._where()), row_events, mariadb=mariadb)
        self.ledger = TransactionTable(s, start.gtid_set, mariadb=mariadb)
        self._held = XaBuffer(self, xa.PreparedTransactions(xa.parse_prepared(start.prepared)), reread)
        self._files = [start.file]
        self.ended_by_statement = False
        self.server_version = ""
        self.skipped: dict[str, int] = {}
        self._transactional = transactional
        self._savepoints: dict[str, tuple[int, int, int]] = {}
        self._seals = 0
        self._sealed_in = -1

    # -- what the caller asks ------------------------------------------------------------------------------------------
    @property
    def between_transactions(self) -> bool:
        """True if the log was read exactly to the end of a transaction."""
        return not self.s[sc.S_IN_TXN] and not self.s[sc.S_HAS_GTID]

    @property
    def changes(self) -> int:
        """Row changes captured so far (complete transactions or not)."""
        return int(self.s[sc.S_CHANGES])

    @property
    def transactions(self) -> int:
        """Complete transactions with captured rows."""
        return int(self.s[sc.S_CAPTURED_TXNS])

    @property
    def first_commit_us(self) -> int:
        """Commit time of the first captured transaction."""
        return int(self.s[sc.S_FIRST_TS])

    @property
    def last_commit_us(self) -> int:
        """Commit time of the last complete transaction."""
        return int(self.s[sc.S_LAST_TS])

    @property
    def prepared(self) -> list[xa.Prepared]:
        """XA transactions that are prepared and wait for their outcome, oldest first."""
        return self._held.prepared()

    def position(self) -> Position:
        """Return the end of the last complete transaction."""
        s = self.s
        return Position(
            self.start.server_uuid,
            self.file,
            int(s[sc.S_LAST_END]),
            self.ledger.executed(),
            int(s[sc.S_LAST_TS]),
            xa.print_prepared(self._held.prepared()),
            self._last_event(),
        )

    def _last_event(self) -> LastEvent | None:
        """Return the event by which this position is recognised again."""
        s = self.s
        index, offset, size, checksum, kind, time_s = (int(value) for value in s[sc.LAST_EVENT])
        if not size:
            return self.start.last_event
        file = self._files[index]
        if file == self.file and offset + size > int(s[sc.S_LAST_END]):
            return None
        gtid, before = self.ledger.last_gtid(), self.start.last_event
        gtid = gtid if gtid is not None else before.gtid if before is not None else ""
        return LastEvent(file, offset, size, checksum, kind, time_s, gtid)

    def _note_end(self, event: bytes, offset: int) -> None:
        """Note that the event (without its checksum) is the last one read, at ``offset``."""
        kind, log_pos, flags = event[4], event[13:17], int.from_bytes(event[17:19], "little")
        if kind in _NOT_OF_THE_FILE or log_pos == bytes(4) or flags & ev.ARTIFICIAL:
            return
        size = int.from_bytes(event[9:13], "little")
        if size > READ_AGAIN_BYTES:
            self.s[sc.LAST_EVENT] = self.s[sc.GTID_EVENT]
            return
        time_s = int.from_bytes(event[:4], "little")
        self.s[sc.LAST_EVENT] = (self.s[sc.S_FILE], offset, size, zlib.crc32(event), kind, time_s)

    def reached(self, stop: Position) -> bool:
        """Return True if everything before ``stop`` was read."""
        number, stop_number = split_file(self.file)[1], split_file(stop.file)[1]
        return number > stop_number or (number == stop_number and int(self.s[sc.S_LAST_END]) >= stop.offset)

    def limit(self, *, max_changes: int, max_bytes: int, stop: Position | None) -> None:
        """Set where ``feed`` returns at the end of a transaction."""
        self.s[sc.S_MAX_CHANGES], self.s[sc.S_MAX_BYTES] = max_changes, max_bytes
        self._stop = stop
        self._set_stop()

    def go_on_from(self, ahead: ReadTotals) -> None:
        """Count on from what others have read into the same batch; ``ahead.last`` is the position this scanner starts
        at.
        """
        s = self.s
        s[sc.S_CHANGES], s[sc.S_BYTES], s[sc.S_CAPTURED_TXNS] = ahead.changes, ahead.bytes, ahead.transactions
        s[sc.S_FIRST_TS] = ahead.first_commit_us
        s[sc.S_SKIPPED_TABLE], s[sc.S_SKIPPED_KIND] = ahead.skipped_tables, ahead.skipped_kinds
        self.skipped = dict(ahead.skipped)

    _stop: Position | None = None

    def _set_stop(self) -> None:
        self.s[sc.S_STOP_POS] = _FAR
        if self._stop is not None:
            here, stop_number = split_file(self.file)[1], split_file(self._stop.file)[1]
            self.s[sc.S_STOP_POS] = self._stop.offset if here == stop_number else (_FAR if here < stop_number else 0)

    def stop_at_end(self) -> None:
        """Make ``feed`` return at the next end of a transaction."""
        self.s[sc.S_STOP_AT_END] = 1

    # -- work ----------------------------------------------------------------------------------------------------------
    def feed(self, buffer: np.ndarray[Any, Any], end: int, at: int) -> tuple[int, bool]:
        """Work through ``buffer[at:end]`` (packets as received).

        Returns (offset of the first byte not used, whether a limit was reached at the end of a transaction). An offset
        short of ``end`` without a limit means that the rest is half a packet; see
        :func:`sluice.sources.mysql.events.packets.bytes_of_next`. Raises CaptureError and its kinds.
        """
        s = self.s
        s[sc.S_POS] = at
        while True:
            code = self._scan(buffer, end)
            if code == sc.CODE_MORE:
                if self.between_transactions:
                    s[sc.S_LAST_END] = s[sc.S_FILE_POS]
                return int(s[sc.S_POS]), False
            if code == sc.CODE_END:
                return int(s[sc.S_POS]), True
            if code == sc.CODE_BIG:
                need = bytes_of_next(buffer, end, int(s[sc.S_POS]))
                if not 0 < need <= end - int(s[sc.S_POS]):
                    return int(s[sc.S_POS]), False
                if self._big(buffer) or (s[sc.S_STOP_AT_END] and self.between_transactions):
                    return int(s[sc.S_POS]), True
                continue
            if self._answer(code, buffer):
                return int(s[sc.S_POS]), True

    def refused(self, why: str, hint: str) -> CaptureError:
        """Return the error for an event at the present position that is refused."""
        return CaptureError(why, where=self._where(), hint=hint)

    def finish(self) -> None:
        """Seal what is in the arena."""
        self._seal_arena()

    # -----------------------------------------------------------------------------------------------------------------
    def _scan(self, buffer: np.ndarray[Any, Any], end: int) -> int:
        slots, ledger = self.slots, self.ledger
        return int(
            sc.scan(
                buffer, end, self.s, self._arena, self._rev, self._images, ledger.sid, ledger.gno, ledger.ts,
                ledger.sids, slots.ids,
                slots.of_id, slots.columns, slots.first, slots.events, slots.widths, slots.map_at, slots.map_size,
                slots.map_bytes,
                sc.QUIET, CRC_TABLES,
            )
        )  # fmt: skip

    def _answer(self, code: int, buffer: np.ndarray[Any, Any]) -> bool:
        """Do what the kernel needs; True if a limit is reached."""
        s = self.s
        if code == sc.CODE_EVENT:
            event = buffer[int(s[sc.S_EVENT]) : int(s[sc.S_EVENT_END])].tobytes()
            offset = int(s[sc.S_EVENT_POS])
            try:
                limit = self._held.hold(event) if s[sc.S_HELD] else self.event(event)
                if s[sc.S_FRAMED] and self.between_transactions:
                    self._note_end(event, offset)
                return limit
            except SluiceError as error:
                if error.where is None:
                    error.where = self._where()
                    error.hint = error.hint or self._look()
                raise
            except (ValueError, IndexError, OverflowError, KeyError, struct.error) as error:
                name = ev.NAMES.get(event[4], f"kind {event[4]}")
                raise DecodeError(
                    f"the bytes of an event ({name}) contradict the format: {error}",
                    where=self._where(),
                    hint=self._look(),
                ) from error
        if code == sc.CODE_GROW_EVENTS:
            self._rev = grown(self._rev, 1)
        elif code == sc.CODE_GROW_IMAGES:
            self._images = grown(self._images)
        elif code == sc.CODE_GROW_TXNS:
            if not s[sc.S_CHANGES] and self.between_transactions:
                self.ledger.forget()
            else:
                self.ledger.grow()
        elif code == sc.CODE_GROW_SIDS:
            self.ledger.grow_sources()
        elif code == sc.CODE_ARENA:
            need = int(s[sc.S_NEED])
            self._seal_arena()
            self._arena = np.empty(max(self._arena_bytes, need) + 16, np.uint8)
        else:
            raise self._fault(code, buffer)
        return False

    def _fault(self, code: int, buffer: np.ndarray[Any, Any]) -> SluiceError:
        s = self.s
        event = buffer[int(s[sc.S_EVENT]) : int(s[sc.S_EVENT_END])].tobytes()
        if code in {sc.CODE_SERVER_ERROR, sc.CODE_EOF}:
            failure = server_error(event, self.position()) if code == sc.CODE_SERVER_ERROR else None
            return failure or DecodeError("the server ended the log", where=self._where())
        where, look = self._where(), self._look()
        kind = event[4] if len(event) > 4 else -1
        name = ev.NAMES.get(kind, f"kind {kind}")
        if code == sc.CODE_CRC:
            return ChecksumMismatch(
                f"the checksum of an event ({name}) is wrong: the data was damaged in the log or on the connection",
                where=where,
                hint=look,
            )
        if code == sc.CODE_OPEN_MARK:
            return self._open_mark()
        if code == sc.CODE_NO_TABLE:
            return DecodeError(f"an event ({name}) names a table that no table map introduced", where=where, hint=look)
        return DecodeError(f"the bytes of an event ({name}) contradict the format", where=where, hint=look)

    def _where(self) -> str:
        return f"{self.file}:{int(self.s[sc.S_FILE_POS])}"

    def _look(self) -> str:
        return f"mysqlbinlog -vvv --start-position={int(self.s[sc.S_LAST_END])} {self.file}"

    def event(self, event: bytes) -> bool:
        """Work on an event that the kernel hands over, with header, without checksum.

        True if a limit is reached after it.
        """
        kind = event[4]
        s = self.s
        flags = int.from_bytes(event[17:19], "little")
        if kind in ev.HEARTBEATS:
            return False
        if kind == 19:
            self.slots.meet(event[ev.HEADER :])
        elif kind == 2:
            return self.query(ev.parse_query(event))
        elif kind == 165:
            return self.query(ev.parse_query(ev.parse_query_compressed(event)))
        elif kind == 4:
            return self._rotate(ev.parse_rotate(event))
        elif kind == 15:
            self.server_version, checksum = ev.parse_format(event)
            s[sc.S_CRC] = int(checksum)
            self.definitions_changed()  # a server's ids start anew with it
        elif kind == 35:
            if not self.mariadb and not flags & 0x20:
                self.ledger.previous(event[ev.HEADER :])
        elif kind == 42:
            self.ledger.begin_tagged(ev.parse_tagged_gtid(event))
            size, time_s = int.from_bytes(event[9:13], "little"), int.from_bytes(event[:4], "little")
            s[sc.GTID_EVENT] = (s[sc.S_FILE], s[sc.S_EVENT_POS], size, zlib.crc32(event), kind, time_s)
        elif kind == 162:
            self._held.mariadb_gtid(ev.parse_mariadb_gtid(event))
        elif kind == 40:
            return self._payload(ev.payload_pieces(event))
        elif kind in ROW_KINDS:
            self._mark(event)
        elif 166 <= kind <= 171:
            return self._nested(_bytes(ev.parse_rows_compressed(event)), 16)
        elif kind in _TRANSIENT_KINDS:
            pass
        elif kind == 26:
            raise UnknownEvent(
                "the server notes that changes are missing from its log (incident event)",
                hint=AROUND,
            )
        elif kind == 164:
            raise UnknownEvent(
                "the log is encrypted by MariaDB and was read as stored",
                hint="read it through the server, which decrypts it",
            )
        elif kind in {9, 11, 17, 18}:
            raise UnknownEvent(
                "LOAD DATA was logged as a statement, which holds no rows",
                hint=f"SET GLOBAL binlog_format = 'ROW' and reconnect the applications; {AROUND}",
            )
        elif flags & 0x80:
            self.skipped["ignorable"] = self.skipped.get("ignorable", 0) + 1
        else:
            name = ev.NAMES.get(kind, "unknown")
            raise UnknownEvent(f"event kind {kind} ({name}) is not understood by this version")
        return False

    def _mark(self, event: bytes) -> None:
        """Process a row of the marking table: what is between a token's insert and its delete was loaded by Sluice.

        A token is before the first row of a load. One that follows a captured row belongs to another transaction, and
        says nothing.
        """
        s = self.s
        if s[sc.S_MARKED]:
            if removed_token(event) == self._token:
                self._end_marked()
            return
        text = written_token(event)
        token = self._marks.read(text) if self._marks is not None and not s[sc.S_TXN_MARK] else None
        if self._marks is None or token is None:
            self.skipped["marks of somebody else"] = self.skipped.get("marks of somebody else", 0) + 1
            return
        self._token = text
        self.partner = self.partner.met(token, self._marks, captured=bool(s[sc.S_CHANGES]))
        s[sc.S_MARKED], s[sc.S_DROPS] = 1, int(self._marks.drops(token))
        s[sc.S_ORIGIN] = token.number

    def _end_marked(self) -> None:
        s = self.s
        if s[sc.S_DROPPED]:
            self.skipped["loaded by Sluice"] = self.skipped.get("loaded by Sluice", 0) + int(s[sc.S_DROPPED])
        self._token = ""
        s[sc.S_MARKED] = s[sc.S_DROPS] = s[sc.S_ORIGIN] = s[sc.S_DROPPED] = 0

    def _open_mark(self) -> SluiceError:
        return DecodeError(
            "a load of Sluice has a mark at its head and none at its tail: which of the transaction's rows it wrote "
            "is not known",
            where=self._where(),
            hint=f"was a part of the transaction left out by a filter of replication? {self._look()}",
        )

    def _rotate(self, rotate: ev.Rotate) -> bool:
        s = self.s
        if s[sc.S_IN_TXN] and rotate.file != self.file:
            self._torn(rotate.file)
        self.ledger.harvest()
        if rotate.file != self.file:
            self.file = rotate.file
            self._files.append(rotate.file)
            s[sc.S_FILE] = len(self._files) - 1
        s[sc.S_FILE_POS] = rotate.offset
        if self.between_transactions:
            s[sc.S_LAST_END] = rotate.offset
        self._set_stop()
        return self._stop is not None and self.between_transactions and self.reached(self._stop)

    def _torn(self, following: str) -> None:
        """Process the end of a file inside a transaction: the server was killed while it wrote.

        MariaDB leaves that in its log, MySQL cuts it off. A transaction without captured rows is left out. So is an XA
        transaction that was not prepared: if an XA COMMIT of it comes all the same, it finds no rows and stops.
        Captured rows outside XA stop: whether they stayed depends on their engine, which the log does not tell.
        """
        s = self.s
        if s[sc.S_TXN_MARK]:
            raise DecodeError(
                f"the log goes on in {following} inside a transaction that changed captured rows: its server was "
                "killed while it wrote",
                hint="InnoDB took these rows back when it started again, MyISAM and Aria kept theirs, and the log "
                "does not tell which they are: "
                f"`sluice seek PIPELINE {following}:4` goes on after it, `sluice dump start PIPELINE --replace` then "
                "makes both sides equal",
            )
        s[sc.S_IN_TXN] = s[sc.S_HAS_GTID] = s[sc.S_HELD] = 0
        s[sc.S_TXNS] = s[sc.S_DONE_TXNS]
        self._end_marked()
        self._held.torn()
        self.skipped["torn transactions"] = self.skipped.get("torn transactions", 0) + 1

    def query(self, query: ev.Query) -> bool:
        """Work on a statement that is neither BEGIN nor COMMIT. True if a limit is reached after it."""
        s = self.s
        words = query.sql.lstrip()[:40].upper().split()
        head = words[0] if words else ""
        if head == "XA":
            return self._held.statement(query.sql)
        if s[sc.S_IN_TXN] and head in {"SAVEPOINT", "RELEASE"}:
            if head == "SAVEPOINT":
                self._savepoints[_savepoint(query.sql)] = (int(s[sc.S_TXNS]), self._seals, int(s[sc.S_EVENTS]))
            return False
        if s[sc.S_IN_TXN] and head == "ROLLBACK":
            to_savepoint = "TO" in words[1:4]
            if s[sc.S_TXN_MARK]:
                self._take_back(self._savepoints.get(_savepoint(query.sql)) if to_savepoint else None, to_savepoint)
            return False if to_savepoint else self.end_transaction()
        if self.mariadb and parse_status(query.status).alter_pending:
            return self.end_transaction()
        txn = int(s[sc.S_TXNS]) - 1
        gtid = self.ledger.gtid_of(txn) if (s[sc.S_HAS_GTID] or s[sc.S_IN_TXN]) and txn >= 0 else None
        commit = int(s[sc.S_TS]) if s[sc.S_HAS_GTID] or s[sc.S_IN_TXN] else 0
        place = Position(self.start.server_uuid, self.file, int(s[sc.S_FILE_POS]), "", commit)
        inside = bool(s[sc.S_IN_TXN])
        close = self._statement(
            LoggedStatement(query, place, gtid, commit, inside, self._first_seq + int(s[sc.S_CHANGES]))
        )
        if inside:
            if close:
                s[sc.S_STOP_AT_END] = 1
                self.ended_by_statement = True
            return False
        limit = self.end_transaction()
        self.ended_by_statement = self.ended_by_statement or close
        return close or limit

    def _take_back(self, savepoint: tuple[int, int, int] | None, to_savepoint: bool) -> None:
        """Take back the rows of the transaction at hand, from the savepoint on if it is rolled back to one.

        The log has rows that were rolled back if the transaction touched a table without transactions, or, in MariaDB,
        a temporary one. Rows of engines with transactions are gone. Raises UnknownEvent where others are among them,
        and where a part of them has been handed over.
        """
        s, rev = self.s, self._rev
        events, here = int(s[sc.S_EVENTS]), int(s[sc.S_TXNS])
        first = events
        while first and int(rev[sc.R_TXN, first - 1]) == here - 1:
            first -= 1
        begin = first
        all_here = self._sealed_in != here
        if to_savepoint:
            all_here = savepoint is not None and savepoint[:2] == (here, self._seals)
            first = savepoint[2] if savepoint is not None and all_here else first
        plans = [self.slots.plans[int(slot)] for slot in {*rev[sc.R_SLOT, first:events].tolist()}]
        if not all_here or not all(plan is not None and self._transactional(plan) for plan in plans):
            raise UnknownEvent(
                "a transaction over engines with and without transactions was rolled back: which rows stayed cannot "
                "be told from the log",
                hint=f"use InnoDB for captured tables, or exclude the others; {AROUND}",
            )
        if first < events:
            rolled_back = int(s[sc.S_CHANGES]) - int(rev[sc.R_SEQ, first])
            s[sc.S_CHANGES] = rev[sc.R_SEQ, first]
            s[sc.S_IMAGES] = rev[sc.R_IMAGE, first]
            s[sc.S_EVENTS] = first
            self.skipped["rolled back"] = self.skipped.get("rolled back", 0) + rolled_back
        if first == begin and self._sealed_in != here:
            s[sc.S_TXN_MARK] = 0

    def end_transaction(self) -> bool:
        """End the transaction at hand. Return True if a limit is reached."""
        s = self.s
        if s[sc.S_MARKED]:
            raise self._open_mark()
        s[sc.S_IN_TXN] = s[sc.S_HAS_GTID] = s[sc.S_HELD] = 0
        s[sc.S_DONE_TXNS] = s[sc.S_TXNS]
        s[sc.S_LAST_END] = s[sc.S_FILE_POS]
        s[sc.S_LAST_TS] = s[sc.S_TS]
        if s[sc.S_TXN_MARK]:
            if not s[sc.S_CAPTURED_TXNS]:
                s[sc.S_FIRST_TS] = s[sc.S_TS]
            s[sc.S_CAPTURED_TXNS] += 1
            s[sc.S_TXN_MARK] = 0
        return bool(
            s[sc.S_STOP_AT_END]
            or s[sc.S_FILE_POS] >= s[sc.S_STOP_POS]
            or s[sc.S_CHANGES] >= s[sc.S_MAX_CHANGES]
            or (s[sc.S_CHANGES] and s[sc.S_BYTES] >= s[sc.S_MAX_BYTES])
        )

    # -- what held rows ask for (:class:`sluice.sources.mysql.decoder.xa_buffer.XaScanner`) ----------------------------
    def behind(self) -> Position:
        """Return the end of the last complete transaction, without its GTIDs."""
        return Position(self.start.server_uuid, self.file, int(self.s[sc.S_LAST_END]))

    def rows_here(self, data: bytes, first_row: int) -> int:
        """Scan events as if they stood where the event at hand does; returns the number of the next row."""
        self._nested(_bytes(data), 16, int(self.s[sc.S_EVENT_POS]), first_row)
        return self._nested_rows

    def unknown_table(self, event: bytes) -> SluiceError:
        """Return the error for rows of a table that no table map introduced."""
        return self._fault(sc.CODE_NO_TABLE, np.frombuffer(event, np.uint8))

    # -- events inside others ------------------------------------------------------------------------------------------
    _nested_rows = 0
    """Rows that the last call of ``_nested`` numbered, from its ``first_row`` on."""

    def _nested(self, data: np.ndarray[Any, Any], spare: int, fixed: int | None = None, first_row: int = 0) -> bool:
        """Scan events that came inside another one, whose rows count from ``first_row``.

        True if a limit was reached after them.
        """
        s = self.s
        saved = {i: int(s[i]) for i in (sc.S_POS, sc.S_FRAMED, sc.S_FIXED, sc.S_ROW_BASE)}
        s[sc.S_POS] = s[sc.S_FRAMED] = 0
        s[sc.S_ROW_BASE] = first_row
        s[sc.S_FIXED] = s[sc.S_EVENT_POS] if fixed is None else fixed
        limit = False
        end = len(data) - spare
        while True:
            code = self._scan(data, end)
            if code == sc.CODE_MORE:
                break
            if code == sc.CODE_END or self._answer(code, data):
                limit = True
        self._nested_rows = int(s[sc.S_ROW_BASE])
        for i, value in saved.items():
            s[i] = value
        if self.between_transactions:
            limit = limit or bool(s[sc.S_FILE_POS] >= s[sc.S_STOP_POS])
        return limit

    def _payload(self, pieces: Iterable[bytes]) -> bool:
        """Process the events of a compressed transaction, in pieces of any size.

        Return True if a limit is reached after them.
        """
        limit = False
        rest = b""
        row = 0
        for piece in pieces:
            data = _bytes(rest + piece)
            end = len(data) - 16
            complete_end = int(sc.whole_events(data, end))
            rest = data[complete_end:end].tobytes()
            limit = self._nested(data[: complete_end + 16], 16, first_row=row) or limit
            row = self._nested_rows
        if rest:
            raise DecodeError("a transaction payload ends inside an event")
        return limit

    def _big(self, buffer: np.ndarray[Any, Any]) -> bool:
        """Process an event of several packets, all received: its pieces are joined in place.

        Return True if a limit is reached after it.
        """
        s = self.s
        event, full, behind = join(buffer, int(s[sc.S_POS]))
        if s[sc.S_CRC]:
            if zlib.crc32(event[: full - 4].data) != int.from_bytes(event[full - 4 : full].tobytes(), "little"):
                raise ChecksumMismatch(
                    "the checksum of an event of several packets is wrong", where=self._where(), hint=self._look()
                )
            event[9:13] = np.frombuffer((full - 4).to_bytes(4, "little"), np.uint8)
        s[sc.S_POS] = behind
        before = int(s[sc.S_FILE_POS])
        s[sc.S_FILE_POS] = before + full
        limit = self._nested(event, 16 + (4 if s[sc.S_CRC] else 0), before)
        if self.between_transactions:
            s[sc.LAST_EVENT] = s[sc.GTID_EVENT]
        return limit

    def definitions_changed(self) -> None:
        """Forget what the bytes of table maps stood for, after a statement changed definitions."""
        self.slots.redefine()

    # -- arenas --------------------------------------------------------------------------------------------------------
    def _seal_arena(self) -> None:
        s = self.s
        count = int(s[sc.S_EVENTS])
        if count:
            rev = self._rev[:, :count].copy()
            first = int(rev[sc.R_TXN].min())
            last = int(s[sc.S_TXNS])
            rev[sc.R_SEQ] += self._first_seq
            rev[sc.R_TXN] += self._first_seq
            self._seal(
                RowEvents(
                    arena=self._arena,
                    rev=rev,
                    images=self._images[: int(s[sc.S_IMAGES])].copy(),
                    txn_first=self._first_seq + first,
                    gtids=self.ledger.texts(first, last),
                    commit_us=self.ledger.ts[first:last].copy(),
                    files=list(self._files),
                    plans=list(self.slots.plans),
                )
            )
            self._arena = np.empty(0, np.uint8)
        if s[sc.S_TXN_MARK]:
            self._sealed_in = int(s[sc.S_TXNS])
        self._seals += 1
        s[sc.S_EVENTS] = s[sc.S_IMAGES] = s[sc.S_ARENA] = 0


def _bytes(data: bytes) -> np.ndarray[Any, Any]:
    """Return a writable array (a kernel is compiled for one kind of array), with sixteen spare bytes."""
    return np.frombuffer(bytearray(data + bytes(16)), np.uint8)
