"""Large tables of a batch by Spark: workers store the rows as the table has them, and a statement on Spark takes them
from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.targets.lake.tables import LakeTables
from sluice.targets.port import BatchInput, Fence, StatementRunner, TableInput, WriteResult, WriteUnit


class LakeSparkWriter(Protocol):
    """The way a format writes large tables through Spark. Picklable."""

    def takes(self, rows: int) -> bool:
        """Return True if this many rows are better written by Spark."""

    def merged(
        self, tables: LakeTables, fence: Fence, batch: BatchInput, scope: str, table: TableInput
    ) -> Sequence[WriteUnit]:
        """Return units that store the rows of one source table. Their results say where."""

    def changes(self, tables: LakeTables, fence: Fence, batch: BatchInput) -> Sequence[WriteUnit]:
        """Return units that store every change of the batch."""

    def commit(self, tables: LakeTables, spark: StatementRunner, fence: Fence, stored: Sequence[WriteResult]) -> None:
        """Let Spark make one commit per table. Raises what the port says, and SparkUnavailable."""
