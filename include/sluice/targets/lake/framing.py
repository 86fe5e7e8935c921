"""Large tables of a batch by Spark: workers store the rows as the table has them, and a statement on Spark takes them from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.targets.base import BatchInput, Fence, StatementRunner, TableInput, WriteResult, WriteUnit


class LakeFraming(Protocol):
    """What a format does for large tables. Picklable."""

    def takes(self, rows: int) -> bool:
        """True if this many are better written by Spark."""

    def merged(self, fence: Fence, batch: BatchInput, scope: str, table: TableInput) -> Sequence[WriteUnit]:
        """Units that store the rows of one source table. Their results say where."""

    def changes(self, fence: Fence, batch: BatchInput) -> Sequence[WriteUnit]:
        """Units that store every change of the batch."""

    def commit(self, spark: StatementRunner, fence: Fence, stored: Sequence[WriteResult]) -> None:
        """One commit a table, by Spark. Raises what the port says, and SparkUnavailable."""
