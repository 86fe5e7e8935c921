"""Stages as tasks of their own: each with a session of its own, as a process would have; told of each other by
ZooKeeper.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from sluice.coordination import run_progress
from sluice.coordination.memory import MemoryZnodes
from sluice.coordination.run_progress import Progress, StageState, Worker
from sluice.errors import LoadError, Paused, RuleError, SluiceError
from sluice.flows import board, job
from sluice.flows.capture.drain import DrainOutcome, drain
from sluice.flows.job import (
    GivenBack,
    NeverReady,
    StageOutcome,
    capture_first,
    end_stage,
    goes_on,
    has_drain,
    may_begin,
    run_capture,
    run_stage,
)
from sluice.flows.load.isolation import catch_up
from sluice.flows.stages import stages_of
from sluice.operations import control
from sluice.operations.status import stages_claimed, status
from tests.support.twins.pipes import Pipe

PATIENCE_S = 120
RUN = "test:own:1"
RIGHT = "def transform(row, context):\n    return {**row, 'v': row['v'].upper()}\n"


def configured(made: Pipe, *, rule: str = "", **run: Any) -> None:
    """Batches of one change; ``rule``: the text of a rule with a task of its own."""
    config = made.made.case.config
    data = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["capture"]["batch"] = {"max_changes": 1}
    data |= {"run": {"tasks": "own", **run}, **({"rules": "engine.yaml"} if rule else {})}
    made.made.case.config = type(config).model_validate(data)
    if rule:
        rules = made.made.folder / "rules"
        (rules / "engine.yaml").write_text("rules: [{name: up, path: up.py, task: own}]\n")
        (rules / "up.py").write_text(rule)


def insert(made: Pipe, *numbers: int) -> None:
    for number in numbers:
        made.commit(("insert", "a", (number, f"v{number}")))


def names(made: Pipe) -> list[str]:
    runtime = made.made.runtime()
    return [stage.name for stage in stages_of(runtime.pipeline, runtime.rules_folder)]


def sense(made: Pipe, claim: str = RUN) -> int | None:
    return capture_first(made.made.runtime(), claim=claim, idle_wait_s=0.05).batch


@contextmanager
def tasks(
    made: Pipe, *only: str, claim: str = RUN, marked: tuple[str, ...] = ()
) -> Iterator[dict[str, Future[StageOutcome]]]:
    """All tasks of a run but ``sense``, or ``only`` these, a thread and a session each."""
    chosen = only or names(made)
    with ThreadPoolExecutor(len(chosen)) as pool:
        yield {
            name: pool.submit(run_capture, made.made.runtime(), claim=claim, idle_wait_s=0.05)
            if name == "drain"
            else pool.submit(run_stage, made.made.runtime(), name, claim=claim, marked=marked)
            for name in chosen
        }


def ran(made: Pipe, *only: str, claim: str = RUN, marked: tuple[str, ...] = ()) -> dict[str, Future[StageOutcome]]:
    with tasks(made, *only, claim=claim, marked=marked) as under_way:
        wait(under_way.values(), PATIENCE_S)
    return under_way


def tried_again(
    made: Pipe, *chosen: str, claim: str = RUN, marked: tuple[str, ...] = ()
) -> dict[str, Future[StageOutcome]]:
    """Further attempts of tasks.

    One that begins before the stage that it needs has begun anew waits in the triggerer, which starts it again.
    """
    done: dict[str, Future[StageOutcome]] = {}
    left: list[str] = list(chosen)
    for _ in range(50):
        done |= ran(made, *left, claim=claim, marked=marked)
        left = [name for name in left if isinstance(done[name].exception(), NeverReady)]
        if not left:
            break
    return done


def waiting(made: Pipe) -> list[int]:
    with made.made.runtime().state() as state:
        return state.undelivered()


def test_each_task_does_its_stage_of_every_batch_of_the_run(two: Pipe) -> None:
    configured(two, rule=RIGHT)
    insert(two, *range(1, 9))
    assert sense(two) == 1
    done = {name: one.result() for name, one in ran(two).items()}
    assert done["drain"].ended_by == "idle"
    assert [one.batch for one in done["drain"].done] == list(range(2, 9))
    for name in ("merge", "rule.up", "load.copy", "ack.copy", "load.archive", "ack.archive"):
        assert [one.batch for one in done[name].done] == list(range(1, 9)), name
        assert done[name].to_json()["batches"] == 8
    assert done["rule.up"].to_json()["rows"] == done["load.copy"].to_json()["rows"] == 8
    assert two.rows("copy") == two.rows("archive") == {n: f"V{n}" for n in range(1, 9)}
    assert waiting(two) == []
    shown = {one["stage"]: one for one in stages_claimed(two.made.runtime(), RUN)}
    assert list(shown) == names(two)
    assert {name: one["batches"] for name, one in shown.items()} == dict.fromkeys(names(two), 8), "with that of sense"
    [rule] = shown["rule.up"]["rules"]
    assert (rule["rows_in"], rule["rows_out"], rule["changed"]) == (8, 8, 8)
    ran(two)  # a person pressed Clear
    again = {one["stage"]: one for one in stages_claimed(two.made.runtime(), RUN)}
    assert again == shown


def test_a_target_that_goes_away_between_load_and_acknowledgement_holds_up_no_other(two: Pipe) -> None:
    configured(two)
    insert(two, 1)
    sense(two)
    ran(two, "merge", marked=("drain",))
    loads = ("load.copy", "load.archive")
    ran(two, *loads, marked=("drain", "merge"))
    two.stores["archive"].away = True
    acks = ran(two, "ack.copy", "ack.archive", marked=("drain", *loads))
    assert [done.later for done in acks["ack.archive"].result().done] == ["quarantined"]
    assert (two.acknowledged("copy"), two.acknowledged("archive")) == (1, 0)
    two.stores["archive"].away = False
    assert not catch_up(two.made.runtime(), "archive").quarantined
    assert two.acknowledged("archive") == 1


def test_a_batch_that_a_stage_did_in_an_earlier_attempt_counts_once(one: Pipe) -> None:
    """It is not delivered yet, so that the stage looks at it again."""
    configured(one)
    insert(one, 1)
    sense(one)
    for _ in range(2):
        merge = ran(one, "merge", marked=("drain",))["merge"].result()
        assert (merge.to_json()["batches"], merge.to_json()["rows"]) == (1, 1)


def test_a_cleared_task_of_a_delivered_run_does_nothing_again(one: Pipe) -> None:
    configured(one)
    insert(one, 1, 2)
    sense(one)
    ran(one)
    insert(one, 3)
    again = {name: task.result() for name, task in ran(one).items()}
    assert {name: task.done for name, task in again.items()} == dict.fromkeys(names(one), ())
    assert again["drain"].ended_by == "the run has ended before"
    assert sense(one) == 2
    assert (sense(one, "test:own:2"), waiting(one)) == (3, [3])


def test_a_capture_without_room_ends_once_a_person_marked_what_would_make_room(
    one: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a worker: nothing else would end it before its time-out."""
    monkeypatch.setattr(board, "PATIENCE_S", 0.05)
    monkeypatch.setattr(job, "MARKED_EVERY_S", 0.05)
    configured(one)
    window = one.made.case.config.window
    insert(one, *range(window + 2))
    sense(one)

    def gone() -> list[str]:
        return ["load.copy"] if len(waiting(one)) == window else []

    outcome = run_capture(one.made.runtime(), claim=RUN, idle_wait_s=0.05, gone=gone)
    assert "the task load.copy was marked by a person" in outcome.ended_by
    assert len(waiting(one)) == window
    monkeypatch.undo()
    assert {type(task.exception()) for task in ran(one, *names(one)[1:]).values()} == {type(None)}
    assert waiting(one) == []


