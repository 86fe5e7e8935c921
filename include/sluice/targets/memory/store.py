"""The store of targets of type memory: tables, messages, checkpoints.

One store per name, shared by all targets of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.model.tables import TableId
from sluice.targets.port import Checkpoint

Row = dict[str, Any]
Key = tuple[Any, ...]
Owner = tuple[str, str]
"""(pipeline, target)."""
Version = tuple[int, int]
"""(epoch, batch) that wrote a row."""


@dataclass
class Table:
    """Rows by key; a list for a table without a key.

    Attributes:
        indexes: secondary indexes: definitions by name.
        refuses: a constraint: why a row is refused, "" if it is not.
        versions: who wrote a key last, also for deleted keys.
    """

    columns: list[str]
    key: tuple[str, ...] = ()
    rows: dict[Key, Row] = field(default_factory=dict)
    heap: list[Row] = field(default_factory=list)
    versions: dict[Key, Version] = field(default_factory=dict)
    refuses: Callable[[Row], str] = lambda row: ""
    indexes: dict[str, str] = field(default_factory=dict)

    def all(self) -> list[Row]:
        """Return every row."""
        return [*self.rows.values(), *self.heap]

    def copy(self) -> Table:
        """Copy the containers; rows are never changed in place."""
        return replace(
            self,
            columns=list(self.columns),
            rows=dict(self.rows),
            heap=list(self.heap),
            versions=dict(self.versions),
            indexes=dict(self.indexes),
        )


@dataclass(frozen=True)
class Message:
    """A message that an appending target received.

    ``id``: the idempotency key: the same whenever the same change is sent.
    """

    id: str
    table: TableId
    op: str
    before: Row | None
    after: Row | None
    envelope: Row = field(default_factory=dict)


@dataclass
class MemoryStore:
    """An in-memory store. Every change of it is made under ``lock``."""

    name: str
    tables: dict[TableId, Table] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    checkpoints: dict[Owner, Checkpoint] = field(default_factory=dict)
    done: dict[tuple[Owner, str], int] = field(default_factory=dict)
    """The batch that a scope of an owner (a table without a key, a unit of messages) holds."""
    statements: dict[Owner, tuple[int, int]] = field(default_factory=dict)
    """Schema changes: (batch, how many have run)."""
    writes: dict[str, frozenset[str]] = field(default_factory=dict)
    """Tables that each pipeline wrote."""
    made: dict[Owner, set[TableId]] = field(default_factory=dict)
    """Tables that each target made, until their first copy."""
    left_out: dict[Owner, dict[TableId, dict[str, str]]] = field(default_factory=dict)
    """The indexes that are built once a table is filled."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    away: bool = False
    """True if the store cannot be reached: each request gets TargetUnavailable."""

    def create(self, table: TableId, columns: Iterable[str], key: Iterable[str] = ()) -> Table:
        """Make a table; one of that name is replaced."""
        with self.lock:
            rows = self.tables[table] = Table(list(columns), tuple(key))
            return rows


_stores: dict[str, MemoryStore] = {}


def memory_store(name: str = "default") -> MemoryStore:
    """Return the store of that name; made at first use."""
    return _stores.setdefault(name, MemoryStore(name))


def forget_store(name: str) -> None:
    """Remove it with all that it holds."""
    _stores.pop(name, None)
