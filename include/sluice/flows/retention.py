"""prune: remove what every target has acknowledged and nobody will ask for again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import structlog

from sluice.flows.runtime import Runtime

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PruneOutcome:
    """Batches removed from the store, and those kept."""

    removed: tuple[int, ...]
    kept: int

    def to_json(self) -> dict[str, Any]:
        return {"removed": list(self.removed), "kept": self.kept}


def prune(runtime: Runtime, *, dry_run: bool = False) -> PruneOutcome:
    """Remove batches that are acknowledged by every target and older than ``capture.segments.retain``."""
    store = runtime.store
    limit_s = time.time() - runtime.pipeline.capture.segments.retain.total_seconds()
    with runtime.state() as state:
        delivered = state.delivered()
    batches = store.list_batches()
    removable = [b for b in batches if b <= delivered and store.modified_s(b) < limit_s]
    if not dry_run:
        for batch in removable:
            store.delete_batch(batch)
    _log.info(
        "pruned", pipeline=runtime.name, removed=len(removable), kept=len(batches) - len(removable), dry_run=dry_run
    )
    return PruneOutcome(tuple(removable), len(batches) - len(removable))
