"""Two targets, one of which fails: the other goes on, nothing that the failing one needs is removed, and it catches up
by itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.quarantine import Quarantined
from sluice.errors import CheckpointError, ConfigError, LeaseHeld, MappingError, SluiceError, TargetUnavailable
from sluice.flows import job
from sluice.flows import run as run_module
from sluice.flows.capture.drain import drain
from sluice.flows.checkpoints import CheckpointCheck, require_no_checkpoints
from sluice.flows.load.ack import ack
from sluice.flows.load.isolation import catch_up, deliver
from sluice.flows.load.load import LoadOutcome
from sluice.flows.run import run
from sluice.flows.runtime import Runtime
from sluice.flows.stage_sums import Done
from sluice.flows.stage_work import do
from sluice.flows.stages import Stage
from sluice.flows.submit import LATER, TERMINAL, run_stage
from sluice.flows.transform.merge import merge
from sluice.operations.adopt import adopt
from sluice.operations.control import rollback
from sluice.operations.status import status
from tests.support.flows.two_targets import Two
from tests.support.pipelines.case import case
from tests.support.running.waiting import ended, wait_until
from tests.support.twins.servers import TwinTarget


@pytest.fixture
def two(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Callable[..., str]
) -> Iterator[Two]:
    archive = TwinTarget()
    schema = fresh_schema(twin_source, twin_target, archive)
    for server in (twin_source, twin_target, archive):
        server.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(200))")
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema) as made:
        made.connections["case_archive"] = archive.connection_json()
        text = made.yaml.replace('/store"}', '/store", retain: 0s}').rstrip()
        assert "retain: 0s" in text
        made.path.write_text(text + "\n  - {name: archive, type: memory, connection: case_archive}\n")
        runtime = made.runtime()
        drain(runtime, claim="test:here:begin", idle_wait_s=0.1)
        yield Two(made, archive, runtime)
    archive.forget()


def test_run_brings_all_others_to_the_head_and_says_at_the_end_what_is_held(two: Two) -> None:
    two.archive.store.away = True
    two.change(1)
    with pytest.raises(TargetUnavailable):
        list(run(two.runtime, until_head=True))
    assert two.rows(two.case.target) == two.rows(two.case.source)
    now = status(two.runtime)
    copy, archive = now.targets
    assert (copy.quarantined, copy.lag_ms, now.in_flight, now.state) == (None, 0, [], "idle")
    assert archive.quarantined is not None
    assert archive.lag_ms is not None
    assert archive.lag_ms > 0
    assert archive.lag_bytes is not None
    assert archive.lag_bytes > 0
    assert now.reread_from == archive.position
    assert any("archive is quarantined" in text for text in now.warnings)
    two.archive.store.away = False
    list(run(two.runtime, until_head=True))
    assert two.rows(two.archive) == two.rows(two.case.source)
    assert [t.quarantined for t in status(two.runtime).targets] == [None, None]


def test_a_job_of_spark_submit_ends_with_a_code_that_says_what_became_of_the_batch(
    two: Two, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two.archive.store.away = True
    two.change(1)
    two.run_once("1")
    for name, value in two.case.environment.items():
        monkeypatch.setenv(name, value)
    arguments = ["--pipeline", str(two.case.path), "--batch", "1"]
    run_stage("load", [*arguments, "--target", "copy"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["already"] is True
    with pytest.raises(SystemExit) as later:
        run_stage("load", [*arguments, "--target", "archive"])
    assert later.value.code == LATER
    assert capsys.readouterr().err.startswith("target archive is quarantined since 20")
    with pytest.raises(SystemExit) as refused:
        run_stage("load", [*arguments, "--target", "nobody"])
    assert refused.value.code == TERMINAL
    assert capsys.readouterr().err.startswith("ConfigError: ")


def test_a_target_that_does_not_answer_keeps_a_batch_from_no_other(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged = threading.Event()

    def silent_first(runtime: Runtime, stage: Stage, batch: int) -> Done:
        if stage.name == "load.copy":
            assert acknowledged.wait(60), "archive did not get the batch meanwhile"
        done = do(runtime, stage, batch)
        if stage.name == "ack.archive":
            acknowledged.set()
        return done

    monkeypatch.setattr(job, "do", silent_first)
    two.change(1)
    phases = [step.phase for step in run(two.runtime, until_head=True) if step.batch == 1]
    assert sorted(phases) == ["acknowledged", "loading archive", "loading copy", "merging"]
    assert two.rows(two.case.target) == two.rows(two.archive) == two.rows(two.case.source)
    assert two.acked() == {"copy": 1, "archive": 1}


def test_a_new_pipeline_asks_all_targets_for_checkpoints_at_once(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer waits until the other target is asked, too."""
    both = threading.Barrier(2)
    read = CheckpointCheck.read

    def slow(check: CheckpointCheck) -> Any:
        both.wait(60)
        return read(check)

    monkeypatch.setattr(CheckpointCheck, "read", slow)
    with two.runtime.state() as state:
        require_no_checkpoints(two.runtime, state)
    assert not both.broken


