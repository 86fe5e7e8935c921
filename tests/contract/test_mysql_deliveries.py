"""Batches through merge and load into MySQL and MariaDB; what every kind keeps is in test_targets.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.errors import Fenced, MappingError
from sluice.flows.load.units import run_load_unit
from sluice.targets.port import Capabilities, Target
from tests.support.pipelines.small_units import small_units
from tests.support.tables.batches import Delivery
from tests.support.tables.people import DDL, delete, insert, people, update

CASES = ["mysql_target", "mariadb"]
"""Fixtures of servers; each is a target of the type in TYPES."""

TYPES = {"mysql_target": "mysql", "mariadb": "mysql"}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path, fresh_schema: Any) -> tuple[Delivery, Any, str]:
    """A pipeline with one target table ``people`` (id, email unique, points)."""
    server = request.getfixturevalue(request.param)
    db = fresh_schema(server)
    server.execute(DDL.format(db, "people"))
    target = {"type": TYPES[request.param], "options": {"ack_schema": db}}
    return Delivery(tmp_path, server, target=target), server, db


def found(server: Any, db: str) -> list[tuple[Any, ...]]:
    return sorted(server.execute(f"SELECT id, email, points FROM {db}.people"))


def test_it_is_a_target(case: Any) -> None:
    pipe, _, _ = case
    assert isinstance(pipe.target, Target)
    assert isinstance(pipe.target.capabilities, Capabilities)


def test_nothing_was_delivered_at_first(case: Any) -> None:
    pipe, _, _ = case
    assert pipe.held == 0
    assert pipe.begin(1) == 0
    assert pipe.begin(1) == 0


def test_a_target_that_joins_later_begins_where_it_is_told(case: Any) -> None:
    pipe, _, _ = case
    assert pipe.begin(1, 41) == 41
    assert pipe.begin(2, 7) == 41


def test_rows_arrive_change_and_go(case: Any) -> None:
    pipe, server, db = case
    schema = people(db)
    pipe.deliver({schema: [insert(1, "a"), insert(2, "b"), insert(3, "c😀", 1)]})
    assert found(server, db) == [(1, "a", None), (2, "b", None), (3, "c😀", 1)]
    pipe.deliver({
        schema: [update(insert(1, "a"), email="b"), update(insert(2, "b"), email="a"), delete(insert(3, "c😀", 1))]
    })
    assert found(server, db) == [(1, "b", None), (2, "a", None)]
    assert pipe.held == 2


def test_a_repeat_changes_nothing(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch whose checkpoint moves after its rows."""
    small_units(monkeypatch, 5)
    pipe, server, db = case
    changeset = pipe.merge(pipe.write({people(db): [insert(1, "a"), insert(2, "b"), delete(insert(2, "b"))]}))
    for _ in range(3):
        pipe.load(changeset, finish=False)
        assert found(server, db) == [(1, "a", None)]
    assert pipe.held == 0


def test_a_repeat_of_a_small_batch_finds_that_it_is_there(case: Any) -> None:
    """Its checkpoint moves with its rows. Spark may run a unit again whose result it lost."""
    pipe, server, db = case
    changeset = pipe.merge(pipe.write({people(db): [insert(1, "a"), insert(2, "b"), delete(insert(2, "b"))]}))
    pipe.begin(1)
    [[unit]] = pipe.plan(changeset)
    for _ in range(3):
        run_load_unit(unit)
        assert found(server, db) == [(1, "a", None)]
        assert pipe.held == 1
    pipe.begin(2)
    with pytest.raises(Fenced):
        run_load_unit(unit)


def test_an_old_epoch_can_do_nothing(case: Any) -> None:
    pipe, server, db = case
    changeset = pipe.merge(pipe.write({people(db): [insert(1, "a")]}))
    pipe.begin(1)
    [[unit]] = pipe.plan(changeset)
    pipe.begin(2)
    position = changeset.manifest.last
    for act in (
        lambda: run_load_unit(unit),
        lambda: pipe.finish(1, 1, position),
        lambda: pipe.begin(1),
        lambda: pipe.reset(1, 0, position),
    ):
        with pytest.raises(Fenced):
            act()
    assert found(server, db) == []
    assert pipe.held == 0


def test_finishing_twice_is_harmless_and_a_reset_goes_back(case: Any) -> None:
    pipe, _, db = case
    changeset = pipe.deliver({people(db): [insert(1, "a")]})
    position = changeset.manifest.last
    pipe.finish(1, 1, position)
    assert pipe.held == 1
    pipe.reset(2, 0, position)
    assert pipe.held == 0
    pipe.epoch = 2
    pipe.load(changeset)
    assert pipe.held == 1


def test_pipelines_do_not_see_each_other(case: Any, tmp_path: Path) -> None:
    pipe, server, db = case
    other = Delivery(tmp_path, server, name="other", target={"options": {"ack_schema": db}})
    pipe.begin(9)
    assert other.begin(1) == 0
    pipe.epoch = 9
    pipe.deliver({people(db): [insert(1, "a")]})
    assert (pipe.held, other.held) == (1, 0)


def test_what_is_missing_is_named_before_anything_is_written(case: Any) -> None:
    pipe, server, db = case
    changeset = pipe.merge(pipe.write({people(db): [insert(1, "a")], people(db, "zz"): [insert(1, "a")]}))
    with pytest.raises(MappingError, match=f"{db}.zz"):
        pipe.load(changeset)
    assert found(server, db) == []
