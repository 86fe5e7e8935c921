"""A crash between any two statements of a load and a retry end right: the connection is lost at each of them in
turn.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sluice.targets.mysql import target as module
from tests.support.crashes.cuts import Budget, assert_right, begun, first, second
from tests.support.pipelines.small_units import small_units
from tests.support.tables.people import DDL

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
    small_units(monkeypatch, 12, 4)
    monkeypatch.setattr("sluice.segments.changeset.ROW_GROUP_ROWS", 8)
    monkeypatch.setattr("sluice.targets.mysql.statements.MAX_ROWS", 6)
    monkeypatch.setattr("sluice.targets.mysql.statements.MAX_KEYS", 6)
    target = request.getfixturevalue(server)
    db = fresh_schema(target)
    target.execute(DDL.format(db, "people"), f"CREATE TABLE {db}.heap (id INT, email VARCHAR(80), points INT)")
    pipe, schema, heap = begun(tmp_path, target, db, consistency=consistency)
    pipe.deliver(first(schema, heap))
    changeset = pipe.merge(pipe.write(second(schema, heap)))
    budget = Budget()
    monkeypatch.setattr(module, "connect", budget.wrap(module.connect))
    budget.load(pipe, changeset, STEP)
    assert_right(target, db)
    assert pipe.held == 2
