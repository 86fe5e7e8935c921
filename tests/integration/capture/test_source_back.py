"""A source that went back in time: its log has other events in the places that were drained.

Nothing is read from it then.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devstack.mariadb import MariaDBServer
from devstack.mysql import MySQLServer
from sluice.config.pipeline import PipelineConfig
from sluice.errors import CaptureError, LostPosition
from sluice.model.offset import Offset
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader.event_reread import reread
from sluice.sources.mysql.server.connection import open_connection, server_info
from sluice.sources.mysql.server.preflight import preflight
from tests.support.capture.capturing import draining
from tests.support.pipelines.case import Case
from tests.support.pipelines.case import case as pipeline_case
from tests.support.pipelines.dumping import dumped
from tests.support.servers.fixtures import setting

PIPELINE = PipelineConfig.model_validate({
    "pipeline": "p", "source": {"connection": "c"}, "targets": [{"name": "t", "type": "mysql", "connection": "c"}],
})  # fmt: skip


@pytest.fixture(scope="module", params=[MySQLServer, MariaDBServer], ids=["mysql", "mariadb"])
def server(request, tmp_path_factory):
    with request.param(tmp_path_factory.mktemp("source") / "s", server_id=5) as made:
        made.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v LONGTEXT)")
        yield made


def confirmed(drain, position: Position | None = None) -> bool:
    """The log before the position is what was read; True if it can be read on at once. Raises LostPosition."""
    mariadb = isinstance(drain.server, MariaDBServer)
    stream = reread(drain.endpoint, position or drain.position, server_id=drain.server_id, mariadb=mariadb)
    if stream is not None:
        stream.close()
    return stream is not None


def rows(server, count: int, start: int = 0, value: str = "x") -> None:
    server.execute(*(f"INSERT INTO d.t VALUES ({start + n}, '{value}')" for n in range(count)))


ENDS = {
    "a transaction": ["INSERT INTO d.t VALUES (1, 'a')"],
    "a definition": ["CREATE TABLE d.other (id INT)", "DROP TABLE d.other"],
    "a long definition": ["CREATE TABLE d.long (id INT COMMENT '" + "c" * 1000 + "')", "DROP TABLE d.long"],
    "a large transaction": ["INSERT INTO d.t VALUES (2, REPEAT('b', 2000000))"],
    "an event of several packets": ["INSERT INTO d.t VALUES (3, REPEAT('b', 17000000))"],
    "XA": ["XA START 'x'", "INSERT INTO d.t VALUES (4, 'a')", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"],
    "a prepared transaction": ["XA START 'y'", "INSERT INTO d.t VALUES (5, 'a')", "XA END 'y'", "XA PREPARE 'y'"],
    "its outcome": ["XA ROLLBACK 'y'"],
    "a new file": ["INSERT INTO d.t VALUES (6, 'a')", "FLUSH BINARY LOGS"],
    "two new files": ["FLUSH BINARY LOGS", "FLUSH BINARY LOGS"],
    "MyISAM": ["CREATE TABLE IF NOT EXISTS d.m (id INT) ENGINE=MyISAM", "INSERT INTO d.m VALUES (1)"],
    "a schema": ["CREATE DATABASE e", "DROP DATABASE e"],
}


def test_the_event_before_any_position_is_found_again(server, tmp_path) -> None:
    """Whatever ends the log that was read; also when the server begins to write its next files without checksums, or
    with them.
    """
    server.execute("DELETE FROM d.t")
    with setting(server, binlog_checksum="CRC32"), draining(server, tmp_path, "d") as drain:
        for number, (name, statements) in enumerate(ENDS.items()):
            server.execute(*statements)
            drain.all()
            last = drain.position.last_event
            assert last is not None, name
            assert Position.of(Offset.from_json(drain.position.as_offset().to_json())).last_event == last
            assert confirmed(drain) or name == "an event of several packets", name
            if number % 4 == 1:
                server.execute(f"SET GLOBAL binlog_checksum = {('NONE', 'CRC32')[number // 4 % 2]}")
                confirmed(drain)
            if number % 4 == 2:
                changed = replace(last, checksum=last.checksum ^ 1)
                with pytest.raises(LostPosition, match="is not the one that was captured"):
                    confirmed(drain, replace(drain.position, last_event=changed))


def test_compressed_transactions_small_and_large(tmp_path_factory, tmp_path) -> None:
    options = {"binlog_transaction_compression": "ON"}
    with MySQLServer(tmp_path_factory.mktemp("packed") / "s", server_id=6, options=options) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARBINARY(1000))")
        with draining(server, tmp_path, "d") as drain:
            for rows_ in (1, 600, 18_000):  # the last one's payload comes in several packets
                server.execute(
                    "SET SESSION cte_max_recursion_depth = 100000",
                    "INSERT INTO d.t (v) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
                    f"WHERE i < {rows_}) SELECT RANDOM_BYTES(1000) FROM n",
                )
                drain.all()
                last = drain.position.last_event
                assert last is not None
                assert confirmed(drain) == (rows_ == 1)
                with pytest.raises(LostPosition):
                    confirmed(drain, replace(drain.position, last_event=replace(last, checksum=last.checksum ^ 1)))


def test_a_copy_that_was_put_back_is_seen(server, tmp_path) -> None:
    """Files, offsets and GTIDs are the same, and the log is longer than what was drained."""
    server.execute("DROP TABLE IF EXISTS d.t", "CREATE TABLE d.t (id INT PRIMARY KEY, v LONGTEXT)")
    rows(server, 3)
    server.stop()
    copy = server.folder / "copy"
    shutil.copytree(server.data_dir, copy)
    server.start()
    with draining(server, tmp_path, "d") as drain:
        rows(server, 5, 100)
        drain.all()
        drained = drain.position
        server.stop()
        shutil.rmtree(server.data_dir)
        copy.rename(server.data_dir)
        server.start()
        rows(server, 13, 200)
        with open_connection(drain.endpoint) as connection:
            info = server_info(connection)
            assert preflight(connection, info, PIPELINE, drained) == []  # nothing else could tell
        with pytest.raises(LostPosition, match="restored from a backup") as caught:
            confirmed(drain)
        assert str(drained.last_event) in caught.value.message
        assert f"GTID {drained.last_event.gtid}" in caught.value.message

        # another size: the position falls into an event
        for offset in range(drained.last_event.offset - 30, drained.last_event.offset + 40, 17):
            moved = replace(
                drained, offset=offset + drained.last_event.size, last_event=replace(drained.last_event, offset=offset)
            )
            with pytest.raises(LostPosition, match="is not the one that was captured"):
                confirmed(drain, moved)


def test_a_log_that_was_reset_is_named(server, tmp_path) -> None:
    mariadb = isinstance(server, MariaDBServer)
    reset = "RESET MASTER" if mariadb else "RESET BINARY LOGS AND GTIDS"
    server.execute(reset, "DROP TABLE IF EXISTS d.t", "CREATE TABLE d.t (id INT PRIMARY KEY, v LONGTEXT)")
    with draining(server, tmp_path, "d") as drain:
        rows(server, 2)
        drain.all()
        server.execute("DO SLEEP(1.1)", reset)
        rows(server, 30, 100, "y" * 250)
        with pytest.raises(LostPosition, match=reset):
            confirmed(drain)


def test_a_position_of_an_older_version_gains_its_last_event(server, tmp_path) -> None:
    server.execute("DELETE FROM d.t")
    with draining(server, tmp_path, "d") as drain:
        old = drain.position.as_offset().to_json()
        del old["last_event"]
        drain.position = Position.of(Offset.from_json(old))
        assert not confirmed(drain)
        rows(server, 1)
        drain.all()
        assert drain.position.last_event is not None
        assert confirmed(drain)


def test_a_purged_file_before_the_position_is_no_finding(server, tmp_path) -> None:
    """The position is at the start of a file, and the event before it went with the file before."""
    server.execute("DELETE FROM d.t")
    with draining(server, tmp_path, "d") as drain:
        rows(server, 1)
        drain.all()
        last = drain.position.last_event
        server.execute("FLUSH BINARY LOGS")
        file = server.execute("SHOW BINARY LOGS")[-1][0]
        server.execute(f"PURGE BINARY LOGS TO '{file}'")
        assert not confirmed(drain, replace(drain.position, file=file, offset=4, last_event=last))


def test_no_row_is_read_from_it_and_the_ways_out_work(tmp_path, mysql_target, zookeeper, fresh_schema) -> None:
    """The recipe that lost rows: the same sizes, GTIDs off. What the hint says makes both sides equal again."""
    with MySQLServer(
        tmp_path / "s", server_id=7, options={"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    ) as source:
        schema = fresh_schema(mysql_target)
        for server in (source, mysql_target):
            server.execute(
                f"CREATE DATABASE IF NOT EXISTS `{schema}`", f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, v INT)"
            )
        with pipeline_case(tmp_path, source, mysql_target, zookeeper, schema) as case:
            case.run_until_head()
            source.execute(f"INSERT INTO `{schema}`.t VALUES (1, 1), (2, 2)")
            case.run_until_head()
            source.stop()
            copy = source.folder / "copy"
            shutil.copytree(source.data_dir, copy)
            source.start()
            source.execute(*(f"INSERT INTO `{schema}`.t VALUES ({n}, 0)" for n in range(10, 15)))
            case.run_until_head()
            source.stop()
            shutil.rmtree(source.data_dir)
            copy.rename(source.data_dir)
            source.start()
            source.execute(*(f"INSERT INTO `{schema}`.t VALUES ({n}, 0)" for n in range(20, 33)))
            with pytest.raises(LostPosition, match="is not the one that was captured") as caught:
                case.run_until_head()
            assert "sluice seek case latest" in (caught.value.hint or "")
            assert "sluice dump start case --target copy --replace" in (caught.value.hint or "")
            checked = case.cli("check", str(case.path), "--json")
            assert checked.returncode
            assert "is not the one that was captured" in checked.stdout

            assert case.cli("seek", str(case.path), "latest", "--yes").returncode == 0
            dumped(case, replace=True)  # `sluice dump start --replace`, while the pipeline runs
            case.assert_equal()


@contextmanager
def reset_log(tmp_path: Path, target: Any, zookeeper: Any, schema: str) -> Iterator[Case]:
    """Yield a pipeline whose source has another log now: its table begins at the same offset, with its columns the
    other way round.

    The first stored definitions are as of an offset before which nothing was read, so no event can tell the two logs
    apart.
    """
    with MySQLServer(tmp_path / "s", server_id=7, options={"binlog_row_metadata": "MINIMAL"}) as source:
        made = f"CREATE DATABASE `{schema}`", f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, a INT, b INT)"
        source.execute("RESET BINARY LOGS AND GTIDS", *made)
        target.execute(made[1])
        with pipeline_case(tmp_path, source, target, zookeeper, schema) as case:
            case.run_until_head()
            source.execute(f"INSERT INTO `{schema}`.t VALUES (1, 10, 20)")
            case.run_until_head()
            source.execute(f"DROP DATABASE `{schema}`", "RESET BINARY LOGS AND GTIDS")
            source.execute(made[0], made[1].replace("a INT, b INT", "b INT, a INT"))  # ends at the same offset
            source.execute(*(f"INSERT INTO `{schema}`.t VALUES ({n}, 20, 10)" for n in range(1, 9)))
            yield case


def test_definitions_of_a_log_that_was_reset_are_forgotten_at_a_seek(
    tmp_path, mysql_target, zookeeper, fresh_schema
) -> None:
    schema = fresh_schema(mysql_target)
    with reset_log(tmp_path, mysql_target, zookeeper, schema) as case:
        with pytest.raises(CaptureError, match=r"not the one that was captured|its log was reset"):
            case.run_until_head()
        moved = case.cli("seek", str(case.path), "latest", "--yes")
        assert moved.returncode == 0, moved.stderr
        assert "definitions is forgotten" in moved.stdout + moved.stderr
        case.source.execute(f"INSERT INTO `{schema}`.t VALUES (9, 20, 10)")
        case.run_until_head()
        assert mysql_target.execute(f"SELECT a, b FROM `{schema}`.t WHERE id = 9") == [(10, 20)]


def test_definitions_of_a_log_that_was_reset_are_forgotten_before_a_copy(
    tmp_path, mysql_target, zookeeper, fresh_schema
) -> None:
    """``on_lost_position: dump``."""
    schema = fresh_schema(mysql_target)
    with reset_log(tmp_path, mysql_target, zookeeper, schema) as case:
        case.path.write_text(case.yaml.replace("capture:\n", "capture:\n  on_lost_position: dump\n"))
        case.run_until_head()
        case.source.execute(f"INSERT INTO `{schema}`.t VALUES (9, 20, 10)")
        case.run_until_head()
        assert mysql_target.execute(f"SELECT a, b FROM `{schema}`.t WHERE id = 9") == [(10, 20)]
