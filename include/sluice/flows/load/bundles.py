"""Targets with ``commit_every``: when their waiting batches are loaded, and up to which batch.

A batch of such a target stays in the segments until the first waiting one has the age of ``commit_every``. Then, or as
soon as a batch arrives that cannot be written together with others, or if enough of them wait, all that are merged are
loaded (:mod:`sluice.targets.bundles`) and acknowledged one after the other. An idle pipeline finds them, too: they are
in its window again, and are delivered like a batch whose run is gone.
"""

from __future__ import annotations

from sluice.coordination.bundles import WaitingBatches
from sluice.coordination.state import PipelineState
from sluice.segments.store import SegmentStore
from sluice.targets.bundles import MOST_ROWS

MOST_BATCHES = 100
"""Batches that wait, at most. Each costs a read of ZooKeeper whenever another one is added."""


def waits(store: SegmentStore, state: PipelineState, target: str, batch: int) -> WaitingBatches | None:
    """Return the waiting batches that ``batch`` joins if it is not to be loaded into ``target`` yet; None to load now.

    Raises SegmentError.
    """
    batches = state.waiting().get(target)
    if batches is None or batch < batches.first or batches.is_due or batch - batches.first + 1 >= MOST_BATCHES:
        return None
    known_batches = [state.batches.get(number) for number in range(batches.first, batch + 1)]
    if sum(record.changes for record in known_batches if record is not None) >= MOST_ROWS or _is_alone(
        store, state, target, batch
    ):
        return None
    return batches


def _is_alone(store: SegmentStore, state: PipelineState, target: str, batch: int) -> bool:
    """Return True if the batch must not wait for others: it changes definitions, or a dump placed rows in it and
    somebody waits for them.
    """
    record = state.batches.get(batch)
    if record is None or not record.is_for(target):
        return False
    manifest = store.read_manifest(record.manifest)
    return bool(manifest.ddl or manifest.replaces or record.targets or any(file.reads for file in manifest.files))


def ready(state: PipelineState, target: str, batch: int) -> int:
    """Return the last batch that can be loaded together with ``batch``: those after it that wait, too, and are merged.

    Returns ``batch`` if the target has it already.
    """
    process = state.acks.get(target)
    if process is None or process.batch >= batch:
        return batch
    while batch < process.batch + MOST_BATCHES:
        record = state.batches.get(batch + 1)
        if record is None or (record.is_for(target) and not record.changeset):
            break
        batch += 1
    return batch


__all__ = ["MOST_BATCHES", "ready", "waits"]
