"""A crash between any two statements of a load and a retry end right; so does kill -9 of the loading process at every
call of the writer.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sluice.model import packing
from sluice.targets.postgresql import target as module
from tests.support.crashes.cuts import Budget, assert_right, begun, first, second
from tests.support.pipelines.small_units import small_units

STEP = int(os.environ.get("SLUICE_CUTS", "3"))
"""Every so many statements; SLUICE_CUTS=1: at each."""
TABLES = (
    'CREATE TABLE "{0}".people (id int PRIMARY KEY, email varchar(80) UNIQUE, points int)',
    'CREATE TABLE "{0}".heap (id int, email varchar(80), points int)',
)


@pytest.mark.parametrize("consistency", ["row", "table", "batch"])
def test_cut_at_every_statement(
    tmp_path: Path, postgresql: Any, fresh_pg_schema: Any, monkeypatch: pytest.MonkeyPatch, consistency: str
) -> None:
    small_units(monkeypatch, 12)
    monkeypatch.setattr("sluice.segments.changeset.ROW_GROUP_ROWS", 8)
    monkeypatch.setattr("sluice.targets.postgresql.staging.PARAMETER_ROWS", 5)
    db = fresh_pg_schema()
    postgresql.execute(*(table.format(db) for table in TABLES))
    pipe, schema, heap = begun(tmp_path, postgresql, db, type="postgresql", consistency=consistency)
    pipe.deliver(first(schema, heap))
    changeset = pipe.merge(pipe.write(second(schema, heap)))
    budget = Budget()
    monkeypatch.setattr(module, "connect", budget.wrap_postgresql(module.connect))
    budget.load(pipe, changeset, STEP)
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

    pipe, schema, heap = begun(folder, Server(), db, type="postgresql", consistency=consistency)
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
    pipe, schema, heap = begun(tmp_path, postgresql, db, type="postgresql", consistency=consistency)
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
