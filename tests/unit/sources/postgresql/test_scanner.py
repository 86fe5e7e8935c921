"""Messages of pgoutput to columns, without a server: what stands where, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.errors import DecodeError, UnknownEvent
from sluice.model.tables import TableId, TableSchema
from sluice.postgresql.column_types import neutral_column
from sluice.sources.postgresql.decoder.messages import Relation
from sluice.sources.postgresql.decoder.rows import RowMessages, decode_arena
from sluice.sources.postgresql.decoder.scanner import BeginsBatch, Scanner
from sluice.sources.postgresql.decoder.table_plan import TablePlan
from sluice.sources.postgresql.position import Position

OID = 16_400
Value = str | None
UNCHANGED = "\0unchanged"


def data(message: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", 0, 0, 0) + message


def begin(lsn: int, xid: int = 7) -> bytes:
    return data(b"B" + struct.pack(">QqI", lsn, 1_000_000, xid))


def commit(lsn: int) -> bytes:
    return data(b"C\0" + struct.pack(">QQq", lsn, lsn + 8, 1_000_000))


def keepalive(lsn: int, *, reply: bool = False) -> bytes:
    return b"k" + struct.pack(">Qqb", lsn, 0, reply)


def values(*given: Value) -> bytes:
    parts = [struct.pack(">H", len(given))]
    for one in given:
        if one is None or one == UNCHANGED:
            parts.append(b"n" if one is None else b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(one.encode())) + one.encode())
    return b"".join(parts)


def relation(oid: int = OID, identity: str = "d") -> bytes:
    columns = b"".join(
        bytes([flag]) + name + b"\0" + struct.pack(">Ii", 25, -1) for flag, name in ((1, b"id"), (0, b"v"), (0, b"w"))
    )
    return data(b"R" + struct.pack(">I", oid) + b"s\0t\0" + identity.encode() + struct.pack(">H", 3) + columns)


def insert(*new: Value) -> bytes:
    return data(b"I" + struct.pack(">I", OID) + b"N" + values(*new))


def update(*new: Value, old: bytes = b"") -> bytes:
    return data(b"U" + struct.pack(">I", OID) + old + b"N" + values(*new))


def delete(kind: bytes, *old: Value) -> bytes:
    return data(b"D" + struct.pack(">I", OID) + kind + values(*old))


@dataclass
class Log:
    """A scanner that is fed by hand."""

    scanner: Scanner = field(default_factory=lambda: Scanner(Position("postgresql:1", 1, 100), arena_bytes=4096))
    sealed: list[RowMessages] = field(default_factory=list)
    needs_first: bool = False
    emptied_oids: set[int] = field(default_factory=set)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        columns = tuple(neutral_column(name, "text") for name in ("id", "v", "w"))
        self.plan = TablePlan(TableSchema(TableId("s", "t"), columns, ("id",)), np.array([1, 0, 0], np.uint8))
        self.begin()

    def begin(self, stop: int = 0, max_changes: int = 10**6) -> None:
        self.scanner.begin(
            self, self.sealed.append, events=7, max_changes=max_changes, max_bytes=10**9, max_message=10**6, stop=stop
        )

    def relation(self, relation: Relation, lsn: int, *, has_rows: bool) -> TablePlan | None:
        if self.needs_first:
            self.scanner.require_first()
            self.said.append("changed")
        return self.plan

    def emptied(self, oids: tuple[int, ...]) -> set[int]:
        return self.emptied_oids & set(oids)

    def truncate(self, oids: tuple[int, ...], lsn: int) -> bool:
        self.said.append("emptied")
        return True

    def statement(self, content: bytes, lsn: int) -> None:
        self.said.append(f"{content.decode()} at {lsn} behind {self.scanner.changes} rows")

    def feed(self, *messages: bytes) -> int:
        for message in messages:
            self.put(message)
        return self.scanner.scan()

    def put(self, message: bytes) -> None:
        at = self.scanner.room(len(message))
        framed = len(message).to_bytes(4, "little") + message
        self.scanner.arena[at : at + len(framed)] = np.frombuffer(framed, np.uint8)
        self.scanner.received(at + len(framed))

    def rows(self) -> list[dict[str, Any]]:
        self.scanner.finish()
        tables = [
            table
            for one in self.sealed
            for _, table in decode_arena(one, lambda schema, keys, count: np.zeros(count, np.uint8))
        ]
        self.sealed.clear()
        return pa.concat_tables(tables).sort_by("_seq").to_pylist() if tables else []


def present(row: dict[str, Any]) -> tuple[str, str]:
    """The known columns of the row and of the row before it, as bits."""
    maps = row["_present"] or b"\x07\x07"
    return f"{maps[0]:03b}"[::-1], f"{maps[1]:03b}"[::-1]


def test_a_null_of_an_old_identity_is_a_value_that_is_not_known() -> None:
    log = Log()
    log.feed(relation(), begin(200), update("2", "x", None, old=b"K" + values("1", None, None)), commit(200))
    after, moved = log.rows()
    assert (after["_op"], after["id"], after["v"], after["w"], after["_before"]["id"]) == ("u", "2", "x", None, "1")
    assert present(after) == ("111", "100")
    assert (moved["_op"], moved["id"], moved["_seq"]) == ("k", "1", after["_seq"])
    assert present(moved)[0] == "100"


def test_an_update_that_says_no_old_row_left_the_identity_as_it_is() -> None:
    log = Log()
    log.feed(relation(), begin(200), update("1", "x", UNCHANGED), delete(b"K", "1", None, None), commit(200))
    changed, gone = log.rows()
    assert (changed["_before"]["id"], present(changed)) == ("1", ("110", "100"))
    assert (gone["_op"], gone["id"], present(gone)[0]) == ("d", "1", "100")


def test_a_whole_old_row_has_what_an_update_left_unchanged() -> None:
    log = Log()
    log.plan = TablePlan(
        log.plan.schema, np.ones(3, np.uint8)
    )  # the server flags every column of REPLICA IDENTITY FULL
    log.feed(
        relation(identity="f"),
        begin(200),
        update("1", "x", UNCHANGED, old=b"O" + values("1", None, "long")),
        commit(200),
    )
    [row] = log.rows()
    assert (row["w"], row["_before"]["v"], row["_before"]["w"], row["_present"]) == ("long", None, "long", None)


def test_rows_are_told_by_the_commit_and_their_number_in_it() -> None:
    log = Log()
    log.feed(relation(), begin(200, 9), insert("1", "a", "b"), insert("2", "a", "b"), commit(200), begin(300, 10))
    log.feed(insert("3", "a", "b"), commit(300))
    assert [(r["_offset"], r["_row"], r["_gtid"], r["_txn"]) for r in log.rows()] == [
        (200, 0, "9", 0), (200, 1, "9", 0), (300, 0, "10", 1),
    ]  # fmt: skip
    assert log.scanner.position().lsn == 308


def test_it_stops_in_front_of_what_commits_later() -> None:
    log = Log()
    log.begin(stop=250)
    assert log.feed(relation(), begin(200), insert("1", "a", "b"), commit(200), begin(300), insert("2", "", "")) == 3
    assert (log.scanner.position().lsn, len(log.rows())) == (250, 1)
    log.begin()
    log.feed(commit(300))
    assert [row["id"] for row in log.rows()] == ["2"]


def test_a_transaction_larger_than_the_arena_is_scanned_to_its_end() -> None:
    """The reader of the log puts messages into the arena until it is full, and then has it scanned."""
    log = Log()
    rows = [insert(str(number), "a" * 50, "b") for number in range(200)]
    waiting = [relation(), begin(20_000), *rows, commit(20_000)]
    assert sum(map(len, waiting)) > 4 * 4096
    while waiting:
        used, full, _ = log.scanner.bounds
        assert used <= full, "nothing can be put in any more"
        while waiting and used <= full:
            log.put(waiting.pop(0))
            used, full, _ = log.scanner.bounds
        log.scanner.scan()
    assert [row["id"] for row in log.rows()] == [str(number) for number in range(200)]


def test_a_keepalive_moves_the_position_between_transactions_only() -> None:
    log = Log()
    log.feed(keepalive(150, reply=True))
    assert (log.scanner.position().lsn, log.scanner.asks(), log.scanner.asks()) == (150, True, False)
    log.feed(relation(), begin(200), keepalive(400))
    assert log.scanner.position().lsn < 200
    log.feed(commit(200))
    assert log.scanner.position().lsn == 208


def test_a_changed_definition_begins_a_batch() -> None:
    log = Log()
    log.feed(relation(), begin(200), insert("1", "a", "b"), commit(200))
    log.needs_first = True
    with pytest.raises(BeginsBatch):
        log.feed(begin(300), relation(), insert("2", "a", "b"), commit(300))
    assert (log.scanner.position().lsn, [row["id"] for row in log.rows()]) == (208, ["1"])
    log.begin()
    log.feed()
    assert (log.said, [row["id"] for row in log.rows()]) == (["changed"], ["2"])


def test_what_a_transaction_wrote_before_it_emptied_the_table_is_left_out() -> None:
    log = Log(emptied_oids={OID})
    truncate = data(b"T" + struct.pack(">IBI", 1, 0, OID))
    log.feed(relation(), begin(200), insert("1", "a", "b"), truncate, insert("2", "a", "b"), commit(200))
    assert [(row["id"], row["_seq"]) for row in log.rows()] == [("2", 0)]
    assert (log.said, log.scanner.changes) == (["emptied"], 1)


def test_a_noted_statement_is_told_in_its_place() -> None:
    """Its row is deleted again by the trigger; neither is a row, and both count in the numbers of the rows."""
    noted = 16_500
    log = Log(Scanner(Position("postgresql:1", 1, 100), arena_bytes=4096, ddl_table=noted, ddl_column="v"))
    row = struct.pack(">I", noted)
    log.feed(
        begin(200), relation(), insert("1", "a", None), relation(noted),
        data(b"I" + row + b"N" + values("7", "what", None)), data(b"D" + row + b"K" + values("7", None, None)),
        insert("2", "b", None), commit(200),
    )  # fmt: skip
    assert log.said == ["what at 200 behind 1 rows"]
    assert [(one["id"], one["_row"]) for one in log.rows()] == [("1", 0), ("2", 3)]
    assert log.scanner.skipped() == {}


def test_rows_of_a_large_transaction_are_remembered() -> None:
    """Also of those that were handed over already; not those of another transaction."""
    log = Log()
    log.feed(begin(200), relation(), insert("0", "x", None), commit(200), begin(300))
    assert not log.scanner.has_rows_of(OID)
    for number in range(100):
        log.feed(insert(str(number), "x" * 100, None))
    assert log.sealed
    assert log.scanner.has_rows_of(OID)
    assert not log.scanner.has_rows_of(OID + 1)
    assert not log.scanner.take_back(OID)
    log.feed(commit(300), begin(400))
    assert not log.scanner.has_rows_of(OID)


def test_rows_that_do_not_fit_one_arena_are_all_there() -> None:
    log = Log()
    log.feed(relation(), begin(200), *(insert(str(n), "v" * 300, "w") for n in range(100)))
    log.feed(insert("big", "v" * 9000, "w"), commit(200))
    rows = log.rows()
    assert [row["id"] for row in rows] == [*map(str, range(100)), "big"]
    assert len(rows[-1]["v"]) == 9000


@pytest.mark.parametrize(
    "message",
    [
        insert("1", "a"),
        data(b"I" + struct.pack(">I", OID) + b"N" + values("1", "a", "b")[:-1]),
        data(b"I" + struct.pack(">I", OID) + b"N" + values("1", "a", "b") + b"x"),
        data(b"I" + struct.pack(">I", OID) + b"N" + struct.pack(">H", 3) + b"b" + struct.pack(">I", 1) + b"1nn"),
        data(b"D" + struct.pack(">I", OID) + b"N" + values("1", "a", "b")),
    ],
    ids=["too few columns", "cut", "too long", "binary", "a delete without an old row"],
)
def test_a_row_that_contradicts_its_relation_is_refused(message: bytes) -> None:
    log = Log()
    log.feed(relation(), begin(200), message, commit(200))
    with pytest.raises(DecodeError, match=r"s\.t"):
        log.rows()


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (data(b"S" + bytes(5)), UnknownEvent),
        (data(b"I" + struct.pack(">I", 99) + b"N" + values("1")), DecodeError),
        (b"x" + bytes(40), DecodeError),
    ],
    ids=["streamed", "no relation", "no message"],
)
def test_what_is_not_understood_stops(message: bytes, kind: type[Exception]) -> None:
    log = Log()
    with pytest.raises(kind):
        log.feed(relation(), begin(200), message)