@pytest.mark.parametrize("marked", [[], ["merge"]])
def test_a_batch_does_not_stay_open_for_a_task_that_a_person_marked(
    one: Pipe, monkeypatch: pytest.MonkeyPatch, marked: list[str]
) -> None:
    monkeypatch.setattr(job, "MARKED_EVERY_S", 0.0)
    configured(one, max_batches=3)
    insert(one, 1, 2, 3)
    sense(one)
    made, open_still = [], list[bool]()

    def reading(*args: Any, stays_open: Callable[[], bool], **kwargs: Any) -> DrainOutcome:
        made.append(drain(*args, stays_open=stays_open, **kwargs))
        open_still.append(stays_open())
        return made[-1]

    monkeypatch.setattr(job, "drain", reading)
    run_capture(one.made.runtime(), claim=RUN, idle_wait_s=0.05, gone=lambda: marked if made else [])
    assert open_still[0] is not bool(marked)


def test_a_rule_that_fails_is_its_own_tasks_failure_and_the_next_attempt_goes_on_there(one: Pipe) -> None:
    configured(one, rule=RIGHT.replace("'v'", "'w'"))
    insert(one, 1, 2, 3)
    sense(one)
    first = ran(one)
    assert isinstance(first["rule.up"].exception(), RuleError)
    for name in ("load.copy", "ack.copy"):
        assert isinstance(first[name].exception(), NeverReady)
        assert "rule.up" in str(first[name].exception()) or name == "ack.copy"
    assert first["merge"].exception() is None
    assert first["drain"].result().ended_by in {"idle", "rule.up failed"}
    assert (one.rows(), one.acknowledged()) == ({}, 0)
    assert isinstance(
        ran(one, "rule.up")["rule.up"].exception(), RuleError
    )  # the next attempt, with the rule as it was
    (one.made.folder / "rules/up.py").write_text(RIGHT)
    second = tried_again(one, "rule.up", "load.copy", "ack.copy")
    assert [done.batch for done in second["rule.up"].result().done] == batches_of_run(one)
    assert one.rows() == {n: f"V{n}" for n in batches_of_run(one)}
    assert waiting(one) == []


