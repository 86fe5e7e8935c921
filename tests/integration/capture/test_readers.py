"""Closed files read side by side: any number of readers gives the rows, the positions and the batches of one."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pymysql.err import IntegrityError

from sluice.errors import UnknownEvent
from sluice.segments.reader import iter_changes
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump
from sluice.sources.mysql.reader.parallel import closed_pieces
from tests.support.capture.capturing import draining, head

EXAMPLES = int(os.environ.get("SLUICE_READER_EXAMPLES", "5"))
# Not MariaDB: 10.11.19 crashed under several dump threads, so a drain takes one reader there.
BOTH = pytest.mark.parametrize("kind", ["mysql_source"])


def write_files(cursor, files: int, seed: int) -> None:
    """Some hundred transactions on three tables, over so many log files; a key moves now and then."""
    dice = random.Random(seed)
    for _ in range(files):
        for _ in range(dice.randint(0, 30)):
            table = dice.choice(("a", "b", "c"))
            cursor.execute("START TRANSACTION")
            for _ in range(dice.randint(1, 4)):
                row = dice.randint(1, 60)
                statement = dice.choice((
                    f"INSERT INTO {table} VALUES ({row}, REPEAT('x', {dice.randint(0, 300)})) ON DUPLICATE KEY UPDATE "
                    "v = CONCAT(v, '+')",
                    f"UPDATE {table} SET v = {dice.random()} WHERE id < {dice.randint(1, 40)}",
                    f"UPDATE {table} SET id = id + 1000 WHERE id = {row}",
                    f"DELETE FROM {table} WHERE id = {row}",
                ))
                with suppress(IntegrityError):  # a key that is taken
                    cursor.execute(statement)
            cursor.execute("COMMIT")
        cursor.execute("FLUSH BINARY LOGS")


def batches(drain, **limits):
    """What each batch says of itself, and its changes in order (without the numbers that only order them)."""
    told = []
    for manifest in drain.all(**limits):
        about = (manifest.first, manifest.last, manifest.changes, manifest.transactions, manifest.first_commit_time_us)
        counts = (manifest.last_commit_time_us, manifest.skipped, sum(f.rows for f in manifest.files))
        found = list(iter_changes(drain.store, manifest))
        for numbers in ([c.seq for c in found], list(dict.fromkeys(c.txn for c in found))):
            assert numbers == sorted(set(numbers))
        ranks = {txn: i for i, txn in enumerate(dict.fromkeys(c.txn for c in found))}
        told.append((about, counts, [replace(c, seq=0, txn=ranks[c.txn]) for c in found]))
    return told, drain.position


@pytest.mark.promise("F2")
@BOTH
def test_any_number_of_readers(kind, request, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    counter = iter(range(10**6))
    with server.connect(db) as connection, connection.cursor() as cursor:
        for table in ("a", "b", "c"):
            cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(2000))")
        cursor.execute("FLUSH BINARY LOGS")
        with draining(server, tmp_path / "one", db, exclude=(rf"{db}\.c",)) as one:
            start = one.position
            write_files(cursor, 7, seed=11)
            end = None
            while end != (end := head(one.endpoint)):  # MariaDB notes a checkpoint in the new file a moment later
                time.sleep(1)

            @settings(max_examples=EXAMPLES, derandomize=True, phases=[Phase.generate])
            @given(
                readers=st.integers(2, 5),
                max_changes=st.sampled_from([40, 150, 400, 10**6]),
                max_bytes=st.sampled_from([30_000, 200_000, 10**9]),
                arena=st.sampled_from([1 << 12, 1 << 20]),
                piece_bytes=st.sampled_from([1, 9000]),
            )
            def same(readers, max_changes, max_bytes, arena, piece_bytes):
                found = []
                for n in (1, readers):
                    with draining(server, tmp_path / f"run{next(counter)}", db, exclude=(rf"{db}\.c",)) as drain:
                        drain.position, drain.readers, drain.arena_bytes, drain.piece_bytes = (
                            start,
                            n,
                            arena,
                            piece_bytes,
                        )
                        found.append(batches(drain, max_changes=max_changes, max_bytes=max_bytes))
                assert found[0] == found[1]

            same()


@pytest.mark.promise("F2")
def test_what_needs_its_turn_is_read_in_its_turn(mysql_source, tmp_path, fresh_schema):
    """DDL, XA and a statement without rows in the middle of a backlog: as one reader meets them."""
    db = fresh_schema(mysql_source)
    with mysql_source.connect(db) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(2000))")
        cursor.execute("FLUSH BINARY LOGS")
        with draining(mysql_source, tmp_path / "none", db) as none:
            start = none.position
        for file in range(6):
            cursor.execute(f"INSERT INTO a (id) VALUES ({file}), ({file + 100})")
            if file == 1:
                cursor.execute("XA START 'x'")
                cursor.execute("INSERT INTO a (id) VALUES (1000)")
                cursor.execute("XA END 'x'")
                cursor.execute("XA PREPARE 'x'")
            if file == 3:
                cursor.execute("XA COMMIT 'x'")
                cursor.execute("ALTER TABLE a ADD COLUMN w INT")
            cursor.execute("FLUSH BINARY LOGS")
        found = []
        for n in (1, 4):
            with draining(mysql_source, tmp_path / str(n), db) as drain:
                drain.position, drain.readers = start, n
                found.append(batches(drain))
        assert found[0] == found[1]
        assert len(found[0][0]) == 2
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO a (id) VALUES (2000)")
        cursor.execute("SET SESSION binlog_format = 'ROW'")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("INSERT INTO a (id) VALUES (2001)")
        cursor.execute("FLUSH BINARY LOGS")
        with draining(mysql_source, tmp_path / "stop", db) as drain:
            drain.position, drain.readers = start, 3
            drain.once()
            with pytest.raises(UnknownEvent, match="without its rows"):
                drain.once()
            assert drain.store.files(drain.batch + 1) == []


def test_a_pause_ends_all_readers(mysql_source, tmp_path, fresh_schema):
    """What progress raises ends the drain, and nothing of the batch stays."""
    db = fresh_schema(mysql_source)
    with mysql_source.connect(db) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(2000))")
        with draining(mysql_source, tmp_path, db) as drain:
            write_files_of_one_table(cursor)
            from sluice.segments.writer import SegmentWriter
            from sluice.sources.mysql.reader.batch_reader import capture
            from sluice.sources.mysql.reader.log_part import Backlog, LogReading
            from sluice.sources.port import StreamLimits
            from sluice.sources.table_filter import Selection
            from tests.support.capture.capturing import log_files

            class Enough(Exception):
                pass

            calls = iter(range(10**6))

            def progress(**_):
                if next(calls) >= 1:
                    raise Enough

            with pytest.raises(Enough):
                capture(
                    LogReading(
                        drain.endpoint, 77002, Selection.compile(drain.config),
                        StreamLimits(max_wait_s=30, stop_at=head(drain.endpoint).as_offset())
                    ),
                    drain.position, lambda: SegmentWriter(drain.store, 1, 1), progress=progress,
                    backlog=Backlog(3, log_files(drain.endpoint), 1),
                )  # fmt: skip
            assert drain.store.files(1) == []


def test_readers_leave_replicas_of_neighbouring_ids_alone(mysql_source, tmp_path, fresh_schema):
    db = fresh_schema(mysql_source)
    with mysql_source.connect(db) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(2000))")
        with draining(mysql_source, tmp_path, db) as drain:
            drain.server_id, drain.readers, drain.piece_bytes = 77_100, 4, 1
            write_files_of_one_table(cursor)
            neighbours = [
                BinlogDump(drain.endpoint, server_id=77_100 + n, start=head(drain.endpoint)) for n in (1, 2, 3)
            ]
            try:
                assert sum(manifest.changes for manifest in drain.all()) == 2500
                cursor.execute("INSERT INTO a (id) VALUES (90000)")
                buffer = np.zeros(1 << 20, np.uint8)
                for neighbour in neighbours:
                    received = b""
                    end = time.monotonic() + 180
                    while db.encode() not in received:  # the table map of the row just inserted
                        assert time.monotonic() < end
                        received += buffer[: neighbour.receive(buffer, 0, 1.0)].tobytes()
            finally:
                for neighbour in neighbours:
                    neighbour.close()


def write_files_of_one_table(cursor) -> None:
    for file in range(5):
        cursor.execute("INSERT INTO a (id) VALUES " + ",".join(f"({file * 1000 + i})" for i in range(500)))
        cursor.execute("FLUSH BINARY LOGS")


@pytest.mark.promise("F2")
def test_pieces_are_closed_files_that_fit():
    logs = [("b.000001", 1000), ("b.000002", 500), ("b.000003", 700), ("b.000004", 90)]
    start = Position("u", "b.000001", 600, "u:1-9")
    pieces = closed_pieces(start, logs, max_bytes=10_000, piece_bytes=1)
    assert [(p.start.file, p.start.offset, p.stop.file, p.size_bytes) for p in pieces] == [
        ("b.000001", 600, "b.000002", 400), ("b.000002", 4, "b.000003", 496), ("b.000003", 4, "b.000004", 696),
    ]  # fmt: skip
    assert [len(closed_pieces(start, logs, max_bytes=n, piece_bytes=1)) for n in (400, 896, 897, 1592, 1593)] == [
        0,
        0,
        2,
        2,
        3,
    ]
    assert closed_pieces(start.at(file="b.000003", offset=4), logs, max_bytes=10_000, piece_bytes=1) == []
    assert len(closed_pieces(start, logs, max_bytes=10_000, stop_at=Position("u", "b.000003", 50), piece_bytes=1)) == 2
    assert closed_pieces(start, logs, max_bytes=10_000) == []
    small = closed_pieces(start, logs, max_bytes=10_000, piece_bytes=800)
    assert [(p.start.file, p.stop.file, p.size_bytes) for p in small] == [
        ("b.000001", "b.000003", 896), ("b.000003", "b.000004", 696),
    ]  # fmt: skip
    assert closed_pieces(start.at(file="b.000009"), logs, max_bytes=10_000) == []
    gap = [("b.000001", 1000), ("b.000003", 700), ("b.000004", 90)]
    assert closed_pieces(start, gap, max_bytes=10_000) == []
