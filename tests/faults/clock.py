"""Wall clocks that jump: the processes of a crew read theirs with an offset that a file holds.

Monotonic clocks go on as they are.

Not libfaketime: version 0.9.10 makes Python's own ``time.sleep`` fail (absolute waits on the monotonic clock).
"""

from __future__ import annotations

import time
from pathlib import Path


class Clock:
    """The wall clock of a group of processes."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.jump(0)

    def jump(self, offset_s: int) -> None:
        """From now on the clock is so many seconds off the true time."""
        partial = self.file.with_suffix(".tmp")
        partial.write_text(str(offset_s))
        partial.rename(self.file)


def obey(file: Path) -> None:
    """Called in a process before it does anything: its wall clock is the file's from now on."""
    true_ns, gmtime = time.time_ns, time.gmtime

    def now_ns() -> int:
        return true_ns() + int(file.read_text()) * 10**9

    time.time_ns = now_ns
    time.time = lambda: now_ns() / 1e9
    time.gmtime = lambda seconds=None: gmtime(now_ns() / 1e9 if seconds is None else seconds)