def test_a_batch_does_not_stay_open_for_stages_that_gave_up(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merge fails while the capture reads on; ``sense`` and ``drain`` each have made a batch that nobody merges in
    this run.
    """
    configured(one, rule=RIGHT.replace("'v'", "'w'"))
    insert(one, 1, 2)
    sense(one)
    open_still: list[bool] = []
    monkeypatch.setattr(job, "GRACE_S", 1e9)  # only the tasks do the stages
    monkeypatch.setattr(job._Substitutes, "finish", lambda self, board: None)
    monkeypatch.setattr(board, "PATIENCE_S", 0.5)

    def reading(*args: Any, stays_open: Callable[[], bool], **kwargs: Any) -> DrainOutcome:
        made = drain(*args, stays_open=stays_open, **kwargs)
        assert stays_open(), "nothing is merged yet"
        assert isinstance(ran(one, "merge", "rule.up")["rule.up"].exception(), RuleError)
        open_still.append(stays_open())
        return made

    monkeypatch.setattr(job, "drain", reading)
    assert ran(one, "drain")["drain"].result().ended_by == "rule.up failed"
    assert open_still == [False]


def batches_of_run(made: Pipe) -> list[int]:
    """The batches of the run."""
    with made.made.runtime().state() as state:
        return state.batches.claimed_numbers(RUN)


def test_a_target_that_fails_stops_the_capture_and_its_own_task_alone(one: Pipe) -> None:
    configured(one)
    insert(one, 1)
    one.commit(("insert", "a", (2, "bad")))
    insert(one, 3)
    one.refuse("a constraint")
    sense(one)
    first = ran(one)
    assert isinstance(first["load.copy"].exception(), LoadError)
    assert first["merge"].exception() is None
    assert one.acknowledged() == 1
    one.refuse("")
    tried_again(one, "load.copy", "ack.copy")
    assert waiting(one) == []
    assert one.rows().keys() >= {1, 2}


def test_a_quarantined_target_is_passed_by_and_the_run_ends(two: Pipe) -> None:
    configured(two)
    insert(two, 1)
    two.commit(("insert", "a", (2, "bad")))
    insert(two, 3)
    two.refuse("no", "archive")
    sense(two)
    done = {name: one.result() for name, one in ran(two).items()}
    assert [one.later for one in done["load.archive"].done] == ["", "quarantined", "quarantined"]
    assert (two.acknowledged("copy"), two.acknowledged("archive")) == (3, 1)


@pytest.mark.parametrize("name", ["merge", "load.copy"])
def test_a_task_that_a_person_marked_is_made_up_for_by_those_after_it(one: Pipe, name: str) -> None:
    configured(one)
    insert(one, 1, 2)
    sense(one)
    left = [stage for stage in names(one) if stage != name]
    ended = {one: task.exception() for one, task in ran(one, *left, marked=(name,)).items()}
    assert set(ended.values()) == {None}
    assert (one.rows(), waiting(one)) == ({1: "v1", 2: "v2"}, [])


def test_a_capture_that_died_gives_the_workers_back(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, or marked by a person: nothing says so. With its task marked, the run ends with what it has."""
    monkeypatch.setattr(board, "PATIENCE_S", 0.2)
    configured(one)
    insert(one, 1)
    sense(one)
    with one.made.runtime().state() as state:
        state.runs.write(RUN, "drain", Progress(StageState.WORKING))
    first = ran(one, "merge", "load.copy", "ack.copy")
    assert {type(task.exception()) for task in first.values()} == {GivenBack}
    second = tried_again(one, "merge", "load.copy", "ack.copy", marked=("drain",))
    assert {task.exception() for task in second.values()} == {None}
    assert waiting(one) == []


def test_a_pause_ends_every_wait(one: Pipe) -> None:
    configured(one)
    insert(one, 1)
    sense(one)
    with tasks(one, "load.copy") as under_way:
        control.pause(one.made.runtime(), by="anna")
        assert isinstance(under_way["load.copy"].exception(PATIENCE_S), Paused)
    control.resume(one.made.runtime(), by="anna")
    ran(one)
    assert one.rows() == {1: "v1"}


@pytest.mark.parametrize(("run", "most"), [({"max_batches": 3}, 3), ({"max_time": "1ms"}, 2)])
def test_a_run_ends_at_its_limits(one: Pipe, run: dict[str, Any], most: int) -> None:
    configured(one, **run)
    insert(one, *range(1, 6))
    sense(one)
    assert ran(one)["drain"].result().ended_by == f"run.{next(iter(run))}"
    with one.made.runtime().state() as state:
        waiting_task = state.waiting_tasks.own()
    assert waiting_task is not None
    assert waiting_task[0] == "sense", "the next run has more to capture"
    assert 1 <= one.acknowledged() <= most
    assert waiting(one) == []


@pytest.mark.promise("B8")
def test_the_window_bounds_what_is_captured_ahead(one: Pipe) -> None:
    configured(one)
    insert(one, *range(1, 9))
    sense(one)
    with tasks(one, "drain") as under_way:
        until(lambda: len(waiting(one)) == one.made.case.config.window)
        assert not under_way["drain"].done()
        ran(one, "merge", "load.copy", "ack.copy")
        assert under_way["drain"].result(PATIENCE_S).ended_by == "idle"
    assert one.acknowledged() == 8


@pytest.mark.parametrize("window", [1, 3])
def test_one_worker_is_enough_and_each_task_says_what_was_done_for_it(
    two: Pipe, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """The other tasks get their worker when *drain* has given its own back."""
    monkeypatch.setattr(job, "GRACE_S", 0.0)
    configured(two, rule=RIGHT)
    two.made.case.config = two.made.case.config.model_copy(update={"window": window})
    insert(two, *range(1, 7))
    sense(two)
    drained = ran(two, "drain")["drain"].result()
    assert drained.ended_by == "idle"
    assert waiting(two) == []
    assert two.rows("copy") == two.rows("archive") == {n: f"V{n}" for n in range(1, 7)}
    others = names(two)[1:]
    assert drained.to_json()["in_drain"] == dict.fromkeys(others, 6)
    for name in others:
        outcome = ran(two, name)[name].result()
        shown = outcome.to_json()
        assert (outcome.done, shown["batches"], shown["in_drain"], shown["last"]) == ((), 6, 6, 6)


def test_a_stage_with_a_place_of_its_own_is_left_to_its_task(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of *drain* may not reach the target, or the pool is to spare it."""
    monkeypatch.setattr(job, "GRACE_S", 0.0)
    configured(one)
    config = one.made.case.config
    data = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    one.made.case.config = type(config).model_validate({**data, "workers": {"stages": {"load": {"queue": "far"}}}})
    insert(one, 1)
    sense(one)
    assert ran(one, "drain")["drain"].result().in_drain == (("merge", 1),)
    assert one.rows() == {}
    with one.made.runtime().state() as drains:
        assert drains.runs.take(RUN, "drain", Worker.DRAIN)
        assert goes_on(one.made.runtime(), "load.copy", claim=RUN), "nobody else does it"
    ran(one, *names(one)[1:])
    assert (one.rows(), waiting(one)) == ({1: "v1"}, [])


def test_tasks_give_their_workers_to_a_pipeline_that_has_none(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where no process would do their stage meanwhile, and not for a word that nobody took back."""
    monkeypatch.setattr(job, "SHORT_AFTER_S", 0.0)
    configured(one)
    insert(one, 1)
    sense(one)
    with one.made.runtime().state() as other:
        other.waiting_tasks.begins()  # drain has a worker
        assert not other.waiting_tasks.pipelines()
        other.waiting_tasks.waits("sense", "near the source")
        assert other.waiting_tasks.pipelines() == {one.made.runtime().name: "near the source"}
        assert ran(one, "merge")["merge"].exception() is not None, "no batch came"
        assert merged(one) == 1, "there is no process of drain"
        assert other.runs.take(RUN, "drain", Worker.DRAIN)
        with pytest.raises(GivenBack, match="workers are short"):
            raise ran(one, "load.copy")["load.copy"].exception() or AssertionError
        assert one.rows() == {}
        assert not goes_on(one.made.runtime(), "load.copy", claim=RUN, for_backlog=False)
        assert not any("no free worker" in text for text in status(one.made.runtime()).warnings), "for a moment"
        monkeypatch.setattr("sluice.operations.status.NO_WORKER_S", -1e9)
        assert any("no free worker: the task sense has waited" in text for text in status(one.made.runtime()).warnings)
        monkeypatch.setattr(run_progress, "BELIEVED_S", 0.0)
        assert other.waiting_tasks.pipelines() == {}, "its DAG may be paused"
        other.waiting_tasks.begins()
        assert not any("no free worker" in text for text in status(one.made.runtime()).warnings)
        assert not other.waiting_tasks.pipelines()
        assert other.waiting_tasks.own() is None


def test_a_red_task_that_left_no_word_is_a_failure_until_its_part_goes_on(one: Pipe) -> None:
    configured(one)
    insert(one, 1)
    sense(one)
    with one.made.runtime().state() as state:
        for error in ("the task merge is red", "a second word about it"):
            state.note_failure("merge", SluiceError(error, hint="press Clear on merge"))
    now = status(one.made.runtime())
    assert now.state == "failing"
    [failure] = now.failures
    assert "the task merge is red" in failure.error
    assert "press Clear on merge" in failure.error
    ran(one)
    assert status(one.made.runtime()).failures == []


def test_a_capture_without_workers_ends_at_its_time_and_for_a_changed_file(
    one: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window is full, as the task of the merge takes long over the first batch."""
    monkeypatch.setattr(job, "GRACE_S", 0.0)
    configured(one)
    one.made.case.config = one.made.case.config.model_copy(update={"window": 1})
    insert(one, 1, 2)
    sense(one)
    with one.made.runtime().state() as slow:
        assert slow.runs.take(RUN, "merge", Worker.TASK)
        changed: list[str] = []
        runtime = one.made.runtime()
        with ThreadPoolExecutor(1) as pool:
            capture = pool.submit(run_capture, runtime, claim=RUN, idle_wait_s=0.05, stop=lambda: "".join(changed))
            until(lambda: worker_of(one, "load.copy") is Worker.DRAIN)
            changed.append("the pipeline file changed")
            until(lambda: ended_by(one) == "the pipeline file changed")
            slow.runs.release(RUN, "merge")
            assert capture.result(PATIENCE_S).done == ()
    assert (one.rows(), waiting(one)) == ({1: "v1"}, [])


@pytest.mark.parametrize(
    ("pool", "ended"), [("default_pool", "run.max_batches|workers are short, and other"), ("far", "run.max_batches")]
)
def test_a_run_ends_early_for_a_pipeline_that_waits_for_a_worker_of_its_pool(
    one: Pipe, monkeypatch: pytest.MonkeyPatch, pool: str, ended: str
) -> None:
    monkeypatch.setattr(job, "TURN_S", 0.0)
    configured(one, max_batches=3)
    insert(one, *range(1, 6))
    sense(one)
    with one.made.runtime().state() as state:
        elsewhere = run_progress.WaitingTasks(state.waiting_tasks._z, replace(state.layout, pipeline="other"))
        elsewhere.waits("drain", pool)
        outcome = ran(one)["drain"].result()
        assert re.match(ended, outcome.ended_by)
        assert (len(outcome.done) < 2) is (pool == "default_pool")
        waiting_task = state.waiting_tasks.own()
    assert waiting_task is not None
    assert waiting_task[0] == "sense", "the next run has more to capture"
    assert waiting(one) == []


def test_the_first_stage_asks_for_a_worker_with_drain_and_the_others_after_it(
    one: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(one)
    insert(one, 1)
    sense(one)
    runtime = one.made.runtime()

    def asking() -> list[str]:
        return [name for name in names(one)[1:] if may_begin(runtime, name, claim=RUN)]

    with runtime.state() as state:
        elsewhere = run_progress.WaitingTasks(state.waiting_tasks._z, replace(state.layout, pipeline="other"))
        assert asking() == ["merge"], "drain waits for a worker, and Airflow gives it the first one"
        elsewhere.waits("drain")
        assert asking() == [], "another pipeline has no worker at all"
        elsewhere.begins()
        state.waiting_tasks.begins()
        assert asking() == ["merge"], "there is no drain, and a batch to merge"
        assert state.runs.take(RUN, "drain", Worker.DRAIN)
        assert asking() == ["merge"]
        assert not may_begin(runtime, "merge", claim=RUN, are_short=True), "that of an earlier run had no worker"
        assert state.runs.take(RUN, "merge", Worker.DRAIN)
        assert asking() == ["merge"], "drain stands in for the merge"
        state.runs.release(RUN, "merge")
        assert state.runs.take(RUN, "merge", Worker.TASK)
        assert asking() == ["merge", "load.copy", "ack.copy"]
        state.waiting_tasks.waits("sense", "default_pool")
        assert asking() == [], "the pipeline's next run has no worker"


def worker_of(made: Pipe, stage: str) -> Worker | None:
    with made.made.runtime().state() as state:
        return state.runs.worker(RUN, stage)


def ended_by(made: Pipe) -> str:
    with made.made.runtime().state() as state:
        said = state.runs.read(RUN, "drain")
    return said.why if said is not None else ""


def test_a_task_takes_its_stage_over_at_the_next_batch_and_a_dead_one_leaves_it(
    one: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "GRACE_S", 0.0)
    configured(one)
    insert(one, 1)
    sense(one)
    with ThreadPoolExecutor(1) as pool:
        capture = pool.submit(run_capture, one.made.runtime(), claim=RUN, idle_wait_s=PATIENCE_S)
        until(lambda: one.acknowledged() == 1)
        assert worker_of(one, "load.copy") is Worker.DRAIN
        with one.made.runtime().state() as task:
            task.runs.ask(RUN, "load.copy")
            until(lambda: worker_of(one, "load.copy") is None)
            assert task.runs.take(RUN, "load.copy", Worker.TASK)
            task.runs.ask_no_more(RUN, "load.copy")
            insert(one, 2)
            until(lambda: merged(one) == 2)
            assert one.acknowledged() == 1, "the load belongs to its task"
        until(lambda: one.acknowledged() == 2)  # the task's session is gone, and the drain goes on with its stage
        monkeypatch.setattr(board, "PATIENCE_S", 0.2)
        with tasks(one, "load.copy") as under_way:
            until(lambda: worker_of(one, "load.copy") is Worker.TASK)
            insert(one, 3)
            until(lambda: one.acknowledged() == 3)
            assert isinstance(under_way["load.copy"].exception(PATIENCE_S), GivenBack)
        control.pause(one.made.runtime(), by="anna")
        assert isinstance(capture.exception(PATIENCE_S), Paused)
    control.resume(one.made.runtime(), by="anna")
    shown = {one["stage"]: one for one in stages_claimed(one.made.runtime(), RUN)}
    assert shown["load.copy"]["batches"] == 3
    assert shown["load.copy"]["in_drain"] == 2


def merged(made: Pipe) -> int:
    """The newest batch with a changeset."""
    with made.made.runtime().state() as state:
        known = [state.batches.get(number) for number in state.batches.claimed_numbers(RUN)]
    return max((one.number for one in known if one is not None and not one.needs_merge), default=0)


def test_an_error_in_place_of_a_task_is_left_to_that_task(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "GRACE_S", 0.0)
    configured(one, rule=RIGHT.replace("'v'", "'w'"))
    insert(one, 1, 2)
    sense(one)
    assert ran(one, "drain")["drain"].result().ended_by in {"idle", "rule.up failed"}
    assert isinstance(ran(one, "rule.up")["rule.up"].exception(), RuleError)
    assert ran(one, "drain")["drain"].result().ended_by == "the run has ended before"
    (one.made.folder / "rules/up.py").write_text(RIGHT)
    assert ran(one, "rule.up")["rule.up"].exception() is None
    ran(one, "drain")  # cleared: what has no worker is done by it
    assert waiting(one) == []


def test_every_later_stage_has_a_worker_again_as_soon_as_the_one_that_failed_is_through(one: Pipe) -> None:
    configured(one, rule=RIGHT.replace("'v'", "'w'"))
    insert(one, 1)
    sense(one)
    first = ran(one)
    runtime = one.made.runtime()
    for name in ("load.copy", "ack.copy"):
        error = first[name].exception()
        assert isinstance(error, NeverReady)
        assert (error.behind, error.batch) == ("rule.up", 1), name
        assert not goes_on(runtime, name, claim=RUN, behind="rule.up", batch=1)
    (one.made.folder / "rules/up.py").write_text(RIGHT)
    assert ran(one, "rule.up")["rule.up"].exception() is None
    assert [goes_on(runtime, name, claim=RUN, behind="rule.up", batch=1) for name in ("load.copy", "ack.copy")] == [
        True, True,
    ]  # fmt: skip


def test_a_task_without_a_worker_gets_one_for_a_backlog_and_at_the_runs_end(one: Pipe) -> None:
    configured(one)
    insert(one, 1)
    sense(one)
    runtime = one.made.runtime()
    with one.made.runtime().state() as drains:
        assert drains.runs.take(RUN, "drain", Worker.DRAIN)
        drains.runs.write(RUN, "drain", Progress())
        assert not goes_on(runtime, "merge", claim=RUN)
        drain(one.made.runtime(), claim=RUN, idle_wait_s=0.05, another=True)
        insert(one, 2)
        assert drain(one.made.runtime(), claim=RUN, idle_wait_s=0.05, another=True).batch == 2
        assert goes_on(runtime, "merge", claim=RUN)
        assert not goes_on(runtime, "load.copy", claim=RUN), "nothing is merged"
    assert not has_drain(runtime, RUN)
    ran(one)
    assert [goes_on(runtime, name, claim=RUN) for name in names(one)[1:]] == [True, True, True]


def test_a_stage_ends_without_a_worker_once_drain_has_done_all_of_it(one: Pipe) -> None:
    configured(one)
    insert(one, 1, 2)
    sense(one)
    runtime = one.made.runtime()
    assert end_stage(runtime, "merge", claim=RUN) is None, "it has work"
    ran(one, "drain")  # no other task has a worker
    with one.made.runtime().state() as state:
        assert state.runs.take(RUN, "load.copy", Worker.TASK)
        assert end_stage(runtime, "load.copy", claim=RUN) is None, "its task is at work"
        outcome = end_stage(runtime, "merge", claim=RUN)
        assert outcome is not None
        told = outcome.to_json()
        assert (told["batches"], told["in_drain"], told["last"]) == (2, 2, 2)
        assert outcome.in_drain_text.startswith("done in the process of the task drain: 2 of 2 batches:")
        progress = state.runs.read(RUN, "merge")
        assert progress is not None
        assert progress.state is StageState.ENDED


def until(condition: Callable[[], bool]) -> None:
    from tests.support.running.waiting import wait_until

    wait_until(condition, "the condition")


def test_what_runs_said_goes_with_their_batches(one: Pipe) -> None:
    configured(one)
    insert(one, 1)
    sense(one)
    ran(one)
    insert(one, 2)
    sense(one, "test:own:2")
    ran(one, claim="test:own:2")
    with one.made.runtime().state() as state:
        assert state.runs.read(RUN, "drain") is not None
        assert state.forget(keep=1) == [1]
        assert state.runs.read(RUN, "drain") is None
        assert state.runs.read("test:own:2", "drain") is not None


class Killed(BaseException):
    """A process ends here."""


@pytest.mark.parametrize("seed", range(int(os.environ.get("SLUICE_TEST_VALUES", "3"))))
def test_tasks_that_are_killed_anywhere_lose_and_double_nothing(
    two: Pipe, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A task dies at any of its writes to ZooKeeper, whichever it is, and is tried again while the others go on."""
    choose = random.Random(seed)
    configured(two, rule=RIGHT if choose.random() < 0.5 else "")
    monkeypatch.setattr(board, "PATIENCE_S", 1.0)
    monkeypatch.setattr(job, "GRACE_S", choose.choice([0.0, 0.3]))
    own, left, lock = MemoryZnodes.transact, [10**9], threading.Lock()

    def counted(self: MemoryZnodes, steps: Any) -> None:
        with lock:
            left[0] -= 1
            dies = left[0] == 0
        if dies:
            raise Killed
        own(self, steps)

    monkeypatch.setattr(MemoryZnodes, "transact", counted)
    number = 0
    for run in range(3):
        claim = f"test:killed:{run}"
        for _ in range(choose.randint(1, 5)):
            number += 1
            insert(two, number)
        if sense(two, claim) is None:
            continue
        lacking = set(names(two))
        for _attempt in range(12):
            left[0] = choose.randint(1, 40)
            done = ran(two, *(name for name in names(two) if name in lacking), claim=claim)
            lacking -= {name for name, task in done.items() if task.exception() is None}
            if not lacking:
                break
        left[0] = 10**9
        last = tried_again(two, *(name for name in names(two) if name in lacking), claim=claim)
        assert {type(task.exception()) for task in last.values()} <= {type(None)}
    for run in range(3, 20):
        if sense(two, f"test:killed:{run}") is None:
            break
        assert {task.exception() for task in ran(two, claim=f"test:killed:{run}").values()} == {None}
    values = {row: value.upper() if two.made.case.config.rules else value for row, value in two.made.rows().items()}
    assert two.rows("copy") == two.rows("archive") == values
    assert waiting(two) == []
