"""Functions that Spark's workers import by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sluice.errors import RuleError


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def picky(number: int) -> int:
    if number == 3:
        raise RuleError("rule 'x' failed", where="x.py:7", hint="mend it")
    return number


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def nap(started: str) -> None:
    """Far longer than any test waits; ``started`` is a file that says so."""
    Path(started).touch()
    time.sleep(300)


def faulty(number: int) -> int:
    return number // 0


def killed(_: int) -> None:
    """The worker ends as the kernel ends one that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
