"""prune: remove what every target has acknowledged and nobody will ask for again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import structlog

from sluice.flows.runtime import Runtime
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()


def _written_s(store: SegmentStore, batch: int) -> float:
    """When the newest file of a batch was written, seconds since 1970."""
    infos = store.filesystem.get_file_info([store.full_path(path) for path, _ in store.files(batch)])
    return max((info.mtime.timestamp() for info in infos if info.mtime), default=0.0)


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
    batches = store.batches()
    removable = [b for b in batches if b <= delivered and _written_s(store, b) < limit_s]
    if not dry_run:
        for batch in removable:
            store.delete_batch(batch)
    _log.info(
        "pruned", pipeline=runtime.name, removed=len(removable), kept=len(batches) - len(removable), dry_run=dry_run
    )
    return PruneOutcome(tuple(removable), len(batches) - len(removable))
