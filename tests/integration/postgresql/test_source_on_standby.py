"""The log of a standby: slot and rows are the standby's, publication and statements its primary's."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from devstack.postgresql import PostgreSQLServer
from sluice.config.connections import parse_connection
from sluice.errors import LogPurged, PreflightError, SourceUnavailable
from sluice.flows.capture import kept_source
from sluice.flows.capture.drain import drain
from sluice.flows.capture.kept_source import KeptSource
from sluice.model.dumps import Chunk, ChunkId, Marking, Tuning
from sluice.operations.check import check
from sluice.sources.postgresql.server import connection as sessions
from sluice.sources.postgresql.snapshot import watermarks
from sluice.sources.postgresql.snapshot.chunk_reader import open_chunk_reader
from tests.support.pipelines.dumping import dumped
from tests.support.pipelines.pg_source import COPY, PgCase, pg_case
from tests.support.pipelines.pg_writing import TABLE, Watcher, Writers, rows
from tests.support.running.waiting import wait_until
from tests.support.servers.pg_standby import LOGICAL, replayed, standby_of

_numbers = itertools.count(1)
ORDERS = ("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'before the slot')")
SLOT = "SELECT wal_status, invalidation_reason FROM pg_replication_slots WHERE slot_name = '{}'"
Pair = tuple[PostgreSQLServer, PostgreSQLServer]


@contextmanager
def pair_of(folder: Path, **standby: str) -> Iterator[Pair]:
    """A primary and its standby; ``standby``: settings of the standby."""
    name = f"pg-decoded-{next(_numbers)}"
    with PostgreSQLServer(folder / name, options=LOGICAL) as primary:
        follower = standby_of(primary, folder / f"{name}-standby", options={**LOGICAL, **standby})
        try:
            yield primary, follower
        finally:
            follower.stop()


@pytest.fixture(scope="module")
def pair(server_folder: Path) -> Iterator[Pair]:
    """A pair for the tests that leave it as it is."""
    with pair_of(server_folder) as servers:
        yield servers


@contextmanager
def standby_case(
    folder: Path, servers: Pair, zookeeper: Any, *, primary: bool = True, tables: tuple[str, ...] = ORDERS, **more: str
) -> Iterator[PgCase]:
    """A pipeline from the standby to a database of the primary. ``primary``: the pipeline names it."""
    first, standby = servers
    named = ", primary: case_primary" if primary else ""
    extra = more.pop("source_extra", "")
    schema = f"s{next(_numbers)}"
    with pg_case(folder, first, zookeeper, schema=schema, tables=tables, source_extra=named + extra, **more) as made:
        made.connections["case_primary"] = made.connections["case_source"]
        made.connections["case_source"] = standby.connection_json()
        replayed(first, standby)
        try:
            yield made
        finally:
            if standby.running:
                standby.execute(
                    "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active_pid IS NOT NULL",
                    f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{made.slot}'",
                )


@contextmanager
def idle(primary: PostgreSQLServer) -> Iterator[None]:
    """Keep a primary from logging its running transactions by itself, as it does every 15 seconds if there is a change."""
    [(writer,)] = primary.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'")
    os.kill(writer, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(writer, signal.SIGCONT)


def caught_up(made: PgCase, standby: PostgreSQLServer) -> None:
    """Deliver what the primary has now."""
    replayed(made.source, standby)
    made.run_until_head()


def captured(made: PgCase) -> tuple[int, str]:
    """The number of captured changes, and the place up to which they are."""
    with made.runtime().state() as state:
        cursor = state.cursor()
    assert cursor is not None
    return cursor.changes, cursor.position.place


def assert_as_at(server: PostgreSQLServer, made: PgCase) -> None:
    query = f"SELECT id, v FROM {made.schema}.t ORDER BY id"
    assert made.source.execute(query, database=COPY) == server.execute(query)


def findings(made: PgCase) -> dict[str, Any]:
    return {finding.setting: finding for finding in check(made.runtime()).findings if finding.part == "source"}


def test_the_log_of_a_standby_gives_what_its_primary_has(tmp_path: Path, pair: Pair, zookeeper: Any) -> None:
    """Check makes the publication at the primary and the slot at the standby; the primary has no slot of it."""
    primary, standby = pair
    with standby_case(tmp_path, pair, zookeeper, start="dump", source_extra=", ddl: true") as made:
        with idle(primary):
            made.prepare()
        slots = "SELECT slot_name, failover FROM pg_replication_slots WHERE slot_type = 'logical'"
        assert (primary.execute(slots), standby.execute(slots)) == ([], [(made.slot, False)])
        assert [name for name, one in findings(made).items() if one.severity != "ok"] == ["max_slot_wal_keep_size"]
        made.run_until_head()
        made.write(
            "INSERT INTO t SELECT i, 'row ' || i FROM generate_series(2, 500) i",
            "UPDATE t SET v = 'changed' WHERE id % 3 = 0",
            "DELETE FROM t WHERE id % 5 = 0",
            "ALTER TABLE t ADD COLUMN w int DEFAULT 7",
            "INSERT INTO t VALUES (1000, 'new', 8)",
        )
        caught_up(made, standby)
        made.assert_same("t")
        made.write("UPDATE t SET w = id")
        caught_up(made, standby)
        made.assert_same("t")
        with made.runtime().source.open() as session:
            head = session.head
            assert head is not None
            assert session.lag_bytes(head) == 0
            assert session.settled().at.server == session.identity.server


def test_copies_from_the_standby_set_no_row_back(tmp_path: Path, pair: Pair, zookeeper: Any) -> None:
    """The place in the log that a chunk stands for is one that the standby has replayed."""
    _, standby = pair
    with standby_case(tmp_path, pair, zookeeper, tables=(TABLE, rows())) as made:
        made.prepare()
        made.run_until_head()
        with Writers(made) as writers, Watcher(made) as watcher:
            assert (
                dumped(made, tables=[f"{made.schema}.t"], tuning=Tuning(chunk_rows=100, parallelism=2)).state == "done"
            )
        caught_up(made, standby)
        assert writers.changes > 0
        assert watcher.back == []
        made.assert_same("t")
        read = f"SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE schemaname = '{made.schema}'"
        assert standby.execute(read)[0][0] >= 100


def test_a_transaction_that_is_open_at_the_primary_is_not_taken_for_seen(pair: Pair) -> None:
    """The snapshot of a standby does not name it, so that a chunk is told by the place in the log."""
    primary, standby = pair
    source = parse_connection("test", standby.connection_json())
    with primary.connect(autocommit=False) as late, open_chunk_reader(source, Marking.SNAPSHOT, "p") as reader:
        [(number,)] = late.execute("SELECT mod(pg_current_xact_id()::text::bigint, 4294967296)::text").fetchall()
        primary.execute("CREATE TABLE seen (n int)", "DROP TABLE seen")
        replayed(primary, standby)
        with reader.watermarks.reading(Chunk(ChunkId("d", 0, 0))) as low:
            assert low is not None
        end = int(reader.end_of_log().rpartition(":")[2])
        changes = {"_gtid": [number], "_file": ["timeline1.000001"], "_offset": [end + 1]}
        assert watermarks.after_low(low, pa.table(changes)).tolist() == [True]


def test_what_a_standby_has_received_counts_as_shown(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A select may see it before the standby says that it is replayed: the end of a copy's window comes after it."""
    primary, standby = pair
    monkeypatch.setattr(watermarks, "_STANDBY_S", 1.0)
    source = parse_connection("test", standby.connection_json())
    with open_chunk_reader(source, Marking.SNAPSHOT, "p") as reader:
        assert reader.end_of_log().startswith("timeline1.")
        standby.execute("SELECT pg_wal_replay_pause()")
        try:
            primary.execute("CREATE TABLE unseen (n int)", "DROP TABLE unseen")
            received = "SELECT pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()"
            wait_until(lambda: standby.execute(received)[0][0], "the standby to receive it", 60)
            with pytest.raises(SourceUnavailable, match="has replayed the log up to"):
                reader.end_of_log()
        finally:
            standby.execute("SELECT pg_wal_replay_resume()")


