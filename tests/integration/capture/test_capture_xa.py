"""XA transactions on real servers: rows wait for their outcome, wherever that stands."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from devstack.mariadb import MariaDBServer
from devstack.mysql import MySQLServer
from sluice.errors import LostPosition
from sluice.flows.capture.drain import drain
from sluice.operations.control import rollback
from sluice.sources.mysql.events import xa
from sluice.sources.mysql.server.connection import open_connection, server_info
from tests.support.capture.capturing import draining, head
from tests.support.pipelines.case import case
from tests.support.running.waiting import wait_until

BOTH = pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])


@pytest.fixture
def made(request, kind, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    server.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "CREATE TABLE other (id INT)", database=db)
    with draining(server, tmp_path, db, exclude=(rf"{db}\.other",)) as drain:
        yield server, db, drain


def prepare(server, db, xid, *statements):
    """On a connection of its own, which then goes away: the server keeps the transaction, and others may end it once
    the session is over.
    """
    with server.connect(db) as connection, connection.cursor() as cursor:
        for statement in (f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'"):
            cursor.execute(statement)
        session = connection.thread_id()
    there = f"SELECT id FROM information_schema.processlist WHERE id = {session}"
    wait_until(lambda: not server.execute(there), "the end of the session")


def purge(server):
    """All files but the newest; a server keeps those that a dump still reads, which takes a moment to notice that its
    reader hung up.
    """
    newest = server.execute("SHOW BINARY LOGS")[-1][0]
    end = time.monotonic() + 240
    while server.execute("SHOW BINARY LOGS")[0][0] != newest:
        assert time.monotonic() < end
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        time.sleep(0.2)


def seen(drain, manifests):
    return [(c.op, (c.after or c.before)["id"]) for c in drain.changes(manifests)]


@pytest.mark.promise("A6")
@BOTH
def test_rows_come_at_the_commit_and_never_after_a_rollback(made):
    server, db, drain = made
    prepare(server, db, f"{db}a", "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET v = 'x' WHERE id = 2")
    prepare(server, db, f"{db}b", "INSERT INTO t VALUES (50, 'no')")
    server.execute("INSERT INTO t VALUES (3, 'between')", database=db)
    server.execute(f"XA COMMIT '{db}a'")
    server.execute(f"XA ROLLBACK '{db}b'")
    one = f"{db}one"
    server.execute(
        f"XA START '{one}'",
        "INSERT INTO t VALUES (4, 'd')",
        f"XA END '{one}'",
        f"XA COMMIT '{one}' ONE PHASE",
        database=db,
    )
    server.execute("INSERT INTO t VALUES (5, 'e')", database=db)
    manifests = drain.all()
    changes = drain.changes(manifests)
    assert seen(drain, manifests) == [("i", 3), ("i", 1), ("i", 2), ("u", 2), ("i", 4), ("i", 5)]
    assert [c.last_in_txn for c in changes] == [True, False, False, True, True, True]
    assert len({(c.file, c.offset, c.row) for c in changes}) == 6
    assert len({c.gtid for c in changes}) == 4
    assert sum(m.transactions for m in manifests) == 4
    assert drain.position.prepared == ""
    with open_connection(drain.endpoint) as connection:
        assert server_info(connection).head.gtid_set == drain.position.gtid_set


@BOTH
@pytest.mark.parametrize("known", [True, False], ids=["listed", "not-listed"])
def test_the_outcome_in_another_batch_many_files_later(made, known):
    server, db, drain = made
    prepare(
        server,
        db,
        f"{db}a",
        "INSERT INTO t VALUES (1, 'a')",
        "INSERT INTO other VALUES (1)",
        "INSERT INTO t VALUES (2, 'b')",
    )
    prepare(server, db, f"{db}b", "INSERT INTO t VALUES (9, 'no')")
    server.execute("INSERT INTO t VALUES (3, 'c')", database=db)
    assert seen(drain, drain.all()) == [("i", 3)]
    waiting = xa.parse_prepared(drain.position.prepared)
    assert [bytes.fromhex(item.xid.split("'")[1]).decode() for item in waiting] == [f"{db}a", f"{db}b"]
    for i in range(3):
        server.execute("FLUSH BINARY LOGS", f"INSERT INTO t VALUES ({10 + i}, 'z')", database=db)
        drain.all()
    if not known:  # a position that a person gave
        drain.position = replace(drain.position, prepared="")
    server.execute(f"XA COMMIT '{db}a'", f"XA ROLLBACK '{db}b'")
    manifests = drain.all()
    assert seen(drain, manifests) == [("i", 1), ("i", 2)]
    assert drain.position.prepared == ""


@BOTH
@pytest.mark.parametrize("known", [True, False], ids=["listed", "not-listed"])
def test_several_readers_of_closed_files(made, known):
    server, db, drain = made
    prepare(server, db, f"{db}a", "INSERT INTO t VALUES (1, 'a')")
    prepare(server, db, f"{db}b", "INSERT INTO t VALUES (2, 'b')")
    if not known:
        drain.position = head(drain.endpoint)
    for i in range(10, 16):
        server.execute(f"INSERT INTO t VALUES ({i}, 'z')", "FLUSH BINARY LOGS", database=db)
        if i == 12:
            server.execute(f"XA COMMIT '{db}b'")
        if i == 14:
            prepare(server, db, f"{db}c", "INSERT INTO t VALUES (3, 'c')")
            server.execute(f"XA COMMIT '{db}a'")
    server.execute(f"XA ROLLBACK '{db}c'")
    drain.readers = 3
    assert seen(drain, drain.all()) == [("i", i) for i in (10, 11, 12, 2, 13, 14, 1, 15)]
    assert drain.position.prepared == ""


@BOTH
def test_a_prepared_transaction_larger_than_memory_is_read_again(made, monkeypatch):
    server, db, drain = made
    monkeypatch.setattr(xa.PreparedTransactions.__init__, "__defaults__", (20_000,))
    drain.arena_bytes = 1 << 16
    rows = [
        "INSERT INTO t VALUES " + ",".join(f"({n * 1000 + i}, REPEAT('v', 20))" for i in range(1000)) for n in range(40)
    ]
    prepare(server, db, f"{db}big", *rows)
    prepare(server, db, f"{db}small", "INSERT INTO t VALUES (-1, 'small')")
    server.execute(f"XA COMMIT '{db}big'", f"XA COMMIT '{db}small'")
    one = f"{db}one"
    more = "INSERT INTO t VALUES " + ",".join(f"({100_000 + i}, REPEAT('v', 20))" for i in range(1000))
    server.execute(f"XA START '{one}'", more, f"XA END '{one}'", f"XA COMMIT '{one}' ONE PHASE", database=db)
    changes = drain.changes(drain.all())
    assert [c.after["id"] for c in changes][:40_001] == [*range(40_000), -1]
    assert len(changes) == 41_001
    assert len({(c.file, c.offset, c.row) for c in changes}) == 41_001


@BOTH
def test_rows_larger_than_a_packet(made):
    server, db, drain = made
    server.execute("CREATE TABLE big (id INT PRIMARY KEY, v LONGBLOB)", database=db)
    drain.all()
    for known in (True, False):  # from memory, then read again
        prepare(
            server, db, f"{db}a", f"INSERT INTO big VALUES ({int(known)}, REPEAT('x', 20000000)), ({10 + known}, 'y')"
        )
        if not known:
            assert drain.all() == []
        server.execute(f"XA COMMIT '{db}a'")
        stored = drain.table(drain.all(), "big")
        assert stored["id"].to_pylist() == [int(known), 10 + known]
        assert [len(v) for v in stored["v"].to_pylist()] == [20_000_000, 1]


@BOTH
def test_a_purged_prepare_stops_at_its_commit(made):
    server, db, drain = made
    prepare(server, db, f"{db}a", "INSERT INTO t VALUES (1, 'a')")
    drain.all()
    server.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    drain.all()
    purge(server)
    try:
        server.execute("INSERT INTO t VALUES (2, 'b')", database=db)
        assert seen(drain, drain.all()) == [("i", 2)]
        before = drain.position
        server.execute(f"XA COMMIT '{db}a'")
        for listed in (True, False):
            drain.position = before if listed else replace(before, prepared="")
            with pytest.raises(LostPosition, match="XA transaction"):
                drain.once()
    finally:
        server.execute("FLUSH BINARY LOGS")


@pytest.mark.parametrize("cls", [MySQLServer, MariaDBServer], ids=["mysql", "mariadb"])
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_the_outcome_after_a_killed_server_recovers(cls, compressed, tmp_path):
    option = "log_bin_compress" if cls is MariaDBServer else "binlog_transaction_compression"
    with cls(tmp_path / "s", server_id=7, options={option: "ON"} if compressed else {}) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(2000))")
        with draining(server, tmp_path, "d") as drain:
            prepare(server, "d", "kept", "INSERT INTO t VALUES (1, REPEAT('long ', 300))")
            prepare(server, "d", "gone", "INSERT INTO t VALUES (2, REPEAT('long ', 300))")
            server.execute("INSERT INTO d.t VALUES (3, REPEAT('long ', 300))")
            assert seen(drain, drain.all()) == [("i", 3)]
            server.kill()
            server.start()
            server.execute("CREATE TABLE d.u (id INT PRIMARY KEY)", "INSERT INTO d.u VALUES (100)")
            server.execute("XA COMMIT 'kept'", "XA ROLLBACK 'gone'", "INSERT INTO d.u VALUES (101)")
            changes = drain.changes(drain.all())
            assert [(c.table.table, c.after["id"]) for c in changes] == [("u", 100), ("t", 1), ("u", 101)]
            assert changes[1].after["v"] == "long " * 300
            assert drain.position.prepared == ""


@pytest.mark.promise("A18")
def test_through_a_pipeline_with_a_retry_and_a_rollback(mysql_source, mysql_target, zookeeper, tmp_path, fresh_schema):
    """The position in ZooKeeper carries what is prepared, so any later process finds its rows."""
    db = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", database=db)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, db) as made:
        made.run_until_head()
        prepare(mysql_source, db, f"{db}a", "INSERT INTO t VALUES (1, 'a')")
        prepare(mysql_source, db, f"{db}b", "INSERT INTO t VALUES (2, 'b')")
        mysql_source.execute("INSERT INTO t VALUES (3, 'c')", "FLUSH BINARY LOGS", database=db)
        made.run_until_head()
        assert made.target.execute(f"SELECT id FROM {db}.t") == [(3,)]
        mysql_source.execute(
            f"XA COMMIT '{db}a'", f"UPDATE {db}.t SET v = 'after' WHERE id = 1", f"XA ROLLBACK '{db}b'"
        )
        first = drain(made.runtime(), claim="one:run", idle_wait_s=10)
        again = drain(made.runtime(), claim="one:run", idle_wait_s=10)
        assert first.batch == again.batch is not None
        assert again.adopted
        rollback(made.runtime(), by="test", dry_run=False)
        made.run_until_head()
        made.assert_equal("t")
        assert made.target.execute(f"SELECT * FROM {db}.t ORDER BY id") == [(1, "after"), (3, "c")]
