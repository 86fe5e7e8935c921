"""``commit_every``: batches that wait for a target of lake tables, and are written to it together, while another target
goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.bundles import WaitingBatches
from sluice.coordination.shared_session import SharedSessions
from sluice.errors import ConfigError
from sluice.flows.capture.watch import WaitingPipeline
from sluice.flows.job import run_microbatches
from sluice.flows.load import bundles
from sluice.flows.load.isolation import commit_waiting, deliver
from sluice.flows.load.load import LoadOutcome
from sluice.flows.run import run
from sluice.flows.runtime import Runtime
from sluice.operations import control
from sluice.operations.deadletters.store import letters
from sluice.operations.status import status
from tests.support.pipelines.case import case
from tests.support.pipelines.lake_bundles import LAKES, Bundled, bundled, later
from tests.support.twins.serverless import serverless

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")


def news(runtime: Runtime) -> bool:
    """Would a pipeline that stands still be woken, whatever is in its source's log?"""
    waiting, sessions = WaitingPipeline(runtime), SharedSessions()
    waiting.join(sessions)
    try:
        found = waiting.read()
        assert waiting.delivered is None, "not everything is delivered"
        return found
    finally:
        waiting.leave()
        sessions.close()


@pytest.fixture(params=LAKES)
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bundled]:
    with bundled(tmp_path, request.param) as made:
        yield made


def test_batches_wait_and_arrive_in_one_commit(one: Bundled) -> None:
    """More than the window of two: the other target, and the drain, are not held up.

    Each is acknowledged; a version is found by any of them.
    """
    for number in range(1, 5):
        outcomes = one.commit(("insert", "a", (number, "new")), ("insert", "a", (10 + number, "gone")))
        assert isinstance(outcomes["lake"], WaitingBatches)
    one.commit(("update", "a", (1, "newest")), *(("delete", "a", (10 + number,)) for number in range(1, 5)))
    assert {row["id"]: row["v"] for row in one.copy.all()} == one.made.rows()
    assert (one.acknowledged(), one.rows()) == ({"lake": 0, "copy": 5}, {})
    now = status(one.runtime)
    assert (now.state, now.in_flight, now.targets[0].batch) == ("running", [], 0)
    assert "batches 1 to 5 wait to be written together" in (now.targets[0].waits or "")
    assert (now.targets[0].lag_ms or 0) > 0
    assert now.targets[1].waits is None
    one.later(601)
    outcome = one.commit(("insert", "a", (6, "last")))["lake"]
    assert isinstance(outcome, LoadOutcome)
    assert (outcome.batches, outcome.upserts) == (6, 5)
    assert one.rows() == one.made.rows() == {1: "newest", 2: "new", 3: "new", 4: "new", 6: "last"}
    assert (one.acknowledged(), one.commits()) == ({"lake": 6, "copy": 6}, [("1", "6")])
    assert status(one.runtime).targets[0].waits is None


def test_every_change_arrives_in_one_commit_with_its_batch(tmp_path: Path) -> None:
    for kind in LAKES:
        (tmp_path / kind).mkdir()
        with bundled(tmp_path / kind, kind, changes="all") as one:
            one.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
            one.commit(("update", "a", (1, "z")))
            one.commit(("delete", "a", (1,)))
            assert one.every() == []
            commit_waiting(one.runtime, "lake")
            arrived = [(batch, op, row) for batch, _, op, row, _ in one.every()]
            assert arrived == [(1, "i", 1), (1, "i", 2), (2, "u", 1), (3, "d", 1)]
            assert one.commits() == [("1", "3")]
            assert commit_waiting(one.runtime, "lake") is None


def test_a_pipeline_that_stands_still_writes_what_waits(one: Bundled) -> None:
    """Its batch is taken up when its time has come, like one whose run is gone; the end of `sluice run --until-head`
    needs no such time.
    """
    one.commit(("insert", "a", (1, "x")))
    one.commit(("insert", "a", (2, "x")))
    assert run_microbatches(one.runtime, claim="test:here:idle", idle_wait_s=0.01).last.batch is None
    one.later(601)
    taken = run_microbatches(one.runtime, claim="test:here:due", idle_wait_s=0.01).last
    assert (taken.batch, taken.adopted) == (1, True)
    deliver(one.runtime, "lake", 1)
    assert (one.rows(), one.acknowledged()["lake"]) == ({1: "x", 2: "x"}, 2)
    one.commit(("insert", "a", (9, "waits")))
    deliver(one.runtime, "lake", 2)  # which is there: what came after it still waits
    assert (one.rows(), one.acknowledged()["lake"]) == ({1: "x", 2: "x"}, 2)
    one.made.case.commit(("insert", "a", (3, "x")))
    assert "acknowledged" in [step.phase for step in run(one.runtime, until_head=True)]
    assert (one.rows(), one.acknowledged()["lake"]) == (one.made.rows(), 4)


