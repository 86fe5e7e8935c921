"""The whole way from drain to acknowledgement, and what a person does to it, without a server: source and target in
memory.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sluice.errors import LoadError, OutOfOrder, Paused
from sluice.flows.dump.progress import views
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.operations import control
from sluice.operations.check import apply_missing, check
from sluice.operations.status import status
from sluice.operations.stored import segments
from tests.support.twins.pipes import Pipe


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


def test_only_the_batch_that_a_target_stands_at_is_skipped(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "bad")))
    one.refuse("a constraint")
    with pytest.raises(LoadError, match="a constraint"):
        one.deliver()
    one.commit(("insert", "a", (9, "z")))
    one.made.drain(deliver=False)
    with pytest.raises(OutOfOrder, match="cannot be skipped now"):
        control.skip(one.made.runtime(), "copy", 2, by="anna", reason="test", dry_run=True)
    assert control.skip(one.made.runtime(), "copy", 1, by="anna", reason="test", dry_run=True).steps
    assert one.acknowledged() == 0


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
