"""A small batch is merged by its drain; everything else is left to the task that shows what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.capture.drain import drain
from sluice.flows.drain_and_merge import merge_if_small
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.model.batches import DrainOutcome
from tests.support.pipelines.case import Case
from tests.support.tables.numbered import numbered_pipeline


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with numbered_pipeline(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as one:
        yield one


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


def test_a_small_batch_needs_no_merge_any_more(made: Case) -> None:
    outcome = next_batch(made, 20, "one")
    assert outcome.merged
    assert outcome.batch is not None
    assert merge(made.runtime(), outcome.batch).already
    deliver(made, outcome.batch)
    again = drained(made, "one", 0.1)
    assert (again.batch, again.adopted, again.merged) == (outcome.batch, True, True)
