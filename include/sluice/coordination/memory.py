"""ZooKeeper as a value, for tests: one shared tree, several sessions that can expire, in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sluice.coordination.port import Check, Conflict, Create, Put, Remove, Step, Znode
from sluice.errors import CoordinationUnavailable


class MemoryTree:
    """The tree all sessions share: path -> (node, owning session or None). ``now_ms`` is the server's clock, moved by the test."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[Znode, int | None]] = {}
        self.sessions = 0
        self.now_ms = 0
        self.lock = threading.RLock()

    def session(self) -> MemoryZnodes:
        """A new session on this tree."""
        self.sessions += 1
        return MemoryZnodes(self, self.sessions)


class MemoryZnodes:
    """One session. :meth:`expire` ends it as ZooKeeper would: its ephemeral nodes go, its later calls fail."""

    def __init__(self, tree: MemoryTree, number: int) -> None:
        self._tree = tree
        self._number = number
        self._alive = True

    @property
    def alive(self) -> bool:
        return self._alive

    def expire(self) -> None:
        """End the session."""
        with self._tree.lock:
            self._alive = False
            for path in [p for p, (_, owner) in self._tree.nodes.items() if owner == self._number]:
                del self._tree.nodes[path]

    def get(self, path: str) -> Znode | None:
        self._require()
        entry = self._tree.nodes.get(path)
        return entry[0] if entry else None

    def children(self, path: str) -> list[str]:
        self._require()
        prefix = path.rstrip("/") + "/"
        with self._tree.lock:
            return sorted({p[len(prefix) :].split("/", 1)[0] for p in self._tree.nodes if p.startswith(prefix)})

    def ensure(self, path: str) -> None:
        self._require()
        parts = path.strip("/").split("/")
        with self._tree.lock:
            for i in range(len(parts)):
                self._tree.nodes.setdefault("/" + "/".join(parts[: i + 1]), (Znode(b"", 0, self._tree.now_ms), None))

    def notify(self, path: str, changed: Callable[..., None], *, children: bool = False) -> None:
        """No one is told: who relies on it looks now and then."""
        self._require()

    def transact(self, steps: Sequence[Step]) -> None:
        self._require()
        with self._tree.lock:
            draft = dict(self._tree.nodes)
            for i, step in enumerate(steps):
                reason = self._apply(draft, step)
                if reason:
                    raise Conflict(i, step, reason)
            self._tree.nodes = draft

    def _apply(self, draft: dict[str, tuple[Znode, int | None]], step: Step) -> str | None:
        entry = draft.get(step.path)
        if isinstance(step, Create):
            if entry:
                return "the node exists"
            draft[step.path] = (Znode(step.data, 0, self._tree.now_ms), self._number if step.ephemeral else None)
            return None
        if entry is None:
            return "there is no such node"
        node, owner = entry
        if not (isinstance(step, Put | Remove) and step.version == -1) and node.version != step.version:
            return f"version {node.version}, expected {step.version}"
        if isinstance(step, Put):
            draft[step.path] = (Znode(step.data, node.version + 1, self._tree.now_ms), owner)
        elif isinstance(step, Remove):
            del draft[step.path]
        else:
            assert isinstance(step, Check)
        return None

    def _require(self) -> None:
        if not self._alive:
            raise CoordinationUnavailable("the ZooKeeper session has expired")
