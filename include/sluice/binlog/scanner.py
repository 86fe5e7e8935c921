"""Drives the scan kernel: owns its arrays, answers the events it hands over, seals full arenas. Knows no socket and no clock."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.binlog import events as ev
from sluice.binlog import scan as sc
from sluice.binlog.decode import ArenaRows, gtid_texts
from sluice.binlog.gtids import GtidSet, MariaGtidPosition
from sluice.binlog.plan import TablePlan
from sluice.binlog.raw import CRC_TABLES
from sluice.binlog.tablemap import TableMap, parse_table_map
from sluice.errors import ChecksumMismatch, DecodeError, SluiceError, UnknownEvent
from sluice.model.positions import Position, split_file

ARENA_BYTES = 24 * 2**20
_FAR = 2**62
_TRANSIENT_KINDS = {3, 36, 37}
_HEARTBEATS = {27, 41}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement event that is not BEGIN or COMMIT, with where it stands."""

    query: ev.Query
    position: Position
    gtid: str | None
    commit_us: int
    in_transaction: bool
    seq: int


class Scanner:
    """Turns log bytes into sealed arenas.

    Args:
        start: position of the first byte fed behind the server's prelude.
        tables: a table map -> its plan, or None where its rows are not wanted.
        statement: called for every statement that is not BEGIN or COMMIT; returns True if the batch shall close behind it.
        seal: called with the rows of a full arena.
        row_events: bits of the row changes wanted, by OP_*.
        checksum: events carry a CRC32 from the first one on.
    """

    def __init__(
        self,
        start: Position,
        *,
        tables: Callable[[TableMap, str], TablePlan | None],
        statement: Callable[[Statement], bool],
        seal: Callable[[ArenaRows], None],
        row_events: int = 7,
        checksum: bool = True,
        mariadb: bool = False,
        arena_bytes: int = ARENA_BYTES,
    ) -> None:
        self.start = start
        self.file = start.file
        self.mariadb = mariadb
        self._tables, self._statement, self._seal = tables, statement, seal
        self._row_events = row_events
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
        self._txn_sid = np.empty(1 << 12, np.int64)
        self._txn_gno = np.empty(1 << 12, np.int64)
        self._txn_ts = np.empty(1 << 12, np.int64)
        self._sids = np.zeros((16, 16), np.uint8)
        self._tagged: dict[int, str] = {}
        self._table_ids = np.full(256, -1, np.int64)
        self._table_slots = np.full(256, -1, np.int32)
        self._table_count = 0
        self._plans: list[TablePlan | None] = []
        self._by_body: dict[bytes, int] = {}
        self._slot_columns = np.zeros(16, np.int64)
        self._slot_first = np.zeros(16, np.int64)
        self._slot_events = np.zeros(16, np.int64)
        self._widths = np.zeros(64, np.int32)
        self._width_count = 0
        self._map_at = np.zeros(16, np.int64)
        self._map_size = np.zeros(16, np.int64)
        self._map_bytes = np.zeros(1 << 12, np.uint8)
        self._map_used = 0
        self._files = [start.file]
        self._gtids: GtidSet | MariaGtidPosition = (
            MariaGtidPosition(start.gtid_set) if mariadb else GtidSet(start.gtid_set)
        )
        self._harvested = 0
        self._reached = start
        self._statement_seen = False
        self.ended_by_statement = False
        self.server_version = ""
        self.skipped: dict[str, int] = {}

    # -- what the caller asks -------------------------------------------------------------------------------------------
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

    def position(self) -> Position:
        """The end of the last complete transaction."""
        self._harvest()
        return Position(
            self.start.server_uuid, self.file, int(self.s[sc.S_LAST_END]), str(self._gtids), int(self.s[sc.S_LAST_TS])
        )

    def reached(self, stop: Position) -> bool:
        """True if everything before ``stop`` was read."""
        number, wanted = split_file(self.file)[1], split_file(stop.file)[1]
        return number > wanted or (number == wanted and int(self.s[sc.S_LAST_END]) >= stop.offset)

    def limit(self, *, max_changes: int, max_bytes: int, stop: Position | None) -> None:
        """Where ``feed`` returns at the end of a transaction."""
        self.s[sc.S_MAX_CHANGES], self.s[sc.S_MAX_BYTES] = max_changes, max_bytes
        self._stop = stop
        self._set_stop()

    _stop: Position | None = None

    def _set_stop(self) -> None:
        self.s[sc.S_STOP_POS] = _FAR
        if self._stop is not None:
            here, there = split_file(self.file)[1], split_file(self._stop.file)[1]
            self.s[sc.S_STOP_POS] = self._stop.offset if here == there else (_FAR if here < there else 0)

    def stop_at_end(self) -> None:
        """``feed`` returns at the next end of a transaction."""
        self.s[sc.S_STOP_AT_END] = 1

    # -- work -----------------------------------------------------------------------------------------------------------
    def feed(self, buffer: np.ndarray[Any, Any], end: int, at: int) -> tuple[int, bool]:
        """Work through ``buffer[at:end]`` (packets as received).

        Returns (offset of the first byte not used, whether a limit was reached at the end of a transaction). An offset short of ``end``
        without a limit means that the rest is half a packet; see :meth:`missing`. Raises CaptureError and its kinds.
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
                if not self._big(buffer, end):
                    return int(s[sc.S_POS]), False
                if s[sc.S_STOP_AT_END] and self.between_transactions:
                    return int(s[sc.S_POS]), True
                continue
            if self._answer(code, buffer):
                return int(s[sc.S_POS]), True

    def missing(self, buffer: np.ndarray[Any, Any], end: int, at: int) -> int:
        """Bytes (from ``at``) that the next event takes on the wire, 0 if that is not known yet."""
        if end - at < 5:
            return 0
        size = int(buffer[at]) | int(buffer[at + 1]) << 8 | int(buffer[at + 2]) << 16
        if size != 0xFFFFFF:
            return size + 4
        if end - at < 24:
            return 0
        payload = int.from_bytes(buffer[at + 14 : at + 18].tobytes(), "little") + 1
        return payload + 4 * (payload // 0xFFFFFF + 1)

    def finish(self) -> None:
        """Seal what is in the arena."""
        self._seal_arena()

    # -----------------------------------------------------------------------------------------------------------------
    def _scan(self, buffer: np.ndarray[Any, Any], end: int) -> int:
        return int(
            sc.scan(
                buffer, end, self.s, self._arena, self._rev, self._images, self._txn_sid, self._txn_gno, self._txn_ts, self._sids,
                self._table_ids, self._table_slots, self._slot_columns, self._slot_first, self._slot_events, self._widths, self._map_at,
                self._map_size, self._map_bytes, sc.QUIET, CRC_TABLES,
            )
        )  # fmt: skip

    def _answer(self, code: int, buffer: np.ndarray[Any, Any]) -> bool:
        """Do what the kernel needs; True if a limit is reached."""
        s = self.s
        if code == sc.CODE_EVENT:
            event = buffer[int(s[sc.S_EVENT]) : int(s[sc.S_EVENT_END])].tobytes()
            try:
                return self._event(event)
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
            self._rev = _grown(self._rev, 1)
        elif code == sc.CODE_GROW_IMAGES:
            self._images = _grown(self._images)
        elif code == sc.CODE_GROW_TXNS:
            if not s[sc.S_CHANGES] and self.between_transactions:
                self._forget_transactions()
            else:
                self._txn_sid, self._txn_gno, self._txn_ts = (
                    _grown(a) for a in (self._txn_sid, self._txn_gno, self._txn_ts)
                )
        elif code == sc.CODE_GROW_SIDS:
            self._sids = np.concatenate([self._sids, np.zeros_like(self._sids)])
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
            from sluice.binlog.stream import server_error

            failure = server_error(event, self.position()) if code == sc.CODE_SERVER_ERROR else None
            return failure or DecodeError("the server ended the log", where=self._where())
        where, look = self._where(), self._look()
        kind = event[4] if len(event) > 4 else -1
        name = ev.NAMES.get(kind, f"kind {kind}")
        if code == sc.CODE_CRC:
            return ChecksumMismatch(
                f"the checksum of an event ({name}) is wrong: the log or the connection flipped a bit",
                where=where,
                hint=look,
            )
        if code == sc.CODE_NO_TABLE:
            return DecodeError(f"an event ({name}) names a table that no table map introduced", where=where, hint=look)
        return DecodeError(f"the bytes of an event ({name}) contradict the format", where=where, hint=look)

    def _where(self) -> str:
        return f"{self.file}:{int(self.s[sc.S_FILE_POS])}"

    def _look(self) -> str:
        return f"mysqlbinlog -vvv --start-position={int(self.s[sc.S_LAST_END])} {self.file}"

    def _event(self, event: bytes) -> bool:
        kind = event[4]
        s = self.s
        flags = int.from_bytes(event[17:19], "little")
        if kind in _HEARTBEATS:
            return False
        if kind == 19:
            self._table_map(event)
        elif kind == 2:
            return self._query(ev.parse_query(event))
        elif kind == 165:
            return self._query(ev.parse_query(ev.parse_query_compressed(event)))
        elif kind == 4:
            self._rotate(ev.parse_rotate(event))
        elif kind == 15:
            self.server_version, checksum = ev.parse_format(event)
            s[sc.S_CRC] = int(checksum)
            self._forget_tables()
        elif kind == 35:
            if not self.mariadb and not flags & 0x20:
                self._previous_gtids(event[ev.HEADER :])
        elif kind == 42:
            self._tagged_gtid(ev.parse_tagged_gtid(event))
        elif kind == 40:
            return self._nested(_bytes(ev.parse_payload(event)), 16)
        elif 166 <= kind <= 171:
            return self._nested(_bytes(ev.parse_rows_compressed(event)), 16)
        elif kind in _TRANSIENT_KINDS:
            pass
        elif kind == 26:
            raise UnknownEvent(
                "the server notes that changes are missing from its log (incident event)",
                hint="load the tables anew with a dump",
            )
        elif kind == 164:
            raise UnknownEvent(
                "the log is encrypted by MariaDB and was read as stored",
                hint="read it through the server, which decrypts it",
            )
        elif kind in {38, 162}:
            raise UnknownEvent("XA transactions are not understood by this version", hint=self._look())
        elif kind in {9, 11, 17, 18}:
            raise UnknownEvent(
                "LOAD DATA was logged as a statement, which holds no rows",
                hint="SET GLOBAL binlog_format = 'ROW'; then dump the table",
            )
        elif flags & 0x80:
            self.skipped["ignorable"] = self.skipped.get("ignorable", 0) + 1
        else:
            name = ev.NAMES.get(kind, "unknown")
            raise UnknownEvent(f"event kind {kind} ({name}) is not understood by this version")
        return False

    def _rotate(self, rotate: ev.Rotate) -> None:
        s = self.s
        if s[sc.S_IN_TXN] and rotate.file != self.file:
            raise DecodeError(f"the log goes on in {rotate.file} inside a transaction")
        self._harvest()
        if rotate.file != self.file:
            self.file = rotate.file
            self._files.append(rotate.file)
            s[sc.S_FILE] = len(self._files) - 1
        s[sc.S_FILE_POS] = rotate.offset
        if self.between_transactions:
            s[sc.S_LAST_END] = rotate.offset
        self._set_stop()

    def _query(self, query: ev.Query) -> bool:
        s = self.s
        words = query.sql.lstrip()[:40].upper().split()
        head = words[0] if words else ""
        if head == "XA":
            raise UnknownEvent("XA transactions are not understood by this version", hint=self._look())
        if s[sc.S_IN_TXN] and head in {"SAVEPOINT", "RELEASE"}:
            return False
        if s[sc.S_IN_TXN] and head == "ROLLBACK":
            if s[sc.S_TXN_MARK]:
                raise UnknownEvent(
                    "a transaction over engines with and without transactions was rolled back: which rows stayed cannot be told from the log",
                    hint="use InnoDB for captured tables, or exclude the others",
                )
            return False if "TO" in words[1:4] else self._end_transaction()
        txn = int(s[sc.S_TXNS]) - 1
        gtid = self._gtid_of(txn) if (s[sc.S_HAS_GTID] or s[sc.S_IN_TXN]) and txn >= 0 else None
        commit = int(s[sc.S_TS]) if s[sc.S_HAS_GTID] or s[sc.S_IN_TXN] else 0
        place = Position(self.start.server_uuid, self.file, int(s[sc.S_FILE_POS]), "", commit)
        inside = bool(s[sc.S_IN_TXN])
        close = self._statement(Statement(query, place, gtid, commit, inside, int(s[sc.S_CHANGES])))
        if inside:
            if close:
                s[sc.S_STOP_AT_END] = 1
                self.ended_by_statement = True
            return False
        limit = self._end_transaction()
        self.ended_by_statement = self.ended_by_statement or close
        return close or limit

    def _end_transaction(self) -> bool:
        s = self.s
        s[sc.S_IN_TXN] = s[sc.S_HAS_GTID] = 0
        s[sc.S_DONE_TXNS] = s[sc.S_TXNS]
        s[sc.S_LAST_END] = s[sc.S_FILE_POS]
        s[sc.S_LAST_TS] = s[sc.S_TS]
        return bool(
            s[sc.S_STOP_AT_END] or s[sc.S_FILE_POS] >= s[sc.S_STOP_POS] or s[sc.S_CHANGES] >= s[sc.S_MAX_CHANGES]
        )

    def _previous_gtids(self, body: bytes) -> None:
        """Everything logged before this file: makes the set complete when the drain began at a file without knowing it."""
        if self._gtids or not isinstance(self._gtids, GtidSet):
            return
        number_of_sids = int.from_bytes(body[:8], "little")
        if number_of_sids >> 56:  # the form with tags: the set is known from the server then
            return
        at = 8
        for _ in range(number_of_sids):
            source = str(uuid.UUID(bytes=body[at : at + 16]))
            intervals = int.from_bytes(body[at + 16 : at + 24], "little")
            at += 24
            if intervals * 16 > len(body) - at:
                raise DecodeError("a previous GTIDs event ends too early")
            for _ in range(intervals):
                low, high = (
                    int.from_bytes(body[at : at + 8], "little"),
                    int.from_bytes(body[at + 8 : at + 16], "little"),
                )
                self._gtids.add(source, low, high - 1)
                at += 16

    def _tagged_gtid(self, gtid: ev.TaggedGtid) -> None:
        s = self.s
        if s[sc.S_TXNS] >= len(self._txn_gno):
            self._answer(sc.CODE_GROW_TXNS, self._arena)
        index = next((i for i, name in self._tagged.items() if name == gtid.source), None)
        if index is None:
            if s[sc.S_SIDS] >= len(self._sids):
                self._answer(sc.CODE_GROW_SIDS, self._arena)
            index = int(s[sc.S_SIDS])
            self._sids[index] = np.frombuffer(uuid.uuid5(uuid.NAMESPACE_OID, gtid.source).bytes, np.uint8)
            s[sc.S_SIDS] += 1
            self._tagged[index] = gtid.source
        t = int(s[sc.S_TXNS])
        self._txn_sid[t], self._txn_gno[t], self._txn_ts[t] = index, gtid.number, gtid.commit_us
        s[sc.S_TS] = gtid.commit_us
        s[sc.S_TXNS] = t + 1
        s[sc.S_HAS_GTID] = 1

    def _sid_names(self) -> list[str]:
        names = []
        for i in range(int(self.s[sc.S_SIDS])):
            raw = self._sids[i].tobytes()
            if i in self._tagged:
                names.append(self._tagged[i])
            elif self.mariadb:
                names.append(f"{int.from_bytes(raw[:4], 'little')}-{int.from_bytes(raw[4:8], 'little')}")
            else:
                names.append(str(uuid.UUID(bytes=raw)))
        return names

    def _gtid_of(self, txn: int) -> str | None:
        sid = int(self._txn_sid[txn])
        return None if sid < 0 else f"{self._sid_names()[sid]}{'-' if self.mariadb else ':'}{int(self._txn_gno[txn])}"

    def _harvest(self) -> None:
        """Put the GTIDs of complete transactions into the executed set."""
        done = int(self.s[sc.S_DONE_TXNS])
        if done <= self._harvested:
            return
        sids, numbers = self._txn_sid[self._harvested : done], self._txn_gno[self._harvested : done]
        self._harvested = done
        names = self._sid_names()
        for index in np.unique(sids).tolist():
            if index < 0:
                continue
            mine = numbers[sids == index]
            if isinstance(self._gtids, MariaGtidPosition):
                continue
            ordered = np.unique(mine)
            for run in np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1):
                self._gtids.add(names[index], int(run[0]), int(run[-1]))
        if isinstance(self._gtids, MariaGtidPosition):
            last = {}
            for index, number in zip(sids.tolist(), numbers.tolist(), strict=True):
                if index >= 0:
                    domain, server = names[index].split("-")
                    last[int(domain)] = (int(domain), int(server), number)
            self._gtids.see_all(last.values())

    def _forget_transactions(self) -> None:
        self._harvest()
        self.s[sc.S_TXNS] = self.s[sc.S_DONE_TXNS] = self._harvested = 0

    def _nested(self, data: np.ndarray[Any, Any], spare: int, fixed: int | None = None) -> bool:
        """Scan events that came inside another one. True if a limit was reached behind them."""
        s = self.s
        saved = {i: int(s[i]) for i in (sc.S_POS, sc.S_FRAMED, sc.S_FIXED, sc.S_ROW_BASE)}
        s[sc.S_POS] = s[sc.S_FRAMED] = s[sc.S_ROW_BASE] = 0
        s[sc.S_FIXED] = s[sc.S_EVENT_POS] if fixed is None else fixed
        limit = False
        end = len(data) - spare
        while True:
            code = self._scan(data, end)
            if code == sc.CODE_MORE:
                break
            if code == sc.CODE_END or self._answer(code, data):
                limit = True
        for i, value in saved.items():
            s[i] = value
        if self.between_transactions:
            limit = limit or bool(s[sc.S_FILE_POS] >= s[sc.S_STOP_POS])
        return limit

    def _big(self, buffer: np.ndarray[Any, Any], end: int) -> bool:
        """An event of several packets. False if it is not complete yet."""
        s = self.s
        at = int(s[sc.S_POS])
        need = self.missing(buffer, end, at)
        if need == 0 or end - at < need:
            return False
        pieces = []
        size = 0xFFFFFF
        p = at
        while size == 0xFFFFFF:
            size = int(buffer[p]) | int(buffer[p + 1]) << 8 | int(buffer[p + 2]) << 16
            pieces.append(buffer[p + 4 : p + 4 + size])
            p += 4 + size
        event = np.concatenate([*pieces, np.zeros(16, np.uint8)])[1:]
        full = len(event) - 16
        if s[sc.S_CRC]:
            if zlib.crc32(event[: full - 4].tobytes()) != int.from_bytes(event[full - 4 : full].tobytes(), "little"):
                raise ChecksumMismatch(
                    "the checksum of an event of several packets is wrong", where=self._where(), hint=self._look()
                )
            event[9:13] = np.frombuffer((full - 4).to_bytes(4, "little"), np.uint8)
        s[sc.S_POS] = p
        before = int(s[sc.S_FILE_POS])
        s[sc.S_FILE_POS] = before + full
        self._nested(event, 16 + (4 if s[sc.S_CRC] else 0), before)
        return True

    # -- tables -----------------------------------------------------------------------------------------------------------
    def _table_map(self, event: bytes) -> None:
        body = event[ev.HEADER :]
        table_id = int.from_bytes(body[:6], "little")
        slot = self._by_body.get(body)
        if slot is None:
            table_map = parse_table_map(body)
            plan = self._tables(table_map, self._where())
            slot = -1
            if plan is not None:
                slot = self._add_slot(plan, body)
            if len(self._by_body) < 100_000:
                self._by_body[body] = slot
        self._remember(table_id, slot)

    def _add_slot(self, plan: TablePlan, body: bytes) -> int:
        slot = len(self._plans)
        self._plans.append(plan)
        count = len(plan.columns)
        if slot >= len(self._slot_columns):
            names = ("_slot_columns", "_slot_first", "_slot_events", "_map_at", "_map_size")
            for name in names:
                setattr(self, name, _grown(getattr(self, name)))
        while self._width_count + count > len(self._widths):
            self._widths = _grown(self._widths)
        while self._map_used + len(body) > len(self._map_bytes):
            self._map_bytes = _grown(self._map_bytes)
        self._slot_columns[slot] = count
        self._slot_first[slot] = self._width_count
        self._slot_events[slot] = self._row_events
        self._widths[self._width_count : self._width_count + count] = plan.widths
        self._width_count += count
        self._map_at[slot], self._map_size[slot] = self._map_used, len(body)
        self._map_bytes[self._map_used : self._map_used + len(body)] = np.frombuffer(body, np.uint8)
        self._map_used += len(body)
        return slot

    def _remember(self, table_id: int, slot: int) -> None:
        if self._table_count * 2 >= len(self._table_ids):
            known = [(int(i), int(n)) for i, n in zip(self._table_ids, self._table_slots, strict=True) if i >= 0]
            self._table_ids = np.full(2 * len(self._table_ids), -1, np.int64)
            self._table_slots = np.full(len(self._table_ids), -1, np.int32)
            self._table_count = 0
            for old_id, old_slot in known:
                self._remember(old_id, old_slot)
        mask = len(self._table_ids) - 1
        i = (table_id * 0x9E3779B1) & mask
        while self._table_ids[i] not in {-1, table_id}:
            i = (i + 1) & mask
        if self._table_ids[i] == -1:
            self._table_count += 1
        self._table_ids[i], self._table_slots[i] = table_id, slot

    def _forget_tables(self) -> None:
        """Table ids start anew with a server's restart."""
        self._table_ids.fill(-1)
        self._table_count = 0

    # -- arenas -----------------------------------------------------------------------------------------------------------
    def _seal_arena(self) -> None:
        s = self.s
        count = int(s[sc.S_EVENTS])
        if count:
            rev = self._rev[:, :count].copy()
            first = int(rev[sc.R_TXN].min())
            last = int(s[sc.S_TXNS])
            sid, gno = self._txn_sid[first:last].copy(), self._txn_gno[first:last].copy()
            gtids = gtid_texts(self._sid_names(), sid, gno, "-" if self.mariadb else ":")
            self._seal(
                ArenaRows(
                    arena=self._arena,
                    rev=rev,
                    images=self._images[: int(s[sc.S_IMAGES])].copy(),
                    txn_first=first,
                    gtids=gtids,
                    commit_us=self._txn_ts[first:last].copy(),
                    files=list(self._files),
                    plans=list(self._plans),
                )
            )
            self._arena = np.empty(0, np.uint8)
        s[sc.S_EVENTS] = s[sc.S_IMAGES] = s[sc.S_ARENA] = 0


def _grown(array: np.ndarray[Any, Any], axis: int = 0) -> np.ndarray[Any, Any]:
    return np.concatenate([array, np.zeros_like(array)], axis=axis)


def _bytes(data: bytes) -> np.ndarray[Any, Any]:
    """Writable (a kernel is compiled for one kind of array), with sixteen spare bytes."""
    return np.frombuffer(bytearray(data + bytes(16)), np.uint8)
