"""How much of its log a source may drop: what every target has, and with a budget what is captured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import structlog

from sluice.config.pipeline import TargetConfig
from sluice.coordination.state import PipelineState
from sluice.model.offset import Offset
from sluice.sources.port import RetainsForUs, Source, SourceSession

_log = structlog.get_logger()


def release_delivered(
    source: Source,
    targets: Sequence[TargetConfig],
    state: PipelineState,
    session: SourceSession | None = None,
    *,
    budget: int | None = None,
) -> None:
    """Tell a source that keeps its log for this pipeline how much every target has, so that it may drop it.

    Does nothing for other sources.

    Args:
        session: an open one of the source; None: one is opened for it.
        budget: bytes of log that the source may keep. Near it, it is told how much is captured: the segments have that.
    """
    if not source.keeps_for_us:
        return
    delivered = delivered_position(targets, state)
    with ExitStack() as opened:
        if session is None:
            if delivered is None and budget is None:
                return
            session = opened.enter_context(source.open())
        if budget is not None and isinstance(session, RetainsForUs):
            retained, cursor = session.retained(), state.cursor()
            if retained is not None and retained.is_over and cursor is not None and delivered != cursor.position:
                _log.info("captured_log_released", retained_bytes=retained.size_bytes, position=str(cursor.position))
                delivered = cursor.position
        if delivered is not None:
            session.release(delivered)


def delivered_position(targets: Sequence[TargetConfig], state: PipelineState) -> Offset | None:
    """Return the place up to which every target has everything; None if that is not known.

    With the last captured batch at every target that is the captured position, which moves on where nothing is
    captured, too.
    """
    acknowledged = [ack for ack in (state.acks.get(target.name) for target in targets) if ack is not None]
    if len(acknowledged) < len(targets):
        return None  # a target that joins starts at the captured position
    delivered = min(ack.batch for ack in acknowledged)
    cursor = state.cursor()
    if cursor is not None and delivered >= cursor.next_batch - 1:
        return cursor.position
    positions = [ack.position for ack in acknowledged]
    if cursor is not None:  # a seek may move it before the acknowledged position
        positions.append(cursor.position)
    waiting = map(state.batches.get, (number for number in state.batches.numbers() if number > delivered))
    positions += [batch.first for batch in waiting if batch and not batch.dropped]
    if len({position.log_epoch for position in positions}) != 1:
        return None  # after a seek to another log the old one is gone anyway
    return min(positions, key=lambda position: position.order)
