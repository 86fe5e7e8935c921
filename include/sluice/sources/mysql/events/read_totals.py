"""The totals of several readers of one batch: values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.sources.mysql.position import Position


@dataclass(frozen=True, slots=True)
class ReadTotals:
    """The totals of a run of pieces; ``last`` is the position after it.

    Bytes: all, and those from the first change on.
    """

    last: Position
    pieces: int = 0
    changes: int = 0
    transactions: int = 0
    log_bytes: int = 0
    bytes: int = 0
    first_commit_us: int = 0
    last_commit_us: int = 0
    skipped_tables: int = 0
    skipped_kinds: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
