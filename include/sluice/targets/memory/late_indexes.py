"""Indexes of a memory store's tables that are left out while a table is filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.model.tables import TableId
from sluice.targets.memory.checkpoints import MemoryCheckpoints
from sluice.targets.memory.store import MemoryStore, Owner
from sluice.targets.port import Fence


class LateIndexes:
    """See :class:`sluice.targets.port.indexes.LeavesOutIndexes`."""

    def __init__(self, store: MemoryStore, owner: Owner) -> None:
        self._store, self._owner = store, owner

    def leave_out(self, fence: Fence, tables: Sequence[TableId]) -> tuple[TableId, ...]:
        """Note the indexes of tables that are new and empty, and drop them."""
        store = self._store
        with store.lock:
            MemoryCheckpoints(store, self._owner).guard(fence)
            made, noted = store.made.get(self._owner, set()), store.left_out.setdefault(self._owner, {})
            for table in tables:
                held = store.tables[table]
                if table in made and held.indexes and not held.all():
                    noted[table] = held.indexes
                    held.indexes = {}
                    made.discard(table)
            return tuple(table for table in tables if table in noted)

    def noted(self) -> Mapping[TableId, tuple[str, ...]]:
        """Return what is left out."""
        found = self._store.left_out.get(self._owner, {})
        return {table: tuple(indexes.values()) for table, indexes in found.items()}

    def build(self, fence: Fence, tables: Sequence[TableId]) -> None:
        """Build what is left out."""
        store = self._store
        with store.lock:
            MemoryCheckpoints(store, self._owner).guard(fence)
            for table in tables:
                missing = store.left_out.get(self._owner, {}).pop(table, {})
                if table in store.tables:
                    store.tables[table].indexes |= missing
