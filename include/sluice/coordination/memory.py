"""ZooKeeper as a value, for tests: one shared tree, several sessions that can expire, in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sluice.coordination.port import Check, Conflict, Create, Put, Remove, Step, Znode
from sluice.errors import CoordinationUnavailable


class MemoryTree:
    """The tree all sessions share: path -> (node, owning session or None).

    ``now_ms`` is the server's clock, moved by the test.

    Watches fire when :meth:`tell` is called, or at once (``tells``).
    """

    def __init__(self, *, tells: bool = True) -> None:
        self.nodes: dict[str, tuple[Znode, int | None]] = {}
        self.sessions = 0
        self.now_ms = 0
        self.lock = threading.RLock()
        self.tells = tells
        self._watches: list[tuple[str, bool, object, Callable[..., None]]] = []

    def session(self) -> MemoryZnodes:
        """Open a new session on this tree."""
        self.sessions += 1
        return MemoryZnodes(self, self.sessions)

    def seen(self, path: str, children: bool) -> object:
        """Return what a watch compares."""
        with self.lock:
            return self.names(path) if children else self.nodes.get(path)

    def names(self, path: str) -> list[str]:
        """Return the names of the children, sorted."""
        prefix = path.rstrip("/") + "/"
        with self.lock:
            return sorted({p[len(prefix) :].split("/", 1)[0] for p in self.nodes if p.startswith(prefix)})

    def watch(self, path: str, children: bool, changed: Callable[..., None]) -> None:
        """Have ``changed`` called when this is no longer as it is now."""
        with self.lock:
            self._watches.append((path, children, self.seen(path, children), changed))

    def tell(self) -> None:
        """Fire the watches of all that changed."""
        with self.lock:
            fired = [watch for watch in self._watches if self.seen(watch[0], watch[1]) != watch[2]]
            self._watches = [watch for watch in self._watches if watch not in fired]
        for _, _, _, changed in fired:
            changed()

    def moved(self) -> None:
        """Fire the watches after a change, if the tree does so at once."""
        if self.tells:
            self.tell()


class MemoryZnodes:
    """One session. :meth:`expire` ends it as ZooKeeper would: its ephemeral nodes go, its later calls fail."""

    def __init__(self, tree: MemoryTree, number: int) -> None:
        self._tree = tree
        self._number = number
        self._alive = True

    @property
    def alive(self) -> bool:
        """True until the session has ended."""
        return self._alive

    def expire(self) -> None:
        """End the session."""
        with self._tree.lock:
            self._alive = False
            for path in [p for p, (_, owner) in self._tree.nodes.items() if owner == self._number]:
                del self._tree.nodes[path]
        self._tree.moved()

    def get(self, path: str, changed: Callable[..., None] | None = None) -> Znode | None:
        """Return a node, or None, and watch it if ``changed`` is given."""
        self._require()
        with self._tree.lock:
            entry = self._tree.nodes.get(path)
            if changed is not None and entry is not None:
                self._tree.watch(path, False, changed)
            return entry[0] if entry else None

    def children(self, path: str, changed: Callable[..., None] | None = None) -> list[str]:
        """Return the names of children, and watch them if ``changed`` is given."""
        self._require()
        with self._tree.lock:
            names = self._tree.names(path)
            if changed is not None and (names or path in self._tree.nodes):
                self._tree.watch(path, True, changed)
            return names

    def ensure(self, path: str) -> None:
        """Create a node and those above it where they are missing."""
        self._require()
        parts = path.strip("/").split("/")
        with self._tree.lock:
            for i in range(len(parts)):
                self._tree.nodes.setdefault("/" + "/".join(parts[: i + 1]), (Znode(b"", 0, self._tree.now_ms), None))
        self._tree.moved()

    def notify(self, path: str, changed: Callable[..., None], *, children: bool = False) -> None:
        """Watch a node, or its children."""
        self._require()
        self._tree.watch(path, children, changed)

    def transact(self, steps: Sequence[Step]) -> None:
        """Run all steps or none."""
        self._require()
        with self._tree.lock:
            draft = dict(self._tree.nodes)
            for i, step in enumerate(steps):
                reason = self._apply(draft, step)
                if reason:
                    raise Conflict(i, step, reason)
            self._tree.nodes = draft
        self._tree.moved()

    def _apply(self, draft: dict[str, tuple[Znode, int | None]], step: Step) -> str | None:
        entry = draft.get(step.path)
        if isinstance(step, Create):
            above = step.path.rpartition("/")[0]
            if entry:
                return "the node exists"
            if above and above not in draft:
                return "there is no node above it"
            if above and draft[above][1] is not None:
                return "the node above it is ephemeral"
            node = Znode(step.data, 0, self._tree.now_ms, step.ephemeral)
            draft[step.path] = (node, self._number if step.ephemeral else None)
            return None
        if entry is None:
            return "there is no such node"
        node, owner = entry
        if not (isinstance(step, Put | Remove) and step.version == -1) and node.version != step.version:
            return f"version {node.version}, expected {step.version}"
        if isinstance(step, Put):
            draft[step.path] = (Znode(step.data, node.version + 1, self._tree.now_ms, node.ephemeral), owner)
        elif isinstance(step, Remove):
            if any(path.rpartition("/")[0] == step.path for path in draft):
                return "the node has children"
            del draft[step.path]
        else:
            assert isinstance(step, Check)
        return None

    def _require(self) -> None:
        if not self._alive:
            raise CoordinationUnavailable("the ZooKeeper session has expired")
