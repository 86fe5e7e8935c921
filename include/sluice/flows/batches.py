"""The stored manifest of a batch."""

from __future__ import annotations

from sluice.flows.runtime import Runtime
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore


def manifest_of(runtime: Runtime, store: SegmentStore, batch: int) -> SegmentManifest | None:
    """The manifest that counts for ``batch``: the one ZooKeeper names, else the newest in the store; None for an orphan."""
    with runtime.state() as state:
        record = state.batch(batch)
    if record:
        return store.read_manifest(record.manifest)
    names = sorted(p for p, _ in store.files(batch) if p.rsplit("/", 1)[-1].startswith("manifest-"))
    return store.read_manifest(names[-1]) if names else None
