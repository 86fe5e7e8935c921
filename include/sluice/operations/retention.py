"""prune: remove what every target has acknowledged and no command will need again."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.flows.runtime import Runtime
from sluice.flows.stage_notes import prune_notes
from sluice.model.dumps import DumpState
from sluice.operations.compaction import Compaction
from sluice.operations.deadletters.store import prune_letters
from sluice.operations.subscriptions import Held
from sluice.segments.archive import ArchiveName
from sluice.segments.schemas import SchemaStore
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOutcome:
    """The batches removed from the store, and the number of those kept.

    Attributes:
        warnings: about the space that is left.
        audit: entries of the audit removed.
        expired: subscriptions that had not acknowledged what was removed.
        compacted: batches put into ``archives`` archives.
    """

    removed: tuple[int, ...]
    kept: int
    warnings: tuple[str, ...] = ()
    audit: int = 0
    expired: tuple[str, ...] = ()
    compacted: tuple[int, ...] = ()
    archives: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        return {
            "removed": list(self.removed),
            "kept": self.kept,
            "warnings": list(self.warnings),
            "audit": self.audit,
            "expired": list(self.expired),
            "compacted": list(self.compacted),
            "archives": self.archives,
        }


DISK = "the disk of the segment store"
"""The words that every warning of too little space has."""

SOON_S = 24 * 3600.0
"""Seconds until the disk is full, at the present rate, from which on a warning is given; so it is if less than a tenth
of it is free.
"""


def space_warnings(runtime: Runtime) -> list[str]:
    """Return what an operator should know before the disk is full; nothing for stores that do not tell their free
    space.
    """
    try:
        space = runtime.store.space()
    except SluiceError as error:
        return [str(error)]
    if space is None:
        return []
    free, total = space
    gib = 2**30
    if free < total / 10:
        return [f"{DISK} has {free / gib:.1f} GiB free, {free * 100 // total} % of it ({runtime.store_uri})"]
    return []


def rate_warning(free_bytes: int, written: Sequence[tuple[float, int]], now_s: float) -> str | None:
    """Return a sentence if the disk would be full soon, else None.

    ``written``: (time, bytes) of what was stored lately.
    """
    lately = [(at, size) for at, size in written if now_s - at < 3600]
    if len(lately) < 2:
        return None
    span_s = max(now_s - min(at for at, _ in lately), 60.0)
    rate = sum(size for _, size in lately) / span_s
    if rate <= 0 or free_bytes / rate > SOON_S:
        return None
    return f"at the rate of the last hour {DISK} is full in {free_bytes / rate / 3600:.1f} hours"


def prune(runtime: Runtime, *, dry_run: bool = False, keep_audit_s: float = math.inf) -> PruneOutcome:
    """Remove batches that are acknowledged by every target and older than ``capture.segments.retain``; put those into
    archives that are older than ``compact_after``.

    What some target still needs stays, whatever its age, unless it starts again from the snapshot
    (``on_lost_batches``); what a subscription has not acknowledged, until it is ``subscriptions.expire`` old. Entries
    of the audit go that are older than ``keep_audit_s``. Warns, in the log and in the outcome, before the disk runs
    out.
    """
    store = runtime.store
    limit_s = time.time() - runtime.pipeline.capture.segments.retain.total_seconds()
    before = store.batches()
    with runtime.state() as state:
        waited_for = runtime.pipeline.waited_for
        delivered = state.delivered(waited_for)
        holders = Held(runtime, state)
        written_s = {batch: store.written_s(batch) for batch in before}
        may_go = {
            batch
            for batch, at_s in written_s.items()
            if batch <= delivered and at_s < limit_s and not holders.keeps(batch, at_s)
        }
        removed: list[int] = []
        for unit in removable(store, before, may_go):
            if not dry_run and unit.last > state.delivered(waited_for):
                break  # it was withdrawn just before, to be delivered again
            for batch in unit.batches:
                holders.expire(batch, dry_run=dry_run)
            if not dry_run:
                unit.remove(store)
            removed += unit.batches
        written = [
            (at_s, sum(size for _, size in store.files(batch)))
            for batch, at_s in written_s.items()
            if batch not in removed and time.time() - at_s < 3600
        ]
        compacted = Compaction(runtime, state, waited_for).run(removed, dry_run=dry_run)
        if not dry_run:
            _forget_dumps(state, store)
        audit = state.audit.forget(before_s=time.time() - keep_audit_s, dry_run=dry_run)
        cursor = state.cursor()
        if cursor is not None and cursor.schema:
            SchemaStore(store).prune(cursor.schema, cursor.position, limit_s, dry_run=dry_run)
    prune_notes(store, dry_run=dry_run)
    prune_letters(runtime, older_than_s=runtime.pipeline.capture.segments.retain.total_seconds(), dry_run=dry_run)
    warnings = [*compacted.warnings, *space_warnings(runtime)]
    space = store.space()
    soon = rate_warning(space[0], written, time.time()) if space else None
    warnings += [soon] if soon else []
    for warning in warnings:
        _log.warning(
            "retention_warned", pipeline=runtime.name, reason=warning, undelivered=sum(b > delivered for b in before)
        )
    kept_count = len(before) - len(removed)
    _log.info("batches_pruned", pipeline=runtime.name, removed=len(removed), kept=kept_count, dry_run=dry_run)
    return PruneOutcome(
        removed=tuple(removed),
        kept=kept_count,
        warnings=tuple(warnings),
        audit=audit,
        expired=tuple(holders.expired),
        compacted=tuple(compacted.batches),
        archives=compacted.archives,
    )


@dataclass(frozen=True, slots=True)
class Removable:
    """A unit of removal: the folder of a batch, or archives and what folders have of their batches."""

    batches: tuple[int, ...]
    archives: tuple[ArchiveName, ...] = ()

    @property
    def last(self) -> int:
        """The newest batch."""
        return self.batches[-1]

    def remove(self, store: SegmentStore) -> None:
        """Delete the folders, then the archives: until an archive is gone, its batches are complete."""
        for batch in self.batches:
            store.delete_batch(batch)
        for archive in self.archives:
            store.delete(archive.path)


def removable(store: SegmentStore, batches: Sequence[int], may_go: set[int]) -> list[Removable]:
    """Return what may be removed, ordered by first batch.

    An archive is removed when all of its batches may be. Archives that share a batch are removed together. What follows
    an archive that stays stays, too: the log has no hole.
    """
    groups: list[tuple[list[int], list[ArchiveName]]] = []
    for name in store.archives.names():
        if groups and name.first <= groups[-1][0][-1]:
            numbers, archives = groups[-1]
            numbers += range(numbers[-1] + 1, name.last + 1)
            archives.append(name)
        else:
            groups.append((list(name.batches), [name]))
    archived = {batch for numbers, _ in groups for batch in numbers}
    units = [Removable(tuple(numbers), tuple(archives)) for numbers, archives in groups]
    units += [Removable((batch,)) for batch in batches if batch not in archived]
    units_to_go: list[Removable] = []
    for unit in sorted(units, key=lambda unit: unit.batches[0]):
        if may_go.issuperset(unit.batches):
            units_to_go.append(unit)
        elif unit.archives:
            break
    return units_to_go


def _forget_dumps(state: PipelineState, store: SegmentStore) -> None:
    """Delete the files of dumps that have ended (keys, chunks of dead attempts) and the oldest of their nodes."""
    state.dumps.forget_old()
    for folder in store.folders("dumps"):
        dump = state.dumps.get(folder.rpartition("/")[2])
        if dump is None or dump.state in {DumpState.DONE, DumpState.CANCELLED}:
            store.delete_folder(folder)
