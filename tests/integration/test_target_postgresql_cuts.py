"""A crash between any two statements of a load and a retry end right; so does kill -9 of the loading process at every call of the writer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluice.errors import TargetUnavailable
from sluice.model import packing
from sluice.targets.postgresql import session as pg_session
from sluice.targets.postgresql import target as module
from tests.support.batches import Delivery
from tests.support.people import delete, insert, people, update
from tests.support.small_units import small_units

STEP = int(os.environ.get("SLUICE_CUTS", "3"))
"""Every so many statements; SLUICE_CUTS=1: at each."""
ROWS = 40
TABLES = (
    'CREATE TABLE "{0}".people (id int PRIMARY KEY, email varchar(80) UNIQUE, points int)',
    'CREATE TABLE "{0}".heap (id int, email varchar(80), points int)',
)


class Budget:
    """Lets ``left`` statements through, then loses every connection at its next one; the first of them runs at the server if ``after``."""

    def __init__(self) -> None:
        self.left, self.after = 10**9, False
        self._lock = threading.Lock()

    def wrap(self, connect: Any) -> Any:
        pg_session.kept.end()

        def opened(*arguments: Any) -> Any:
            connection = connect(*arguments)
            made = connection.cursor_factory
            budget = self

            class Counted(made):  # type: ignore[misc, valid-type]
                def execute(self, *args: Any, **named: Any) -> Any:
                    return budget.run(connection, super().execute, *args, **named)

                def copy(self, *args: Any, **named: Any) -> Any:
                    budget.run(connection, lambda: None)
                    return super().copy(*args, **named)

            connection.cursor_factory = Counted
            return connection

        return opened

    def run(self, connection: Any, call: Any, *args: Any, **named: Any) -> Any:
        with self._lock:
            self.left -= 1
            left = self.left
        if left >= 0:
            return call(*args, **named)
        if self.after and left == -1:
            call(*args, **named)
        connection.pgconn.finish()
        raise psycopg.OperationalError("cut by the test")


def begun(folder: Path, server: Any, db: str, consistency: str) -> tuple[Delivery, Any, Any]:
    """A pipeline that has delivered its first batch, and the tables' definitions."""
    schema, heap = people(db), people(db, "heap")
    heap = type(heap)(heap.table, heap.columns)
    options = {"type": "postgresql", "consistency": consistency, "parallelism": 2, "options": {"ack_schema": db}}
    pipe = Delivery(folder, server, target=options)
    return pipe, schema, heap


def first(schema: Any, heap: Any) -> dict[Any, Any]:
    return {schema: [insert(i, f"u{i}") for i in range(ROWS)], heap: [insert(i) for i in range(9)]}


def second(schema: Any, heap: Any) -> dict[Any, Any]:
    """Chains and rings of unique values over several units, rows that come and go, a table without a key."""
    chain = [update(insert(i, f"u{i}"), email=f"u{i + 1}") for i in range(20, 1, -1)]
    ring = [update(insert(i, f"u{i}"), email=f"u{i + 1 if i < ROWS - 1 else 25}", points=i) for i in range(25, ROWS)]
    rows = [
        delete(insert(21, "u21")),
        *chain,
        *ring,
        insert(ROWS, "u0x"),
        insert(ROWS + 1, "u21x"),
        delete(insert(0, "u0")),
    ]
    return {schema: rows, heap: [insert(7), insert(7), delete(insert(8))]}


def assert_right(server: Any, db: str) -> None:
    expected = {i: (f"u{i}", None) for i in range(ROWS)}
    expected |= {i: (f"u{i + 1}", None) for i in range(2, 21)}
    expected |= {i: (f"u{i + 1 if i < ROWS - 1 else 25}", i) for i in range(25, ROWS)}
    expected |= {ROWS: ("u0x", None), ROWS + 1: ("u21x", None)}
    del expected[0], expected[21]
    found = server.execute(f'SELECT id, email, points FROM "{db}".people')
    assert {i: (email, points) for i, email, points in found} == expected
    counts = dict(server.execute(f'SELECT id, COUNT(*) FROM "{db}".heap GROUP BY id'))
    assert counts == {**dict.fromkeys(range(8), 1), 7: 3}


@pytest.mark.parametrize("consistency", ["row", "table", "batch"])
def test_cut_at_every_statement(
    tmp_path: Path, postgresql: Any, fresh_pg_schema: Any, monkeypatch: pytest.MonkeyPatch, consistency: str
) -> None:
    small_units(monkeypatch, 12)
    monkeypatch.setattr("sluice.segments.changeset.ROW_GROUP_ROWS", 8)
    monkeypatch.setattr("sluice.targets.postgresql.staging.PARAMETER_ROWS", 5)
    db = fresh_pg_schema()
    postgresql.execute(*(table.format(db) for table in TABLES))
    pipe, schema, heap = begun(tmp_path, postgresql, db, consistency)
    pipe.deliver(first(schema, heap))
    changeset = pipe.merge(pipe.write(second(schema, heap)))
    budget = Budget()
    monkeypatch.setattr(module, "connect", budget.wrap(module.connect))
    cuts = 0
    for number in range(0, 1000, STEP):
        budget.left, budget.after = number // 2, number % 4 < 2
        try:
            pipe.load(changeset)
        except TargetUnavailable:
            cuts += 1
            budget.left = 10**9
            if pipe.held < 2:
                continue
        break
    budget.left = 10**9
    assert cuts * STEP > 20
    assert_right(postgresql, db)
    assert pipe.held == 2


def killed_at(folder: Path, connection: str, db: str, consistency: str, point: int) -> None:
    """Deliver the second batch, and die at call ``point`` of the port; called in a process of its own."""
    packing.UNIT_ROWS, packing.TABLE_COST = 24, 1
    calls = 0

    def die(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > point:
            os.kill(os.getpid(), signal.SIGKILL)

    class Server:
        def connection_json(self) -> str:
            return connection

    pipe, schema, heap = begun(folder, Server(), db, consistency)
    pipe.batch, pipe.epoch = 1, 2 + point
    changeset = pipe.merge(pipe.write(second(schema, heap)))
    pipe.begin(pipe.epoch)
    die("take_over")
    writer = pipe.writer(changeset)
    writer.prepare()
    die("prepare")
    results = []
    for phase in writer.plan(2):
        die("plan")
        for unit in phase:
            results.append(unit.write(None))
            die("write")
    writer.commit(results)
    die("commit")


@pytest.mark.parametrize("consistency", ["row", "batch"])
def test_killed_at_every_call(
    tmp_path: Path, postgresql: Any, fresh_pg_schema: Any, monkeypatch: pytest.MonkeyPatch, consistency: str
) -> None:
    small_units(monkeypatch, 12)
    starter = multiprocessing.get_context("forkserver")
    starter.set_forkserver_preload([__name__])
    db = fresh_pg_schema()
    postgresql.execute(*(table.format(db) for table in TABLES))
    pipe, schema, heap = begun(tmp_path, postgresql, db, consistency)
    pipe.deliver(first(schema, heap))
    for point in range(30):
        child = starter.Process(target=killed_at, args=(tmp_path, postgresql.connection_json(), db, consistency, point))
        child.start()
        child.join(200)
        assert child.exitcode in {0, -signal.SIGKILL}
        if pipe.held == 2 or child.exitcode == 0:
            break
    assert point >= 3
    assert_right(postgresql, db)
    assert pipe.held == 2