def test_run_goes_on_while_an_attempt_to_reach_a_held_target_takes_long(two: Two, monkeypatch: Any) -> None:
    """As one of an HTTP receiver that accepts connections and never answers: minutes."""
    begun, may_end, over = threading.Event(), threading.Event(), threading.Event()

    def slow(runtime: Runtime, target: str) -> Any:
        begun.set()
        assert may_end.wait(300)
        return catch_up(runtime, target)

    monkeypatch.setattr(run_module, "catch_up", slow)
    monkeypatch.setattr(run_module, "IDLE_WAIT_S", 0.1)
    two.archive.store.away = True
    two.change(1)
    steps: list[str] = []

    def run_on() -> None:
        for step in run(two.runtime):
            steps.append(step.phase)
            if over.is_set():
                return

    runner = threading.Thread(target=run_on, daemon=True)
    runner.start()
    try:
        wait_until(begun.is_set, "an attempt to reach the held target")
        for number in (2, 3):
            two.change(number)
            wait_until(
                lambda: two.rows(two.case.target) == two.rows(two.case.source), f"change {number} at the other target"
            )
        assert two.rows(two.archive) == []
        two.archive.store.away = False
        may_end.set()
        wait_until(lambda: two.rows(two.archive) == two.rows(two.case.source), "that the held target caught up")
        two.change(4)
        wait_until(lambda: two.rows(two.archive) == two.rows(two.case.source), "that it is not held any more")
    finally:
        may_end.set()
        over.set()
        ended(runner)
    assert [t.quarantined for t in status(two.runtime).targets] == [None, None]


def test_an_error_that_is_not_the_held_targets_own_is_raised_by_the_run(two: Two, monkeypatch: Any) -> None:
    def broken(runtime: Runtime, target: str) -> Any:
        raise RuntimeError("no fault of the target")

    monkeypatch.setattr(run_module, "catch_up", broken)
    monkeypatch.setattr(run_module, "IDLE_WAIT_S", 0.1)
    two.archive.store.away = True
    two.change(1)
    with pytest.raises(RuntimeError, match="no fault of the target"):
        for _ in run(two.runtime):
            pass


def test_a_batch_whose_load_looked_just_before_the_release_is_delivered_by_it(two: Two, monkeypatch: Any) -> None:
    two.archive.store.away = True
    two.change(1)
    two.run_once("1")
    two.archive.store.away = False
    with two.runtime.state() as state:
        release = state.quarantine.release

        def late(target: str) -> None:
            monkeypatch.undo()
            two.change(2)
            assert isinstance(two.run_once("2")["archive"], Quarantined)  # it saw the hold, a moment before it is gone
            release(target)

        monkeypatch.setattr(state.quarantine, "release", late)
        outcome = catch_up(two.runtime, "archive")
    assert (outcome.quarantined, outcome.batches) == (False, 2)
    assert two.acked() == {"copy": 2, "archive": 2}
    assert two.rows(two.archive) == two.rows(two.case.source)


def test_an_installation_that_stands_by_leaves_held_targets_alone(two: Two) -> None:
    two.archive.store.away = True
    two.change(1)
    two.run_once("1")
    two.archive.store.away = False
    with two.runtime.state() as state:
        state.election.become_leader("airflow:first")
        two.runtime.owner = "airflow:second"
        with pytest.raises(LeaseHeld, match="airflow:first works"):
            catch_up(two.runtime, "archive")
        two.runtime.owner = "airflow:first"
        assert not catch_up(two.runtime, "archive").quarantined


