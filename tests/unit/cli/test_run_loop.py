"""``sluice run`` without an end: a pipeline file that changes, and Ctrl-C."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import run as run_module
from sluice.cli.run import _Interrupts, _Loop, _Tally
from sluice.errors import ConfigError
from sluice.flows.job import side_by_side
from sluice.flows.run import Step
from sluice.flows.runtime import Runtime
from tests.support.running.waiting import wait_until
from tests.support.tables.numbered import insert, numbered_pipeline, rows


def test_a_file_that_changed_counts_from_the_next_batch_and_a_wrong_one_never(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> None:
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as made:
        loop = _Loop(
            str(made.path), lambda one: Runtime.build(one, resolver=made.resolver, runner="local"), _Tally(),
            _Interrupts().of("case"), until_head=False, batches=None, standby=False,
        )  # fmt: skip
        steps = loop._steps()
        for number, text in ((1, made.yaml), (2, "nonsense: true\n"), (3, made.yaml + "window: 2\n")):
            made.path.write_text(text)
            insert(made, number)
            assert any(step.phase == "acknowledged" for step in steps)
        assert next(step.phase for step in steps) == "draining"
        steps.close()
        assert rows(made, twin_target) == [1, 2, 3]
        assert [runtime.pipeline.window for runtime in loop._runtimes] == [3, 2]


@pytest.mark.parametrize("phase", ["draining", "acknowledged", "standing by"])
def test_ctrl_c_ends_a_run_at_once_between_two_batches(phase: str) -> None:
    interrupts = _Interrupts()
    work = interrupts.of("shop")
    work.note(Step("loading copy", 1))
    work.note(Step(phase, 1))
    with pytest.raises(KeyboardInterrupt):
        interrupts.receive()


def test_ctrl_c_ends_a_run_after_the_batch_under_way_and_the_second_one_at_once() -> None:
    interrupts = _Interrupts()
    work = interrupts.of("shop")
    work.note(Step("merging", 1))
    interrupts.receive()
    work.note(Step("loading copy", 1))
    with pytest.raises(KeyboardInterrupt):
        interrupts.receive()
    with pytest.raises(KeyboardInterrupt):
        work.note(Step("acknowledged", 1))


def test_ctrl_c_ends_each_of_several_after_its_batch() -> None:
    interrupts = _Interrupts()
    one, two = interrupts.of("shop"), interrupts.of("crm")
    one.note(Step("draining"))
    two.note(Step("merging", 1))
    interrupts.receive()
    two.note(Step("loading copy", 1))
    for work in (one, two):
        with pytest.raises(KeyboardInterrupt):
            work.note(Step("draining"))
    assert one.wait(0)
    with pytest.raises(KeyboardInterrupt):
        interrupts.require_none()


def test_several_pipelines_work_in_one_process_and_one_that_fails_stops_no_other(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(run_module, "_RETRY", timedelta(milliseconds=10))
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as made:
        insert(made, 1)
        interrupts = _Interrupts()
        failures: list[str] = []

        def build(config: Any) -> Runtime:
            if config.pipeline == "crm":
                failures.append(config.pipeline)
                raise ConfigError("the file is wrong", hint="`sluice check PIPELINE`")
            return Runtime.build(config, resolver=made.resolver, runner="local")

        broken = tmp_path / "crm.yaml"
        broken.write_text(made.yaml.replace("pipeline: case", "pipeline: crm"))
        loops = [
            _Loop(str(path), build, _Tally(), interrupts.of(str(path)), until_head=False, batches=None, standby=False)
            for path in (made.path, broken)
        ]
        steps: list[tuple[str, str]] = []

        def show(step: Step, name: str) -> None:
            steps.append((step.phase, name))
            if step.phase == "acknowledged":
                wait_until(lambda: len(failures) >= 3, "a third attempt at the other one")
                interrupts.receive()

        side_by_side([partial(loop.run_beside_others, show) for loop in loops])
        assert rows(made, twin_target) == [1]
        assert ("acknowledged", str(made.path)) in steps
        assert "the file is wrong" in capsys.readouterr().err


def test_several_pipelines_with_an_end_end_with_the_first_error(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> None:
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as made:
        insert(made, 1)
        other = tmp_path / "crm.yaml"
        other.write_text(made.yaml.replace("pipeline: case", "pipeline: crm").replace("case_source", "nowhere"))
        done = made.cli("run", str(other), str(made.path), "--until-head")
        assert done.returncode == 1
        assert "'nowhere'" in done.stderr
        assert rows(made, twin_target) == [1]
        done = made.cli("run", str(made.path), str(made.path), "--until-head", "--json")
        assert done.returncode == 0, "the same twice is one"
