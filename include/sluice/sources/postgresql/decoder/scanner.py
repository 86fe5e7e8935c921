"""The scanner: the arenas, the kernel's arrays and the limits of one batch, around the kernel.

It lives as long as the connection to the log: the server describes each relation once a connection, and what was
received behind the end of a batch belongs to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from sluice.errors import DecodeError, UnknownEvent
from sluice.model.load_marks import MarkRules, PartnerLoads
from sluice.postgresql.load_messages import MARK_PREFIX
from sluice.sources.postgresql.decoder import messages as pg
from sluice.sources.postgresql.decoder import scan_kernel as sc
from sluice.sources.postgresql.decoder.rows import RowMessages
from sluice.sources.postgresql.decoder.table_plan import TablePlan
from sluice.sources.postgresql.position import Position, file_of, lsn_text

_SPARE = 16
_ARENA_BYTES = 32 * 2**20
_REPORT = (
    "report it with this line; `sluice seek PIPELINE` to the position behind it goes on without it, then "
    "`sluice verify PIPELINE --repair` makes both sides equal"
)


class BeginsBatch(Exception):
    """A change of a definition stands in a transaction that has to begin a batch: the one committed at ``lsn``."""

    def __init__(self, lsn: int) -> None:
        super().__init__(lsn)
        self.lsn = lsn


class NotBeforeRows(Exception):
    """A relation may be one of which no rows come, as it is a partition; it is looked at again with the first one."""


class RelationReader(Protocol):
    """Says how the rows of a relation are decoded."""

    def relation(self, relation: pg.Relation, lsn: int, *, has_rows: bool) -> TablePlan | None:
        """Return the plan of a relation's rows; None if they are not wanted.

        Raises NotBeforeRows unless it ``has_rows``.
        """

    def truncate(self, oids: tuple[int, ...], lsn: int) -> bool:
        """Note a TRUNCATE. Return True if a captured table is emptied."""

    def emptied(self, oids: tuple[int, ...]) -> set[int]:
        """Return those of ``oids`` that are captured."""

    def statement(self, content: bytes, lsn: int) -> None:
        """Take a statement that an event trigger noted."""


class Scanner:
    """The bytes of the log that were received, and the places of its row changes in them.

    Attributes:
        s: the kernel's state.
        partner: what marks said of loads by the channel's other pipeline.
        ddl_table: OID of the table in which statements are noted, 0 if there is none; ``ddl_column``: its column with
            them.
    """

    def __init__(
        self,
        position: Position,
        *,
        marks: MarkRules | None = None,
        arena_bytes: int = _ARENA_BYTES,
        ddl_table: int = 0,
        ddl_column: str = "",
    ) -> None:
        self.s = np.zeros(sc.STATE_SIZE, np.int64)
        self.s[sc.S_LAST_END] = self.s[sc.S_WAL_END] = position.lsn
        self.s[sc.S_LAST_TS] = position.commit_time_us
        self.s[sc.S_TXN_POS] = -1
        self._start = position
        self._marks = marks
        self._arena_bytes = arena_bytes
        self._max_message = arena_bytes
        self.arena = np.empty(arena_bytes + _SPARE, np.uint8)
        self._rows = np.empty((sc.ROW_FIELDS, 1 << 14), np.int64)
        self._txns = np.empty((sc.TXN_FIELDS, 1 << 12), np.int64)
        self._oids = np.zeros(256, np.int64)
        self._slots = np.zeros(256, np.int64)
        self._known = 0
        self.ddl_table, self._ddl_column, self._ddl_at = ddl_table, ddl_column, 0
        self._waiting: dict[int, pg.Relation] = {}
        self._slots_of: dict[int, set[int]] = {}
        self._sealed: set[int] = set()
        self._sealed_of = 0
        self._plans: list[TablePlan | None] = []
        self._seal: Callable[[RowMessages], None] = lambda _: None
        self._relations: RelationReader | None = None
        self.partner = PartnerLoads()

    # -- a batch -------------------------------------------------------------------------------------------------------
    def begin(
        self,
        relations: RelationReader,
        seal: Callable[[RowMessages], None],
        *,
        events: int,
        max_changes: int,
        max_bytes: int,
        max_message: int,
        stop: int,
    ) -> None:
        """Begin a batch.

        ``events``: bits of the wanted row changes by OP_*; ``max_message``: a longer message is refused; ``stop``: an
        LSN, 0 for none.
        """
        s = self.s
        self._max_message = max_message
        self._relations, self._seal = relations, seal
        self._make_room(0)
        for field in (
            sc.S_ROWS, sc.S_TXNS, sc.S_DONE_TXNS, sc.S_CHANGES, sc.S_BYTES, sc.S_BYTES_BEFORE, sc.S_FIRST_TS,
            sc.S_STOP_AT_END, sc.S_SKIPPED_TABLE, sc.S_SKIPPED_KIND, sc.S_DROPPED, sc.S_CAPTURED_TXNS,
            sc.S_LAST_CAPTURED_TS,
        ):  # fmt: skip
            s[field] = 0
        s[sc.S_EVENTS], s[sc.S_STOP] = events, stop
        s[sc.S_MAX_CHANGES], s[sc.S_MAX_BYTES] = max_changes, max_bytes
        self.partner = PartnerLoads()

    @property
    def changes(self) -> int:
        """Captured changes of the batch."""
        return int(self.s[sc.S_CHANGES])

    @property
    def transactions(self) -> int:
        """Captured transactions of the batch."""
        return int(self.s[sc.S_CAPTURED_TXNS])

    @property
    def between_transactions(self) -> bool:
        """True if everything received so far ends with a transaction."""
        return not self.s[sc.S_IN_TXN]

    def position(self) -> Position:
        """Return the end of the last whole transaction, or a later place up to which the server has no other."""
        s = self.s
        lsn = int(max(s[sc.S_LAST_END], s[sc.S_WAL_END])) if not s[sc.S_IN_TXN] else int(s[sc.S_LAST_END])
        if s[sc.S_STOP]:
            lsn = max(min(lsn, int(s[sc.S_STOP])), int(s[sc.S_LAST_END]))
        return self._start.at(lsn, int(s[sc.S_LAST_TS]))

    def whole_until(self) -> Position:
        """Return the end of the last whole transaction."""
        return self._start.at(int(self.s[sc.S_LAST_END]), int(self.s[sc.S_LAST_TS]))

    def stop_at_end(self) -> None:
        """End the batch with the transaction at hand."""
        self.s[sc.S_STOP_AT_END] = 1

    def asks(self) -> bool:
        """Return True if the server asked for a status since the last call."""
        is_asked = bool(self.s[sc.S_REPLY])
        self.s[sc.S_REPLY] = 0
        return is_asked

    def skipped(self) -> dict[str, int]:
        """Return how many changes were not captured, by reason."""
        counts = {
            "other tables": int(self.s[sc.S_SKIPPED_TABLE]),
            "other kinds of change": int(self.s[sc.S_SKIPPED_KIND]),
            "own loads": int(self.s[sc.S_DROPPED]),
        }
        return {reason: count for reason, count in counts.items() if count}

    def reached_stop(self) -> bool:
        """Return True if everything in front of the place to stop at was read."""
        s = self.s
        return bool(s[sc.S_STOP]) and not s[sc.S_IN_TXN] and int(max(s[sc.S_LAST_END], s[sc.S_WAL_END])) >= s[sc.S_STOP]

    # -- room ----------------------------------------------------------------------------------------------------------
    def room(self, size: int) -> int:
        """Make room for a message of ``size`` bytes and its length; return where in the arena it goes."""
        if size > self._max_message:
            raise DecodeError(
                f"a message of the log has {size:,} bytes: a row, mostly",
                where=self._where(),
                hint="raise capture.max_event, or exclude the table",
            )
        used = int(self.s[sc.S_USED])
        if used + size + 4 > self._arena_bytes:
            self._make_room(size + 4)
            used = int(self.s[sc.S_USED])
        return used

    def received(self, used: int) -> None:
        """Take note of as many bytes used."""
        self.s[sc.S_USED] = used

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Bytes used, bytes from which it is time to scan, bytes that fit."""
        end = self._arena_bytes
        return int(self.s[sc.S_USED]), end - (end >> 3), end

    @property
    def unscanned(self) -> int:
        """Where the first message stands that was not scanned."""
        return int(self.s[sc.S_POS])

    def clear(self, size: int) -> None:
        """Put away what was scanned, so that ``size`` bytes have room."""
        self._make_room(size)

    def _make_room(self, size: int) -> None:
        """Seal the rows found so far, and go on in a new arena with what was not scanned yet."""
        s = self.s
        pos, used = int(s[sc.S_POS]), int(s[sc.S_USED])
        unscanned = used - pos
        handed_over = self._hand_over()
        if handed_over or unscanned + size > self._arena_bytes:
            self._arena_bytes = max(self._arena_bytes, unscanned + size)
            fresh = np.empty(self._arena_bytes + _SPARE, np.uint8)
            fresh[:unscanned] = self.arena[pos:used]
            self.arena = fresh
        else:
            self.arena[:unscanned] = self.arena[pos:used].copy()
        s[sc.S_POS], s[sc.S_USED], s[sc.S_TXN_POS] = 0, unscanned, -1

    def _hand_over(self) -> bool:
        s = self.s
        count = int(s[sc.S_ROWS])
        if not count:
            return False
        rows = self._rows[:, :count].copy()
        first = int(rows[sc.R_TXN].min())
        if s[sc.S_IN_TXN]:
            if self._sealed_of != self._txn_lsn():
                self._sealed, self._sealed_of = set(), self._txn_lsn()
            self._sealed.update(np.unique(rows[sc.R_SLOT, int(s[sc.S_TXN_ROWS]) :]).tolist())
        self._seal(
            RowMessages(
                arena=self.arena,
                rows=rows,
                txn_first=first,
                txns=self._txns[:, first : int(s[sc.S_TXNS])].copy(),
                file=file_of(self._start.timeline),
                plans=list(self._plans),
            )
        )
        s[sc.S_ROWS] = s[sc.S_TXN_ROWS] = 0
        return True

    def finish(self) -> None:
        """Seal what is left of the batch."""
        self._make_room(0)

    # -- scanning ------------------------------------------------------------------------------------------------------
    def scan(self) -> int:
        """Work through what was received; return CODE_MORE, CODE_END or CODE_STOP.

        Raises:
            BeginsBatch: the scanner stands in front of a transaction that has to begin a batch.
            DecodeError, UnknownEvent, and what the reader of relations raises.
        """
        s = self.s
        while True:
            code = int(sc.scan(self.arena, s, self._rows, self._txns, self._oids, self._slots))
            if code == sc.CODE_STOP:
                s[sc.S_WAL_END] = max(s[sc.S_WAL_END], s[sc.S_STOP])
            if code == sc.CODE_MORE and self.bounds[0] > self.bounds[1]:
                self._make_room(0)  # a reader takes no message into an arena that is full
            if code in {sc.CODE_MORE, sc.CODE_END, sc.CODE_STOP}:
                return code
            if code == sc.CODE_GROW_ROWS:
                self._rows = _grown(self._rows)
            elif code == sc.CODE_GROW_TXNS:
                self._txns = _grown(self._txns)
            elif code == sc.CODE_MESSAGE:
                self._message(bytes(self.arena[int(s[sc.S_MESSAGE]) : int(s[sc.S_MESSAGE_END])]))
            elif code == sc.CODE_NO_RELATION and int(s[sc.S_OID]) in self._waiting:
                assert self._relations is not None
                relation = self._waiting[int(s[sc.S_OID])]
                self.put(relation.oid, self._relations.relation(relation, self._txn_lsn(), has_rows=True))
                del self._waiting[relation.oid]
            elif code == sc.CODE_NO_RELATION:
                raise DecodeError(
                    f"a row change names relation {int(s[sc.S_OID])}, which the log did not describe",
                    where=self._where(),
                    hint=_REPORT,
                )
            else:
                raise DecodeError("the log does not have the format of pgoutput", where=self._where(), hint=_REPORT)

    def _where(self) -> str:
        return f"behind {lsn_text(int(self.s[sc.S_LAST_END]))}"

    def _message(self, data: bytes) -> None:
        kind = data[:1]
        assert self._relations is not None
        if kind == pg.RELATION:
            relation = pg.parse_relation(data)
            if relation.oid == self.ddl_table:
                names = [column.name for column in relation.columns]
                self._ddl_at = names.index(self._ddl_column) if self._ddl_column in names else 0
                self._place(relation.oid, sc.NOTED_DDL if self._ddl_column in names else sc.NOT_WANTED)
            else:
                self._describe(relation)
        elif kind == pg.INSERT:
            self._relations.statement(pg.parse_insert(data)[self._ddl_at] or b"", self._txn_lsn())
        elif kind == pg.TRUNCATE:
            self._truncate(pg.parse_truncate(data))
        elif kind == pg.MESSAGE:
            self._logical(pg.parse_message(data))
        elif kind != pg.ORIGIN:
            raise UnknownEvent(
                f"the log contains {pg.message_name(kind)}, which was not asked for", where=self._where(), hint=_REPORT
            )

    def _describe(self, relation: pg.Relation) -> None:
        assert self._relations is not None
        self._waiting.pop(relation.oid, None)
        try:
            self.put(relation.oid, self._relations.relation(relation, self._txn_lsn(), has_rows=False))
        except NotBeforeRows:
            self._waiting[relation.oid] = relation
            self._place(relation.oid, sc.AT_FIRST_ROW)

    def _txn_lsn(self) -> int:
        """Return the place of the commit record of the transaction at hand."""
        count = int(self.s[sc.S_TXNS])
        return int(self._txns[sc.T_LSN, count - 1]) if count else int(self.s[sc.S_LAST_END])

    @property
    def sends_back(self) -> bool:
        """True if what the channel's other pipeline loaded is captured, too."""
        return self._marks is not None and self._marks.sends_back

    @property
    def txn(self) -> tuple[int, int, str]:
        """LSN, commit time and id of the transaction at hand."""
        lsn, time_us, xid = self._txns[:, int(self.s[sc.S_TXNS]) - 1].tolist()
        return lsn, time_us, str(xid)

    def _truncate(self, truncate: pg.Truncate) -> None:
        assert self._relations is not None
        emptied = self._relations.emptied(truncate.oids)
        if self.s[sc.S_DROPS] or not emptied:
            return
        self.require_first()
        self._take_back({slot for oid in emptied for slot in self._slots_of.get(oid, ())})
        self._relations.truncate(truncate.oids, self._txn_lsn())

    def take_back(self, oid: int) -> bool:
        """Forget the changes that the transaction at hand made to a table which is gone; False if that is too late."""
        if self.s[sc.S_TXN_POS] < 0:
            return False
        self._take_back(self._slots_of.get(oid, set()))
        return True

    def _take_back(self, slots: set[int]) -> None:
        """Forget the changes that the transaction at hand made to tables which it empties now."""
        s = self.s
        first, count = int(s[sc.S_TXN_ROWS]), int(s[sc.S_ROWS])
        removed_mask = np.isin(self._rows[sc.R_SLOT, first:count], list(slots))
        if s[sc.S_TXN_POS] < 0:
            raise UnknownEvent(
                "a large transaction changes a table and then empties it",
                where=self._where(),
                hint="such a transaction cannot be captured; `sluice seek PIPELINE` to the position behind it, then "
                "`sluice verify run PIPELINE --repair`",
            )
        if removed_mask.any():
            remaining = self._rows[:, first:count][:, ~removed_mask]
            s[sc.S_ROWS] = first + remaining.shape[1]
            s[sc.S_CHANGES] = s[sc.S_TXN_CHANGES] + remaining.shape[1]
            remaining[sc.R_SEQ] = np.arange(s[sc.S_TXN_CHANGES], s[sc.S_CHANGES])
            self._rows[:, first : int(s[sc.S_ROWS])] = remaining

    def _logical(self, message: pg.LogicalMessage) -> None:
        if message.prefix != MARK_PREFIX or not message.transactional or self._marks is None:
            return
        token = self._marks.read(message.content.decode("utf-8", "replace"))
        if token is None:
            return
        self.partner = self.partner.met(token, self._marks, captured=self.changes > 0)
        if self._marks.drops(token):
            self.s[sc.S_DROPS] = 1
        self.s[sc.S_ORIGIN] = token.number

    def require_first(self) -> None:
        """Return if the transaction at hand is the first of its batch that has changes; else step back in front of it.

        Raises:
            BeginsBatch: the batch ends in front of it.
            UnknownEvent: that is no longer possible, since its first rows are written already; ``whole_until`` is where
                it begins.
        """
        s = self.s
        if not s[sc.S_TXN_CHANGES]:
            return
        if s[sc.S_TXN_POS] < 0:
            error = UnknownEvent("a large transaction changes a definition", where=self._where())
            error.whole_until = self.whole_until().as_offset()
            raise error
        lsn = self._txn_lsn()
        s[sc.S_POS], s[sc.S_ROWS], s[sc.S_CHANGES] = s[sc.S_TXN_POS], s[sc.S_TXN_ROWS], s[sc.S_TXN_CHANGES]
        s[sc.S_BYTES] = s[sc.S_TXN_BYTES]
        s[sc.S_TXNS] -= 1
        s[sc.S_IN_TXN] = 0
        raise BeginsBatch(lsn)

    def has_rows_of(self, oid: int) -> bool:
        """Return True if the transaction at hand has changed rows of a relation already."""
        s, slots = self.s, self._slots_of.get(oid)
        if not slots:
            return False
        if s[sc.S_TXN_POS] < 0 and self._sealed_of == self._txn_lsn() and slots & self._sealed:
            return True
        first, count = int(s[sc.S_TXN_ROWS]), int(s[sc.S_ROWS])
        return bool(np.isin(self._rows[sc.R_SLOT, first:count], list(slots)).any())

    def put(self, oid: int, plan: TablePlan | None) -> None:
        """Give a relation a slot for the rows that follow."""
        slot = sc.NOT_WANTED
        if plan is not None:
            slot_before = int(sc.find_slot(self._oids, self._slots, oid))
            if slot_before >= 0 and self._plans[slot_before] is plan:
                return
            slot = len(self._plans)
            self._plans.append(plan)
            self._slots_of.setdefault(oid, set()).add(slot)
        self._place(oid, slot)

    def _place(self, oid: int, slot: int) -> None:
        if 2 * (self._known + 1) > len(self._oids):
            self._rehash()
        self._known += _insert(self._oids, self._slots, oid, slot)

    def _rehash(self) -> None:
        oids, slots = np.zeros(2 * len(self._oids), np.int64), np.zeros(2 * len(self._oids), np.int64)
        for oid, slot in zip(self._oids.tolist(), self._slots.tolist(), strict=True):
            if oid:
                _insert(oids, slots, oid, slot)
        self._oids, self._slots = oids, slots


def _insert(oids: np.ndarray[Any, Any], slots: np.ndarray[Any, Any], oid: int, slot: int) -> int:
    """Set the slot of a relation; return 1 if it had none."""
    mask = len(oids) - 1
    at = (oid * 0x9E3779B1) & mask
    while oids[at] not in {0, oid}:
        at = (at + 1) & mask
    fresh = oids[at] == 0
    oids[at], slots[at] = oid, slot
    return int(fresh)


def _grown(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([array, np.empty_like(array)], axis=1)


__all__ = ["BeginsBatch", "RelationReader", "Scanner"]
