"""A cache of what ZooKeeper answered, kept until it says that something changed.

A batch asks for the same few nodes again and again: the pause switch, the batches, what its targets have. Each question
is a round trip, and on a machine with many pipelines the round trips are most of a small batch's work. Here an answer
is kept together with its watch. It is forgotten when the watch fires, which is also when the connection is lost, and
when this session writes the node itself.

So another session's change is seen when its event arrives, not at the next question. Nothing that is written rests on
that: every write names the versions that it was made from, and is refused where they are out of date. Leases, and the
captured position, which whoever takes the lease goes on from, are asked for through :attr:`ReadCache.fresh`: a process
that was paused for longer than its session lives must not find its own old lease among what it kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from sluice.coordination.port import Check, Create, Remove, Step, Znode, Znodes

_T = TypeVar("_T")


class _Kept(Generic[_T]):
    """An answer, once it is there."""

    def __init__(self) -> None:
        self.answers: list[_T] = []


class _Passing:
    """A session's answers as they are."""

    def __init__(self, znodes: Znodes) -> None:
        self._z = znodes

    @property
    def alive(self) -> bool:
        return self._z.alive

    def get(self, path: str, changed: Callable[..., None] | None = None) -> Znode | None:
        return self._z.get(path, changed)

    def children(self, path: str, changed: Callable[..., None] | None = None) -> list[str]:
        return self._z.children(path, changed)

    def ensure(self, path: str) -> None:
        self._z.ensure(path)

    def notify(self, path: str, changed: Callable[..., None], *, children: bool = False) -> None:
        self._z.notify(path, changed, children=children)


class ReadCache(_Passing):
    """:class:`~sluice.coordination.port.Znodes` that caches answers. Any thread may use it.

    Attributes:
        fresh: the same session; asks each time.
    """

    def __init__(self, znodes: Znodes) -> None:
        super().__init__(znodes)
        self.fresh = FreshReads(self, znodes)
        self._lock = threading.Lock()
        self._nodes: dict[str, _Kept[Znode | None]] = {}
        self._children: dict[str, _Kept[list[str]]] = {}
        self._told: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called, by any thread, whenever an answer that was kept is out of date.

        It may be called for nothing.
        """
        self._told.append(callback)

    def get(self, path: str, changed: Callable[..., None] | None = None) -> Znode | None:
        """Return a node from memory where it is kept. A watch asks ZooKeeper."""
        if changed is not None:
            return super().get(path, changed)
        return self._answer(self._nodes, path, partial(self._z.get, path))

    def children(self, path: str, changed: Callable[..., None] | None = None) -> list[str]:
        """Return the names of children from memory where they are kept. A watch asks ZooKeeper."""
        if changed is not None:
            return super().children(path, changed)
        return [*self._answer(self._children, path, partial(self._z.children, path))]

    def ensure(self, path: str) -> None:
        """Create the node if needed. Does not ask if the node is known to exist."""
        with self._lock:
            kept_node = self._nodes.get(path)
        if kept_node is None or not any(kept_node.answers) or not self.alive:
            try:
                self._z.ensure(path)
            finally:
                self._forget_path(path)

    def transact(self, steps: Sequence[Step]) -> None:
        """Run the steps and forget what was kept of their nodes, also if they fail."""
        try:
            self._z.transact(steps)
        except BaseException:  # what was kept is out of date, also of the nodes that were only checked; or it is not known whether it went through  # noqa: E501
            self._forget(steps)
            raise
        self._forget([step for step in steps if not isinstance(step, Check)])

    def _answer(self, cache: dict[str, _Kept[_T]], path: str, ask: Callable[[Callable[..., None]], _T]) -> _T:
        """Return the kept answer, else ask now, and keep the answer unless it changed meanwhile."""
        with self._lock:
            current = cache.get(path)
            if current is not None and current.answers and self.alive:
                return current.answers[0]
            entry = cache[path] = _Kept()

        def forget(*_: object) -> None:
            with self._lock:
                if cache.get(path) is entry:
                    del cache[path]
            for callback in self._told:
                callback()

        try:
            answer = ask(forget)
            if not answer:  # a question about a node that is not there sets no watch
                self._z.notify(path, forget)
                answer = ask(forget)
        except BaseException:
            forget()
            raise
        with self._lock:
            entry.answers.append(answer)
        return answer

    def _forget_path(self, path: str) -> None:
        """Forget the node and those above it.

        This session may have created them; the events that say so may come later than the next question.
        """
        with self._lock:
            while path:
                self._nodes.pop(path, None)
                path = path.rpartition("/")[0]
                self._children.pop(path, None)

    def _forget(self, steps: Sequence[Step]) -> None:
        with self._lock:
            for step in steps:
                self._nodes.pop(step.path, None)
                if isinstance(step, Create | Remove):
                    self._children.pop(step.path.rpartition("/")[0], None)


class FreshReads(_Passing):
    """The session of a :class:`ReadCache`, without what it keeps; what is written here is forgotten there."""

    def __init__(self, cache: ReadCache, znodes: Znodes) -> None:
        super().__init__(znodes)
        self._kept = cache

    def ensure(self, path: str) -> None:
        """Create a node by the session that keeps reads, so that it forgets the node."""
        self._kept.ensure(path)

    def transact(self, steps: Sequence[Step]) -> None:
        """Run the steps by the session that keeps reads, so that it forgets their nodes."""
        self._kept.transact(steps)
