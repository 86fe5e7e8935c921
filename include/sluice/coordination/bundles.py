"""Batches that wait on purpose: of targets with ``commit_every``, which get several batches in one commit.

Decision: nothing is stored for it. Which batches wait follows from what a target has acknowledged, and since when they
wait from the first one's own time: so every process says the same, whatever died before, and a pipeline that stands
still finds them as well as a busy one. Clocks of captures that differ by more than ``commit_every`` would make commits
early or late, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sluice.config.pipeline import SNAPSHOT
from sluice.coordination.acknowledgements import Acknowledgements
from sluice.coordination.batches import Batches
from sluice.model.batches import Batch

_PATIENCE_S = 30.0
"""Batches that are due for longer than this, and than ``commit_every``, count as what the target should have by now."""


@dataclass(frozen=True, slots=True)
class WaitingBatches:
    """Batches that a target gets later, together: ``first`` to ``last``, due at ``due_ms`` (milliseconds since 1970).

    Attributes:
        overdue: since long. asked: another target begins with what this one has after that batch: it is due; 0: none
            does.
    """

    target: str
    first: int
    last: int
    due_ms: int
    overdue: bool = False
    asked: int = 0

    @property
    def is_due(self) -> bool:
        """The time has come."""
        return time.time() * 1000 >= self.due_ms

    @property
    def due_in_s(self) -> float:
        """Seconds until then, 0 afterwards."""
        return max(self.due_ms / 1000 - time.time(), 0.0)

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.due_ms / 1000, UTC).strftime("%H:%M:%S")
        which = f"batch {self.first} waits" if self.first == self.last else f"batches {self.first} to {self.last} wait"
        return f"{which} to be written together at {at} UTC (commit_every)"


class Bundles:
    """The waiting batches of one pipeline. ``commit_every``: target -> seconds."""

    def __init__(self, commit_every: Mapping[str, float], batches: Batches, acknowledgements: Acknowledgements) -> None:
        self._every = dict(commit_every)
        self._batches = batches
        self._acknowledgements = acknowledgements

    def waiting(self, targets: Sequence[str]) -> dict[str, WaitingBatches]:
        """Return the waiting batches of those of ``targets`` that lack a batch and have ``commit_every``."""
        if not self._every:
            return {}
        numbers = self._batches.numbers()
        waits = (
            (target, self._of(target, every, numbers, targets))
            for target, every in self._every.items()
            if target in targets
        )
        return {target: wait for target, wait in waits if wait is not None}

    def _of(self, target: str, every_s: float, numbers: Sequence[int], targets: Sequence[str]) -> WaitingBatches | None:
        process = self._acknowledgements.get(target)
        lacking = [number for number in numbers if process is not None and number > process.batch]
        first = self._batches.get(lacking[0]) if lacking else None
        if first is None:
            return None
        due_ms, requested = first.created_ms + int(every_s * 1000), 0
        if target == SNAPSHOT and (start := self._start(lacking, targets)) is not None:
            due_ms, requested = min(due_ms, start.created_ms), start.snapshot
        overdue = time.time() * 1000 - due_ms > max(every_s, _PATIENCE_S) * 1000
        return WaitingBatches(target, lacking[0], lacking[-1], due_ms, overdue, requested)

    def _start(self, lacking: Sequence[int], targets: Sequence[str]) -> Batch | None:
        """Return the first batch that stands for the rows of the snapshot, and comes next for one of ``targets``."""
        processes = filter(None, map(self._acknowledgements.get, targets))
        next_ones = sorted({process.following for process in processes}.intersection(lacking))
        batches = map(self._batches.get, next_ones)
        return next((batch for batch in batches if batch is not None and batch.snapshot), None)