def test_a_standby_that_was_killed_is_read_on(tmp_path: Path, pair: Pair, zookeeper: Any) -> None:
    _, standby = pair
    with standby_case(tmp_path, pair, zookeeper) as made:
        made.prepare()
        made.run_until_head()
        made.write("INSERT INTO t VALUES (2, 'captured')")
        caught_up(made, standby)
        standby.kill()
        made.write("INSERT INTO t VALUES (3, 'meanwhile')")
        with pytest.raises(SourceUnavailable):
            made.run_until_head()
        standby.start()
        caught_up(made, standby)
        assert captured(made)[0] == 2


def test_without_its_primary_the_statements_are_printed(
    tmp_path: Path, pair: Pair, zookeeper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot of an idle primary's standby is refused with what to run at the primary, and made once that runs."""
    primary, standby = pair
    with standby_case(tmp_path, pair, zookeeper, primary=False) as made:
        lacking = findings(made)["publication"]
        assert lacking.fix.startswith("at the primary: ")
        statement = f'CREATE PUBLICATION "{made.slot}" FOR TABLE "{made.schema}"."t"'
        assert statement in lacking.fix
        runtime = made.runtime()
        report = check(runtime)
        assert report.at_source == (f"SELECT pg_create_logical_replication_slot('{made.slot}', 'pgoutput')",)
        primary.execute(f"{statement} WITH (publish_via_partition_root = true)")
        replayed(primary, standby)
        with monkeypatch.context() as patched, idle(primary):
            patched.setitem(sessions._QUESTION, "statement_timeout", "2s")
            with pytest.raises(PreflightError) as refused:
                made.prepare()
        assert "SELECT pg_log_standby_snapshot()" in str(refused.value.hint)
        assert standby.execute(SLOT.format(made.slot)) == []
        stop = threading.Event()

        def by_a_person() -> None:
            while not stop.wait(0.5):
                primary.execute("SELECT pg_log_standby_snapshot()")

        person = threading.Thread(target=by_a_person)
        person.start()
        try:
            made.prepare()
        finally:
            stop.set()
            person.join()
        made.run_until_head()
        made.write("INSERT INTO t VALUES (2, 'captured')")
        caught_up(made, standby)
        assert captured(made)[0] == 1


@pytest.mark.promise("G9")
@pytest.mark.parametrize("checked_s", [600.0, 0.0], ids=["noticed after a batch", "noticed by the pre-flight"])
def test_a_promoted_standby_is_read_on_exactly(
    tmp_path: Path, server_folder: Path, zookeeper: Any, monkeypatch: pytest.MonkeyPatch, checked_s: float
) -> None:
    """Its own slot outlives the promotion: nothing is missing, nothing comes twice, also of an open stream."""
    monkeypatch.setattr(kept_source, "CHECKED_S", checked_s)
    with (
        pair_of(server_folder) as servers,
        standby_case(tmp_path, servers, zookeeper) as made,
    ):
        primary, standby = servers
        made.prepare()
        made.run_until_head()
        made.write("INSERT INTO t VALUES (2, 'captured')")
        caught_up(made, standby)
        made.write("INSERT INTO t VALUES (3, 'in the open stream')")
        replayed(primary, standby)
        runtime = made.runtime()
        with runtime.state(), KeptSource() as kept:
            assert drain(runtime, claim="a", idle_wait_s=5.0, kept=kept).batch is not None
            made.write("INSERT INTO t VALUES (4, 'not captured before the promotion')")
            replayed(primary, standby)
            standby.execute("SELECT pg_promote()")
            standby.execute(f"INSERT INTO {made.schema}.t VALUES (5, 'of the promoted')")
            if checked_s:
                with pytest.raises(SourceUnavailable, match="from timeline 1 to 2"):
                    drain(runtime, claim="b", idle_wait_s=5.0, kept=kept)
                assert captured(made)[1].startswith("timeline1.")
            else:
                assert drain(runtime, claim="b", idle_wait_s=5.0, kept=kept).batch is not None
                assert captured(made)[1].startswith("timeline2.")
        assert findings(made)["max_slot_wal_keep_size"].severity == "warning"  # and none of the position
        made.run_until_head()
        standby.execute(f"UPDATE {made.schema}.t SET v = 'changed' WHERE id = 2")
        made.run_until_head()
        changes, place = captured(made)
        assert place.startswith("timeline2.")
        assert changes == 5  # ids 2 to 5, and the update
        query = f"SELECT id, v FROM {made.schema}.t WHERE id > 1 ORDER BY id"
        assert primary.execute(query, database=COPY) == standby.execute(query)


def test_removed_rows_of_the_catalog_end_it_by_name(tmp_path: Path, server_folder: Path, zookeeper: Any) -> None:
    """Without hot_standby_feedback, of which check warned."""
    with (
        pair_of(server_folder, hot_standby_feedback="off") as servers,
        standby_case(tmp_path, servers, zookeeper) as made,
    ):
        primary, standby = servers
        made.prepare()
        assert findings(made)["hot_standby_feedback"].severity == "warning"
        made.run_until_head()
        made.write("CREATE TABLE other (id int)", "DROP TABLE other")
        primary.execute("VACUUM FULL pg_class", "VACUUM pg_attribute", "CREATE TABLE moved (id int)")
        replayed(primary, standby)
        wait_until(lambda: standby.execute(SLOT.format(made.slot)) == [("lost", "rows_removed")], "the conflict", 60)
        with pytest.raises(LogPurged, match="its primary removed rows of the catalog") as ended:
            made.run_until_head()
        assert str(ended.value.hint).startswith("first hot_standby_feedback = on")
        assert "pg_drop_replication_slot" in str(ended.value.hint)


def test_a_primary_without_wal_level_logical_ends_it_by_name(
    tmp_path: Path, server_folder: Path, zookeeper: Any
) -> None:
    with pair_of(server_folder) as servers, standby_case(tmp_path, servers, zookeeper) as made:
        primary, standby = servers
        made.prepare()
        made.run_until_head()
        primary.options = {**LOGICAL, "wal_level": "replica"}
        primary.restart()
        wait_until(
            lambda: standby.execute(SLOT.format(made.slot)) == [("lost", "wal_level_insufficient")], "the conflict", 120
        )
        with pytest.raises(LogPurged, match="its primary has another wal_level"):
            made.run_until_head()
        wrong = {name: one.why for name, one in findings(made).items() if one.severity == "error"}
        assert wrong.keys() == {"slot", "source.primary"}
        assert "wal_level of the primary is replica" in wrong["source.primary"]


def test_a_standby_that_goes_along_to_another_timeline_is_read_on(
    tmp_path: Path, server_folder: Path, zookeeper: Any
) -> None:
    """Its primary is promoted after a restart in recovery, as another standby in its place would be."""
    with pair_of(server_folder) as servers, standby_case(tmp_path, servers, zookeeper) as made:
        primary, standby = servers
        made.prepare()
        made.run_until_head()
        made.write("INSERT INTO t VALUES (2, 'captured')")
        caught_up(made, standby)
        made.write("INSERT INTO t VALUES (3, 'not captured before')")
        replayed(primary, standby)
        primary.stop()
        (primary.data_dir / "standby.signal").touch()
        primary.start()
        primary.execute("SELECT pg_promote()")
        made.write("INSERT INTO t VALUES (4, 'of timeline 2')")
        caught_up(made, standby)
        made.write("UPDATE t SET v = 'changed' WHERE id = 2")
        caught_up(made, standby)
        changes, place = captured(made)
        assert place.startswith("timeline2.")
        assert changes == 4
        query = f"SELECT id, v FROM {made.schema}.t WHERE id > 1 ORDER BY id"
        assert primary.execute(query, database=COPY) == standby.execute(query)
        assert standby.execute("SELECT pg_is_in_recovery()") == [(True,)]
