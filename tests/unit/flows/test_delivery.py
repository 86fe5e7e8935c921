"""The whole way from drain to acknowledgement, and what a person does to it, without a server: source and target in
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.errors import LoadError, OutOfOrder, Paused, RuleError
from sluice.flows.dump.progress import views
from sluice.flows.load.ack import ack
from sluice.flows.load.isolation import catch_up
from sluice.flows.load.load import load
from sluice.operations import control
from sluice.operations.adopt import adopt
from sluice.operations.alerts import check_lag
from sluice.operations.check import apply_missing, check
from sluice.operations.deadletters.replay import discard, replay
from sluice.operations.deadletters.store import letters
from sluice.operations.retention import prune
from sluice.operations.status import status
from sluice.operations.stored import segments
from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy", "archive")


@pytest.fixture
def lenient(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy", on_error="dead_letter")


def test_changes_arrive_merged_and_are_acknowledged(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
    one.commit(("update", "a", (1, "z")), ("delete", "a", (2,)))
    assert one.deliver() == ["draining", "merging", "loading copy", "acknowledged"]
    assert one.rows() == one.made.rows() == {1: "z"}
    now = status(one.made.runtime())
    assert (now.state, now.in_flight, now.lag_ms, now.targets[0].batch) == ("idle", [], 0, 1)
    [stored] = segments(one.made.runtime(), verify=True)
    assert (stored["batch"], stored["changes"]) == (1, 4)


def test_a_run_takes_up_the_batches_of_runs_that_a_person_ended(one: Pipe) -> None:
    """In order, as far as it is known of their runs, and before it reads the log."""
    made, mine = one.made, "airflow:east:sync__shop:run-4"
    for number in (1, 2, 3):
        one.commit(("insert", "a", (number, "x")))
        assert made.drain(claim=f"airflow:east:sync__shop:run-{number}", deliver=False).batch == number
    one.commit(("insert", "a", (4, "x")))
    outcome = made.drain(claim=mine, deliver=False, is_over=lambda claim: claim.endswith(("run-1", "run-2")))
    assert (outcome.batch, outcome.adopted, outcome.closed_by) == (2, True, "its run is over")
    runtime = made.runtime()
    with runtime.state() as state:
        assert [batch.number for batch in state.batches.claimed_all(mine)] == [1, 2]
        assert state.batches.require(3).claim.endswith("run-3")
    assert outcome.batch is not None
    load(runtime, "copy", outcome.batch)
    ack(runtime, "copy", outcome.batch)
    assert one.rows() == {1: "x", 2: "x"}
    again = made.drain(claim=mine, deliver=False, is_over=lambda claim: True)
    assert again.batch == 2  # a retry gets its own
    following = made.drain(claim="airflow:east:sync__shop:run-5", deliver=False, is_over=lambda claim: False)
    assert (following.batch, following.adopted) == (4, False)


def test_status_names_the_run_whose_batch_no_process_loads(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")))
    one.made.drain(claim="airflow:east:sync__shop:scheduled__2026-01-01T00:00:00+00:00", deliver=False)
    assert not status(one.made.runtime()).warnings
    config = one.made.case.config
    lost_at_once = config.coordination.model_copy(update={"worker_grace": timedelta(seconds=-1)})
    one.made.case.config = config.model_copy(update={"coordination": lost_at_once})
    [warning] = status(one.made.runtime()).warnings
    assert "run scheduled__2026-01-01T00:00:00+00:00 of DAG sync__shop" in warning
    assert "Clear" in warning
    one.deliver()
    assert not status(one.made.runtime()).warnings


def test_a_rule_that_fails_keeps_its_batch_until_it_is_right(one: Pipe) -> None:
    rules = one.made.folder / "rules"
    (rules / "engine.yaml").write_text("rules: [{name: up, path: up.py}]\n")
    (rules / "up.py").write_text("def transform(row, context):\n    return {**row, 'v': row['w'].upper()}\n")
    config = one.made.case.config
    one.made.case.config = config.model_copy(update={"rules": "engine.yaml"})
    one.commit(("insert", "a", (1, "x")))
    with pytest.raises(RuleError, match="rule 'up'"):
        one.deliver()
    assert (one.rows(), one.acknowledged()) == ({}, 0)
    (rules / "up.py").write_text("def transform(row, context):\n    return {**row, 'v': row['v'].upper()}\n")
    one.deliver()
    assert (one.rows(), one.acknowledged()) == ({1: "X"}, 1)


def test_a_pause_stops_the_work_and_resume_continues_it(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")))
    control.pause(one.made.runtime(), by="anna", reason="maintenance")
    assert status(one.made.runtime()).state == "paused"
    with pytest.raises(Paused, match="paused by anna: maintenance"):
        one.deliver()
    assert one.rows() == {}
    control.resume(one.made.runtime(), by="anna")
    one.deliver()
    assert one.rows() == {1: "x"}


def test_a_refused_row_stops_its_batch_and_skip_keeps_it_for_a_replay(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "bad")))
    one.refuse("a constraint")
    with pytest.raises(LoadError, match="a constraint"):
        one.deliver()
    runtime = one.made.runtime()
    one.commit(("insert", "a", (9, "z")))
    one.made.drain(deliver=False)
    with pytest.raises(OutOfOrder, match="cannot be skipped now"):
        control.skip(runtime, "copy", 2, by="anna", reason="test", dry_run=True)
    assert control.skip(runtime, "copy", 1, by="anna", reason="test", dry_run=True).steps
    assert one.acknowledged() == 0
    control.skip(runtime, "copy", 1, by="anna", reason="test", dry_run=False)
    one.commit(("insert", "a", (2, "y")))
    one.deliver()
    assert one.rows() == {2: "y", 9: "z"}
    assert [letter.stage for letter in letters(runtime)] == ["skip"]
    one.refuse("")
    assert [outcome.outcome for outcome in replay(runtime, [], by="anna")] == ["replayed"]
    assert one.rows() == one.made.rows()


def test_a_rejected_row_becomes_a_dead_letter_and_is_replayed_or_superseded(lenient: Pipe) -> None:
    lenient.refuse("a constraint")
    lenient.commit(
        ("insert", "a", (1, "bad")), ("insert", "a", (2, "y")), ("insert", "a", (3, "bad")), ("insert", "a", (4, "bad"))
    )
    lenient.deliver()
    assert lenient.rows() == {2: "y"}
    runtime = lenient.made.runtime()
    assert len(letters(runtime)) == 3
    lenient.commit(("update", "a", (3, "good")))
    lenient.deliver()
    lenient.refuse("")
    [first] = [letter.id for letter in letters(runtime) if "4" in str(letter.key)]
    assert len(discard(runtime, [first], by="anna", reason="not wanted")) == 1
    assert sorted(outcome.outcome for outcome in replay(runtime, [], by="anna")) == ["replayed", "superseded"]
    assert lenient.rows() == {1: "bad", 2: "y", 3: "good"}
    assert letters(runtime) == []


def test_a_target_that_fails_is_quarantined_and_catches_up(two: Pipe) -> None:
    two.refuse("a constraint", "archive")
    for number, value in enumerate(("bad", "x", "y"), start=1):
        two.commit(("insert", "a", (number, value)))
        two.made.drain(deliver=False)
    with pytest.raises(LoadError, match="a constraint"):
        two.deliver()
    assert (two.rows("copy"), two.rows("archive")) == ({1: "bad", 2: "x", 3: "y"}, {})
    now = status(two.made.runtime())
    assert [t.name for t in now.targets if t.quarantined] == ["archive"]
    two.refuse("", "archive")
    while catch_up(two.made.runtime(), "archive").quarantined:
        pass
    assert two.rows("archive") == two.rows("copy")
    assert not any(t.quarantined for t in status(two.made.runtime()).targets)


def test_a_rollback_makes_the_results_anew_with_the_rules_of_now(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "bad")))
    one.refuse("a constraint")
    with pytest.raises(LoadError):
        one.deliver()
    rules = one.made.folder / "rules"
    (rules / "engine.yaml").write_text("rules: [{name: fix, path: fix.py}]\n")
    (rules / "fix.py").write_text("def transform(row, context):\n    return {**row, 'v': 'good'}\n")
    one.made.case.config = one.made.case.config.model_copy(update={"rules": "engine.yaml"})
    control.rollback(one.made.runtime(), by="anna", dry_run=False)
    one.deliver()
    assert one.rows() == {1: "good"}


@pytest.mark.parametrize("by", ["anna", "sluice"])
def test_a_target_that_lost_batches_gets_them_again_from_the_segments(one: Pipe, by: str) -> None:
    """By itself at the next load, or before it by a command; not where a number was edited and its position was not."""
    for number in (1, 2, 3):
        one.commit(("insert", "a", (number, "x")))
        one.deliver()
    store, runtime = one.stores["copy"], one.made.runtime()
    owner = (runtime.name, "copy")
    with runtime.state() as state:
        positions = {number: state.batches.require(number).last for number in (1, 2, 3)}
    for key in [key for key in store.tables[one.made.table].rows if key != (1,)]:
        del store.tables[one.made.table].rows[key]  # a backup of after batch 1
    store.checkpoints[owner] = replace(store.checkpoints[owner], batch=1)
    one.commit(("insert", "a", (4, "x")))
    with pytest.raises(LoadError, match="do not agree"):
        one.deliver()
    store.checkpoints[owner] = replace(store.checkpoints[owner], position=positions[1])
    if by == "anna":
        assert control.redeliver(runtime, "copy", by=by, dry_run=True).steps
        control.redeliver(runtime, "copy", by=by, dry_run=False)
    one.deliver()
    assert one.rows() == one.made.rows()
    with runtime.state() as state:
        assert [entry["by"] for entry in state.audit.entries() if entry["what"] == "redeliver"] == [by]


def test_a_target_without_its_checkpoint_is_adopted(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")))
    one.deliver()
    one.stores["copy"].checkpoints.clear()
    one.commit(("insert", "a", (2, "y")))
    with pytest.raises(LoadError, match="has no checkpoint any more"):
        one.deliver()
    adopt(one.made.runtime(), "copy", from_target=False, by="anna", reason="a new server", dry_run=False)
    one.deliver()
    assert one.rows() == one.made.rows()


def test_retention_keeps_what_a_target_needs(tmp_path: Path) -> None:
    for found in pipe(tmp_path, "copy", capture={"segments": {"retain": "0s", "uri": f"file://{tmp_path}/store"}}):
        for number in (1, 2):
            found.commit(("insert", "a", (number, "x")))
            found.deliver()
        found.commit(("insert", "a", (3, "bad")))
        found.refuse("a constraint")
        with pytest.raises(LoadError):
            found.deliver()
        removed = prune(found.made.runtime()).removed
        assert 3 not in removed
        assert set(removed) <= {1, 2}
        found.refuse("")
        found.deliver()
        assert found.rows() == found.made.rows()


def test_a_seek_drops_what_is_not_delivered_and_reads_it_again(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")))
    one.made.drain(deliver=False)
    for file in (one.made.folder / "store").rglob("*.parquet"):
        file.unlink()
    for file in (one.made.folder / "store").rglob("*manifest*"):
        file.unlink()
    with pytest.raises(OutOfOrder, match="not delivered yet"):
        control.seek(one.made.runtime(), "latest", by="anna", dry_run=False)
    one.made.runtime()
    control.seek(one.made.runtime(), "", by="anna", dry_run=False, drop=True)
    one.deliver()
    assert one.rows() == {1: "x"}


def test_a_dump_fills_an_empty_target_and_replace_removes_the_rest(one: Pipe) -> None:
    one.commit(*(("insert", "a", (number, "x")) for number in range(25)))
    one.deliver()
    runtime = one.made.runtime()
    one.stores["copy"].tables[one.made.table].rows.clear()
    one.dump()
    assert one.rows() == one.made.rows()
    rows = one.stores["copy"].tables[one.made.table].rows
    del rows[(3,)]
    rows[(99,)] = {"id": 99, "v": "only here"}
    one.dump(replace=True)
    assert one.rows() == one.made.rows()
    assert {dump.state for dump in views(runtime)} == {"done"}


def test_check_names_what_is_missing(one: Pipe) -> None:
    report = check(one.made.runtime())
    assert not report.failed
    assert [(str(copy.plan.source), copy.target) for copy in report.copies] == [(str(one.made.table), "copy")]
    del one.stores["copy"].tables[one.made.table]
    missing = check(one.made.runtime())
    assert missing.failed
    assert missing.statements
    apply_missing(one.made.runtime(), missing.statements)
    assert not check(one.made.runtime()).failed


def test_an_alert_is_raised_once_and_cleared(tmp_path: Path) -> None:
    for found in pipe(tmp_path, "copy", alert_lag="1s"):
        found.commit(("insert", "a", (1, "x")))
        found.made.drain(deliver=False)
        runtime = found.made.runtime()
        now = status(runtime)
        late = replace(now, targets=[replace(target, lag_ms=5000) for target in now.targets])
        assert [(alert.consumer, alert.raised) for alert in check_lag(runtime, late)] == [("copy", True)]
        assert check_lag(runtime, late) == []
        found.deliver()
        assert [alert.raised for alert in check_lag(runtime, status(runtime))] == [False]
