"""Run small pieces of work on many tables in parallel: each waits for the store more than it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

_AT_ONCE = 8


def run_lockstep(work: Callable[[_T], _R], items: Iterable[_T], at_once: int = _AT_ONCE) -> list[_R]:
    """Run ``work`` on each item in threads; return the results in order.

    Raises the first error in order, once all work that was started has ended; no further work is started after an
    error.
    """
    given = list(items)
    if len(given) < 2:
        return [work(one) for one in given]
    pool = ThreadPoolExecutor(min(at_once, len(given)), thread_name_prefix="table")
    try:
        return list(pool.map(work, given))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
