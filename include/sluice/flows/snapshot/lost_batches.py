"""Targets that lack batches which are no longer stored, and start again from the pipeline's snapshot
(``on_lost_batches: snapshot``).

A batch is gone when retention removes it, or because a target was restored from an older backup. The capture finds a
target whose next batch is gone and makes a batch for it: all rows of the snapshot as of the batch before. It also
deletes rows of the target that the snapshot does not have. The target's checkpoint moves from the batch that it holds
to that one in one step, and acknowledgements follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from sluice.config.pipeline import SNAPSHOT, TargetConfig
from sluice.coordination.cursor import Cursor
from sluice.coordination.state import PipelineState
from sluice.errors import LoadError, SegmentError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import known_again

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SnapshotStarts:
    """Targets that start from the snapshot: ``now``, or once it is filled (``waiting``). All others start from the log.

    ``again``: targets that started long ago and lack batches that are gone.
    """

    now: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    again: tuple[str, ...] = ()


def snapshot_starts(runtime: Runtime, state: PipelineState, cursor: Cursor) -> SnapshotStarts:
    """Return which targets with ``start: snapshot`` start now or wait, and which with ``on_lost_batches: snapshot``
    start again.

    They wait while the snapshot has not begun or a dump still fills it; capture continues. If no batch was made since
    the snapshot began, a target that starts from the log misses nothing that the snapshot has.
    """
    joined = [target.name for target in runtime.pipeline.targets if target.start == "snapshot"]
    names = tuple(name for name in joined if state.acks.get(name) is None)
    again = tuple(target.name for target in runtime.pipeline.targets if lacks_lost(runtime, state, target, cursor))
    if not names and not again:
        return SnapshotStarts()
    held_acknowledgement = state.acks.get(SNAPSHOT)
    filling = [dump.id for dump in state.dumps.active() if not dump.targets or SNAPSHOT in dump.targets]
    if held_acknowledgement is None or filling:
        waiting = ", ".join((*names, *again))
        _log.info("snapshot_start_postponed", pipeline=runtime.name, targets=waiting, dumps=", ".join(filling))
        return SnapshotStarts(waiting=names)
    return SnapshotStarts(now=names if cursor.next_batch > held_acknowledgement.began + 1 else (), again=again)


BY_ITSELF = "sluice"
"""The name in the audit if no person did it."""


class LostBatches(LoadError):
    """The next batch of a target is gone; it starts again from the snapshot with a batch that the capture makes."""


def lacks_lost(runtime: Runtime, state: PipelineState, target: TargetConfig, cursor: Cursor) -> bool:
    """Return True for a target that starts again from the snapshot if batches are gone, and whose next batch is
    gone.
    """
    if target.on_lost_batches != "snapshot":
        return False
    process = state.acks.get(target.name)
    if process is None or process.following >= cursor.next_batch:
        return False
    return _is_gone(runtime, target.name, process.following)


def any_lacks_lost(runtime: Runtime, state: PipelineState) -> bool:
    """See :func:`lacks_lost`: the next capture has something to do."""
    cursor = state.cursor()
    return cursor is not None and any(lacks_lost(runtime, state, target, cursor) for target in runtime.pipeline.targets)


def require_stored(runtime: Runtime, state: PipelineState, target: TargetConfig, last_batch: int, until: int) -> int:
    """Return the next batch, at most ``until``, for a target that holds ``last_batch``.

    Raises LostBatches for one that starts again later.
    """
    process = state.acks.get(target.name)
    following = max(last_batch + 1, process.restart if process is not None else 0)
    if target.on_lost_batches == "snapshot" and (following > until or _is_gone(runtime, target.name, following)):
        raise LostBatches(
            f"target {target.name} holds batch {last_batch}, and batches after it are no longer stored: it starts "
            "again from the snapshot",
            where=f"pipeline {runtime.name}",
            hint="nothing is to do: the next capture makes the batch for it",
        )
    return following


def _is_gone(runtime: Runtime, target: str, number: int) -> bool:
    try:
        known_again(runtime.state, runtime.store, target, number)
    except SegmentError:
        return True
    return False
