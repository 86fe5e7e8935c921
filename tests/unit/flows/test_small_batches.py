"""A small batch is merged by its drain; everything else is left to the task that shows what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.flows import drain_and_merge as handover
from sluice.flows import stages
from sluice.flows.capture.drain import drain
from sluice.flows.drain_and_merge import merge_if_small
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.model.batches import DrainOutcome
from tests.support.pipelines.case import Case
from tests.support.tables.numbered import numbered_pipeline

RULE = """
def transform(batch, context):
    return batch
"""


@pytest.fixture
def made(tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as one:
        yield one


def with_rule(made: Case, text: str = RULE) -> None:
    (made.folder / "rules/engine.yaml").write_text("rules: [{name: mine, path: mine.py, type: arrow}]\n")
    (made.folder / "rules/mine.py").write_text(text)
    made.path.write_text(made.path.read_text() + "rules: engine.yaml\n")


def next_batch(made: Case, rows: int, claim: str) -> DrainOutcome:
    values = ", ".join(f"({row}, '{claim}')" for row in range(rows))
    made.source.execute(f"REPLACE INTO `{made.schema}`.t VALUES {values}")
    return drained(made, claim, 5)


def drained(made: Case, claim: str, idle_wait_s: float) -> DrainOutcome:
    runtime = made.runtime()
    return merge_if_small(runtime, drain(runtime, claim=f"test:a:{claim}", idle_wait_s=idle_wait_s))


def deliver(made: Case, batch: int | None) -> None:
    assert batch is not None
    load(made.runtime(), "copy", batch)
    ack(made.runtime(), "copy", batch)
    made.assert_equal("t")


def test_a_large_batch_is_left_to_the_merge(made: Case) -> None:
    made.path.write_text(made.path.read_text().replace("mode: local", "mode: local, from_changes: 20"))
    outcome = next_batch(made, 20, "one")
    assert not outcome.merged
    deliver(made, outcome.batch)  # a load merges what is not merged
    assert next_batch(made, 9, "two").merged  # a REPLACE of a row is two changes


def test_quick_rules_are_known_from_the_batch_before(made: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rule(made)
    first = next_batch(made, 5, "one")
    assert not first.merged
    deliver(made, first.batch)
    second = next_batch(made, 5, "two")
    assert second.merged
    deliver(made, second.batch)
    monkeypatch.setattr(stages, "SLOW_RULES_S", 0.0)
    assert not next_batch(made, 5, "three").merged


def test_a_rule_that_fails_is_the_merges_to_report(made: Case) -> None:
    with_rule(made)
    deliver(made, next_batch(made, 5, "one").batch)
    (made.folder / "rules/mine.py").write_text("def transform(batch, context):\n    raise ValueError('no')\n")
    outcome = next_batch(made, 5, "two")
    assert outcome.batch is not None
    assert not outcome.merged
    with pytest.raises(handover.SluiceError, match="mine"):
        merge(made.runtime(), outcome.batch)
