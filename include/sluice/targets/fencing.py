"""The right of a process to write to a target, by the checkpoint there: who is out of date, and what a person
edited.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from sluice.errors import CheckpointError, Fenced
from sluice.targets.port import Checkpoint, Fence


def require_no_newer(held: Checkpoint, epoch: int, where: str) -> None:
    """Raise Fenced if a higher epoch wrote to the target."""
    if held.epoch > epoch:
        raise Fenced(
            f"epoch {held.epoch} took this target over from epoch {epoch}",
            where=where,
            hint="a newer run is at work; this one must not write any more",
        )


def require_own(held: Checkpoint, epoch: int, where: str) -> None:
    """Raise Fenced unless ``epoch`` took the target over, and none did after it."""
    require_no_newer(held, epoch, where)
    if held.epoch != epoch:
        raise Fenced(f"epoch {epoch} did not take this target over", where=where)


def require_batch(held: int, fence: Fence, where: str) -> None:
    """Raise Fenced unless the target holds the batch that ``fence`` was told."""
    if held != fence.held:
        raise Fenced(
            f"batch {fence.batch} was to be written after batch {fence.held}, and the target holds batch {held} by now",
            where=where,
            hint="another run delivered it; this one has nothing left to do",
        )


def require_unedited(held: Checkpoint, pipeline: str, where: str) -> None:
    """Raise CheckpointError if a person edited the target's checkpoint."""
    if held.edited:
        raise CheckpointError(
            "the target's checkpoint was edited: its batch and its position were not written together; nothing was "
            "written",
            where=where,
            hint=f"`sluice recover {pipeline}` shows every choice with its cost",
        )


def seal_of(owner: Sequence[str], batch: int, position: Any) -> int:
    """Return a checksum of a batch and its position (JSON values), which are written together.

    ``owner``: pipeline and target.
    """
    return zlib.crc32(json.dumps([*owner, batch, position], sort_keys=True).encode())
