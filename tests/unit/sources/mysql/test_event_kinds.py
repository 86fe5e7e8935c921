"""Each kind of event: what it does to the scan, or why it stops it. The events are made here, byte by byte."""

from __future__ import annotations

import struct
import sys
import uuid
import zlib

import numpy as np
import pytest

from sluice.errors import CaptureError, ChecksumMismatch, DecodeError, LostPosition, UnknownEvent
from sluice.mysql import type_codes as t
from sluice.sources.mysql.decoder.row_layout import plan_table
from sluice.sources.mysql.decoder.scanner import Scanner
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader.warm_up import table_map_body
from tests.support.capture.golden_logs import table_of

SERVER = "00000000-0000-0000-0000-000000000000"
MAP = table_map_body(7, "s", "t", [("a", t.LONG, b"")], [0])


def event(kind: int, body: bytes = b"", *, flags: int = 0, crc: bool = True, stamp: int = 100) -> bytes:
    size = 19 + len(body) + 4 * crc
    data = struct.pack("<IBIIIH", stamp, kind, 1, size, 0, flags) + body
    return data + struct.pack("<I", zlib.crc32(data)) if crc else data


def query(sql: bytes, schema: bytes = b"s") -> bytes:
    return struct.pack("<IIBHH", 0, 0, len(schema), 0, 0) + schema + b"\0" + sql


def gtid(number: int) -> bytes:
    return event(33, b"\0" + bytes(16) + struct.pack("<Q", number) + b"\2" + bytes(23))


def rows(kind: int, *numbers: int) -> bytes:
    head = struct.pack("<IHH", 7, 0, 1) + (struct.pack("<H", 2) if kind >= 30 else b"") + b"\1"
    bitmaps = b"\1\1" if kind in {24, 31} else b"\1"
    return event(kind, head + bitmaps + b"".join(b"\0" + struct.pack("<I", n) for n in numbers))


def transaction(number: int, *inside: bytes) -> list[bytes]:
    return [gtid(number), event(2, query(b"BEGIN")), *inside, event(16, bytes(8))]


def format_event(*, checksum: bool) -> bytes:
    body = struct.pack("<H50sIB", 4, b"9.7.4", 0, 19) + bytes(40) + bytes([int(checksum)])
    data = struct.pack("<IBIIIH", 100, 15, 1, 19 + len(body) + 4, 0, 0) + body
    return data + struct.pack("<I", zlib.crc32(data) if checksum else 0)


class Run:
    """Scans events; keeps what came of them."""

    def __init__(self, *events: bytes, mariadb: bool = False, reread=None, prepared: str = "") -> None:
        self.sealed, self.statements = [], []
        self.scanner = Scanner(
            Position(SERVER, "b.000001", 4, prepared=prepared),
            tables=lambda table_map, *_: plan_table(table_map, lambda _: ("utf8mb4_bin", "utf8mb4")),
            statement=lambda s: self.statements.append(s.query.sql) or False,
            seal=self.sealed.append,
            mariadb=mariadb,
            reread=reread,
        )
        wire = b"".join(struct.pack("<I", len(e) + 1)[:3] + b"\0\0" + e for e in events)
        buffer = np.zeros(len(wire) + 16, np.uint8)
        buffer[: len(wire)] = np.frombuffer(wire, np.uint8)
        used, _ = self.scanner.feed(buffer, len(wire), 0)
        assert used == len(wire)
        self.scanner.finish()

    @property
    def numbers(self) -> list[int]:
        found = []
        for arena in self.sealed:
            for offset in arena.images.tolist():
                found.append(int.from_bytes(arena.arena[offset + 1 : offset + 5].tobytes(), "little"))
        return found


INSERT = (event(19, MAP), rows(30, 1, 2))


@pytest.mark.parametrize("kinds", [(23, 24, 25), (30, 31, 32)], ids=["v1", "v2"])
def test_rows_of_both_versions(kinds):
    insert, update, delete = kinds
    made = Run(*transaction(1, event(19, MAP), rows(insert, 1, 2), rows(update, 1, 5), rows(delete, 2)))
    assert made.numbers == [1, 2, 1, 5, 2]
    assert made.scanner.transactions == 1
    assert made.scanner.position().gtid_set == f"{SERVER}:1"


@pytest.mark.promise("F1")
def test_more_rows_take_no_more_python() -> None:
    """Rows become columns in kernels: thousands of rows more make fewer calls of Python functions than there are
    rows.
    """
    few = min(calls_for(5), calls_for(5))  # the first one loads kernels
    assert calls_for(5_000) - few < 1_000


def calls_for(count: int) -> int:
    """Return the calls while one event with ``count`` rows is scanned and decoded."""
    events = transaction(1, event(19, MAP), rows(30, *range(count)))
    calls = 0

    def counted(frame: object, kind: str, argument: object) -> None:
        nonlocal calls
        calls += kind in {"call", "c_call"}

    sys.setprofile(counted)
    try:
        table = table_of(Run(*events).sealed)
    finally:
        sys.setprofile(None)
    assert table["a"].to_pylist() == list(range(count))
    return calls


