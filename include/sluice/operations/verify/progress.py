"""The progress of a verification, as values and in words: rows, rows per second, and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_FIRST_S = 1.0
"""Seconds before which a rate says nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a verification: source rows compared, of about how many; ``doing``: verifying or repairing."""

    table: str
    target: str
    rows: int
    of_about: int
    doing: str = "verifying"


Told = Callable[[Progress], None]


@dataclass
class Pace:
    """Makes the progress line. ``clock``: seconds."""

    clock: Callable[[], float] = time.monotonic
    _began: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def words(self, progress: Progress) -> str:
        """Format the progress of a table at a target, with its rate since the first call for it."""
        now = self.clock()
        spent = now - self._began.setdefault((progress.table, progress.target, progress.doing), now)
        words = (
            f"{progress.doing} {progress.table} at {progress.target}: {progress.rows:,} of about "
            f"{progress.of_about:,} rows"
        )
        if spent <= _FIRST_S or not progress.rows:
            return words
        rate = progress.rows / spent
        return f"{words}, {rate:,.0f} rows/s, {max(progress.of_about - progress.rows, 0) / rate:.0f} s left"


__all__ = ["Pace", "Progress", "Told"]
