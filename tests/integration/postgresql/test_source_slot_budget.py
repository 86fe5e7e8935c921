"""``source.slot_budget``: the slot keeps no more than it while a target stands still, and the capture goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import ports
from sluice.errors import LostPosition, TargetUnavailable
from sluice.flows.capture.drain import drain
from sluice.operations.status import status
from sluice.sources.postgresql.position import Position
from tests.support.pipelines.pg_source import PgCase, pg_case

MIB = 2**20
BUDGET = 16 * MIB
TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL",
)


@pytest.fixture
def made(tmp_path: Path, postgresql_source: Any, zookeeper: Any, request: pytest.FixtureRequest) -> Iterator[PgCase]:
    schema = f"b{abs(hash(request.node.name)) % 10**8}"
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema=schema, tables=TABLES, source_extra=", slot_budget: 16MiB"
    ) as case:
        case.prepare()
        case.run_until_head()
        yield case


def stuck(made: PgCase) -> str:
    """Let nobody answer for the target; returns what its connection was."""
    was = made.connections["case_target"]
    made.connections["case_target"] = json.dumps({**json.loads(was), "port": ports.free_port()})
    return was


def write_mib(made: PgCase, first: int, mib: int) -> None:
    made.write(
        f"INSERT INTO orders SELECT i, repeat('x', 8000) FROM generate_series({first}, {first + mib * 125 - 1}) i",
        "SELECT pg_log_standby_snapshot()",  # the server itself does it every 15 seconds: the slot begins at one
    )


def retained(made: PgCase) -> int:
    [(size,)] = made.source.execute(
        f"SELECT pg_current_wal_flush_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = '{made.slot}'"
    )
    return int(size)


def batches(made: PgCase) -> list[int]:
    with made.runtime().state() as state:
        return state.undelivered()


def test_the_slot_keeps_its_budget_while_a_target_stands_still(made: PgCase) -> None:
    """Changes are captured ahead of it, beyond the window; once it answers, it gets all of them."""
    was = stuck(made)
    for turn in range(6):
        write_mib(made, turn * 1000, 8)
        with pytest.raises(TargetUnavailable):
            made.run_until_head()
        assert retained(made) <= BUDGET + 4 * MIB, "the server itself writes after the run, too: vacuum, full pages"
    with made.runtime().state() as state:
        cursor = state.cursor()
    assert cursor is not None
    assert len(batches(made)) >= 3
    assert made.slot_row()["confirmed"] > Position.of(cursor.position).lsn - 16 * MIB
    made.connections["case_target"] = was
    now = status(made.runtime())
    assert (now.retained_budget_bytes, now.errors) == (BUDGET, [])
    assert now.retained_bytes is not None
    assert now.targets[0].lag_bytes is not None
    assert "of 16" in made.cli("status", made.name).stdout
    made.run_until_head()
    assert batches(made) == []
    made.assert_same("orders")


def test_the_capture_goes_on_beyond_the_window(made: PgCase) -> None:
    """The window is full of batches that nobody loads."""
    stuck(made)
    for number in range(3):
        made.write(f"INSERT INTO orders VALUES ({number}, 'x')")
        assert drain(made.runtime(), claim=f"test:a:{number}", idle_wait_s=5).batch is not None
    write_mib(made, 1000, 14)
    with pytest.raises(TargetUnavailable):
        made.run_until_head()
    assert len(batches(made)) == 4
    with made.runtime().state() as state:
        assert state.batches.require(batches(made)[-1]).claim.startswith("ahead:")


def test_what_was_released_is_not_read_again(made: PgCase) -> None:
    """The price: without its segments the log is no help, and `sluice recover` copies the tables."""
    was = stuck(made)
    with made.runtime().state() as state:
        before = state.cursor()
    assert before is not None
    write_mib(made, 0, 20)
    with pytest.raises(TargetUnavailable):
        made.run_until_head()
    write_mib(made, 5000, 1)
    with pytest.raises(TargetUnavailable):
        made.run_until_head()
    with made.runtime().source.open() as session, pytest.raises(LostPosition):
        session.confirm(before.position)
    made.connections["case_target"] = was
    for number in batches(made):
        shutil.rmtree(made.folder / "store" / made.name / f"batch={number:010d}", ignore_errors=True)
    done = made.cli("recover", made.name, "--apply", "--yes")
    assert done.returncode == 0, done.stdout
    made.run_until_head()
    made.assert_same("orders")


def test_an_idle_capture_has_seen_the_whole_log(made: PgCase) -> None:
    """However long the server takes to decode it: the capture does not end before that."""
    made.source.execute("CREATE TABLE IF NOT EXISTS noise (n int)", "INSERT INTO noise SELECT generate_series(1, 1000)")
    with made.runtime().source.open() as session:
        assert session.head is not None
        head = Position.of(session.head).lsn
    outcome = drain(made.runtime(), claim="test:a:1", idle_wait_s=0)
    assert outcome.batch is None
    assert Position.of(outcome.position).lsn >= head
    made.write("INSERT INTO orders VALUES (1, 'x')")
    assert drain(made.runtime(), claim="test:a:2", idle_wait_s=0).batch is not None