def test_a_loop_goes_on_while_batches_wait(one: Bundled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of them are written at once."""
    monkeypatch.setattr(bundles, "MOST_BATCHES", 3)
    told = []
    for number in range(1, 5):
        one.made.case.commit(("insert", "a", (number, "x")))
        done = run_microbatches(one.runtime, claim=f"test:here:{number}", idle_wait_s=0.01, on_delivered=told.append)
        assert done.last.batch == number
        assert "is not" not in done.ended_by
    assert ["lake waits" in str(carried) for carried in told] == [True, True, False, True]
    assert (sorted(one.rows()), one.acknowledged()) == ([1, 2, 3], {"lake": 3, "copy": 4})


def test_what_is_overdue_for_long_holds_up_the_drain(one: Bundled) -> None:
    """Else a target that cannot keep up would be left behind without an end.

    The window of two is full then, and the oldest batch is taken up.
    """
    for number in range(1, 4):
        one.commit(("insert", "a", (number, "x")))
    with one.runtime.state() as state:
        assert (state.in_window(), state.lacking(), state.due()) == ([], [1, 2, 3], [])
    one.later(601)
    with one.runtime.state() as state:
        assert (state.in_window(), state.due()) == ([], [1])
    one.later(600)
    with one.runtime.state() as state:
        assert state.in_window() == [1, 2, 3]
    one.made.case.commit(("insert", "a", (4, "x")))
    taken = run_microbatches(one.runtime, claim="test:here:full", idle_wait_s=0.01).last
    assert (taken.batch, taken.closed_by) == (1, "the window is full")
    deliver(one.runtime, "lake", 1)
    assert (one.commits(), one.acknowledged()["lake"]) == ([("1", "3")], 3)


def test_rows_of_the_last_batch_count_also_after_a_rollback(one: Bundled) -> None:
    one.commit(("insert", "a", (1, "old")))
    one.commit(("update", "a", (1, "new")), ("insert", "a", (2, "x")))
    control.rollback(one.runtime, by="anna", dry_run=False)
    with one.runtime.state() as state:
        assert not any(batch.changeset for batch in map(state.batches.require, (1, 2)))
    commit_waiting(one.runtime, "lake")
    assert (one.rows(), one.commits()) == (one.made.rows(), [("1", "2")])
    control.redeliver(one.runtime, "lake", by="anna", from_batch=1, dry_run=False)
    one.commit(("insert", "a", (3, "x")))
    commit_waiting(one.runtime, "lake")
    assert (one.rows(), one.acknowledged()["lake"]) == (one.made.rows(), 3)
    assert one.commits()[1:] == [("1", "3")]


def test_a_refused_row_is_the_dead_letter_of_its_own_batch(tmp_path: Path) -> None:
    """And the others arrive: batches that cannot be written together are written one by one."""
    with bundled(tmp_path, "delta", partitioned=True, on_error="dead_letter") as one:
        one.commit(("insert", "a", (1, "x")))
        one.commit(("insert", "a", (2, "")), ("insert", "a", (3, "y")))
        one.commit(("update", "a", (1, "z")))
        commit_waiting(one.runtime, "lake")
        assert (one.rows(), one.acknowledged()["lake"]) == ({1: "z", 3: "y"}, 3)
        assert one.commits() == [("1", "1"), ("2", "2"), ("3", "3")]
        [letter] = letters(one.runtime)
        assert letter.batch == 2


def test_who_may_say_it(tmp_path: Path) -> None:
    target = {"name": "t", "type": "memory", "connection": "t", "commit_every": "1m"}
    with (
        serverless(tmp_path, targets=[target]) as made,
        pytest.raises(ConfigError, match="cannot write several batches in one commit"),
    ):
        made.runtime().open_target("t")


@pytest.mark.parametrize("kind", LAKES)
def test_a_change_of_definitions_in_the_middle(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, kind: str
) -> None:
    """It does not wait: what does is written before it, by itself.

    What comes after it waits anew, and a person may have it at once.
    """
    schema, lake = fresh_schema(mysql_source), LAKES[kind](tmp_path / "lake")
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v VARCHAR(9))")
    with case(tmp_path, mysql_source, lake, zookeeper, schema, kind=kind, target_extra="    commit_every: 1h") as made:
        made.make_missing()
        made.run_until_head()

        def batch(*statements: str) -> list[dict[str, Any]]:
            mysql_source.execute(f"USE {schema}", *statements)
            for _ in run(made.runtime(), batches=1):
                pass
            rows: list[dict[str, Any]] = lake.rows(schema, "t").sort_by("id").to_pylist()
            return rows

        assert batch("INSERT INTO t VALUES (1, 'x')") == []
        assert batch("UPDATE t SET v = 'y'") == []
        assert batch("ALTER TABLE t ADD n INT DEFAULT 7") == [{"id": 1, "v": "y", "n": 7}]
        with made.runtime().state() as state:
            ddl = state.batches.numbers()[-1]
        assert len(batch("INSERT INTO t VALUES (2, 'x', 8)")) == len(batch("INSERT INTO t VALUES (3, 'x', 9)")) == 1
        assert f"batches {ddl + 1} to {ddl + 2} wait" in made.cli("status", "case").stdout.replace("\n", " ")
        assert not news(made.runtime())
        later(made.runtime(), 3601)
        assert news(made.runtime())
        said = json.loads(made.cli("targets", "commit", "case", "--json").stdout)
        assert [(one["batch"], one["batches"]) for one in said] == [(ddl + 2, 2)]
        assert [row["n"] for row in batch("DELETE FROM t WHERE id = 2")] == [7, 8, 9]
        made.run_until_head()
        assert lake.rows(schema, "t").sort_by("id")["n"].to_pylist() == [7, 9]
        assert made.cli("targets", "commit", "case").stdout.strip().endswith("copy: nothing waits")
