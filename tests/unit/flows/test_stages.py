"""The stages of a pipeline as data, and the loop that does one of them for every batch of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.config.engine import RuleConfig
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig
from sluice.coordination.memory import MemoryTree
from sluice.coordination.run_progress import Worker
from sluice.coordination.state import PipelineState
from sluice.flows import job, stage_work, stages
from sluice.flows.board import Board, RunView
from sluice.flows.capture.drain import drain
from sluice.flows.job import _Deliveries, _Substitutes, run_capture, run_microbatches, run_stage
from sluice.flows.run import run
from sluice.flows.runtime import Runtime
from sluice.flows.stage_sums import Done
from sluice.flows.stages import Stage, StageKind, described, display_name, pipeline_stages, rules_in, rules_of
from sluice.model.batches import DrainOutcome
from sluice.model.offset import Offset
from sluice.operations.status import stages_claimed, status
from tests.support.twins.pipes import Pipe

PIPELINE = """
version: 1
pipeline: shop
source: {connection: a}
rules: engine.yaml
targets: [{name: one, type: mysql, connection: b}, {name: two, type: mysql, connection: c}]
"""
OWN = (
    "rules: [{name: fused, path: f.py}, {name: late, path: l.py, task: own, order: 9}, {name: early, path: e.py, "
    "type: spark, order: 1}]"
)
PATIENCE_S = 60


def stages_of(folder: Path, engine: str = OWN) -> tuple[Stage, ...]:
    (folder / "engine.yaml").write_text(engine)
    pipeline = parse_model(PIPELINE, "shop.yaml", PipelineConfig)
    return pipeline_stages(pipeline, rules_of(pipeline, folder))


def test_the_list_says_what_each_stage_needs(tmp_path: Path) -> None:
    found = {stage.name: stage.needs for stage in stages_of(tmp_path)}
    assert found == {
        "drain": (),
        "merge": ("drain",),
        "rule.early": ("merge",),
        "rule.late": ("rule.early",),
        "load.one": ("rule.late",),
        "ack.one": ("load.one",),
        "load.two": ("rule.late",),
        "ack.two": ("load.two",),
    }
    assert [name for at, name in enumerate(found) if not set(found[name]) <= set(list(found)[:at])] == []
    assert [stage.name for stage in stages_of(tmp_path) if not stage.type.is_serial] == [
        "merge",
        "rule.early",
        "rule.late",
    ]
    assert all(stage.type.records and stage.doing for stage in stages_of(tmp_path))


@pytest.mark.parametrize(
    ("engine", "named", "inside"),
    [
        (OWN, ["merge + 1 rule"], {"merge": ["fused"], "rule.early": ["early"], "rule.late": ["late"]}),
        ("rules: []", [], {"merge": []}),
        (
            "rules: [{name: a, path: a}, {name: b, builtin: mask}, {name: c, path: c, task: own}, {name: d, path: d}, "
            "{name: e, path: e}]",
            ["merge + 2 rules", "rule.c + 2 rules"],
            {"merge": ["a", "b"], "rule.c": ["c", "d", "e"]},
        ),
    ],
)
def test_a_task_is_named_after_the_fused_rules_in_it(
    tmp_path: Path, engine: str, named: list[str], inside: dict[str, list[str]]
) -> None:
    found = stages_of(tmp_path, engine)
    rules = rules_of(parse_model(PIPELINE, "shop.yaml", PipelineConfig), tmp_path)
    assert {s.name: [r.name for r in rules_in(s, rules)] for s in found if s.transforms} == inside
    names = [display_name(stage, rules) for stage in found]
    assert [name for name in names if " + " in name] == named
    assert [name.partition(" + ")[0] for name in names] == [stage.name for stage in found]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"""Keeps the mail address tidy.\n\nMore."""\n', "Keeps the mail address tidy."),
        ("# a licence\n# of two lines\n'''One sentence'''\n", "One sentence"),
        ('"Short."\nimport re\n', "Short."),
        ("-- Leaves test orders out.\n--\nSELECT * FROM rows", "Leaves test orders out."),
        ("import re\n", ""),
        ("", ""),
    ],
)
def test_what_a_rule_is_for_is_the_first_line_of_its_file(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.file").write_text(text)
    rule = parse_model("{name: r, path: r.file}", "engine.yaml", RuleConfig)
    assert described(rule, tmp_path) == said
    assert described(rule, tmp_path / "none") == ""
    given = parse_model("{name: r, path: r.file, description: Said here}", "engine.yaml", RuleConfig)
    assert described(given, tmp_path) == "Said here"


def test_a_changed_engine_yaml_is_read_again_and_a_wrong_one_gives_no_rule(tmp_path: Path) -> None:
    assert len(stages_of(tmp_path)) == 8
    assert len(stages_of(tmp_path, "rules: [{nmae: x}]")) == 6
    assert len(stages_of(tmp_path, "rules: [{name: only, path: o.py, task: own}]")) == 7
    (tmp_path / "engine.yaml").unlink()
    pipeline = parse_model(PIPELINE, "shop.yaml", PipelineConfig)
    assert rules_of(pipeline, tmp_path) == ()


# -- the loop ----------------------------------------------------------------------------------------------------------


class Run:
    """The loops of a run without a capture and without work, and what they did."""

    def __init__(self, folder: Path, engine: str, do: Callable[[Stage, int], Done]) -> None:
        (folder / "engine.yaml").write_text(engine)
        runtime: Any = SimpleNamespace(
            pipeline=parse_model(PIPELINE, "shop.yaml", PipelineConfig), rules_folder=folder, resolver=lambda name: None
        )
        state = PipelineState(MemoryTree().session(), "/r", "shop", ["one", "two"], lease_wait_s=0)
        self.view = RunView(runtime, state, "claim", is_alone=True)
        self.deliveries = _Deliveries(self.view, lambda batch: None)
        drain = self.view.stages["drain"]
        self.capture = Board(
            self.view, drain, worker=Worker.DRAIN, on_done=lambda done: self.deliveries.add(drain, done)
        )
        self.loops = _Substitutes(self.view, do, self.deliveries.add)

    def captured(self, batch: int) -> None:
        self.deliveries.captured(DrainOutcome(batch, Offset("memory", ("", 0), 0, {})))
        self.capture.done(Done(batch))

    def wait_for_room(self, most: int) -> None:
        def has_room() -> bool:
            self.loops.require_life()
            return len(self.view.under_way) <= most or bool(self.view.failed_stage)

        assert self.capture.wait(has_room)

    @property
    def is_busy(self) -> bool:
        return self.view.is_busy(time.monotonic())

    @property
    def told(self) -> list[int]:
        return [delivered.batch for delivered in self.deliveries.batches]

    @property
    def counts(self) -> dict[str, int]:
        return {name: board.sums.batches for name, board in self.view.boards.items() if name != "drain"}


@contextmanager
def loops(folder: Path, do: Callable[[Stage, int], Done], engine: str = OWN) -> Iterator[Run]:
    """All stages but the capture, a thread each."""
    run = Run(folder, engine, do)
    with run.loops:
        yield run
        run.capture.end()
        run.loops.join()


def test_every_stage_gets_every_batch_in_order_and_after_what_it_needs(tmp_path: Path) -> None:
    lock, did = threading.Lock(), list[tuple[str, int]]()

    def do(stage: Stage, batch: int) -> Done:
        with lock:
            did.append((stage.name, batch))
        return Done(batch, rows=batch)

    with loops(tmp_path, do) as run:
        for batch in range(1, 30):
            run.captured(batch)
            run.wait_for_room(3)
        run.wait_for_room(0)
        assert not run.is_busy
    assert run.told == list(range(1, 30))
    assert set(run.counts.values()) == {29}
    for stage in stages_of(tmp_path)[1:]:
        mine = [batch for name, batch in did if name == stage.name]
        assert mine == run.told
        for batch in mine:
            for need in stage.needs:
                assert need == "drain" or did.index((need, batch)) < did.index((stage.name, batch))


def test_stages_are_at_work_on_different_batches_at_the_same_time(tmp_path: Path) -> None:
    """A merge goes on while the load of an earlier batch lasts, and a target does not wait for another."""
    merged, loads = threading.Event(), threading.Event()

    def do(stage: Stage, batch: int) -> Done:
        if stage.name == "merge" and batch == 2:
            merged.set()
        if stage.name == "load.one" and batch == 1:
            assert merged.wait(PATIENCE_S)
            assert loads.wait(PATIENCE_S)
        if stage.name == "ack.two" and batch == 2:
            loads.set()
        return Done(batch)

    with loops(tmp_path, do, "rules: []") as run:
        run.captured(1)
        run.captured(2)
        run.wait_for_room(0)
    assert set(run.counts.values()) == {2}


def test_a_batch_is_closed_so_that_its_merge_ends_with_the_load_before_it(tmp_path: Path) -> None:
    """Closed earlier, it would wait merged, and changes that come meanwhile would wait for one load more."""
    now = 0.0
    one_target = parse_model(PIPELINE.replace(", {name: two, type: mysql, connection: c}", ""), "s", PipelineConfig)
    state = PipelineState(MemoryTree().session(), "/r", "shop", ["one"], lease_wait_s=0)
    runtime: Any = SimpleNamespace(pipeline=one_target, rules_folder=tmp_path)
    view = RunView(runtime, state, "claim", is_alone=True)
    drain, merge, load, ack = (Board(view, stage, clock=lambda: now) for stage in view.stages.values())

    def passes(board: Board, batch: int, seconds: float, **more: Any) -> None:
        nonlocal now
        assert board.next_batch(batch - 1) == batch
        now += seconds
        board.done(Done(batch, seconds, **more))
        view.through = ack.progress.batch

    drain.done(Done(1))
    assert view.is_busy(now), "the merge is"
    passes(merge, 1, 0.2)
    assert not view.is_busy(now), "nobody knows how long a load lasts"
    passes(load, 1, 1.0)
    passes(ack, 1, 0.0)
    assert not view.is_busy(now)
    drain.done(Done(2))
    passes(merge, 2, 0.2)
    assert view.is_busy(now), "its load has not begun"
    assert load.next_batch(1) == 2
    now += 0.69
    assert view.is_busy(now), "0.31 s of the load are left, and 0.3 s suffice"
    now += 0.02
    assert not view.is_busy(now)
    drain.done(Done(3))
    assert view.is_busy(now), "two batches are under way"
    load.done(Done(2, 0.0, later="quarantined"))
    passes(ack, 2, 0.0, later="quarantined")
    passes(merge, 3, 0.2)
    assert view.is_busy(now), "a load that was left out says nothing of how long one lasts"
    passes(load, 3, 0.1)
    passes(ack, 3, 0.0)
    assert not view.is_busy(now)


def test_a_stage_that_fails_leaves_to_those_after_it_what_it_has_done(tmp_path: Path) -> None:
    did = list[tuple[str, int]]()

    def do(stage: Stage, batch: int) -> Done:
        if stage.name == "rule.early" and batch == 3:
            raise ValueError("a rule")
        did.append((stage.name, batch))
        return Done(batch)

    with loops(tmp_path, do) as run:
        for batch in range(1, 6):
            run.captured(batch)
        run.wait_for_room(0)
    assert (run.view.failed_stage, str(run.view.boards["rule.early"].error)) == ("rule.early", "a rule")
    assert (run.counts["merge"], run.told) == (5, [1, 2])
    for name in ("rule.late", "load.one", "ack.one", "load.two", "ack.two"):
        assert run.view.boards[name].error is None
        assert [batch for one, batch in did if one == name] == [1, 2]


def test_a_target_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    acknowledged = list[int]()

    def do(stage: Stage, batch: int) -> Done:
        if stage.name == "load.one":
            raise ValueError("a target")
        if stage.name == "ack.two":
            acknowledged.append(batch)
        return Done(batch)

    with loops(tmp_path, do, "rules: []") as run:
        for batch in range(1, 4):
            run.captured(batch)
    assert acknowledged == [1, 2, 3]
    assert (run.counts["ack.two"], run.counts["ack.one"]) == (3, 0)


def test_a_batch_that_is_left_for_later_is_passed_by(tmp_path: Path) -> None:
    acknowledged = list[str]()

    def do(stage: Stage, batch: int) -> Done:
        if stage.kind is StageKind.ACKNOWLEDGE:
            acknowledged.append(stage.subject)
        return Done(batch, seconds=0.5, later="quarantined" if stage.name == "load.one" else "")

    with loops(tmp_path, do, "rules: []") as run:
        run.captured(1)
        run.wait_for_room(0)
    assert acknowledged == ["two"]
    assert run.deliveries.batches[0].loaded == (("one", None), ("two", 1.0))


def test_a_process_that_ends_begins_nothing(tmp_path: Path) -> None:
    begun, did = threading.Event(), list[tuple[str, int]]()

    def do(stage: Stage, batch: int) -> Done:
        did.append((stage.name, batch))
        begun.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), loops(tmp_path, do) as run:  # noqa: PT012
        run.captured(1)
        assert begun.wait(PATIENCE_S)
        with pytest.raises(KeyboardInterrupt):
            run.wait_for_room(0)
        run.captured(2)
    assert did == [("merge", 1)]


# -- who runs it -------------------------------------------------------------------------------------------------------


def ruled(made: Pipe) -> None:
    rules = made.made.folder / "rules"
    (rules / "engine.yaml").write_text("rules: [{name: up, path: up.py, task: own}]\n")
    (rules / "up.py").write_text("def transform(row, context):\n    return {**row, 'v': row['v'].upper()}\n")
    made.made.case.config = made.made.case.config.model_copy(update={"rules": "engine.yaml"})


def test_a_run_of_the_command_line_takes_a_batch_through_every_stage(one: Pipe) -> None:
    ruled(one)
    one.commit(("insert", "a", (1, "v")))
    steps: list[Any] = list(run(one.made.runtime(), until_head=True))
    phases = [step.phase for step in steps if step.batch]
    assert phases == ["merging", "applying up", "loading copy", "acknowledged"]
    assert one.rows() == {1: "V"}


def test_the_status_says_how_far_each_stage_has_come(one: Pipe) -> None:
    ruled(one)
    one.commit(("insert", "a", (1, "v")))
    one.deliver()
    one.commit(("insert", "a", (2, "w")))
    one.made.drain(claim="test:another:1", until=None, deliver=False)
    told = {stage.name: stage.batch for stage in status(one.made.runtime()).stages}
    assert told == {"drain": 2, "merge": 1, "rule.up": 1, "load.copy": 1, "ack.copy": 1}
    one.deliver()
    assert {stage.batch for stage in status(one.made.runtime()).stages} == {2}


# -- a further stage ---------------------------------------------------------------------------------------------------


@pytest.fixture
def audited(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A stage between the merge and the load of each target; (batch, what the target had acknowledged) of its work."""
    seen: list[tuple[int, int]] = []

    def audit(runtime: Runtime, stage: Stage, batch: int) -> Done:
        seen.append((batch, one.acknowledged(stage.subject)))
        return Done(batch, rows=7)

    def with_audit(pipeline: PipelineConfig, rules: Sequence[RuleConfig]) -> tuple[Stage, ...]:
        added: list[Stage] = []
        for stage in pipeline_stages(pipeline, rules):
            if stage.kind is StageKind.LOAD:
                added.append(Stage("audit", stage.subject, stage.needs))
                stage = replace(stage, needs=(added[-1].name,))
            added.append(stage)
        return tuple(added)

    kind = stages.StageType(doing="auditing", about="Audits **{subject}**.", records="nothing", color="#ffffff")
    monkeypatch.setitem(stages.STAGE_TYPES, "audit", kind)
    monkeypatch.setitem(stage_work.WORK, "audit", audit)
    monkeypatch.setattr(stages, "pipeline_stages", with_audit)
    data = one.made.case.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["capture"]["batch"] = {"max_changes": 1}
    one.made.case.config = PipelineConfig.model_validate(data)
    for number in (1, 2, 3):
        one.commit(("insert", "a", (number, "v")))
    return seen


