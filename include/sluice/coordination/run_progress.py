"""Progress of the stages of a run whose tasks work side by side: each task says it here, and the others are told by
their watches.

Nothing rests on it but when to wait and when to end: what became of a batch stands in its own node and at the targets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sluice.coordination.layout import PROGRESS, Layout
from sluice.coordination.port import Create, Put, Remove, Znodes, committed
from sluice.model.stored_fields import known_fields


class StageState(StrEnum):
    """State of a stage of a run."""

    WORKING = "working"
    ENDED = "ended"
    GAVE_UP = "gave up"


@dataclass(frozen=True, slots=True)
class Progress:
    """One stage of one run.

    Attributes:
        batch: the last batch that has passed it in this run, 0 if none has.
        later: why its target gets the batches from ``since`` on at another time, "" if it has them.
        why: of one that gave up, or that ended: the reason.
        sums: what it did in this run, as JSON: for people, and for its own task where the process of another one did
            it.
    """

    state: StageState = StageState.WORKING
    batch: int = 0
    later: str = ""
    since: int = 0
    why: str = ""
    sums: dict[str, Any] | None = None


class RunProgress:
    """Progress of the runs of one pipeline, a node for each stage of a run."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def read(self, claim: str, stage: str) -> Progress | None:
        """Return what a stage has said; None: it has not begun."""
        return PROGRESS.read(
            self._z,
            self._at.progress(claim, stage),
            lambda data, version: Progress(**{**known_fields(Progress, data), "state": StageState(data["state"])}),
        )

    def write(self, claim: str, stage: str, progress: Progress) -> None:
        """Say how far a stage has come. The last word counts."""
        path, content = self._at.progress(claim, stage), PROGRESS.encode(asdict(progress))
        if committed(self._z, Put(path, content, -1)):
            return
        self._z.ensure(self._at.run(claim))
        if not committed(self._z, Create(path, content)):
            committed(self._z, Put(path, content, -1))

    def forget(self, kept: Collection[str]) -> None:
        """Remove what was said by runs of which no claim is known any more.

        ``kept``: names of the nodes of the claims that are.
        """
        runs = {self._at.run_of_claim(name) for name in kept}
        for folder in (f"{self._at.runs}/{name}" for name in self._z.children(self._at.runs) if name not in runs):
            for name in self._z.children(folder):
                committed(self._z, Remove(f"{folder}/{name}"))
            committed(self._z, Remove(folder))
