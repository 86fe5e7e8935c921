"""What a drain takes: memory for huge transactions and rows, open files for many tables, and a disk that is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

from sluice.errors import CaptureError
from sluice.segments.reader import iter_changes, read_file
from sluice.segments.store import SegmentStore
from tests.faults.disk import Disk
from tests.support.capture.capturing import draining, head

TRANSACTION_MB = int(os.environ.get("SLUICE_BIG_TRANSACTION_MB", "300"))
"""Size of the huge transaction. 10000 was run by hand, see CHANGELOG."""
TABLES = int(os.environ.get("SLUICE_MANY_TABLES", "600"))


def drained(asked: dict, *, disk: Disk | None = None) -> dict:
    """What :mod:`tests.support.capture.drain_process` answers."""
    argv = [sys.executable, "-m", "tests.support.capture.drain_process", json.dumps(asked)]
    done = subprocess.run(disk.inside(argv) if disk else argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.promise("E11")
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_a_transaction_larger_than_memory_is_cut_into_segments(compressed, mysql_source, tmp_path, fresh_schema):
    db = fresh_schema(mysql_source)
    rows = 10_000
    with (
        mysql_source.connect(db) as connection,
        connection.cursor() as cursor,
        draining(mysql_source, tmp_path, db) as drain,
    ):
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, k INT NOT NULL, v VARCHAR(2100) CHARACTER SET latin1)")
        cursor.execute("SET SESSION cte_max_recursion_depth = 1000000")
        cursor.execute(
            "INSERT INTO t WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < %s)"
            " SELECT n, n, REPEAT(SHA2(n, 512), 16) FROM s",
            (rows,),
        )
        start = head(drain.endpoint)
        cursor.execute(f"SET SESSION binlog_transaction_compression = {'ON' if compressed else 'OFF'}")
        rounds = TRANSACTION_MB * 10**6 // (rows * 4130)
        cursor.execute("START TRANSACTION")
        for _ in range(rounds):
            cursor.execute("UPDATE t SET k = k + 1")
        cursor.execute("COMMIT")
        cursor.execute("DELETE FROM t WHERE id = 1")
        stop = head(drain.endpoint)
    answer = drained({
        "connection": mysql_source.connection_json(), "start": start.as_offset().to_json(),
        "stop": stop.as_offset().to_json(),
        "store": f"file://{tmp_path}/big", "include": rf"{db}\..*", "arena_bytes": 4 * 2**20, "part_bytes": 16 * 2**20,
    })  # fmt: skip
    assert answer.get("changes") == rounds * rows + 1, answer
    assert answer["files"] > 5
    taken = answer["rss_peak"] - answer["rss_before"]
    assert taken < 160 * 10**6 < TRANSACTION_MB * 10**6
    store = SegmentStore(f"file://{tmp_path}/big", "test")
    (batch,) = store.batches()
    manifest = store.read_manifest(store.manifest_path(batch, 1))
    assert manifest.transactions == 2
    seen = 0
    for file in manifest.files:
        table = read_file(store, file, columns=["id", "k", "_seq", "_op"])
        seen += pc.sum(pc.equal(table["_op"], "u")).as_py()
    assert seen == rounds * rows


def test_a_row_larger_than_configured_is_refused_before_it_is_received(mysql_source, tmp_path, fresh_schema):
    db = fresh_schema(mysql_source)
    with (
        mysql_source.connect(db) as connection,
        connection.cursor() as cursor,
        draining(mysql_source, tmp_path, db) as drain,
    ):
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)")
        drain.all()
        cursor.execute("SET GLOBAL max_allowed_packet = 268435456")
        with mysql_source.connect(db) as other, other.cursor() as wide:
            wide.execute("INSERT INTO t VALUES (1, REPEAT('a', 100))")
            wide.execute("INSERT INTO t VALUES (2, REPEAT('a', 40000000))")
        before = drain.position
        with pytest.raises(
            CaptureError, match=r"an event of 38 MiB is larger than capture.max_event \(32 MiB\)"
        ) as caught:
            drain.once(max_event_bytes=32 * 2**20)
        assert caught.value.where
        assert caught.value.where.startswith(before.file)
        assert "seek" in caught.value.hint
        assert drain.position == before
        assert drain.store.files(drain.batch + 1) == []
        (manifest,) = drain.all(max_event_bytes=64 * 2**20)
        assert [len(c.after["v"]) for c in iter_changes(drain.store, manifest)] == [100, 40000000]


def test_many_tables_in_a_batch_need_few_open_files(tmp_path):
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from tests.support.tables.batches import one_row
from sluice.model.offset import Offset
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
writer = SegmentWriter(SegmentStore("file://" + sys.argv[1], "test"), 1, 1)
for number in range(int(sys.argv[2])):
    writer.add(*one_row(number), in_order=True)
manifest = writer.finish(Offset.at("u", "b.1", 4), Offset.at("u", "b.1", 99))
assert len({f.table for f in manifest.files}) == int(sys.argv[2])
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(TABLES)], check=True)
    store = SegmentStore(f"file://{tmp_path}", "test")
    manifest = store.read_manifest(store.manifest_path(1, 1))
    assert [read_file(store, f)["id"].to_pylist() for f in manifest.files[:3]] == [[0]] * 3


@pytest.mark.parametrize("reserve", [64 * 2**20, -(10**12)], ids=["space is looked at first", "the write fails"])
def test_a_full_disk_stops_the_drain_and_it_goes_on_when_there_is_room(reserve, mysql_source, tmp_path, fresh_schema):
    db = fresh_schema(mysql_source)
    with (
        mysql_source.connect(db) as connection,
        connection.cursor() as cursor,
        draining(mysql_source, tmp_path, db) as drain,
    ):
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(3000))")
        start = head(drain.endpoint)
        cursor.execute("SET SESSION cte_max_recursion_depth = 1000000")
        cursor.execute(
            "INSERT INTO t WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < 6000) SELECT n, "
            "RANDOM_BYTES(1000) FROM s"
        )
        stop = head(drain.endpoint)
    disk = Disk(Path(tmp_path) / "disk")
    if not disk.own:
        pytest.skip("the kernel allows no file system of our own here")
    try:
        asked = {
            "connection": mysql_source.connection_json(), "start": start.as_offset().to_json(),
            "stop": stop.as_offset().to_json(), "store": f"file://{disk.folder}/store",
            "include": rf"{db}\..*", "arena_bytes": 2**20, "part_bytes": 2**20, "min_free_bytes": reserve,
        }  # fmt: skip
        room = 3 if reserve < 0 else 66
        free = os.statvfs(disk.path)
        with (disk.path / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize - room * 2**20)
        answer = drained(asked, disk=disk)
        assert answer.get("error") == "StorageUnavailable", answer
        left = subprocess.run(
            disk.inside(["find", f"{disk.folder}/store", "-type", "f"]), capture_output=True, text=True, check=False
        )
        assert left.stdout == ""
        subprocess.run(disk.inside(["rm", f"{disk.folder}/filler"]), check=True)
        again = drained(asked, disk=disk)
        assert again.get("changes") == 6000, again
        assert again["last"]["offset"] == stop.offset
    finally:
        disk.close()
