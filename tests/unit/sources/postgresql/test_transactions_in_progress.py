"""Blocks of transactions in progress become whole transactions in commit order: never what was rolled back."""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.errors import DecodeError, StorageUnavailable
from sluice.sources.postgresql.decoder import scan_kernel as sc
from sluice.sources.postgresql.decoder.in_progress import TransactionsInProgress
from sluice.sources.postgresql.decoder.scanner import Scanner
from sluice.sources.postgresql.position import Position

ARENA = 4096


def data(message: bytes) -> bytes:
    return b"w" + bytes(24) + message


def row(text: bytes, xid: int | None = None) -> bytes:
    return data(b"I" + (struct.pack(">I", xid) if xid is not None else b"") + text)


def start(xid: int, *, first: bool) -> bytes:
    return data(b"S" + struct.pack(">IB", xid, first))


STOP = data(b"E")
KEEPALIVE = b"k" + struct.pack(">Qqb", 77, 0, 1)


def abort(xid: int, sub: int) -> bytes:
    return data(b"A" + struct.pack(">II", xid, sub))


def commit_of(xid: int, lsn: int) -> bytes:
    return data(b"c" + struct.pack(">IBQQq", xid, 0, lsn, lsn + 8, 5))


def begin(xid: int, lsn: int) -> bytes:
    return data(b"B" + struct.pack(">QqI", lsn, 5, xid))


def commit(lsn: int) -> bytes:
    return data(b"C" + struct.pack(">BQQq", 0, lsn, lsn + 8, 5))


@dataclass
class Log:
    """A connection that has messages, and a scanner's arena that is read until they are through."""

    waiting: list[bytes]
    a_read: int = 10**6
    at_once: int = 10**9
    scanner: Scanner = field(default_factory=lambda: Scanner(Position("postgresql:1", 1, 100), arena_bytes=ARENA))
    transactions: TransactionsInProgress = field(default_factory=TransactionsInProgress)
    largest: int = 0

    def __post_init__(self) -> None:
        reader: Any = None
        self.scanner.begin(
            reader, lambda _: None, events=7, max_changes=1, max_bytes=1, max_message=10**6, stop=0
        )  # fmt: skip

    def read(self, arena: Any, wait_s: float) -> int:
        """Receive as much as fits, up to ``a_read`` bytes."""
        count = taken = 0
        while self.waiting and taken < self.a_read and arena.bounds[0] <= arena.bounds[1]:
            message = self.waiting.pop(0)
            put(arena, message)
            taken += len(message)
            count += 1
        return count

    def through(self) -> list[bytes]:
        return list(self._through())

    def _through(self) -> Iterator[bytes]:
        scanner = self.scanner
        while self.transactions.read(self, scanner, 0.0) or self.waiting:
            at, used = scanner.unscanned, scanner.bounds[0]
            while at < used:
                size = int.from_bytes(bytes(scanner.arena[at : at + 4]), "little")
                yield bytes(scanner.arena[at + 4 : at + 4 + size])
                at += 4 + size
            assert at == used
            self.largest = max(self.largest, len(scanner.arena))
            scanner.s[sc.S_POS] = used
            if scanner.bounds[0] > scanner.bounds[1]:
                scanner.clear(0)


def put(arena: Any, message: bytes) -> None:
    framed = len(message).to_bytes(4, "little") + message
    at = arena.room(len(message))
    arena.arena[at : at + len(framed)] = np.frombuffer(framed, np.uint8)
    arena.received(at + len(framed))


def test_a_transaction_comes_whole_with_its_commit() -> None:
    """Between others that began later and committed earlier; what is not of it is not held up."""
    log = Log([
        start(7, first=True), row(b"a", 7), KEEPALIVE, data(b"O" + bytes(8) + b"there\0"), STOP,
        begin(8, 200), row(b"b"), commit(200),
        start(9, first=True), row(b"c", 9), STOP,
        start(7, first=False), row(b"d", 7), STOP,
        commit_of(9, 300), begin(10, 400), row(b"e"), commit(400), commit_of(7, 500),
    ])  # fmt: skip
    assert log.through() == [
        KEEPALIVE, begin(8, 200), row(b"b"), commit(200), begin(9, 300), row(b"c"), commit(300),
        begin(10, 400), row(b"e"), commit(400), begin(7, 500), row(b"a"), row(b"d"), commit(500),
    ]  # fmt: skip


def test_what_is_rolled_back_never_comes() -> None:
    """A whole transaction, and a sub-transaction with the one within it."""
    log = Log([
        start(7, first=True), row(b"a", 7), STOP, abort(7, 7),
        start(8, first=True), row(b"b", 8), row(b"c", 9), row(b"d", 10), row(b"e", 9), STOP,
        start(8, first=False), row(b"f", 9), STOP, abort(8, 10), abort(8, 9), abort(8, 99),
        start(8, first=False), row(b"g", 8), row(b"h", 11), row(b"i", 8), STOP, abort(12, 12), commit_of(8, 300),
    ])  # fmt: skip
    assert log.through() == [begin(8, 300), *map(row, (b"b", b"g", b"h", b"i")), commit(300)]


