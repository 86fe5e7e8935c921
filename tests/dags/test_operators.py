"""Operators and triggers over stand-in flows, in this process."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from sluice.config.loading import load_pipeline
from sluice.errors import CoordinationUnavailable, Restarted
from sluice.orchestration import operators, triggers
from sluice.orchestration.dag_runs import open_run
from sluice.orchestration.dags.catchup import CatchUpOperator
from sluice.orchestration.dags.sync import build_sync_dag
from sluice.orchestration.operators import SenseOperator, SluiceOperator, StageOperator
from sluice.orchestration.retry import TaskError
from sluice.orchestration.runtime import claim
from sluice.orchestration.triggers import HeldTrigger, HoldTrigger, LogMovedTrigger, PermitTrigger, TurnTrigger
from tests.dags.conftest import WritePipeline
from tests.support.running import standin
from tests.support.running.standin import fail, settings
from tests.support.running.waiting import counted


@pytest.fixture
def path(write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(operators, "_IDLE_WAIT_S", 0.0)
    return str(write_pipeline())


def context(
    run: str = "run-1", *, try_number: int = 1, max_tries: int = 5, load: str = "success", drain: str = "failed"
) -> Any:
    def states(**_: Any) -> dict[str, dict[str, str]]:
        return {run: {"load": load, "drain": drain}}

    fields = {"dag_id": "sync__shop", "run_id": run, "task_id": "t", "try_number": try_number, "max_tries": max_tries}
    return {"ti": SimpleNamespace(**fields, get_task_states=states)}


RUN = claim("sync__shop", "run-1")


def drain_task(path: str, **options: Any) -> SenseOperator:
    """The task that captures and delivers, before the other tasks of its run."""
    return SenseOperator(task_id="drain", pipeline=path, delivers=True, **options)


def stage_task(path: str, stage: str, task_id: str = "t", **options: Any) -> StageOperator:
    return StageOperator(task_id=task_id, pipeline=path, stage=stage, color="#fff", **options)


def ack_task(path: str, target: str = "reporting") -> StageOperator:
    """An acknowledgement that keeps its run open, after its load."""
    with DAG("sync__shop", schedule=None):
        ack = stage_task(path, f"ack.{target}", "ack", keeps_open=True)
        stage_task(path, f"load.{target}", "load") >> ack
    return ack


def test_drain_returns_the_number_and_a_retry_the_same(path: str, flows: ModuleType) -> None:
    flows.change()
    drain = drain_task(path)
    assert drain.execute(context()) == 1
    flows.change()
    assert drain.execute(context()) == 1
    assert drain.execute(context("run-2")) == 2


def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the lines that tasks say from now on."""
    lines: list[str] = []

    def say(text: str, *rest: Any) -> None:
        lines.append(text % rest if rest else text)

    monkeypatch.setattr(SluiceOperator, "log", SimpleNamespace(info=say, debug=say, warning=say, error=say))
    return lines