def test_the_last_target_that_goes_holds_the_pipeline(two: Two) -> None:
    two.archive.store.away = True
    two.change(1)
    two.run_once("1")
    two.case.target.execute(f"DROP TABLE `{two.case.schema}`.t")
    two.change(2)
    with pytest.raises(SluiceError):
        two.run_once("2")
    with two.runtime.state() as state:
        assert state.quarantine.active_targets() == ("copy",)
        assert state.in_window() == [2]
        assert state.undelivered() == [1, 2]


def test_a_table_that_one_target_lacks_is_its_own_trouble(two: Two) -> None:
    two.archive.execute(f"DROP TABLE `{two.case.schema}`.t")
    two.change(1)
    outcomes = two.run_once("1")
    assert isinstance(outcomes["copy"], LoadOutcome)
    assert isinstance(outcomes["archive"], Quarantined)
    with pytest.raises(MappingError):
        catch_up(two.runtime, "archive")
    two.archive.execute(f"CREATE TABLE `{two.case.schema}`.t (id INT PRIMARY KEY, note VARCHAR(200))")
    assert not catch_up(two.runtime, "archive").quarantined
    assert two.rows(two.archive) == two.rows(two.case.source)


def test_a_target_that_joins_while_batches_are_on_their_way_begins_behind_them(two: Two) -> None:
    """Airflow gives open runs the new target's tasks at once; only a drain says where a target begins."""
    before = two.case.path.read_text()
    two.case.path.write_text(before + "  - {name: late, type: memory, connection: case_archive}\n")
    late = two.case.runtime()
    two.change(1)
    batch = drain(two.runtime, claim="test:here:1", idle_wait_s=2).batch
    assert batch is not None
    merge(two.runtime, batch)
    assert deliver(late, "late", batch) == LoadOutcome("late", batch, already=True)
    for target in ("copy", "archive"):
        assert isinstance(deliver(late, target, batch), LoadOutcome)
        ack(late, target, batch)
    assert list(two.archive.store.checkpoints) == [("case", "archive")]
    two.runtime = late
    two.change(2)
    assert {name: getattr(o, "batches", None) for name, o in two.run_once("2").items()} == {
        "copy": 1,
        "archive": 1,
        "late": 1,
    }
    assert two.acked() == {"copy": 2, "archive": 2, "late": 2}


def test_a_broken_rule_that_a_load_meets_holds_no_target(two: Two) -> None:
    """After a rollback whoever comes first merges, be it a load; what goes wrong then is not the target's."""
    rules = two.case.folder / "rules" / "engine.yaml"
    rules.write_text("rules: []\n")
    two.case.path.write_text(two.case.path.read_text() + "rules: engine.yaml\n")
    two.runtime = two.case.runtime()
    two.change(1)
    batch = drain(two.runtime, claim="test:here:1", idle_wait_s=2).batch
    assert batch is not None
    merge(two.runtime, batch)
    rollback(two.runtime, by="test", dry_run=False)
    rules.write_text("rules: [{name: broken")
    for target in ("copy", "archive"):
        with pytest.raises(ConfigError):
            deliver(two.runtime, target, batch)
    with two.runtime.state() as state:
        assert state.quarantine.all() == {}
        state.batches.rewrite(batch, lambda b: replace(b, targets=("copy",)))
    assert isinstance(deliver(two.runtime, "archive", batch), LoadOutcome)  # it is not for it: nothing needs a merge
    rules.write_text("rules: []\n")
    assert isinstance(deliver(two.runtime, "copy", batch), LoadOutcome)


def test_a_target_whose_checkpoint_does_not_fit_is_held_alone(two: Two) -> None:
    two.change(1)
    two.run_once("1")
    checkpoints = two.archive.store.checkpoints
    checkpoints["case", "archive"] = replace(checkpoints["case", "archive"], identity="another")
    two.change(2)
    outcomes = two.run_once("2")
    assert isinstance(outcomes["copy"], LoadOutcome)
    hold = outcomes["archive"]
    assert isinstance(hold, Quarantined)
    assert "sluice adopt case archive --from-target" in hold.error
    with pytest.raises(CheckpointError):
        catch_up(two.runtime, "archive")
    adopt(two.runtime, "archive", from_target=True, by="test", reason="", dry_run=False)
    two.change(3)
    two.run_once("3")
    assert not catch_up(two.runtime, "archive").quarantined
    for server in (two.case.target, two.archive):
        assert two.rows(server) == two.rows(two.case.source)
