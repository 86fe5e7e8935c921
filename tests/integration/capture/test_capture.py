"""Capture on real servers: transactions, batches, event kinds, limits, and what must stop it."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow.compute as pc
import pytest

from devstack import debian, paths
from sluice.errors import SegmentError, SourceUnavailable
from sluice.segments.packed import parted
from sluice.segments.reader import read_file, verify_file
from sluice.sources.mysql.reader.start_position import after_gtids
from sluice.sources.mysql.server.connection import open_connection, server_info
from tests.support.capture.capturing import draining, head

BOTH = pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])


@pytest.fixture
def made(request, tmp_path, fresh_schema):
    """(server, schema, cursor, drain) of MySQL, or of the server that ``kind`` names."""
    name = (
        request.node.callspec.params.get("kind", "mysql_source")
        if hasattr(request.node, "callspec")
        else "mysql_source"
    )
    server = request.getfixturevalue(name)
    db = fresh_schema(server)
    with server.connect(db) as connection, connection.cursor() as cursor, draining(server, tmp_path, db) as drain:
        yield server, db, cursor, drain


def ids(changes):
    return [(c.op, (c.after or c.before)["id"]) for c in changes]


@pytest.mark.promise("A9")
@BOTH
def test_changes_come_in_commit_order_with_positions_that_go_on(kind, made):
    _, _, cursor, drain = made
    if kind == "mariadb":  # events that are not sent count only from the end of their transaction on, since 11.4
        cursor.execute("SET SESSION binlog_annotate_row_events = OFF")
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    cursor.execute("INSERT INTO t VALUES (1,'a'),(2,'b'),(3,'c')")
    cursor.execute("START TRANSACTION")
    cursor.execute("UPDATE t SET v = 'x' WHERE id < 3")
    cursor.execute("SAVEPOINT s")
    cursor.execute("DELETE FROM t WHERE id = 1")
    cursor.execute("ROLLBACK TO s")
    cursor.execute("DELETE FROM t WHERE id = 3")
    cursor.execute("COMMIT")
    cursor.execute("UPDATE t SET id = 9 WHERE id = 2")
    manifests = drain.all()
    changes = drain.changes(manifests)
    assert ids(changes) == [("i", 1), ("i", 2), ("i", 3), ("u", 1), ("u", 2), ("d", 3), ("u", 9)]
    assert [c.last_in_txn for c in changes] == [False, False, True, False, False, True, True]
    assert changes[-1].before == {"id": 2, "v": "x"}
    assert changes[5].before == {"id": 3, "v": "c"}
    assert changes[5].after is None
    for one, other in itertools.pairwise(manifests):
        assert one.last == other.first
    assert all(c.gtid for c in changes)
    with open_connection(drain.endpoint) as connection:
        assert server_info(connection).head.gtid_set == drain.position.gtid_set
    assert [c.txn_row for c in changes] == [0, 1, 2, 0, 1, 2, 0]
    assert {(c.table.schema, c.table.table) for c in changes} == {(cursor.connection.db.decode(), "t")}
    assert [c.commit_time_us for c in changes] == sorted(c.commit_time_us for c in changes)
    # from there on: names of XA transactions of other tests, which stand before it, may be no text
    cursor.execute("SHOW BINLOG EVENTS IN %s FROM %s", (changes[0].file, changes[0].offset))
    kinds = ("write_rows", "update_rows", "delete_rows")
    events = [int(place) for _, place, kind, *_ in cursor.fetchall() if kind.lower().startswith(kinds)]
    assert [place for place, _ in itertools.groupby(c.offset for c in changes)] == events[-4:]


def test_compressed_transactions_are_the_same(made):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    drain.all()
    cursor.execute("SET SESSION binlog_transaction_compression = ON")
    for start in (0, 100):
        cursor.execute("START TRANSACTION")
        for i in range(20):
            cursor.execute("INSERT INTO t VALUES (%s, %s)", (start + i, "ab" * 2000))
        cursor.execute("COMMIT")
    cursor.execute("SET SESSION binlog_transaction_compression = OFF")
    cursor.execute("INSERT INTO t VALUES (999, 'plain')")
    changes = drain.changes(drain.all())
    assert ids(changes) == [("i", i) for i in [*range(20), *range(100, 120), 999]]
    assert len({(c.file, c.offset, c.row) for c in changes}) == 41
    assert len({c.gtid for c in changes}) == 3


def test_mariadb_compressed_rows_are_the_same(mariadb, tmp_path, fresh_schema):
    db = fresh_schema(mariadb)
    with mariadb.connect(db) as connection, connection.cursor() as cursor, draining(mariadb, tmp_path, db) as drain:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, c VARCHAR(500) COMPRESSED, b BLOB COMPRESSED)")
        drain.all()
        cursor.execute("SET GLOBAL log_bin_compress = ON")
        try:
            cursor.execute(
                "INSERT INTO t VALUES (1, REPEAT('ab', 5000), REPEAT('é', 300), REPEAT('z', 900)), (2, 'x', 'short', "
                "'s')"
            )
            cursor.execute("UPDATE t SET v = CONCAT(v, '!')")
            cursor.execute("DELETE FROM t WHERE id = 1")
        finally:
            cursor.execute("SET GLOBAL log_bin_compress = OFF")
        changes = drain.changes(drain.all())
        assert ids(changes) == [("i", 1), ("i", 2), ("u", 1), ("u", 2), ("d", 1)]
        assert changes[2].after == {"id": 1, "v": "ab" * 5000 + "!", "c": "é" * 300, "b": b"z" * 900}


def test_tagged_gtids(made):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    drain.all()
    before = drain.position
    cursor.execute("SET GTID_NEXT = 'AUTOMATIC:blue'")
    cursor.execute("INSERT INTO t VALUES (1)")
    cursor.execute("INSERT INTO t VALUES (2)")
    cursor.execute("SET GTID_NEXT = 'AUTOMATIC'")
    cursor.execute("INSERT INTO t VALUES (3)")
    changes = drain.changes(drain.all())
    assert ids(changes) == [("i", 1), ("i", 2), ("i", 3)]
    assert ":blue:" in changes[0].gtid
    assert changes[0].gtid != changes[1].gtid
    with open_connection(drain.endpoint) as connection:
        info = server_info(connection)
        assert info.head.gtid_set == drain.position.gtid_set
        start = after_gtids(connection, info, before.gtid_set)
    assert (start.file, start.offset) == (before.file, before.offset), "the first tagged one was not read"


def test_rotation_and_big_rows(made):
    server, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)")
    cursor.execute("SET GLOBAL max_allowed_packet = 268435456")
    with server.connect(made[1]) as connection, connection.cursor() as other:
        other.execute("INSERT INTO t VALUES (1, REPEAT('a', 20000000))")
        other.execute("FLUSH BINARY LOGS")
        other.execute("INSERT INTO t VALUES (2, REPEAT('b', 16777180))")
        for size in range(16777215 - 60, 16777215 - 40):  # around the border of one packet
            other.execute("INSERT INTO t VALUES (%s, REPEAT('c', %s))", (size, size))
        other.execute("FLUSH BINARY LOGS")
        other.execute("FLUSH BINARY LOGS")
        other.execute("INSERT INTO t VALUES (3, 'end')")
    manifests = drain.all()
    rows = [f for m in manifests for f in m.files]
    lengths = {}
    for file in rows:
        table = read_file(drain.store, file)
        lengths |= dict(zip(table["id"].to_pylist(), pc.binary_length(table["v"]).to_pylist(), strict=True))
    assert lengths[1] == 20000000
    assert lengths[2] == 16777180
    assert lengths[3] == 3
    assert all(lengths[size] == size for size in range(16777215 - 60, 16777215 - 40))


@pytest.mark.promise("E1")
def test_batches_close_at_transaction_ends(made):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    drain.all()
    for i in range(10):
        cursor.execute("INSERT INTO t VALUES " + ",".join(f"({i * 10 + j})" for j in range(10)))
    manifests = drain.all(max_changes=25)
    assert [m.changes for m in manifests] == [30, 30, 30, 10]
    assert [m.transactions for m in manifests] == [3, 3, 3, 1]
    assert [c.after["id"] for c in drain.changes(manifests)] == list(range(100))


@pytest.mark.promise("B2")
def test_bytes_of_log_close_a_batch(made):
    """At the end of the transaction in which they are reached; one that is larger than the limit is a batch of its
    own.
    """
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    drain.all()
    sizes = [3000] * 7 + [50_000, 100]
    for i, size in enumerate(sizes):
        cursor.execute("INSERT INTO t VALUES (%s, REPEAT('x', %s))", (i, size))
    manifests = drain.all(max_bytes=8000)
    assert [[c.after["id"] for c in drain.changes([m])] for m in manifests] == [[0, 1, 2], [3, 4, 5], [6, 7], [8]]
    assert [result.closed_by for result in drain.results[-4:]] == ["bytes", "bytes", "bytes", "head"]
    for manifest in manifests[:3]:
        assert manifest.log_bytes >= 8000
        ends = sum(sizes[c.after["id"]] for c in drain.changes([manifest])[:-1])
        assert ends < 8000, "the batch was over the limit before its last transaction"


def test_the_commit_time_is_the_servers_to_the_microsecond(made):
    """``_commit_ts`` beside what mysqlbinlog prints of the same events."""
    server, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    drain.all()
    for i in range(5):
        cursor.execute("INSERT INTO t VALUES (%s)", (i,))
    changes = drain.changes(drain.all())
    tree = debian.installed_tree(paths.home() / "mysql")
    tool = [shutil.which("mysqlbinlog")] if shutil.which("mysqlbinlog") else list(tree.command("usr/bin/mysqlbinlog"))
    files = sorted({c.file for c in changes})
    shown = subprocess.run(
        [*tool, "--no-defaults", "--read-from-remote-server", "-h127.0.0.1", f"-P{server.port}", "-uroot", *files],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    times: dict[str, dict[str, str]] = {}
    before, *parts = re.split(r"SET @@SESSION.GTID_NEXT= '([^']+)'", shown)
    for gtid, behind in zip(parts[::2], parts[1::2], strict=True):
        times[gtid] = dict(re.findall(r"(original|immediate)_commit_timestamp=(\d+)", before)[-2:])
        before = behind
    for change in changes:
        said = times[change.gtid]
        assert said.keys() == {"original", "immediate"}
        assert change.commit_time_us == int(said["original"]) == int(said["immediate"])
    assert any(c.commit_time_us % 1000 for c in changes)


def test_the_commit_time_of_a_mariadb_is_the_events_second(mariadb, tmp_path, fresh_schema):
    """Its log has no finer time, and a session that sets its clock sets that of its events."""
    db = fresh_schema(mariadb)
    with mariadb.connect(db) as connection, connection.cursor() as cursor, draining(mariadb, tmp_path, db) as drain:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        drain.all()
        for i in range(3):
            cursor.execute(f"SET timestamp = {1_700_000_000 + i}.75")
            cursor.execute("INSERT INTO t VALUES (%s)", (i,))
        changes = drain.changes(drain.all())
        assert [c.commit_time_us for c in changes] == [(1_700_000_000 + i) * 1_000_000 for i in range(3)]


def test_a_transaction_larger_than_an_arena_is_cut_into_parts(made):
    _, _, cursor, drain = made
    drain.arena_bytes = 1 << 16
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(300))")
    drain.all()
    cursor.execute("START TRANSACTION")
    for i in range(40):
        cursor.execute("INSERT INTO t VALUES " + ",".join(f"({i * 100 + j}, REPEAT('x', {j}))" for j in range(100)))
    cursor.execute("COMMIT")
    (manifest,) = drain.all()
    assert manifest.changes == 4000
    assert manifest.transactions == 1
    changes = drain.changes([manifest])
    assert [c.after["id"] for c in changes] == list(range(4000))
    assert [c.seq for c in changes] == list(range(4000))


@pytest.mark.promise("A7")
def test_ddl_closes_the_batch_and_each_row_has_its_own_definition(made):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    cursor.execute("INSERT INTO t VALUES (1, 10)")
    cursor.execute("ALTER TABLE t ADD COLUMN b VARCHAR(5) FIRST, DROP COLUMN a")
    cursor.execute("INSERT INTO t VALUES ('x', 2)")
    cursor.execute("RENAME TABLE t TO u")
    cursor.execute("INSERT INTO u VALUES ('y', 3)")
    manifests = drain.all()
    assert [[d.sql.split()[0] for d in m.ddl] for m in manifests] == [["CREATE"], ["ALTER"], ["RENAME"], []]
    assert [c.after for c in drain.changes(manifests)] == [{"id": 1, "a": 10}, {"b": "x", "id": 2}, {"b": "y", "id": 3}]


@pytest.mark.promise("A12")
def test_unwanted_tables_never_reach_storage(made, tmp_path):
    server, db, cursor, _ = made
    cursor.execute("CREATE TABLE keep (id INT PRIMARY KEY)")
    cursor.execute("CREATE TABLE tmp_x (id INT PRIMARY KEY)")
    cursor.execute("CREATE TABLE _keep_gho (id INT PRIMARY KEY)")
    with draining(server, tmp_path / "two", db, exclude=(rf"{db}\.tmp_.*",), events=("insert", "delete")) as drain:
        for table in ("keep", "tmp_x", "_keep_gho"):
            cursor.execute(f"INSERT INTO {table} VALUES (1), (2)")
            cursor.execute(f"UPDATE {table} SET id = 5 WHERE id = 1")
            cursor.execute(f"DELETE FROM {table} WHERE id = 2")
        (manifest,) = drain.all()
    assert {f.table for f in manifest.files} == {"keep"}
    assert manifest.changes == 3
    assert manifest.skipped == {"other tables": 6, "other kinds of change": 1}


def test_nothing_of_interest_moves_the_position_only(made):
    _, _, cursor, drain = made
    before = drain.position
    cursor.execute("CREATE DATABASE IF NOT EXISTS elsewhere")
    result = drain.once()
    assert result.manifest is None
    assert result.reached_head
    assert result.last.follows(before)


@pytest.mark.promise("A14")
def test_a_flipped_bit_in_a_segment_is_found(made):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100))")
    drain.all()
    cursor.execute("INSERT INTO t VALUES " + ",".join(f"({i}, 'value {i}')" for i in range(500)))
    (manifest,) = drain.all()
    (file,) = manifest.files
    own, start, size = parted(file.path) or (file.path, 0, file.size_bytes)
    path = drain.store.full_path(own)
    whole = Path(path).read_bytes()
    for at in range(start, start + size, max(size // 40, 1)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        with open(path, "wb") as stream:
            stream.write(damaged)
        with pytest.raises(SegmentError):
            read_file(drain.store, file)
        with pytest.raises(SegmentError):
            verify_file(drain.store, file)
    os.unlink(path)
    with pytest.raises(SegmentError, match="missing"):
        read_file(drain.store, file)
    assert zlib.crc32(whole[start : start + size]) == int(file.crc32, 16)


def test_a_killed_server_ends_the_drain_with_a_retryable_error(mysql_source, made):
    _, _, _, drain = made
    stops = iter([True])

    def kill_the_dump(**_):
        if next(stops, False):
            rows = mysql_source.execute(
                "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
            )
            for row in rows:
                mysql_source.execute(f"KILL {row[0]}")

    from sluice.sources.mysql.reader.batch_reader import capture
    from sluice.sources.mysql.reader.log_part import LogReading
    from sluice.sources.port import StreamLimits
    from sluice.sources.table_filter import Selection

    with pytest.raises(SourceUnavailable):
        capture(
            LogReading(drain.endpoint, 77001, Selection.compile(drain.config), StreamLimits(idle_wait_s=20)),
            drain.position, lambda: None, progress=kill_the_dump,
        )  # fmt: skip


def test_start_up_does_not_import_pandas(made):
    server, db, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), w VARCHAR(20) NOT NULL)")
    start = head(drain.endpoint)
    cursor.execute("INSERT INTO t VALUES (1, NULL, 'a'), (2, 'b', 'c')")
    cursor.execute("UPDATE t SET v = 'x' WHERE id = 1")
    asked = {
        "connection": server.connection_json(), "start": start.as_offset().to_json(),
        "stop": head(drain.endpoint).as_offset().to_json(), "store": drain.store.uri + "/started",
        "include": f"{db}[.].*",
    }  # fmt: skip
    code = (
        "import json, sys; from tests.support.capture import drain_process\n"
        "print(drain_process.main(json.loads(sys.argv[1]))['changes'], 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(asked)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "False"]
