"""merge: a batch becomes a changeset: one row a key, rules applied, columns mapped."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import structlog

from sluice.flows.runtime import Runtime, attempt_id
from sluice.flows.units import MergeResult, plan_merge, run_merge_unit, write_changeset_manifest
from sluice.flows.watch import Watch

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """What a merge did: ``changes`` rows in, ``rows`` out, in ``units`` work units; ``already``: it was merged before."""

    batch: int
    changeset: str
    changes: int = 0
    rows: int = 0
    units: int = 0
    seconds: float = 0.0
    already: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "changeset": self.changeset,
            "changes": self.changes,
            "rows": self.rows,
            "units": self.units,
            "seconds": round(self.seconds, 3),
            "already": self.already,
        }


def merge(runtime: Runtime, batch: int) -> MergeOutcome:
    """Merge batch number ``batch``. Two merges of one batch may run; the first to end is kept, the other's files are orphans.

    Raises:
        RuleError: a rule is broken; the batch stays.
        SegmentError: a segment is damaged.
        Paused, Restarted: a person said so.
    """
    started = time.monotonic()
    with runtime.state() as state:
        record = state.require(batch)
        watch = Watch(state, f"merging batch {batch}")
        if record.changeset:
            return MergeOutcome(batch, record.changeset, already=True)
        store = runtime.store
        manifest = store.read_manifest(record.manifest)
        attempt = attempt_id()
        units = plan_merge(store, manifest, runtime.pipeline, runtime.rules_path, attempt, resolver=runtime.resolver)
        results: list[MergeResult] = watch.run(
            runtime.runner_for(manifest.changes),
            run_merge_unit,
            units,
            description=f"{runtime.name}: merge batch {batch}",
        )
        changeset = write_changeset_manifest(store, manifest, attempt, results)
        kept = state.merged(batch, changeset.path, under=watch.permit)
        outcome = MergeOutcome(
            batch,
            kept.changeset or changeset.path,
            changes=manifest.changes,
            rows=changeset.rows,
            units=len(units),
            seconds=time.monotonic() - started,
        )
        for rule in changeset.manifest.rules:
            _log.info("rule", pipeline=runtime.name, batch=batch, **rule.model_dump())
        _log.info("merged", pipeline=runtime.name, **outcome.to_json())
        return outcome
