"""The tasks of a run that work side by side, over stand-in flows: what they log, return, and wait for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.triggers.base import TaskSuccessEvent

from sluice.errors import LeaseHeld, RuleError
from sluice.flows.job import GivenBack, NeverReady, StageOutcome
from sluice.flows.stage_sums import Done, StageSums
from sluice.orchestration import operators, triggers
from sluice.orchestration.operators import CaptureOperator, SenseOperator, StageOperator
from sluice.orchestration.retry import TaskError
from sluice.orchestration.triggers import HoldTrigger, LogMovedTrigger, TurnTrigger
from tests.dags.conftest import WritePipeline


@pytest.fixture
def path(write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(operators, "_IDLE_WAIT_S", 0.0)
    return str(write_pipeline())


def context(run: str = "run-1", **states: str) -> Any:
    ti = SimpleNamespace(dag_id="sync__shop", run_id=run, task_id="t", try_number=1, max_tries=5)
    ti.get_task_states = lambda task_ids, **_: {run: {name: states[name] for name in task_ids if name in states}}
    return {"ti": ti}


def stage(path: str, name: str = "load.reporting", above: str = "merge") -> StageOperator:
    with DAG("sync__shop", schedule=None):
        sense = SenseOperator(task_id="sense", pipeline=path)
        before = StageOperator(task_id=above, stage=above, color="#fff", pipeline=path)
        task = StageOperator(task_id=name, stage=name, color="#fff", pipeline=path)
        [sense, before] >> task
    return task


def runs(monkeypatch: pytest.MonkeyPatch, do: Callable[..., StageOutcome]) -> None:
    monkeypatch.setattr(sys.modules["sluice.flows.job"], "run_stage", do)


def test_sense_makes_the_first_batch_and_waits_in_the_triggerer_while_there_is_none(
    path: str, flows: ModuleType
) -> None:
    sense = SenseOperator(task_id="sense", pipeline=path)
    with pytest.raises(TaskDeferred) as deferred:
        sense.execute(context())
    assert isinstance(deferred.value.trigger, LogMovedTrigger)
    flows.change()
    assert sense.woken(context(), "news", **deferred.value.kwargs) == 1
    flows.change()
    assert sense.execute(context()) == 1
    assert sense.execute(context("run-2")) == 2


def test_a_stage_returns_its_sums_and_has_a_table_of_its_batches(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = (Done(4, 0.5, 10), Done(5, 0.25, 20, errors=1), Done(6, later="quarantined"))

    def run_stage(runtime: Any, name: str, *, claim: str, on_done: Any, marked: Any) -> StageOutcome:
        assert claim.endswith(":sync__shop:run-1")
        for one in done:
            on_done(one)
        return StageOutcome(name, done)

    runs(monkeypatch, run_stage)
    lines: list[str] = []
    task = stage(path)
    monkeypatch.setattr(
        type(task), "log", SimpleNamespace(info=lambda text, *rest: lines.append(text % rest if rest else text))
    )
    assert task.execute(context()) == {
        "stage": "load.reporting", "batches": 3, "rows": 30, "errors": 1, "seconds": 0.75, "first": 4, "last": 6,
        "in_drain": 0,
    }  # fmt: skip
    assert lines[0] == "batch 4: 10 rows, 0.50 s"
    assert "this run's batches (3):" in lines[-1]
    assert [line.split()[0] for line in lines[-1].splitlines()[2:]] == ["4", "5", "6"]
    assert lines[-1].endswith("quarantined")


def test_a_stage_without_work_says_that_nothing_was_done_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, lambda runtime, name, **_: StageOutcome(name))
    lines: list[str] = []
    task = stage(path)
    monkeypatch.setattr(type(task), "log", SimpleNamespace(info=lambda text, *rest: lines.append(text)))
    assert task.execute(context())["batches"] == 0
    assert "sluice redeliver" in lines[-1]


def test_a_stage_behind_a_red_one_gives_its_worker_back_and_looks_ever_less_often(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_stage(*_: Any, **__: Any) -> StageOutcome:
        raise NeverReady("merge failed at batch 4: a rule is broken")

    runs(monkeypatch, run_stage)
    kwargs, pauses = {}, []
    for _ in range(5):
        with pytest.raises(TaskDeferred) as deferred:
            stage(path).woken(context(), "pause is over", **kwargs)
        assert isinstance(deferred.value.trigger, HoldTrigger)
        kwargs = deferred.value.kwargs
        pauses.append(deferred.value.trigger.seconds)
    assert pauses == [5.0, 10.0, 30.0, 60.0, 60.0]


def test_a_stage_that_gave_its_worker_back_has_one_again_as_soon_as_the_batch_that_failed_is_through(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run_stage(*_: Any, **__: Any) -> StageOutcome:
        raise NeverReady("merge failed at batch 4: a rule is broken", behind="merge", batch=4)

    def goes_on(runtime: Any, name: str, **about: Any) -> bool:
        asked.append((name, about["claim"].rpartition(":")[2], about["behind"], about["batch"]))
        return len(asked) > 1

    runs(monkeypatch, run_stage)
    monkeypatch.setattr(sys.modules["sluice.flows.job"], "goes_on", goes_on)
    monkeypatch.setattr(sys.modules["sluice.flows.job"], "end_stage", lambda *_, **__: None)
    monkeypatch.setattr(sys.modules["sluice.flows.job"], "has_drain", lambda runtime, claim: False)
    with pytest.raises(TaskDeferred) as deferred:
        stage(path).woken(context(), waited=9)
    trigger = deferred.value.trigger
    trigger.seconds = 1e9

    async def fired() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), 120)

    assert asyncio.run(fired()).payload == "pause is over"
    assert set(asked) == {("load.reporting", "run-1", "merge", 4)}


@pytest.mark.parametrize(("cleared", "outlets", "ends"), [(0, [], True), (1, [], False), (0, ["told"], False)])
def test_a_stage_that_drain_did_ends_in_the_triggerer_unless_its_end_needs_a_worker(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch, cleared: int, outlets: list[str], ends: bool
) -> None:
    def run_stage(*_: Any, **__: Any) -> StageOutcome:
        raise GivenBack("no batch came for 10 s")

    runs(monkeypatch, run_stage)
    outcome = StageOutcome("load.reporting", sums=StageSums.of([Done(4, 0.5, 10)]), in_drain=(("load.reporting", 1),))
    monkeypatch.setattr(sys.modules["sluice.flows.job"], "end_stage", lambda runtime, name, claim: outcome)
    monkeypatch.setattr(sys.modules["sluice.flows.job"], "goes_on", lambda *_, **__: True)
    task = stage(path)
    task.outlets = outlets
    with pytest.raises(TaskDeferred) as deferred:
        task.execute({**context(), "dag_run": SimpleNamespace(clear_number=cleared)})
    _, kwargs = deferred.value.trigger.serialize()
    stored = HoldTrigger(**kwargs)

    async def fired() -> Any:
        return await asyncio.wait_for(anext(stored.run()), 120)

    event = asyncio.run(fired())
    assert isinstance(event, TaskSuccessEvent) is ends
    if ends:
        assert event.xcoms["return_value"] == outcome.to_json()
        assert event.xcoms["return_value"]["in_drain"] == 1


def test_merge_does_not_ask_again_after_one_that_had_no_worker(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = sys.modules["sluice.flows.job"]
    short: list[bool] = []

    def may_begin(runtime: object, name: str, *, claim: str, are_short: bool) -> bool:
        short.append(are_short)
        return True

    monkeypatch.setattr(job, "may_begin", may_begin, raising=False)
    monkeypatch.setattr(triggers, "_merge_asked", {})

    def begins(name: str) -> None:
        HoldTrigger(path, 5.0, stage=name)._goes_on(SimpleNamespace())

    begins("merge")
    begins("load.reporting")  # *merge* had its worker soon
    begins("merge")
    monkeypatch.setattr(triggers, "_SOON_S", 0.0)
    begins("load.reporting")  # it had it late
    begins("merge")
    assert short == [False, False, False, True, True]


def test_a_red_task_is_noted_as_a_failure_of_the_pipeline_by_those_after_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person marked it, or its process was killed: it left no word."""
    noted: list[tuple[str, str]] = []
    state = SimpleNamespace(note_failure=lambda part, error: noted.append((part, str(error))))
    runtime = SimpleNamespace(state=lambda: nullcontext(state))
    monkeypatch.setattr(operators, "open_runtime", lambda _: runtime)

    def run_stage(*_: Any, **__: Any) -> StageOutcome:
        raise GivenBack("no batch came for 10 s")

    runs(monkeypatch, run_stage)
    for red in ("drain", "merge", "rule.up", "load.reporting"):
        after = stage(path, "ack.reporting", red)
        with pytest.raises(AirflowFailException, match=f"this task is red because {red} is"):
            after.execute(context(**{red: "failed"}))
    assert [part for part, _ in noted] == ["drain", "merge", "rule.up", "load-reporting"]
    assert "later runs wait" in noted[0][1]
    assert "press Clear on drain" in noted[0][1]


