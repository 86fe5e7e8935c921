"""Offsets as a test wants them."""

from __future__ import annotations

from sluice.model.offset import Offset


def committed_at(offset: Offset, commit_time_us: int) -> Offset:
    """The same place, of which the last transaction was committed at this time."""
    return Offset.from_json(offset.to_json() | {"commit_time_us": commit_time_us})
