"""The wait between attempts."""

from __future__ import annotations

from datetime import timedelta

from sluice.model.backoff import wait_after


def test_the_wait_doubles_up_to_its_limit() -> None:
    waits = [wait_after(n, timedelta(seconds=2), timedelta(seconds=15)).total_seconds() for n in (1, 2, 3, 4, 10_000)]
    assert waits == [2, 4, 8, 15, 15]
