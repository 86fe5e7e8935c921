"""``sluice run`` without an end: a pipeline file that changes, and Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.cli.run import _following, _Interrupts
from sluice.flows.run import Step
from sluice.flows.runtime import Runtime
from tests.support.tables.numbered import insert, numbered_pipeline, rows


def test_a_file_that_changed_counts_from_the_next_batch_and_a_wrong_one_never(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> None:
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as made:
        runtimes: list[Runtime] = []
        steps = _following(
            str(made.path), lambda one: Runtime.build(one, resolver=made.resolver, runner="local"), runtimes
        )
        for number, text in ((1, made.yaml), (2, "nonsense: true\n"), (3, made.yaml + "window: 2\n")):
            made.path.write_text(text)
            insert(made, number)
            assert any(step.phase == "acknowledged" for step in steps)
        assert next(step.phase for step in steps) == "draining"
        steps.close()
        assert rows(made, twin_target) == [1, 2, 3]
        assert [runtime.pipeline.window for runtime in runtimes] == [3, 2]


@pytest.mark.parametrize("phase", ["draining", "acknowledged", "standing by"])
def test_ctrl_c_ends_a_run_at_once_between_two_batches(phase: str) -> None:
    interrupts = _Interrupts()
    interrupts.note(Step("loading copy", 1))
    interrupts.note(Step(phase, 1))
    with pytest.raises(KeyboardInterrupt):
        interrupts.receive()


def test_ctrl_c_ends_a_run_after_the_batch_under_way_and_the_second_one_at_once() -> None:
    interrupts = _Interrupts()
    interrupts.note(Step("merging", 1))
    interrupts.receive()
    interrupts.note(Step("loading copy", 1))
    with pytest.raises(KeyboardInterrupt):
        interrupts.receive()
    with pytest.raises(KeyboardInterrupt):
        interrupts.note(Step("acknowledged", 1))
