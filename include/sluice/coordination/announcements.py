"""The batches of each target that were announced to other programs, as asset events of Airflow, and by which runs.

Two runs acknowledge at the same time, and a task is repeated whose attempt died after it had read everything. So the
batches are shared among the claims by compare-and-set, and each claim keeps its share: the repeated task gets the same
batches again, and no other one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.coordination.layout import ANNOUNCED, Layout
from sluice.coordination.port import Znodes, committed, write_at

KEPT = 32
"""Claims whose share is kept: more than runs of a pipeline are open at a time."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The announced batches of a target.

    ``last``: the last announced batch, None: none was. ``shares``: claim -> first and last batch, the newest claims.
    ``version``: that of the node, -1: there is none.
    """

    last: int | None = None
    shares: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    version: int = -1

    def share(self, claim: str, own: int | None, last_batch: int) -> tuple[int, int] | None:
        """Return the first and last batch that ``claim`` announces, None if nothing is left for it.

        ``own``: its first batch; where nothing was announced yet, it begins there. ``last_batch``: the target's last.
        """
        first = own if self.last is None else self.last + 1
        if claim in self.shares:
            before = self.shares[claim]
            if before[1] != self.last:
                return before
            first = before[0]
        return (first, last_batch) if first is not None and first <= last_batch else None


class Announcements:
    """The announced batches of each target."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def read(self, target: str) -> Announced:
        """Return what is announced of a target."""
        node = self._z.get(self._at.announced(target))
        if node is None:
            return Announced()
        content = ANNOUNCED.decode(self._at.announced(target), node.data)
        return Announced(content["last"], {claim: (a, b) for claim, a, b in content["shares"]}, node.version)

    def take(self, target: str, before: Announced, claim: str, share: tuple[int, int] | None, last_batch: int) -> bool:
        """Note that ``claim`` announces the batches of ``share``, and that nothing up to ``last_batch`` is left.

        Return False if another process did so since ``before`` was read.
        """
        shares = {key: value for key, value in before.shares.items() if key != claim}
        if share is not None:
            shares[claim] = share
        recent = [[key, *value] for key, value in list(shares.items())[-KEPT:]]
        content = ANNOUNCED.encode({"last": max(last_batch, before.last or 0), "shares": recent})
        if before.version < 0:
            self._z.ensure(self._at.consumer(target))
        return committed(self._z, write_at(self._at.announced(target), content, before.version))
