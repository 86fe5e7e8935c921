"""The wait between two attempts: doubles with each failure, up to a limit.

The one formula of tasks, ``sluice run`` and dump workers.
"""

from __future__ import annotations

from datetime import timedelta

_DOUBLINGS = 16
"""More would overflow a timedelta for long first waits; every limit in use is reached earlier."""


def wait_after(failures: int, first: timedelta, longest: timedelta) -> timedelta:
    """Return the wait before the next attempt, after ``failures`` (1 or more) attempts in a row failed.

    It is ``first`` after one failure, twice that after two.
    """
    return min(first * (1 << min(max(failures - 1, 0), _DOUBLINGS)), longest)
