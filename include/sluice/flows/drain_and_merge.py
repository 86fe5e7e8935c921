"""A drain that merges its own batch while that is small, so that the load may follow at once.

Near the head of the log a batch is a thousand changes or two: its merge is tens of milliseconds of work, and a task of its own is ten times that
before it begins.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from sluice.errors import SluiceError
from sluice.flows import stages
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from sluice.model.batches import DrainOutcome
from sluice.segments.changeset import read_changeset

_log = structlog.get_logger()

SMALL = 5_000
"""Changes of a batch that is left to the merge's own task, where ``spark.from_changes`` names no number."""


def merge_if_small(runtime: Runtime, outcome: DrainOutcome) -> DrainOutcome:
    """Merge what was drained; ``merged`` of the outcome: the batch needs no merge any more, nor a stage of rules.

    A batch of ``spark.from_changes`` changes or more (0: :data:`SMALL`), one with slow rules, and one whose merge fails are left to their own task,
    which says what is wrong.
    """
    if outcome.batch is None or not is_small(runtime, outcome):
        return outcome
    try:
        return replace(outcome, merged=bool(merge(runtime, outcome.batch).changeset))
    except SluiceError as error:
        _log.info("merge_left_to_its_task", pipeline=runtime.name, batch=outcome.batch, because=str(error))
        return outcome


def is_small(runtime: Runtime, outcome: DrainOutcome) -> bool:
    """May the batch be merged by its drain, without a task of its own?"""
    assert outcome.batch is not None
    if runtime.mode == "submit" or outcome.changes >= (runtime.pipeline.spark.from_changes or SMALL):
        return False
    return runtime.rules_path is None or rules_are_quick(runtime, outcome.batch - 1)


def rules_are_quick(runtime: Runtime, earlier: int) -> bool:
    """As far as the batch before tells; False if it does not."""
    seconds = seconds_of_rules(runtime, earlier)
    return seconds is not None and seconds <= stages.SLOW_RULES_S


def seconds_of_rules(runtime: Runtime, batch: int) -> float | None:
    """How long the rules took on a batch; None if that is not known."""
    try:
        with runtime.state() as state:
            record = state.batch(batch)
        if record is None or not record.changeset:
            return None
        return sum(rule.seconds for rule in read_changeset(runtime.store, record.changeset).manifest.rules)
    except SluiceError:
        return None