IN_ORDER = [(1, 0), (2, 1), (3, 2)]
NAMES = ("merge", "audit.copy", "load.copy", "ack.copy")


def test_a_further_stage_is_an_entry_and_a_function_for_a_process_that_does_all_stages(
    one: Pipe, audited: list[tuple[int, int]]
) -> None:
    one.made.case.config = one.made.case.config.model_copy(update={"window": 1})
    outcome = run_microbatches(one.made.runtime(), claim="test:audit:1", idle_wait_s=0.05)
    assert [batch.batch for batch in outcome.delivered] == [1, 2, 3]
    assert audited == IN_ORDER
    assert {row["stage"]: row["rows"] for row in stages_claimed(one.made.runtime(), "test:audit:1")} == {
        "drain": 3, "merge": 3, "audit.copy": 21, "load.copy": 3, "ack.copy": 0,
    }  # fmt: skip


def test_a_further_stage_is_an_entry_and_a_function_for_the_command_line(
    one: Pipe, audited: list[tuple[int, int]]
) -> None:
    phases = [step.phase for step in run(one.made.runtime(), until_head=True) if step.batch == 2]
    assert phases == ["merging", "auditing copy", "loading copy", "acknowledged"]
    assert audited == IN_ORDER


@pytest.mark.parametrize("has_worker", [True, False])
def test_a_further_stage_is_an_entry_and_a_function_for_a_run_with_a_task_per_stage(
    one: Pipe, audited: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, has_worker: bool
) -> None:
    """A task has it, or the process that captures does it for the task; each batch passes it once."""
    monkeypatch.setattr(job, "GRACE_S", 1e9 if has_worker else 0.0)
    claim, runtime = "test:audit:1", one.made.runtime
    assert drain(runtime(), claim=claim, idle_wait_s=0.05).batch == 1
    tasks = NAMES if has_worker else ()
    with ThreadPoolExecutor(5) as pool:
        others = [pool.submit(run_stage, runtime(), name, claim=claim) for name in tasks]
        captured = pool.submit(run_capture, runtime(), claim=claim, idle_wait_s=0.05)
    assert [batch for batch, _ in audited] == [1, 2, 3]
    assert all(acknowledged < batch for batch, acknowledged in audited), "it is before the load"
    assert dict(captured.result().in_drain) == ({} if has_worker else dict.fromkeys(NAMES, 3))
    assert [task.exception() for task in others] == [None] * len(tasks)
    assert run_stage(runtime(), "audit.copy", claim=claim).done == ()
    assert len(audited) == 3
