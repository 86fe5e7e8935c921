"""Lines of progress for people."""

from __future__ import annotations

import contextlib
import sys
import time

DAG = "sync__shop_to_reporting"


class Progress:
    """Lines with the seconds since the start."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._begin

    def __call__(self, text: str) -> None:
        """Write a line with the seconds so far before the text."""
        write(f"[{self.seconds:6.1f} s] {text}")


def write(text: str = "") -> None:
    """Write one line to standard output, at once. A reader that went away is no reason to stop half-way."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
