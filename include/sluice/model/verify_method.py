"""The ways to verify a pipeline."""

from __future__ import annotations

from enum import StrEnum


class VerifyMethod(StrEnum):
    """The way in which tables are verified."""

    COMPARE = "compare"
    """Both sides are read."""
    SWEEP = "sweep"
    """The targets are read and compared with their digests; what differs, or has none, is compared then."""
