"""The checkpoint of a memory target: in its store, under the store's lock."""

from __future__ import annotations

from dataclasses import replace

from sluice.errors import Fenced
from sluice.targets.fencing import require_no_newer, require_own
from sluice.targets.memory.store import MemoryStore, Owner
from sluice.targets.port import Agrees, Checkpoint


class MemoryCheckpoints:
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, store: MemoryStore, owner: Owner) -> None:
        self._store, self._owner = store, owner

    @property
    def place(self) -> str:
        """The store."""
        return f"memory {self._store.name}"

    @property
    def _where(self) -> str:
        return f"{self.place}, {self._owner[0]}.{self._owner[1]}"

    def read(self) -> Checkpoint | None:
        """Return the checkpoint, None if there is none."""
        return self._store.checkpoints.get(self._owner)

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""
        with self._store.lock:
            found = self.read()
            if agrees is not None:
                agrees(found)
            if found is None:
                found = Checkpoint(0, first)
                self._store.writes.setdefault(self._owner[0], frozenset())
            require_no_newer(found, epoch, self._where)
            made = replace(found, epoch=epoch, identity=identity or found.identity)
            self._store.checkpoints[self._owner] = made
            return made

    def advance(self, to: Checkpoint) -> None:
        """Store a later checkpoint. Raises Fenced."""
        with self._store.lock:
            found = self.read()
            if found is None:
                raise Fenced("the target's checkpoint is gone", where=self.place)
            require_own(found, to.epoch, self._where)
            if found.batch < to.batch:
                self._store.checkpoints[self._owner] = _written(found, to)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier. Raises Fenced."""
        with self._store.lock:
            found = self.take_over(to.epoch, to.batch, identity=to.identity)
            self._store.checkpoints[self._owner] = _written(found, to)
            self._store.statements.pop(self._owner, None)
            if anew:
                self._forget_done()

    def forget(self) -> None:
        """Remove everything recorded for this owner."""
        with self._store.lock:
            self._store.checkpoints.pop(self._owner, None)
            self._store.statements.pop(self._owner, None)
            self._forget_done()

    def _forget_done(self) -> None:
        for scope in [scope for scope in self._store.done if scope[0] == self._owner]:
            del self._store.done[scope]


def _written(found: Checkpoint, to: Checkpoint) -> Checkpoint:
    return replace(found, batch=to.batch, position=to.position, edited=False)
