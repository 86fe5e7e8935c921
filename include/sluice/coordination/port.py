"""The port to ZooKeeper: what the protocol needs of it, and no more.

Two implementations: :mod:`sluice.coordination.zookeeper` (kazoo) and :mod:`sluice.coordination.memory` (a model for
property tests).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Znode:
    """A node's content as read: ``version`` counts its changes from 0; ``modified_ms`` is the server's time of the last
    one; ``ephemeral``: it goes when its session ends.
    """

    data: bytes
    version: int
    modified_ms: int = 0
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """Requirement: ``path`` is at ``version``."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create ``path``; fails if it is there. An ephemeral node goes when the session ends."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Replace the content of ``path`` if it is at ``version`` (-1: whatever the version)."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete ``path`` if it is at ``version`` (-1: whatever the version)."""

    path: str
    version: int = -1


Step = Check | Create | Put | Remove


class Conflict(Exception):
    """A transaction was refused; nothing of it happened.

    ``failed`` is the index of the first step that did not hold.
    """

    def __init__(self, failed: int, step: Step, reason: str) -> None:
        super().__init__(f"{type(step).__name__} {step.path}: {reason}")
        self.failed = failed
        self.step = step
        self.reason = reason


class Znodes(Protocol):
    """All methods raise CoordinationUnavailable when ZooKeeper does not answer or the session is gone."""

    def get(self, path: str, changed: Callable[..., None] | None = None) -> Znode | None:
        """Return the node, or None if there is none.

        ``changed``: see :meth:`notify`; not called for a node that is not there.
        """

    def children(self, path: str, changed: Callable[..., None] | None = None) -> list[str]:
        """Return the names of the children, sorted; empty if the node is not there. ``changed``: as for :meth:`get`."""

    def ensure(self, path: str) -> None:
        """Create ``path`` and its parents, empty, where they are missing."""

    def notify(self, path: str, changed: Callable[..., None], *, children: bool = False) -> None:
        """Have ``changed`` called, by any thread, when the node (or the list of its children) changes next, or when the
        connection is lost.

        It may be called for nothing, and more than once. Whoever relies on it looks now and then all the same.
        """

    def transact(self, steps: Sequence[Step]) -> None:
        """Do all steps or none. Raises Conflict."""

    @property
    def alive(self) -> bool:
        """False once the session has expired: every ephemeral node of this session is gone, or will be."""


def write_at(path: str, data: bytes, version: int) -> Put | Create:
    """Return the step that writes a node that was read at ``version``; -1: there was none, and it is created."""
    return Put(path, data, version) if version >= 0 else Create(path, data)


def committed(znodes: Znodes, *steps: Step) -> bool:
    """Do all steps and return True; or do none, and return False."""
    try:
        znodes.transact(steps)
    except Conflict:
        return False
    return True
