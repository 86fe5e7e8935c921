"""What is asked for next is made while what was asked for is used."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Made = TypeVar("_Made")


def one_ahead(makers: Sequence[Callable[[], _Made]]) -> Generator[_Made, None, None]:
    """What each makes, in order; the next one is made in another thread meanwhile. Closed early, it waits for that one.

    Raises what a maker raises, in its place.
    """
    if len(makers) == 1:
        yield makers[0]()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="one-ahead") as thread:
        coming = [thread.submit(maker) for maker in makers[:1]]
        for maker in makers[1:]:
            made = coming.pop().result()
            coming.append(thread.submit(maker))
            yield made
            del made
        for last in coming:
            yield last.result()