@pytest.mark.parametrize("kind", [3, 5, 13, 14, 28, 29, 36, 37, 160, 161, 163])
def test_what_says_nothing_about_rows_is_passed_over(kind):
    """Stop, intvar, rand, user var, ignorable, rows query, transaction context, view change, annotate, checkpoint, GTID
    list.
    """
    made = Run(*transaction(1, event(kind, bytes(30)), *INSERT), event(kind, bytes(30)))
    assert made.numbers == [1, 2]
    assert made.scanner.skipped == {}


@pytest.mark.parametrize("kind", [27, 41])
def test_heartbeats_move_nothing(kind):
    made = Run(event(kind, b"b.000001", stamp=0), *transaction(1, *INSERT), event(kind, b"b.000001", stamp=0))
    assert made.numbers == [1, 2]
    assert made.scanner.file == "b.000001"


def test_unknown_but_ignorable_events_are_counted():
    made = Run(*transaction(1, event(77, b"?", flags=0x80), *INSERT))
    assert made.scanner.skipped == {"ignorable": 1}
    assert made.numbers == [1, 2]


@pytest.mark.promise("F4")
@pytest.mark.parametrize(
    ("events", "kind", "says"),
    [
        ([event(77, b"?")], UnknownEvent, "77"),
        ([event(26, struct.pack("<H", 1) + b"\4lost")], UnknownEvent, "changes are missing"),
        ([event(164, b"\1" + bytes(16))], UnknownEvent, "encrypted"),
        *[([event(k, bytes(30))], UnknownEvent, "LOAD DATA") for k in (9, 11, 17, 18)],
        ([event(38, bytes(13))], CaptureError, "."),
        (transaction(1, *INSERT, event(4, struct.pack("<Q", 4) + b"b.000002", flags=0x20, stamp=0)), DecodeError,
            "inside a transaction"),
        ([event(4, struct.pack("<Q", 2**62) + b"b.000002")], DecodeError, "offset"),
        ([event(4, struct.pack("<Q", 4) + b"nonsense")], DecodeError, "no log file"),
        (transaction(1, rows(30, 1)), DecodeError, "no table map"),
        ([*transaction(1)[:2], *INSERT, event(2, query(b"ROLLBACK"))], UnknownEvent, "rolled back"),
        ([gtid(1), event(2, query(b"XA COMMIT X'61',X'',1"))], LostPosition, "XA transaction"),
        ([event(2, query(b"XA FROBNICATE X'61',X'',1"))], DecodeError, "XA statement"),
        ([event(40, b"\1\1\0\2\1\7\0")], UnknownEvent, "method 7"),
        ([event(40, b"\2\1\0\0" + b"no zstd")], DecodeError, "payload"),
        ([format_event(checksum=True)[:-1] + b"\x55"], ChecksumMismatch, "format description"),
        ([event(15, b"\3\0" + bytes(80))], UnknownEvent, "format version 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_stops_with_its_reason(events, kind, says):
    with pytest.raises(kind, match=says) as caught:
        Run(*events)
    assert "b.000001:" in caught.value.where
    assert caught.value.hint


@pytest.mark.parametrize("begun", [b"BEGIN", b"XA START X'61',X'',1"], ids=["plain", "xa"])
def test_a_transaction_that_its_server_never_finished_is_left_out(begun):
    inside = INSERT if begun != b"BEGIN" else INSERT[:1]
    torn = [gtid(1), event(2, query(begun)), *inside]
    made = Run(*torn, event(4, struct.pack("<Q", 4) + b"b.000002", flags=0x20, stamp=0), *transaction(2, *INSERT))
    assert made.numbers == [1, 2]
    assert made.scanner.skipped == {"torn transactions": 1}
    assert made.scanner.position().gtid_set == f"{SERVER}:2"
    assert made.scanner.position().prepared == ""


def test_the_commit_of_an_xa_transaction_whose_prepare_was_torn_stops():
    torn = [gtid(1), event(2, query(b"XA START X'61',X'',1")), *INSERT]
    rotate = event(4, struct.pack("<Q", 4) + b"b.000002", flags=0x20, stamp=0)
    with pytest.raises(LostPosition, match="XA transaction"):
        Run(*torn, rotate, gtid(2), event(2, query(b"XA COMMIT X'61',X'',1")))


def test_an_artificial_rotate_names_the_file_that_follows():
    made = Run(event(4, struct.pack("<Q", 4) + b"b.000042", flags=0x20, stamp=0), *transaction(1, *INSERT))
    assert made.scanner.position().file == "b.000042"
    assert made.numbers == [1, 2]


def test_a_format_change_in_mid_log_forgets_table_ids_and_may_switch_checksums():
    plain = [event(19, MAP, crc=False), event(2, query(b"BEGIN"), crc=False)]
    insert = rows(30, 9)[:-4]
    insert = insert[:9] + struct.pack("<I", len(insert)) + insert[13:]
    off = [format_event(checksum=False), plain[1], plain[0], insert, event(16, bytes(8), crc=False)]
    made = Run(*transaction(1, *INSERT), *off, format_event(checksum=True), *transaction(2, *INSERT))
    assert made.numbers == [1, 2, 9, 1, 2]
    with pytest.raises(DecodeError, match="no table map"):
        Run(*transaction(1, *INSERT), format_event(checksum=True), *transaction(2, rows(30, 1)))


def test_statements_savepoints_and_commits_as_statements():
    made = Run(
        event(2, query(b"CREATE TABLE x (a INT)")),
        *transaction(1, event(2, query(b"SAVEPOINT `a`")), *INSERT, event(2, query(b"RELEASE SAVEPOINT `a`")))[:-1],
        event(2, query(b"COMMIT")),
        gtid(2),
        event(2, query(b"DROP TABLE x")),
    )
    assert made.statements == ["CREATE TABLE x (a INT)", "DROP TABLE x"]
    assert made.numbers == [1, 2]
    assert made.scanner.between_transactions
    assert made.scanner.position().gtid_set == f"{SERVER}:1-2"


def test_mariadb_compressed_query_and_rows():
    packed = query(b"")[:-1] + b"\0" + b"\x82" + struct.pack(">H", 22) + zlib.compress(b"CREATE TABLE x (a INT)")
    insert = rows(30, 1, 2)[19:-4]
    head = insert[:12]
    body = head + b"\x81" + bytes([len(insert) - 12]) + zlib.compress(insert[12:])
    start = struct.pack("<QIB", 5, 0, 0) + bytes(6)
    made = Run(
        event(162, struct.pack("<QIB", 4, 0, 1) + bytes(6)), event(165, packed),
        event(162, start), event(19, MAP), event(169, body), event(16, bytes(8)),
        mariadb=True,
    )  # fmt: skip
    assert made.statements == ["CREATE TABLE x (a INT)"]
    assert made.numbers == [1, 2]
    assert made.scanner.position().gtid_set == "0-1-5"


@pytest.mark.promise("A6")
@pytest.mark.parametrize(("outcome", "numbers"), [(b"COMMIT", [7, 1, 2]), (b"ROLLBACK", [7])])
def test_xa_rows_wait_for_the_outcome(outcome, numbers):
    prepare = event(38, struct.pack("<BIII", 0, 1, 1, 0) + b"a")
    begun = [
        gtid(1),
        event(2, query(b"XA START X'61',X'',1")),
        *INSERT,
        event(2, query(b"XA END X'61',X'',1")),
        prepare,
    ]
    between = transaction(2, event(19, MAP), rows(30, 7))
    made = Run(*begun, *between)
    assert made.numbers == [7]
    assert made.scanner.position().prepared == "X'61',X'',1@b.000001:4"
    made = Run(*begun, *between, gtid(3), event(2, query(b"XA " + outcome + b" X'61',X'',1")))
    assert made.numbers == numbers
    assert made.scanner.position().prepared == ""
    assert made.scanner.position().gtid_set == f"{SERVER}:1-3"


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not-listed"])
def test_xa_rows_that_were_prepared_before_are_read_again(listed):
    asked = []

    def reread(xid, place, before):
        asked.append((xid, place and (place.file, place.offset), (before.file, before.offset)))
        stripped = [
            e[:9] + struct.pack("<I", len(e) - 4) + e[13:-4] for e in (event(19, MAP), rows(30, 8), rows(30, 9))
        ]
        yield stripped[0] + stripped[1]
        yield stripped[2]

    prepared = "X'61',X'',1@b.000000:77" if listed else ""
    first = transaction(1, *INSERT)
    made = Run(
        *first,
        gtid(2),
        event(2, query(b"XA COMMIT X'61',X'',1")),
        *transaction(3, *INSERT),
        reread=reread,
        prepared=prepared,
    )
    assert made.numbers == [1, 2, 8, 9, 1, 2]
    assert asked == [("X'61',X'',1", ("b.000000", 77) if listed else None, ("b.000001", 4 + sum(map(len, first[2:]))))]
    assert made.scanner.position().prepared == ""
    assert made.scanner.position().gtid_set == f"{SERVER}:1-3"


def test_tagged_gtids_and_previous_gtids():
    previous = struct.pack("<Q", 1) + uuid.UUID(SERVER).bytes + struct.pack("<QQQ", 1, 1, 9)
    made = Run(event(35, previous), *transaction(9, *INSERT))
    assert made.scanner.position().gtid_set == f"{SERVER}:1-9"
