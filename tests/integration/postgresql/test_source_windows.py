"""Copies while the rows change: a chunk never sets back a newer row, nor misses one that is in the log and invisible."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import parse_connection
from sluice.flows.capture.drain import drain
from sluice.flows.dump.start import start
from sluice.model.dumps import MOVED, Chunk, ChunkId, Marking, TableRequest, Tuning
from sluice.model.tables import TableId
from sluice.sources.postgresql.position import lsn_number
from sluice.sources.postgresql.snapshot import watermarks
from sluice.sources.postgresql.snapshot.chunk_reader import open_chunk_reader
from tests.support.pipelines.dumping import dumped
from tests.support.pipelines.pg_source import pg_case
from tests.support.pipelines.pg_writing import TABLE, Watcher, Writers, rows
from tests.support.running.waiting import counted, ended, wait_until


@pytest.mark.full
def test_a_copy_under_load_sets_no_row_back(tmp_path: Path, postgresql_source: Any, zookeeper: Any) -> None:
    with pg_case(tmp_path, postgresql_source, zookeeper, schema="windows", tables=(TABLE, rows())) as made:
        made.prepare()
        made.run_until_head()
        with Writers(made) as writers, Watcher(made) as watcher:
            for _ in range(2):
                found = dumped(made, tables=["windows.t"], tuning=Tuning(chunk_rows=50, parallelism=2))
                assert found.state == "done"
        made.run_until_head()
        assert watcher.back == []
        assert writers.changes > 0
        made.assert_same("t")


def test_the_end_of_the_log_waits_for_what_is_in_it_and_invisible(postgresql_source: Any) -> None:
    """A transaction that waits for a synchronous standby is in the log; a window that began behind it would miss it."""
    server, schema = postgresql_source, "invisible"
    server.execute(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v int)")
    server.execute(f"INSERT INTO {schema}.t VALUES (1, 0)")
    endpoint = parse_connection("source", server.connection_json())
    found: list[str] = []
    rows: list[Any] = []

    def read() -> None:
        with open_chunk_reader(endpoint, Marking.SNAPSHOT, "p") as reader:
            found.append(reader.end_of_log())
            chunk = Chunk(ChunkId("d", 0, 1))
            with reader.watermarks.reading(chunk):
                for piece in reader.rows(TableRequest(TableId(schema, "t")), chunk):
                    rows.extend(piece["v"].to_pylist())

    def commit() -> None:
        server.execute(f"UPDATE {schema}.t SET v = 1")

    try:
        server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        committing = threading.Thread(target=commit, daemon=True)
        committing.start()
        wait_until(lambda: server.execute(waits)[0][0] == 1, "the commit waits for its standby")
        before = lsn_number(server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        with counted(watermarks, "rows_of") as looks:
            reading = threading.Thread(target=read, daemon=True)
            reading.start()
            looks.more(60)
            assert found == []
            server.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
            ended(reading)
        ended(committing)
        assert int(found[0].rpartition(":")[2]) >= before
        assert rows == [1]
    finally:
        server.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        server.execute(f"DROP SCHEMA {schema} CASCADE")


def test_rows_that_move_under_a_copy_are_copied_once_more(
    tmp_path: Path, postgresql_source: Any, zookeeper: Any
) -> None:
    """One copy for each batch, however many are under way; none of rows that the log brings whole."""
    tables = (
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text)",
        "ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
    )
    with pg_case(tmp_path, postgresql_source, zookeeper, schema="moving", tables=tables) as made:
        made.prepare()
        made.run_until_head()
        made.write(
            "INSERT INTO t SELECT i, 'x', repeat('x', 9000) FROM generate_series(1, 20) i",
            "INSERT INTO u SELECT i, 'x' FROM generate_series(1, 20) i",
        )
        made.run_until_head()
        runtime = made.runtime()
        for name in ("t", "u", "t"):
            start(runtime, tables=[f"moving.{name}"], lower=["1"], upper=["5000"])
        for turn in range(5):
            at = 1 if turn == 0 else 999 + turn
            made.write(*(f"UPDATE {name} SET id = {1000 + turn} WHERE id = {at}" for name in ("t", "u")))
            assert drain(runtime, claim=f"test:a:{turn}", idle_wait_s=5, ahead=True).batch is not None
        with runtime.state() as state:
            moved = [dump for dump in state.dumps.active() if dump.reason == MOVED]
        assert [[str(one.table) for one in dump.tables] for dump in moved] == [["moving.t"]] * 5
        made.run_until_head()
        made.assert_same("t", "u")