def test_the_tasks_after_a_drain_that_did_all_show_what_it_did_of_their_stage(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Green, with the batches, rows and seconds of the process that did the work."""
    settings(flows, merges=True, carries=True)
    flows.change()
    lines = logged(monkeypatch)
    drain_task(path).execute(context())
    tasks = [
        (stage_task(path, "merge"), "merge"),
        (stage_task(path, "load.reporting"), "load.reporting"),
        (ack_task(path), "ack.reporting"),
    ]
    for task, stage in tasks:
        lines.clear()
        given = task.execute(context())
        assert (given["stage"], given["batches"], given["in_drain"], given["rows"], given["seconds"]) == (
            stage,
            1,
            1,
            2,
            0.5,
        )
        assert (given["first"], given["last"]) == (1, 1)
        assert "done in the process of the task drain: 1 of 1 batch:" in lines[0]
        assert lines[0].splitlines()[-1].split() == ["1", "2", "0", "0.50"]


def test_the_tasks_after_a_drain_that_left_its_batch_show_what_they_did(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows.change()
    lines = logged(monkeypatch)
    drain_task(path).execute(context())
    given = stage_task(path, "merge").execute(context())
    assert (given["batches"], given["in_drain"], given["rows"]) == (1, 0, 1)
    assert [(rule["name"], rule["rows_in"], rule["rows_out"]) for rule in given["rules"]] == [("tidy", 3, 1)]
    assert "this run's batches (1):" in lines[-1]
    assert lines[-1].splitlines()[-1].split() == ["tidy", "3", "1", "1", "0", "0", "0.01"]
    given = stage_task(path, "load.reporting").execute(context())
    assert (given["batches"], given["first"], given["last"], given["rows"]) == (1, 1, 1, 1)
    assert ack_task(path).execute(context())["batches"] == 1


def test_clear_on_a_delivered_run_says_that_nothing_is_delivered_again_and_which_command_does(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows.change()
    drain_task(path).execute(context())
    load = stage_task(path, "load.reporting")
    tasks = [drain_task(path), stage_task(path, "merge"), load, ack_task(path)]
    notes: list[str] = []
    monkeypatch.setattr("sluice.orchestration.run_note.RunNote.add", lambda note, text: notes.append(text))
    cleared = context()
    cleared["dag_run"] = SimpleNamespace(dag_id="sync__shop", run_id="run-1", clear_number=1)
    for task in tasks[1:]:
        task.execute(context())
    lines = logged(monkeypatch)
    tasks[1].execute(cleared)
    assert "nothing is done again: batch 1 of this run passed this stage before" in lines
    stage_task(path, "load.archive").execute(context())
    ack_task(path, "archive").execute(context())
    for task, target in zip(tasks, ("TARGET", "TARGET", "reporting", "reporting"), strict=True):  # the pipeline has two
        lines.clear()
        task.execute(cleared)
        said = " ".join(lines)
        assert "nothing is delivered again: all targets have batch 1 of this run" in said, task.task_id
        assert f"`sluice redeliver shop {target} --from-batch 1`" in said
    assert len(notes) == 1
    assert "`sluice redeliver shop reporting --from-batch 1`" in notes[0]
    assert len(flows.events("load")) == 2


def test_a_drain_opens_a_run_for_each_dump_that_is_due(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, str]] = []
    monkeypatch.setattr("sluice.orchestration.dag_runs.open_run", lambda file, dump: opened.append((file, dump)))
    settings(flows, due=["initial", "added-1"])
    flows.change()
    assert drain_task(path).execute(context()) == 1
    assert opened == [(path, "initial"), (path, "added-1")]


@pytest.mark.parametrize("paused", [True, False])
def test_a_run_of_a_paused_dag_is_opened_and_told(path: str, monkeypatch: pytest.MonkeyPatch, paused: bool) -> None:
    from airflow.sdk.execution_time import comms, task_runner

    asked: list[str] = []

    def send(message: Any) -> Any:
        asked.append(type(message).__name__)
        known = dict.fromkeys(comms.DagResult.model_fields)
        dag = {**known, "dag_id": message.dag_id, "is_paused": paused, "type": "DagResult"}
        return comms.DagResult.model_construct(**dag) if isinstance(message, comms.GetDag) else None

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
    said = open_run(path, "initial")
    assert said == ("DAG backfill__shop is paused: unpause it" if paused else "")
    assert asked == ["TriggerDagRun", "GetDag"]


def test_stand_ins_take_what_the_flows_take() -> None:
    """Else a test of the DAG proves nothing about the flow that runs in its place."""
    from tests.support.running import standin

    for name, module in standin.modules().items():
        for function, made in vars(module).items():
            if not inspect.isfunction(made):
                continue
            real = inspect.signature(getattr(importlib.import_module(name), function)).parameters
            assert list(inspect.signature(made).parameters) == list(real)[: len(inspect.signature(made).parameters)]
            left = list(real.values())[len(inspect.signature(made).parameters) :]
            assert all(one.default is not inspect.Parameter.empty for one in left), (name, function)


def test_an_idle_drain_waits_in_the_triggerer(path: str, flows: ModuleType) -> None:
    drain = drain_task(path)
    with pytest.raises(TaskDeferred) as deferred:
        drain.execute(context())
    assert isinstance(deferred.value.trigger, LogMovedTrigger)
    assert deferred.value.method_name == "woken"
    assert deferred.value.trigger.not_before_s == 0


def test_wakeups_in_vain_come_less_often(path: str, flows: ModuleType) -> None:
    drain, kwargs, pauses = drain_task(path), {"in_vain": 0}, []
    for _ in range(8):
        with pytest.raises(TaskDeferred) as deferred:
            drain.woken(context(), "news", **kwargs)
        kwargs = deferred.value.kwargs
        pauses.append(deferred.value.trigger.not_before_s)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


def test_a_loop_ends_when_the_pipeline_file_or_its_list_of_stages_changes(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_RULES", str(tmp_path))
    rules = tmp_path / "engine.yaml"
    rules.write_text("rules: [{name: tidy, path: tidy.py}]\n")
    Path(path).write_text(Path(path).read_text() + "\nrules: engine.yaml\n")
    reason = operators._reason_to_stop(context(), Path(path), load_pipeline(Path(path)))
    assert reason() == ""
    (tmp_path / "tidy.py").write_text("")
    assert reason() == "", "the next batch uses it"
    rules.write_text("rules: [{name: tidy, path: tidy.py}, {name: slow, path: slow.py, task: own}]\n")
    assert reason() == "the stages of its rules changed", "the next run has a task for it"
    Path(path).write_text(Path(path).read_text() + "\n")
    assert reason() == "the pipeline file changed"
    Path(path).unlink()
    assert reason() == "the pipeline file changed"


def test_a_loop_ends_when_a_person_pauses_the_dag(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(operators, "is_paused", lambda dag_id: bool(asked.append(dag_id)) or len(asked) > 1)
    monkeypatch.setattr(operators, "_ASK_IF_PAUSED_S", 0.0)
    reason = operators._reason_to_stop(context(), Path(path), load_pipeline(Path(path)))
    assert [reason(), reason()] == ["", "the DAG sync__shop is paused"]
    assert asked == ["sync__shop"] * 2


def test_by_the_clock_an_idle_run_is_skipped(path: str, flows: ModuleType) -> None:
    with pytest.raises(AirflowSkipException):
        drain_task(path, waits=False).execute(context())


@pytest.mark.parametrize("kind", ["LeaseHeld", "Fenced"])
@pytest.mark.parametrize("delivers", [True, False])
def test_who_reads_the_log_stands_by_while_another_has_the_lease(
    path: str, flows: ModuleType, delivers: bool, kind: str
) -> None:
    fail(flows, "drain", kind)
    with pytest.raises(TaskDeferred) as deferred:
        SenseOperator(task_id="drain", pipeline=path, delivers=delivers).execute(context())
    assert isinstance(deferred.value.trigger, TurnTrigger)
    with pytest.raises(AirflowSkipException, match="standing by: it failed"):
        SenseOperator(task_id="drain", pipeline=path, delivers=delivers, waits=False).execute(context())


@pytest.mark.parametrize("later", ["quarantined", "waits"])
def test_a_batch_that_a_target_gets_later_is_green_and_says_why(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """So is its acknowledgement: neither a quarantine nor a lake's `commit_every` keeps the run open."""
    flows.change()
    drain_task(path).execute(context())
    settings(flows, **({"waits": ["reporting"]} if later == "waits" else {later: {"reporting": "it does not answer"}}))
    lines = logged(monkeypatch)
    for task in (stage_task(path, "load.reporting"), ack_task(path)):
        lines.clear()
        task.execute(context())
        assert f"{later}: the target gets it later" in lines[0]
    assert flows.events("load") == flows.events("ack") == []
    assert stage_task(path, "load.archive").execute(context())["last"] == 1
    assert [one["target"] for one in flows.events("load")] == ["archive"]


def test_a_failed_attempt_sends_the_metrics_and_keeps_its_own_error(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def report(runtime: Any, *, every_s: float) -> None:
        sent.append(runtime.pipeline.pipeline)
        raise CoordinationUnavailable("ZooKeeper is gone too")

    monkeypatch.setattr("sluice.orchestration.metrics.report", report)
    flows.change()
    drain_task(path).execute(context())
    fail(flows, "load", "TargetUnavailable")
    with pytest.raises(TaskError, match="it failed"):
        stage_task(path, "load.reporting").execute(context())
    assert sent == ["shop"]


def test_a_catch_up_waits_for_a_hold_and_between_attempts_that_fail(path: str, flows: ModuleType) -> None:
    delays = {"delay": timedelta(seconds=5), "max_delay": timedelta(seconds=60)}
    task = CatchUpOperator(task_id="c", pipeline=path, target="reporting", **delays)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context())
    assert isinstance(deferred.value.trigger, HeldTrigger)
    fail(flows, "catch_up", "TargetUnavailable")
    kwargs, pauses = {}, []
    for _ in range(6):
        with pytest.raises(TaskDeferred) as deferred:
            task.woken(context(), "pause is over", **kwargs)
        kwargs = deferred.value.kwargs
        pauses.append(deferred.value.trigger.seconds)
    assert pauses == [5, 10, 20, 40, 60, 60]
    settings(flows, paused=True)
    with pytest.raises(TaskDeferred) as deferred:
        task.woken(context(), "pause is over", **kwargs)
    assert isinstance(deferred.value.trigger, HeldTrigger | PermitTrigger)


def test_an_ack_without_its_load_holds_the_run_open(path: str, flows: ModuleType) -> None:
    ack = ack_task(path)
    with pytest.raises(TaskDeferred) as deferred:
        ack.execute(context(load="failed"))
    assert isinstance(deferred.value.trigger, HoldTrigger)
    flows.change()
    flows.drain(None, claim=RUN, idle_wait_s=0)
    flows.load(None, "reporting", 1)
    assert ack.woken(context(), **deferred.value.kwargs)["last"] == 1


@pytest.mark.parametrize(
    ("load", "todo"), [("failed", "press Clear on load, with"), ("running", "is red. It tries again")]
)
def test_an_ack_that_holds_its_run_open_names_a_red_task_only_where_there_is_one(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch, load: str, todo: str
) -> None:
    lines = logged(monkeypatch)
    with pytest.raises(TaskDeferred):
        ack_task(path).execute(context(load=load, drain="success"))
    assert todo in lines[-1]


@pytest.mark.parametrize(("red", "part"), [("drain", "drain"), ("load.reporting", "load-reporting")])
def test_an_ack_that_holds_its_run_open_notes_the_red_task_as_a_failure_of_the_pipeline(
    path: str, flows: ModuleType, red: str, part: str
) -> None:
    """A person marked it, or its process was killed: it left no word."""
    flows.change()
    flows.drain(None, claim=RUN, idle_wait_s=0)
    file = Path(path)
    file.write_text(file.read_text() + "run: {tasks: one}\n")
    ack = build_sync_dag(load_pipeline(file), file).get_task("ack.reporting")
    states = {"drain": "success", "load.reporting": "upstream_failed", red: "failed"}
    about = context()
    about["ti"].get_task_states = lambda **_: {"run-1": states}
    with pytest.raises(TaskDeferred):
        ack.execute(about)
    [noted] = flows.events("note_failure")
    assert noted["part"] == part
    assert f"the task {red} is red, and later runs wait" in noted["error"]
    assert f"press Clear on {red}, with downstream tasks" in noted["error"]


@pytest.mark.parametrize("stage", ["merge", "load.reporting", "ack.reporting"])
def test_a_drain_that_a_person_marked_leaves_its_batches_to_the_tasks(path: str, flows: ModuleType, stage: str) -> None:
    """ZooKeeper knows the run's batches by its claim."""
    flows.change()
    flows.drain(None, claim=RUN, idle_wait_s=0)
    task = ack_task(path) if stage.startswith("ack") else stage_task(path, stage)
    assert task.execute(context(drain="success"))["batches"] == 1
    assert task.execute(context("run-2", drain="success"))["batches"] == 0


def test_a_load_that_a_person_marked_as_a_success_is_done_by_the_ack(path: str, flows: ModuleType) -> None:
    flows.change()
    flows.drain(None, claim=RUN, idle_wait_s=0)
    flows.merge(None, 1)
    with pytest.raises(TaskDeferred):
        ack_task(path).execute(context(load="failed"))
    assert not flows.events("load")
    assert ack_task(path).execute(context(load="success"))["last"] == 1
    assert len(flows.events("load")) == 1


def test_a_drain_asks_airflow_whether_the_run_of_a_batch_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from sluice.orchestration.operators import _is_over

    states = {"a:b+00:00": "failed", "done": "success", "goes": "running", "waits": "queued"}
    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", lambda dag_id, run_id: states[run_id])
    found = {run: _is_over(claim("sync__shop", run)) for run in (*states, "deleted")}
    assert found == {"a:b+00:00": True, "done": True, "goes": False, "waits": False, "deleted": False}
    assert not _is_over("cli:host:1:done")
    assert not _is_over("airflow:another:sync__shop:done")


def test_an_ack_waits_for_a_load_that_died_after_it_delivered(path: str, flows: ModuleType) -> None:
    flows.change()
    flows.drain(None, claim=RUN, idle_wait_s=0)
    flows.load(None, "reporting", 1)
    with pytest.raises(TaskDeferred):
        ack_task(path).execute(context(load="failed"))
    assert ack_task(path).execute(context(load="success"))["last"] == 1


def test_log_fields_that_airflow_reserves_are_renamed() -> None:
    from sluice.orchestration.log_fields import make_safe, rename_reserved

    assert rename_reserved(None, "info", {"event": "x", "target": "t", "batch": 1}) == {
        "event": "x",
        "target_name": "t",
        "batch": 1,
    }
    make_safe()
    make_safe()
    assert structlog.get_config()["processors"].count(rename_reserved) == 1


def test_fields_are_safe_in_every_task_also_in_one_that_does_not_wait_for_a_pause() -> None:
    from sluice.orchestration.log_fields import rename_reserved
    from sluice.orchestration.retry import boundary

    processors = structlog.get_config()["processors"]
    if rename_reserved in processors:
        processors.remove(rename_reserved)
    with boundary():
        assert processors[0] is rename_reserved


def test_an_ack_never_lets_its_run_end_red(path: str, flows: ModuleType) -> None:
    fail(flows, "ack", "CoordinationUnavailable")
    ack = ack_task(path)
    with pytest.raises(TaskError, match="it failed"):
        ack.execute(context(try_number=5))
    with pytest.raises(TaskDeferred):
        ack.execute(context(try_number=6))


def test_the_claim_names_installation_dag_and_run(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_INSTALLATION", "east")
    flows.change()
    drain_task(path).execute(context("run-7"))
    assert flows.events("drain")[0]["claim"] == "airflow:east:sync__shop:run-7"
    monkeypatch.delenv("SLUICE_INSTALLATION")
    assert operators.claim("d", "r") == operators.claim("d", "r")


def _first_event(trigger: Any) -> Any:
    async def first() -> Any:
        return (await anext(trigger.run())).payload

    return asyncio.run(asyncio.wait_for(first(), 120))


async def _looking(trigger: Any) -> asyncio.Task[Any]:
    """The wait for its event, after it has looked three times."""
    with counted(standin, "_settings") as looks:
        waiting = asyncio.create_task(anext(trigger.run()))
        while looks.by_thread.total() < 3 and not waiting.done():
            await asyncio.sleep(0.02)
    return waiting


def test_the_trigger_fires_when_the_log_moves(path: str, flows: ModuleType) -> None:
    async def go() -> Any:
        waiting = await _looking(LogMovedTrigger(path))
        assert not waiting.done()
        flows.change()
        return (await asyncio.wait_for(waiting, 120)).payload

    assert asyncio.run(go()) == "news"


def test_the_trigger_wakes_the_drain_when_it_cannot_look(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(flows, "has_news", "ConfigError")
    assert _first_event(LogMovedTrigger(path)) == "trouble"
    fail(flows, "has_news", "SourceUnavailable")
    monkeypatch.setattr(triggers, "_TROUBLE_FOR_S", 0.0)
    assert _first_event(LogMovedTrigger(path)) == "trouble"


def test_no_trigger_fires_before_airflow_has_heard_of_the_end_of_the_task_that_deferred(
    path: str, flows: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "_SETTLE_S", 60.0)
    flows.change()

    async def go() -> set[Any]:
        triggers_ = (LogMovedTrigger(path), PermitTrigger(path), TurnTrigger(path), HoldTrigger(path, 0.0))
        waiting = [asyncio.create_task(anext(trigger.run())) for trigger in triggers_]
        fired, _ = await asyncio.wait(waiting, timeout=1, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        return fired

    assert asyncio.run(go()) == set()


@pytest.mark.parametrize("task", [drain_task, partial(stage_task, stage="merge"), ack_task])
def test_a_paused_pipeline_waits_in_the_triggerer(path: str, flows: ModuleType, task: Any) -> None:
    """No attempt is used up by a pause, however long."""
    settings(flows, paused=True)
    with pytest.raises(TaskDeferred) as deferred:
        task(path).execute(context(try_number=6))
    assert isinstance(deferred.value.trigger, PermitTrigger)


def test_a_resumed_pipeline_goes_on(path: str, flows: ModuleType) -> None:
    settings(flows, paused=True)

    async def go() -> Any:
        waiting = await _looking(PermitTrigger(path))
        assert not waiting.done()
        settings(flows)
        return (await asyncio.wait_for(waiting, 120)).payload

    assert asyncio.run(go()) == "news"


def test_triggers_can_be_stored() -> None:
    for trigger in (
        LogMovedTrigger("p.yaml", 2.0),
        HoldTrigger("p.yaml", 5.0),
        HoldTrigger("p.yaml", 5.0, stage="merge", claim="c", behind="drain", batch=3, ends=True),
        PermitTrigger("p.yaml"),
        TurnTrigger("p.yaml"),
    ):
        name, kwargs = trigger.serialize()
        assert name == f"sluice.orchestration.triggers.{type(trigger).__name__}"
        assert type(trigger)(**kwargs).serialize() == (name, kwargs)


def test_a_pipeline_file_that_broke_meanwhile_is_one_message(path: str, flows: ModuleType) -> None:
    Path(path).write_text("version: 1\npipeline: shop\ncolour: red\n")
    with pytest.raises(TaskError, match="there is no such key"):
        stage_task(path, "merge").execute(context())


def test_standing_by_ends_when_it_is_our_turn(path: str, flows: ModuleType) -> None:
    settings(flows, standing_by=True)

    async def go() -> Any:
        waiting = await _looking(TurnTrigger(path))
        assert not waiting.done()
        settings(flows)
        return (await asyncio.wait_for(waiting, 120)).payload

    assert asyncio.run(go()) == "news"


def test_a_restarted_task_begins_again_in_the_same_attempt(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([Restarted("a person restarted it"), {"batch": 1}])

    def work(self: Any, context: Any, **_: Any) -> Any:
        found = next(tries)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(StageOperator, "work", work)
    assert stage_task(path, "merge").execute(context()) == {"batch": 1}


def test_a_hold_lasts_although_the_file_is_broken(path: str) -> None:
    """Nothing may spin: an installation that cannot look waits all the same."""
    Path(path).write_text("version: 1\npipeline: shop\ncolour: red\n")
    started = time.monotonic()
    assert _first_event(HoldTrigger(path, 0.5)) == "pause is over"
    assert time.monotonic() - started >= 0.5


def test_a_busy_drain_writes_a_line_for_the_batches_of_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.flows.stage_sums import DeliveredBatch

    now, lines = [100.0], list[str]()
    monkeypatch.setattr(operators.time, "monotonic", lambda: now[0])
    told = operators._Told(lines.append, operators._batches_line)
    for number in range(1, 101):
        told(
            DeliveredBatch(
                batch=number, changes=7, closed_by="head", drained_s=0.1, merged_s=0.1, loaded=(("copy", 0.1),), rows=7
            )
        )
        now[0] += 0.5
    assert len(lines) == 10
    assert lines[0].startswith("batch 1: 7 changes")
    assert lines[1].startswith("batches 2 to 11: 70 changes, 70 rows; the last one: batch 11: ")


def test_a_loop_gives_way_with_all_its_threads() -> None:
    text = (
        "import os, threading, time\n"
        "from sluice.orchestration.operators import give_way\n"
        "over = threading.Event()\n"
        "threading.Thread(target=over.wait, daemon=True).start()\n"
        "give_way()\n"
        "threading.Thread(target=over.wait, daemon=True).start()\n"
        "print({os.getpriority(os.PRIO_PROCESS, int(one)) for one in os.listdir('/proc/self/task')})\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "{10}", done.stderr
