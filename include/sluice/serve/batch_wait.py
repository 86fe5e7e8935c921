"""The time that a read waits for the next batch: as long as its reader chose."""

from __future__ import annotations

import json
import time

TIMED_OUT = {"timed_out": True}
"""Why a read ended: no batch was stored for as long as its reader wanted to wait."""

TIMED_OUT_MESSAGE = json.dumps({"end": TIMED_OUT}, separators=(",", ":")).encode()


class BatchWait:
    """The clock of one read. It runs while the read waits for a batch, and not while the reader takes one.

    ``limit_s``: after this time without a batch the wait is over; ``math.inf`` for never.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._until: float | None = None

    def begin(self) -> None:
        """Start the clock, unless it runs."""
        if self._until is None:
            self._until = time.monotonic() + self._limit_s

    def reset(self) -> None:
        """Stop the clock: a batch came, or something else than a batch is waited for."""
        self._until = None

    @property
    def is_over(self) -> bool:
        """Return True if the clock has run for the whole time."""
        return self._until is not None and time.monotonic() >= self._until
