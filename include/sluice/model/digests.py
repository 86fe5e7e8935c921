"""Digests of a key range, which a server computes without sending the rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """Rows of a range, and a checksum of their values that does not depend on their order."""

    rows: int
    checksum: int
