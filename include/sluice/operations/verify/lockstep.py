"""Work on both sides at the same time: the source is some items ahead of the target, and each side works on several
items at once.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any, TypeVar

_T = TypeVar("_T")
_Mine = TypeVar("_Mine")
_Theirs = TypeVar("_Theirs")

_END: Any = object()


def ahead(items: Iterator[_T], most: int) -> Generator[_T]:
    """Yield the same items, made by a thread that is at most ``most`` items ahead. Its errors are raised here."""
    output: queue.Queue[Any] = queue.Queue(most)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                output.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:
            put((_END, error))

    thread = threading.Thread(target=run, name="verify-source", daemon=True)
    thread.start()
    try:
        while True:
            item, error = output.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stop.set()
        thread.join()


def in_lockstep(
    items: Iterator[_T],
    first: Callable[[_T], _Mine],
    between: Callable[[_Mine], object],
    second: Callable[[_T], _Theirs],
    *,
    lanes: int,
    most_ahead: int,
) -> Iterator[tuple[_T, _Mine, _Theirs]]:
    """Yield each item with the answers of ``first`` and, after ``between``, of ``second``; in the order of the items.

    Args:
        first, second: called by ``lanes`` threads each.
        between: called in the order of the items, by the caller's thread.
        most_ahead: items that ``first`` may be ahead of ``second``.
    """
    with ExitStack() as stack:
        own_executor, other_executor = (
            ThreadPoolExecutor(lanes, thread_name_prefix=f"verify-{side}") for side in ("source", "target")
        )
        for pool in (own_executor, other_executor):
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)

        def begun() -> Iterator[tuple[_T, Future[_Mine]]]:
            for item in items:
                yield item, own_executor.submit(first, item)

        under_way: deque[tuple[_T, _Mine, Future[_Theirs]]] = deque()
        for item, future in stack.enter_context(closing(ahead(begun(), most_ahead))):
            own_answer = future.result()
            between(own_answer)
            under_way.append((item, own_answer, other_executor.submit(second, item)))
            if len(under_way) > lanes:
                item, own_answer, answer = under_way.popleft()
                yield item, own_answer, answer.result()
        for item, own_answer, answer in under_way:
            yield item, own_answer, answer.result()


__all__ = ["ahead", "in_lockstep"]