@pytest.mark.parametrize("seed", range(40))
def test_any_interleaving(seed: int) -> None:
    """Transactions with sub-transactions, in blocks of any size, received in pieces of any size."""
    dice = random.Random(seed)
    sent: list[bytes] = []
    wanted: list[bytes] = []
    kept: dict[int, list[tuple[tuple[int, ...], bytes]]] = {}
    paths: dict[int, tuple[int, ...]] = {}
    fresh = iter(range(100, 10**6))
    lsn = 1000
    for _ in range(dice.randrange(20, 120)):
        step = dice.random()
        if step < 0.15 or not kept:
            lsn += 100
            if dice.random() < 0.4:
                xid, text = next(fresh), bytes(dice.randrange(1, 300))
                whole = [begin(xid, lsn), row(text), commit(lsn)]
                sent += whole
                wanted += whole
            else:
                xid = next(fresh)
                sent += [start(xid, first=True), STOP]
                kept[xid], paths[xid] = [], (xid,)
        elif step < 0.7:
            xid = dice.choice(list(kept))
            sent.append(start(xid, first=False))
            for _ in range(dice.randrange(30)):
                path = paths[xid]
                moved = dice.random()
                if moved < 0.2:
                    paths[xid] = path = (*path, next(fresh))
                elif moved < 0.3 and len(path) > 1:
                    paths[xid] = path = path[:-1]
                text = dice.randbytes(dice.choice([1, 20, 200, 6000 if dice.random() < 0.05 else 2]))
                sent.append(row(text, path[-1]))
                kept[xid].append((path, text))
                if dice.random() < 0.05:
                    sent.append(KEEPALIVE)
                    wanted.append(KEEPALIVE)
            sent.append(STOP)
        elif step < 0.8:
            xid = dice.choice(list(kept))
            if len(paths[xid]) > 1:
                gone = paths[xid][-1]
                below = {one for path, _ in kept[xid] if gone in path for one in path[path.index(gone) :]}
                sent += [abort(xid, one) for one in sorted(below - {gone}, reverse=True)] + [abort(xid, gone)]
                kept[xid] = [(path, text) for path, text in kept[xid] if gone not in path]
                paths[xid] = paths[xid][:-1]
        else:
            xid = dice.choice(list(kept))
            if dice.random() < 0.3:
                sent.append(abort(xid, xid))
            else:
                lsn += 100
                sent.append(commit_of(xid, lsn))
                wanted += [begin(xid, lsn), *(row(text) for _, text in kept[xid]), commit(lsn)]
            del kept[xid], paths[xid]
    log = Log(list(sent), a_read=dice.choice([1, 500, 10**6]))
    assert log.through() == wanted
    assert log.largest < 8 * 6100  # a larger message makes the arena grow, and so does what came with it


def test_memory_does_not_grow_with_a_transaction() -> None:
    """A row that is larger than the arena makes it grow, and nothing else."""
    text = bytes(1000)
    block = [start(7, first=False), *[row(text, 7)] * 20, STOP]
    log = Log([start(7, first=True), STOP, *block * 50, commit_of(7, 300)])
    assert log.through() == [begin(7, 300), *[row(text)] * 1000, commit(300)]
    assert log.largest < 2 * ARENA
    assert len(log.transactions._out) < 2 * ARENA
    log = Log([start(7, first=True), row(bytes(50_000), 7), STOP, commit_of(7, 300)])
    assert log.through() == [begin(7, 300), row(bytes(50_000)), commit(300)]


@pytest.mark.parametrize(
    "messages",
    [
        [start(7, first=False)],
        [STOP],
        [start(7, first=True), start(8, first=True)],
        [start(7, first=True), commit_of(7, 300)],
        [commit_of(7, 300)],
        [data(b"c" + bytes(5))],
        [start(7, first=True), data(b"I")],
    ],
)
def test_what_does_not_fit_is_an_error(messages: list[bytes]) -> None:
    with pytest.raises(DecodeError, match="transaction in progress that does not fit"):
        Log(messages).through()


def test_a_folder_without_room_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(StorageUnavailable, match="cannot be kept") as raised:
        Log([start(7, first=True)]).through()
    assert "TMPDIR" in (raised.value.hint or "")


def test_files_are_gone_with_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no name while they are there, either: nothing is left by a process that is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = Log([start(7, first=True), row(b"a", 7), STOP])
    log.through()
    assert list(tmp_path.iterdir()) == []
    file = log.transactions._known[7].file
    log.transactions.close()
    assert file.closed
