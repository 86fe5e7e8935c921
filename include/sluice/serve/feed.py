"""Waits for the next batch of a pipeline: one look at ZooKeeper for all readers that wait, made by one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Look = Callable[[Callable[..., None]], int]
"""Reads the number that the next batch gets, and has what it is given called when that changes."""

LOOK_S = 10.0
"""A look is made after this time although nothing was heard: a change may go unheard while the connection is lost."""

_PATIENCE_S = 0.5
"""How soon a reader that hung up is noticed."""


class Feed:
    """The feed of one pipeline. Any thread may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._following = 0
        self._looking = False
        self._looks_at = 0.0

    def after(self, number: int, look: Look, is_over: Callable[[], bool]) -> int | None:
        """Wait until batch ``number`` is stored; the number that follows those that are.

        None: ``is_over`` said so first.

        Raises what ``look`` does.
        """
        with self._changed:
            while self._following <= number:
                if is_over():
                    return None
                if self._looking or time.monotonic() < self._looks_at:
                    self._changed.wait(_PATIENCE_S)
                else:
                    self._ask(look)
            return self._following

    def wake(self) -> None:
        """Have everyone who waits ask ``is_over`` now."""
        with self._changed:
            self._changed.notify_all()

    def _ask(self, look: Look) -> None:
        """Look for the next batch with the lock released. A change after the question is still heard of."""
        self._looking = True
        self._looks_at = time.monotonic() + LOOK_S
        self._changed.release()
        following = self._following
        has_looked = False
        try:
            following = look(self._heard)
            has_looked = True
        finally:
            self._changed.acquire()
            self._looking = False
            self._following = following
            if not has_looked:
                self._looks_at = 0.0
            self._changed.notify_all()

    def _heard(self, *_: object) -> None:
        with self._changed:
            self._looks_at = 0.0
            self._changed.notify_all()
