"""The checkpoint of a memory target: in its store, under the store's lock."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from sluice.targets.memory.store import MemoryStore, Owner
from sluice.targets.port import Checkpoint, Fence
from sluice.targets.port.record import Decision, Move, Record, RecordCheckpoints, require_guarded


@dataclass(frozen=True)
class MemoryPlace:
    """The names of a target and of its checkpoint."""

    name: str
    pipeline: str
    target: str

    @property
    def owner(self) -> str:
        """The pipeline and the target, by name."""
        return f"{self.pipeline}.{self.target}"

    @property
    def record_place(self) -> str:
        """The store, and the owner."""
        return f"memory {self.name}, {self.owner}"


class MemoryCheckpoints(RecordCheckpoints[MemoryPlace, Record]):
    """The checkpoint store, a dictionary."""

    def __init__(self, store: MemoryStore, owner: Owner) -> None:
        super().__init__(MemoryPlace(store.name, *owner), Record)
        self._store, self._owner = store, owner

    @property
    def place(self) -> str:
        """The store."""
        return f"memory {self._store.name}"

    def read(self) -> Checkpoint | None:
        """Return the checkpoint, None if there is none."""
        return self._store.checkpoints.get(self._owner)

    def guard(self, fence: Fence) -> None:
        """Raise Fenced unless a unit of ``fence`` may write."""
        require_guarded(self._read(), self._place, fence)

    def _read(self) -> Record | None:
        held_checkpoint = self._store.checkpoints.get(self._owner)
        return Record(held_checkpoint) if held_checkpoint is not None else None

    def _change(self, move: Move, epoch: int, decide: Decision[Record]) -> Record | None:
        store, owner = self._store, self._owner
        with store.lock:
            record = decide(self._read())
            if record is None:
                store.checkpoints.pop(owner, None)
            else:
                store.writes.setdefault(owner[0], frozenset())
                store.checkpoints[owner] = record.checkpoint
            if move in (Move.REWIND, Move.FORGET):
                store.statements.pop(owner, None)
        return record

    @override
    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        with self._store.lock:
            super().rewind(to, anew=anew)
            if anew:
                self._forget_done()

    def forget(self) -> None:
        """Remove everything recorded for this owner."""
        with self._store.lock:
            super().forget()
            self._forget_done()

    def _forget_done(self) -> None:
        for scope in [scope for scope in self._store.done if scope[0] == self._owner]:
            del self._store.done[scope]
