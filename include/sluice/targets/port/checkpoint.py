"""The checkpoint: the record of what a target holds of a pipeline, and the fence against replaced writers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sluice.model.offset import Offset


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The record of what a target holds of a pipeline: everything up to ``batch``, which ends at ``position``, written
    under ``epoch``.

    Attributes:
        identity: of the pipeline's state in ZooKeeper that delivered it, "" if an older version did.
        position: None before the first batch.
        edited: batch and position are not those that were written together.
    """

    epoch: int
    batch: int
    position: Offset | None = None
    identity: str = ""
    edited: bool = False


Agrees = Callable[[Checkpoint | None], None]
"""A check that raises CheckpointError if the target's checkpoint does not match; None: the target has none yet."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The fence of a unit: the epoch of its lease, the batch that the target holds meanwhile, and the batch that is
    written.
    """

    epoch: int
    held: int
    batch: int


class CheckpointStore(Protocol):
    """The store of the checkpoint: the target itself (then it is the fence, too), or ZooKeeper for a target that keeps
    nothing.
    """

    @property
    def place(self) -> str:
        """The location of the checkpoint, for messages."""

    def read(self) -> Checkpoint | None:
        """Return the checkpoint of this pipeline and target, None if there is none. Takes nothing over."""

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Raise the epoch; waits for writers of older epochs.

        Returns what is held: batch ``first`` when the two meet for the first time.

        ``identity``: of the state that delivers from now on. ``agrees``: asked first, while no other process can take
        over; what it raises leaves everything as it was.

        Raises:
            Fenced: a higher epoch was here.
        """

    def advance(self, to: Checkpoint) -> None:
        """Record that all of ``to.batch`` is written. A repeat is harmless. Raises Fenced."""

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Record that ``to.batch``, possibly an earlier one, is held: what follows is delivered again. Raises Fenced.

        ``anew``: batch numbers mean something else from now on; what single tables remember of earlier ones is
        forgotten.
        """

    def forget(self) -> None:
        """Remove all that is said about this pipeline and target. Rows stay."""
