"""A crash between any two statements of a load and a retry end right: the connection is lost at each of them in turn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import TargetUnavailable
from sluice.targets.mysql import target as module
from tests.support.batches import Delivery
from tests.support.cuts import Budget
from tests.support.people import DDL, delete, insert, people, update
from tests.support.small_units import small_units

STEP = int(os.environ.get("SLUICE_CUTS", "2"))
"""Every so many statements; SLUICE_CUTS=1: at each."""


@pytest.mark.parametrize("server", ["mysql_target", "mariadb"])
@pytest.mark.parametrize("consistency", ["row", "table", "batch"])
def test_cut_at_every_statement(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch,
    consistency: str,
    server: str,
) -> None:
    """Chains and rings of unique values over several units, rows that come and go, a table without a key."""
    small_units(monkeypatch, 12, 4)
    monkeypatch.setattr("sluice.segments.changeset.ROW_GROUP_ROWS", 8)
    monkeypatch.setattr("sluice.targets.mysql.statements.MAX_ROWS", 6)
    monkeypatch.setattr("sluice.targets.mysql.statements.MAX_KEYS", 6)
    target = request.getfixturevalue(server)
    db = fresh_schema(target)
    n = 40
    schema, heap = people(db), people(db, "heap")
    heap = type(heap)(heap.table, heap.columns)
    target.execute(DDL.format(db, "people"), f"CREATE TABLE {db}.heap (id INT, email VARCHAR(80), points INT)")
    pipe = Delivery(
        tmp_path, target, target={"consistency": consistency, "parallelism": 2, "options": {"ack_schema": db}}
    )
    pipe.deliver({schema: [insert(i, f"u{i}") for i in range(n)], heap: [insert(i) for i in range(9)]})
    chain = [
        update(insert(i, f"u{i}"), email=f"u{i + 1}") for i in range(20, 1, -1)
    ]  # ids in the middle take their neighbour's value
    ring = [update(insert(i, f"u{i}"), email=f"u{i + 1 if i < n - 1 else 25}", points=i) for i in range(25, n)]
    rows = [delete(insert(21, "u21")), *chain, *ring, insert(n, "u0x"), insert(n + 1, "u21x"), delete(insert(0, "u0"))]
    changeset = pipe.merge(pipe.write({schema: rows, heap: [insert(7), insert(7), delete(insert(8))]}))
    expected = {i: (f"u{i}", None) for i in range(n)}
    expected |= {i: (f"u{i + 1}", None) for i in range(2, 21)}
    expected |= {i: (f"u{i + 1 if i < n - 1 else 25}", i) for i in range(25, n)}
    expected |= {n: ("u0x", None), n + 1: ("u21x", None)}
    del expected[0], expected[21]
    budget = Budget()
    monkeypatch.setattr(module, "connect", budget.wrap(module.connect))
    cuts = 0
    for number in range(0, 1000, STEP):
        budget.left, budget.behind = number // 2, number % 4 < 2
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
    assert {
        i: (email, points) for i, email, points in target.execute(f"SELECT id, email, points FROM {db}.people")
    } == expected
    counts = dict(target.execute(f"SELECT id, COUNT(*) FROM {db}.heap GROUP BY id"))
    assert counts == {**dict.fromkeys(range(8), 1), 7: 3}
    assert pipe.held == 2
