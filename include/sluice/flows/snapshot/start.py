"""The targets that start from the rows of the pipeline's snapshot, and whether the snapshot has them."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from sluice.config.pipeline import SNAPSHOT
from sluice.coordination.cursor import Cursor
from sluice.coordination.state import PipelineState
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot.lost_batches import lacks_lost

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
    held = state.acks.get(SNAPSHOT)
    filling = [dump.id for dump in state.dumps.active() if not dump.targets or SNAPSHOT in dump.targets]
    if held is None or filling:
        waiting = ", ".join((*names, *again))
        _log.info("snapshot_start_postponed", pipeline=runtime.name, targets=waiting, dumps=", ".join(filling))
        return SnapshotStarts(waiting=names)
    return SnapshotStarts(now=names if cursor.next_batch > held.began + 1 else (), again=again)
