"""The store of a target's checkpoint: the target itself or, if it keeps nothing, ZooKeeper."""

from __future__ import annotations

from sluice.coordination.state import PipelineState
from sluice.coordination.target_checkpoints import Superseded, TargetRecord
from sluice.errors import Fenced
from sluice.targets.port import Agrees, Checkpoint, CheckpointStore, Target


def checkpoints_of(target: Target, state: PipelineState) -> CheckpointStore:
    """Return the target's own checkpoint store, else one in ZooKeeper."""
    own = target.checkpoints
    return own if own is not None else ZooKeeperCheckpoints(state, target.config.name)


class ZooKeeperCheckpoints:
    """See :class:`sluice.targets.port.CheckpointStore`. It fences the checkpoint, not the target's rows: the guarantee is at least once, or
    idempotent."""

    def __init__(self, state: PipelineState, target: str) -> None:
        self._records = state.target_records(target)

    @property
    def place(self) -> str:
        """The node."""
        return f"ZooKeeper, {self._records.path}"

    def read(self) -> Checkpoint | None:
        """Return the stored checkpoint, None if there is none."""
        found = self._records.read()
        return None if found is None else Checkpoint(found.epoch, found.batch, found.position, found.identity)

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """See :meth:`sluice.targets.port.CheckpointStore.take_over`. The caller has the target's lease."""
        found = self.read()
        if agrees is not None:
            agrees(found)
        self._write(TargetRecord(epoch, first if found is None else 0, None, identity))
        kept = self.read()
        assert kept is not None
        return kept

    def advance(self, to: Checkpoint) -> None:
        """Store a later checkpoint; the identity of the stored one stays. Raises Fenced."""
        found = self._records.read()
        identity = found.identity if found else to.identity
        self._write(TargetRecord(to.epoch, to.batch, to.position, identity))

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be older than the stored one. Raises Fenced."""
        self._write(TargetRecord(to.epoch, to.batch, to.position, to.identity), backwards=True)

    def forget(self) -> None:
        """Remove the node."""
        self._records.forget()

    def _write(self, record: TargetRecord, *, backwards: bool = False) -> None:
        try:
            self._records.write(record, backwards=backwards)
        except Superseded as newer:
            raise Fenced(
                f"epoch {newer.epoch} took this target over from epoch {record.epoch}",
                where=self.place,
                hint="a newer run writes to this target; this one must stop",
            ) from newer
