"""Waiting for what can be observed: an event, or that somebody looked several times and still did nothing."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.errors import SluiceError


class Patience:
    """Seconds of a machine that has a processor for what runs: they count less while it has less than half of one."""

    def __init__(self, seconds: float) -> None:
        self._left, self._looked = seconds, time.monotonic()

    @property
    def is_over(self) -> bool:
        now, crowd = time.monotonic(), os.getloadavg()[0] / (2 * (os.cpu_count() or 1))
        self._left -= (now - self._looked) / max(1.0, crowd)
        self._looked = now
        return self._left <= 0


def wait_until(condition: Callable[[], object], what: str, patience_s: float = 180) -> None:
    """Patience costs nothing where the event comes; a slow machine needs it.

    Looks become rarer, up to ten a second: one that asks two servers takes the processor from what is waited for.
    """
    patience = Patience(patience_s)
    pause_s = 0.01
    while not condition():
        assert not patience.is_over, f"{what} did not happen within {patience_s:.0f} s"
        time.sleep(pause_s)
        pause_s = min(0.1, 1.2 * pause_s)


def patiently(work: Callable[[], object], patience_s: float = 240) -> None:
    """Again until it succeeds, as a scheduler does; only a passing error is tried again."""
    patience = Patience(patience_s)
    while True:
        try:
            work()
            return
        except SluiceError as error:
            if not error.retryable or patience.is_over:
                raise
            time.sleep(0.2)


def ended(thread: threading.Thread, patience_s: float = 300) -> None:
    """Wait for the end of a thread; one that goes on is a failure, not something to leave running into the next
    test.
    """
    thread.join(patience_s)
    assert not thread.is_alive(), f"{thread.name} goes on after {patience_s:.0f} s"


@contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``work`` in a thread until the block ends, which sets the event; raise what the thread raised."""
    over, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(over)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        ended(thread)
        if errors:  # the block may fail because of it
            raise errors[0]


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
def counted(owner: Any, method: str) -> Iterator[Looks]:
    """The calls of ``owner.method`` (a class or a module) inside the block."""
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


def others_may_act() -> Callable[[], bool]:
    """Return a function that says whether anybody but this thread, which waits, may act: a thread that began later, or
    this one where another thread asks.
    """
    mine, known = threading.current_thread(), frozenset(threading.enumerate())

    def found() -> bool:
        return threading.current_thread() is not mine or not known.issuperset(threading.enumerate())

    return found
