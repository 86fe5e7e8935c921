"""A load that waits for somebody's lock says whose it is, gives up in time, and ends when it is paused."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager

import pytest

from sluice.config.connections import parse_connection
from sluice.errors import ConfigError, Paused, TargetUnavailable
from sluice.operations.control import pause, resume
from sluice.targets import open_target
from sluice.targets.mysql.connection import connect
from sluice.targets.mysql.lockwait import blocker_of
from tests.support.pipelines.case import case


@pytest.fixture(params=["mysql_target", "mariadb"])
def target(request):
    return request.getfixturevalue(request.param)


def until(what) -> None:
    """Wait for what must come."""
    while not what():
        time.sleep(0.05)


def waiting(server) -> list[int]:
    """Sessions that wait for a lock on a definition."""
    rows = server.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for%lock%'")
    return [int(number) for (number,) in rows]


@contextmanager
def blocked(server, holder: str, statement: str, schema: str):
    """(connection that waits with ``statement``, id of the one that holds the lock)."""
    with closing(server.connect(schema)) as holds, closing(server.connect(schema)) as waits:
        with holds.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(holder)
            cursor.fetchall()

        def run() -> None:
            with waits.cursor() as cursor:
                cursor.execute(statement)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield waits.thread_id(), holds.thread_id()
        finally:
            holds.rollback()
            thread.join()


def test_who_holds_it_is_named_or_the_grant_that_shows_it(target, fresh_schema) -> None:
    mariadb = "mariadb" in str(target.execute("SELECT VERSION()")).lower()
    schema = fresh_schema(target)
    target.execute(
        f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO `{schema}`.t VALUES (1, 1)",
        "CREATE USER IF NOT EXISTS locked@'%' IDENTIFIED BY 'x'",
    )
    ways = {"UPDATE t SET v = 2": "UPDATE t SET v = 3", "SELECT * FROM t": "ALTER TABLE t ADD COLUMN more INT"}
    for holder, statement in ways.items():
        with blocked(target, holder, statement, schema) as (waits, holds):
            for user, password in (("root", ""), ("locked", "x")):
                endpoint = parse_connection("t", target.connection_json(user=user, password=password))
                with closing(connect(endpoint)) as connection, connection.cursor() as cursor:
                    if user == "root":
                        said = ""
                        while "connection" not in said:
                            time.sleep(0.2)  # INNODB_TRX is read anew only if nobody read it for 0.1 s
                            said = blocker_of(cursor, waits, mariadb, endpoint)
                        assert f"connection {holds} (root@" in said
                        assert "idle in a transaction" in said
                    else:  # nobody else's sessions are shown to it
                        said = blocker_of(cursor, waits, mariadb, endpoint)
                        assert not said or "GRANT" in said


def test_a_load_gives_up_and_says_why_and_a_pause_ends_the_waiting(
    tmp_path, mysql_source, target, zookeeper, fresh_schema
) -> None:
    schema = fresh_schema(mysql_source, target)
    extra = "    options: {lock_wait: 12}"
    with case(tmp_path, mysql_source, target, zookeeper, schema, target_extra=extra) as made:
        for server in (mysql_source, target):
            server.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY)")
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO `{schema}`.t VALUES (1)")
        made.run_until_head()
        with closing(target.connect(schema)) as holds:
            with holds.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT * FROM t")
            mysql_source.execute(f"ALTER TABLE `{schema}`.t ADD COLUMN v INT")
            with pytest.raises(TargetUnavailable, match=f"connection {holds.thread_id()} "):
                made.run_until_head()

            ended: list[BaseException] = []

            def run() -> None:
                try:
                    made.run_until_head()
                except BaseException as error:
                    ended.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            until(lambda: waiting(target) or ended)
            pause(made.runtime(), by="test", reason="test")
            thread.join()
            assert isinstance(ended[0], Paused)
            assert waiting(target) == []
        resume(made.runtime(), by="test")
        made.run_until_head()
        assert target.execute(f"SELECT * FROM `{schema}`.t") == [(1, None)]


@pytest.mark.parametrize("value", [0, -1, 301, "soon"])
def test_a_time_that_makes_no_sense_is_refused(value, tmp_path, mysql_source, mysql_target, zookeeper) -> None:
    with case(
        tmp_path, mysql_source, mysql_target, zookeeper, "s", target_extra=f"    options: {{lock_wait: {value}}}"
    ) as made:
        runtime = made.runtime()
        with pytest.raises(ConfigError, match="lock_wait"):
            open_target(runtime.pipeline.targets[0], runtime.resolver, runtime.name)
