"""Waiting for what can be observed: an event, or that somebody looked several times and still did nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def wait_until(condition: Callable[[], object], what: str, patience_s: float = 180) -> None:
    """Patience costs nothing where the event comes; a slow machine needs it."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {patience_s:.0f} s"
        time.sleep(0.02)


class Looks:
    """How often a method was called, by thread; see :func:`counted`."""

    def __init__(self) -> None:
        self.by_thread: Counter[str] = Counter()

    def more(self, number: int = 3, threads: Callable[[str], bool] = lambda name: True) -> None:
        """Return once each of the threads (by name; those that called so far) has begun ``number`` further calls."""
        wait_until(lambda: any(threads(name) for name in self.by_thread), "the first look")
        before = {name: calls for name, calls in self.by_thread.items() if threads(name)}
        living = {thread.name for thread in threading.enumerate()}
        for name in before.keys() & living:
            wait_until(lambda name=name: self.by_thread[name] >= before[name] + number, f"{number} looks by {name}")


@contextmanager
def counted(owner: type, method: str) -> Iterator[Looks]:
    """The calls of ``owner.method`` inside the block."""
    looks, original = Looks(), getattr(owner, method)

    def call(*arguments: Any, **named: Any) -> Any:
        looks.by_thread[threading.current_thread().name] += 1
        return original(*arguments, **named)

    setattr(owner, method, call)
    try:
        yield looks
    finally:
        setattr(owner, method, original)


def waits_for_a_row(server: Any) -> bool:
    """A session of a MySQL waits for a lock on a row."""
    return bool(server.execute("SELECT COUNT(*) FROM performance_schema.data_lock_waits")[0][0])
