"""Pieces of a stream are made ahead of their client, a few of them, in order."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from sluice.serve.ahead import ahead
from tests.support.running.waiting import wait_until


class _Source:
    """Numbers. Attributes: made: how many there were so far; closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.made = 0
        self.closed = threading.Event()
        self.thread: threading.Thread | None = None
        self._count, self._error = count, error

    def pieces(self) -> Generator[int, None, None]:
        self.thread = threading.current_thread()
        try:
            for number in range(self._count):
                self.made += 1
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.closed.set()


def test_pieces_come_in_order_and_a_client_that_takes_none_has_a_few_made() -> None:
    source = _Source(100)
    taken = ahead(source.pieces(), 2)
    assert source.thread is None, "nothing is made before the first is asked for"
    assert next(taken) == 0
    wait_until(lambda: source.made == 3, "two pieces are made ahead")
    assert source.thread is not threading.current_thread()
    assert [next(taken) for _ in range(50)] == list(range(1, 51))
    assert source.made <= 53
    assert list(taken) == list(range(51, 100))
    assert source.closed.is_set()


def test_an_error_is_raised_after_the_pieces_before_it() -> None:
    source = _Source(3, ValueError("the fourth"))
    taken = ahead(source.pieces(), 8)
    assert [next(taken) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the fourth"):
        next(taken)
    assert source.closed.is_set()


def test_a_client_that_goes_away_ends_the_thread() -> None:
    source = _Source(100)
    taken = ahead(source.pieces(), 2)
    next(taken)
    taken.close()
    assert source.closed.is_set()
    assert source.thread is not None
    assert not source.thread.is_alive()
    assert source.made <= 4
