"""A promoted standby: the pipeline goes on there at the same place, if nothing is missing."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from devstack.postgresql import PostgreSQLServer
from sluice.errors import LostPosition
from tests.support.pipelines.pg_source import PgCase, pg_case
from tests.support.servers.pg_standby import LOGICAL, replayed, standby_of, synced

pytestmark = pytest.mark.full

TABLES = ("CREATE TABLE t (id int PRIMARY KEY, v text)",)


def follow(made: PgCase, standby: PostgreSQLServer, *, number: int) -> None:
    """Wait until the standby has all of the primary, and its slot.

    It takes a slot over when that has moved past what the standby itself keeps, which it tells the primary of every few
    seconds.
    """
    until = time.monotonic() + 120
    for turn in itertools.count():
        made.write(f"INSERT INTO t VALUES ({number + turn}, 'on the way')")
        made.run_until_head()
        made.source.execute("SELECT pg_log_standby_snapshot()")
        made.run_until_head()
        replayed(made.source, standby)
        if synced(standby, made.slot):
            return
        assert time.monotonic() < until, "the standby did not take the slot over"
        time.sleep(0.5)


def test_it_goes_on_at_a_promoted_standby(tmp_path: Path, server_folder: Path, postgresql: Any, zookeeper: Any) -> None:
    with (
        PostgreSQLServer(server_folder / "pg-primary", options=LOGICAL) as primary,
        pg_case(tmp_path, primary, zookeeper, schema="failing", tables=TABLES, target=postgresql) as made,
    ):
        standby = standby_of(primary, server_folder / "pg-standby")
        try:
            postgresql.execute("CREATE SCHEMA failing")
            made.connections["case_standby"] = standby.connection_json()
            made.path.write_text(
                made.yaml.replace("connection: case_source, ", "connections: [case_source, case_standby], ")
            )
            made.prepare()
            made.run_until_head()
            made.write("INSERT INTO t VALUES (1, 'one')")
            made.run_until_head()
            follow(made, standby, number=100)
            made.write("INSERT INTO t VALUES (2, 'of the primary, not captured')")
            replayed(made.source, standby)
            primary.kill()
            standby.execute("SELECT pg_promote()")
            standby.execute("INSERT INTO failing.t VALUES (3, 'of the standby')")
            assert made.cli("failover", made.name, "--to", "case_standby", "--yes").returncode == 0
            made.run_until_head()
            rows = "SELECT id, v FROM failing.t ORDER BY id"
            assert postgresql.execute(rows) == standby.execute(rows)
            assert {1, 2, 3} <= {row[0] for row in standby.execute(rows)}
            with made.runtime().state() as state:
                cursor = state.cursor()
            assert cursor is not None
            assert cursor.position.place.startswith("timeline2.")
        finally:
            standby.stop()
            shutil.rmtree(standby.folder, ignore_errors=True)
            postgresql.execute("DROP SCHEMA failing CASCADE")


def test_a_standby_that_lacks_what_was_captured_is_refused(
    tmp_path: Path, server_folder: Path, postgresql: Any, zookeeper: Any
) -> None:
    with (
        PostgreSQLServer(server_folder / "pg-primary-2", options=LOGICAL) as primary,
        pg_case(tmp_path, primary, zookeeper, schema="lacking", tables=TABLES, target=postgresql) as made,
    ):
        standby = standby_of(primary, server_folder / "pg-standby-2")
        try:
            postgresql.execute("CREATE SCHEMA lacking")
            made.prepare()
            made.run_until_head()
            replayed(made.source, standby)
            standby.stop()
            made.write("INSERT INTO t VALUES (1, 'captured, and not at the standby')")
            made.run_until_head()
            primary.kill()
            standby.start()
            standby.execute("SELECT pg_promote()")
            made.connections["case_source"] = standby.connection_json()
            with made.runtime().state() as state:
                cursor = state.cursor()
            assert cursor is not None
            with (
                made.runtime().source.open() as session,
                pytest.raises(LostPosition, match="lacks transactions that were read"),
            ):
                session.relocate(cursor.position)
        finally:
            standby.stop()
            shutil.rmtree(standby.folder, ignore_errors=True)
            postgresql.execute("DROP SCHEMA lacking CASCADE")
