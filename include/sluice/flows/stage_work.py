"""The work of each stage on a batch: one function per kind of stage.

The capture makes batches, see :mod:`sluice.flows.capture.drain`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from sluice.coordination.bundles import WaitingBatches
from sluice.coordination.quarantine import Quarantined
from sluice.flows.capture.ahead import try_within_budget
from sluice.flows.load.isolation import TARGET_ERRORS, acknowledge, deliver
from sluice.flows.runtime import Runtime
from sluice.flows.stage_notes import stage_notes
from sluice.flows.stage_sums import Done
from sluice.flows.stages import Stage, StageKind
from sluice.flows.transform.merge import merge
from sluice.flows.transform.stages import apply_rule

QUARANTINED = "quarantined"
WAITS = "waits"


def _merge(runtime: Runtime, stage: Stage, batch: int) -> Done:
    outcome = merge(runtime, batch)
    errors = sum(rule.errors for rule in outcome.rules)
    return Done(batch, rows=outcome.rows, errors=errors, rules=outcome.rules, already=outcome.already)


def _apply(runtime: Runtime, stage: Stage, batch: int) -> Done:
    rule = apply_rule(runtime, batch, stage.subject)
    return Done(batch, rows=rule.rows_out, errors=rule.errors, rules=rule.rules, already=rule.already)


def _load(runtime: Runtime, stage: Stage, batch: int) -> Done:
    try:
        outcome = deliver(runtime, stage.subject, batch)
    except TARGET_ERRORS:
        try_within_budget(runtime)  # whoever tries again does so after a while, and the source goes on writing
        raise
    if isinstance(outcome, Quarantined | WaitingBatches):
        return Done(batch, later=QUARANTINED if isinstance(outcome, Quarantined) else WAITS)
    return Done(batch, rows=outcome.upserts + outcome.deletes, errors=outcome.dead_letters)


def _acknowledge(runtime: Runtime, stage: Stage, batch: int) -> Done:
    outcome = acknowledge(runtime, stage.subject, batch)
    return Done(batch, later=QUARANTINED if isinstance(outcome, Quarantined) else "")


WORK: dict[str, Callable[[Runtime, Stage, int], Done]] = {
    StageKind.MERGE: _merge,
    StageKind.RULE: _apply,
    StageKind.LOAD: _load,
    StageKind.ACKNOWLEDGE: _acknowledge,
}


def do(runtime: Runtime, stage: Stage, batch: int) -> Done:
    """Run ``stage`` on ``batch`` and record it. A batch that has passed the stage is left as it is.

    Raises:
        What the stage's own function raises; the batch stays where it was.
    """
    began = time.monotonic()
    outcome = WORK[stage.kind](runtime, stage, batch)
    seconds = time.monotonic() - began
    if not outcome.already and not outcome.later:
        stage_notes.passed(runtime, stage.name, rows=outcome.rows, seconds=seconds)
    return replace(outcome, seconds=seconds)


__all__ = ["QUARANTINED", "WAITS", "WORK", "do"]
