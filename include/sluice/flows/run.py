"""run: the whole job, batch after batch, in the calling process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sluice.flows.ack import ack
from sluice.flows.capture import drain, head_of
from sluice.flows.load import load
from sluice.flows.merge import merge
from sluice.flows.runtime import Runtime, attempt_id
from sluice.model.positions import Position

IDLE_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a run: ``phase`` is draining, merging, loading or acknowledged."""

    phase: str
    batch: int | None = None
    changes: int = 0
    position: Position | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "batch": self.batch,
            "changes": self.changes,
            "position": self.position.to_json() if self.position else None,
            "seconds": round(self.seconds, 3),
        }


def run(runtime: Runtime, *, until_head: bool = False, batches: int | None = None) -> Iterator[Step]:
    """Deliver batches in order, oldest undelivered first; yields a Step at each phase.

    ``until_head``: end when the log as it stood at the call is acknowledged. ``batches``: end after so many.
    """
    target_position = head_of(runtime) if until_head else None
    done = 0
    looked = False  # the source is looked at once, even if nothing is new: a source set up wrongly must show
    with runtime.state() as state:
        while batches is None or done < batches:
            started = time.monotonic()
            undelivered = state.undelivered()
            if undelivered:
                number = undelivered[0]
                record = state.require(number)
                changes, position = record.changes, record.last
            else:
                if looked and target_position and _reached(state.cursor(), target_position):
                    return
                looked = True
                yield Step("draining")
                claim = f"cli:{socket.gethostname()}:{os.getpid()}:{attempt_id()}"
                outcome = drain(
                    runtime, claim=claim, idle_wait_s=0.5 if until_head else IDLE_WAIT_S, until=target_position
                )
                if outcome.batch is None:
                    continue
                number, changes, position = outcome.batch, outcome.changes, outcome.position
            yield Step("merging", number, changes, position)
            merge(runtime, number)
            for target in runtime.pipeline.targets:
                yield Step(f"loading {target.name}", number, changes, position)
                load(runtime, target.name, number)
                ack(runtime, target.name, number)
            done += 1
            yield Step("acknowledged", number, changes, position, time.monotonic() - started)


def _reached(cursor: Any, head: Position) -> bool:
    return cursor is not None and cursor.position.order >= head.order