@pytest.mark.parametrize(("state", "is_red"), [("failed", True), ("upstream_failed", True), ("up_for_retry", False)])
def test_a_stage_behind_one_whose_attempts_are_used_up_is_red_too_and_names_it(
    path: str, monkeypatch: pytest.MonkeyPatch, state: str, is_red: bool
) -> None:
    def run_stage(*_: Any, **__: Any) -> StageOutcome:
        raise NeverReady("merge failed at batch 4: a rule is broken")

    runs(monkeypatch, run_stage)
    if not is_red:
        with pytest.raises(TaskDeferred):
            stage(path).execute(context(merge=state, sense="success"))
        return
    with pytest.raises(AirflowFailException, match=r"a rule is broken.*press Clear on merge: this task begins again"):
        stage(path).execute(context(merge=state, sense="success"))


def test_the_error_of_a_stage_is_its_own_tasks(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_stage(*_: Any, **__: Any) -> StageOutcome:
        raise RuleError("rule 'up' failed")

    runs(monkeypatch, run_stage)
    monkeypatch.setattr(operators, "report_failure", lambda pipeline: None)
    with pytest.raises(TaskError, match="rule 'up' failed"):
        stage(path).execute(context())


@pytest.mark.parametrize(
    ("state", "marked"), [("success", ["merge"]), ("skipped", ["merge"]), ("running", []), ("failed", [])]
)
def test_a_stage_knows_which_tasks_before_it_have_ended_well(
    path: str, monkeypatch: pytest.MonkeyPatch, state: str, marked: list[str]
) -> None:
    seen: list[Any] = []

    def run_stage(runtime: Any, name: str, *, marked: Any, **_: Any) -> StageOutcome:
        seen.append(marked)
        return StageOutcome(name)

    runs(monkeypatch, run_stage)
    stage(path).execute(context(merge=state, sense="success"))
    stage(path).execute(context(merge=state, drain="success"))
    assert seen == [marked, ["drain", *marked]]


@pytest.mark.parametrize(
    ("state", "ended"),
    [("success", True), ("failed", True), ("skipped", True), ("running", False), ("up_for_retry", False)],
)
def test_a_capture_hears_of_tasks_after_it_that_a_person_marked(
    path: str, monkeypatch: pytest.MonkeyPatch, state: str, ended: bool
) -> None:
    seen: list[Any] = []

    def run_capture(*_: Any, gone: Any, **__: Any) -> StageOutcome:
        seen.append(gone())
        return StageOutcome("drain", (), "idle")

    monkeypatch.setattr(sys.modules["sluice.flows.job"], "run_capture", run_capture)
    with DAG("sync__shop", schedule=None):
        task = CaptureOperator(task_id="drain", pipeline=path)
        merge = StageOperator(task_id="merge", stage="merge", color="#fff", pipeline=path)
        load = StageOperator(task_id="load.reporting", stage="load.reporting", color="#fff", pipeline=path)
        task >> merge >> load
    task.execute(context(**{"load.reporting": state}))
    assert seen == [["load.reporting"] if ended else []]


def test_a_capture_says_why_it_ended_and_opens_the_runs_of_dumps(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("sluice.orchestration.dag_runs.open_run", lambda file, dump: opened.append(dump))
    outcome = StageOutcome("drain", (Done(2, 0.1, 3),), "a dump is due", ("initial",))
    monkeypatch.setattr(sys.modules["sluice.flows.job"], "run_capture", lambda *_, **__: outcome)
    task = CaptureOperator(task_id="drain", pipeline=path)
    assert task.execute(context())["ended_by"] == "a dump is due"
    assert opened == ["initial"]

    def held(*_: Any, **__: Any) -> StageOutcome:
        raise LeaseHeld("another drains")

    monkeypatch.setattr(sys.modules["sluice.flows.job"], "run_capture", held)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context())
    assert isinstance(deferred.value.trigger, TurnTrigger)
