"""The stages of a pipeline as data, and the loop that does one of them for every batch of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.config.engine import RuleConfig
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig
from sluice.flows.run import run
from sluice.flows.stage_loop import Done, NeverReady, ThreadBoard, work
from sluice.flows.stages import Stage, StageKind, described, display_name, leaves, pipeline_stages, rules_in, rules_of
from sluice.operations.status import status
from tests.support.twins.pipes import Pipe, pipe

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
    assert [stage.name for stage in leaves(stages_of(tmp_path))] == ["ack.one", "ack.two"]
    assert [stage.name for stage in stages_of(tmp_path) if not stage.is_serial] == ["merge", "rule.early", "rule.late"]
    assert all(stage.records and stage.doing for stage in stages_of(tmp_path))


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


@contextmanager
def loops(
    stages: tuple[Stage, ...],
    do: Callable[[Stage, int], Done],
    told: Callable[[int, Mapping[str, Done]], None] = lambda batch, done: None,
) -> Iterator[tuple[ThreadBoard, dict[str, Future[int]]]]:
    """All stages but the capture, a thread each."""
    board = ThreadBoard(stages, told)
    with ThreadPoolExecutor(len(stages)) as pool:
        under_way = {one.name: pool.submit(work, one, board, do) for one in stages if one.kind is not StageKind.CAPTURE}
        try:
            yield board, under_way
        finally:
            board.end()
            wait(under_way.values(), PATIENCE_S)
            board.stop()


def test_every_stage_gets_every_batch_in_order_and_after_what_it_needs(tmp_path: Path) -> None:
    stages, lock, did, told = stages_of(tmp_path), threading.Lock(), list[tuple[str, int]](), list[int]()

    def do(stage: Stage, batch: int) -> Done:
        with lock:
            did.append((stage.name, batch))
        return Done(batch, rows=batch)

    with loops(stages, do, lambda batch, done: told.append(batch)) as (board, under_way):
        for batch in range(1, 30):
            board.captured(batch)
            board.wait_for_room(3)
        board.wait_for_room(0)
        assert not board.is_busy
    assert told == list(range(1, 30))
    assert {one.result() for one in under_way.values()} == {29}
    for stage in stages[1:]:
        mine = [batch for name, batch in did if name == stage.name]
        assert mine == told
        for batch in mine:
            for need in stage.needs:
                assert need == "drain" or did.index((need, batch)) < did.index((stage.name, batch))


def test_stages_are_at_work_on_different_batches_at_the_same_time(tmp_path: Path) -> None:
    """A merge goes on while the load of an earlier batch lasts, and a target does not wait for another."""
    stages, merged, loads = stages_of(tmp_path, "rules: []"), threading.Event(), threading.Event()

    def do(stage: Stage, batch: int) -> Done:
        if stage.name == "merge" and batch == 2:
            merged.set()
        if stage.name == "load.one" and batch == 1:
            assert merged.wait(PATIENCE_S)
            assert loads.wait(PATIENCE_S)
        if stage.name == "ack.two" and batch == 2:
            loads.set()
        return Done(batch)

    with loops(stages, do) as (board, under_way):
        board.captured(1)
        board.captured(2)
        board.wait_for_room(0)
    assert {one.result() for one in under_way.values()} == {2}


def test_a_batch_is_closed_so_that_its_merge_ends_with_the_load_before_it() -> None:
    """Closed earlier, it would wait merged, and changes that come meanwhile would wait for one load more."""
    now = 0.0
    one_target = parse_model(PIPELINE.replace(", {name: two, type: mysql, connection: c}", ""), "s", PipelineConfig)
    _, merge, load, ack = stages = pipeline_stages(one_target, ())
    board = ThreadBoard(stages, clock=lambda: now)

    def passes(stage: Stage, batch: int, seconds: float, **more: Any) -> None:
        nonlocal now
        assert board.take(stage, batch - 1) == batch
        now += seconds
        board.done(stage, Done(batch, seconds, **more))

    board.captured(1)
    assert board.is_busy, "the merge is"
    passes(merge, 1, 0.2)
    assert not board.is_busy, "nobody knows how long a load lasts"
    passes(load, 1, 1.0)
    passes(ack, 1, 0.0)
    assert not board.is_busy
    board.captured(2)
    passes(merge, 2, 0.2)
    assert board.is_busy, "its load has not begun"
    assert board.take(load, 1) == 2
    now += 0.69
    assert board.is_busy, "0.31 s of the load are left, and 0.3 s suffice"
    now += 0.02
    assert not board.is_busy
    board.captured(3)
    assert board.is_busy, "two batches are under way"
    board.done(load, Done(2, 0.0, later="quarantined"))
    passes(ack, 2, 0.0, later="quarantined")
    passes(merge, 3, 0.2)
    assert board.is_busy, "a load that was left out says nothing of how long one lasts"
    passes(load, 3, 0.1)
    passes(ack, 3, 0.0)
    assert not board.is_busy


def test_a_stage_that_fails_leaves_to_those_after_it_what_it_has_done(tmp_path: Path) -> None:
    stages, did = stages_of(tmp_path), list[tuple[str, int]]()

    def do(stage: Stage, batch: int) -> Done:
        if stage.name == "rule.early" and batch == 3:
            raise ValueError("a rule")
        did.append((stage.name, batch))
        return Done(batch)

    with loops(stages, do) as (board, under_way):
        for batch in range(1, 6):
            board.captured(batch)
        with pytest.raises(ValueError, match="a rule"):
            board.wait_for_room(0)
        assert not board.is_busy, "the batch that is captured now would stay open until it is full"
    assert under_way["merge"].result() == 5
    assert isinstance(under_way["rule.early"].exception(), ValueError)
    for name in ("rule.late", "load.one", "ack.one", "load.two", "ack.two"):
        assert isinstance(under_way[name].exception(), NeverReady)
        assert [batch for one, batch in did if one == name] == [1, 2]


def test_a_target_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    stages, acknowledged = stages_of(tmp_path, "rules: []"), list[int]()

    def do(stage: Stage, batch: int) -> Done:
        if stage.name == "load.one":
            raise ValueError("a target")
        if stage.name == "ack.two":
            acknowledged.append(batch)
        return Done(batch)

    with loops(stages, do) as (board, under_way):
        for batch in range(1, 4):
            board.captured(batch)
    assert (under_way["ack.two"].result(), acknowledged) == (3, [1, 2, 3])
    assert isinstance(under_way["ack.one"].exception(), NeverReady)


def test_a_batch_that_is_left_for_later_is_passed_by(tmp_path: Path) -> None:
    stages, acknowledged, told = stages_of(tmp_path, "rules: []"), list[str](), list[Mapping[str, Done]]()

    def do(stage: Stage, batch: int) -> Done:
        if stage.kind is StageKind.ACKNOWLEDGE:
            acknowledged.append(stage.subject)
        return Done(batch, later="quarantined" if stage.name == "load.one" else "")

    with loops(stages, do, lambda batch, done: told.append(done)) as (board, _):
        board.captured(1)
        board.wait_for_room(0)
    assert acknowledged == ["two"]
    assert told[0]["ack.one"].later == "quarantined"


def test_a_process_that_ends_begins_nothing(tmp_path: Path) -> None:
    stages, begun = stages_of(tmp_path), threading.Event()

    def do(stage: Stage, batch: int) -> Done:
        begun.set()
        raise KeyboardInterrupt

    with loops(stages, do) as (board, under_way):
        board.captured(1)
        assert begun.wait(PATIENCE_S)
        with pytest.raises(KeyboardInterrupt):
            board.wait_for_room(0)
        board.captured(2)
        wait(under_way.values(), PATIENCE_S)
    assert {type(one.exception()) for name, one in under_way.items() if name != "merge"} == {NeverReady}


# -- who runs it -------------------------------------------------------------------------------------------------------


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy")


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
