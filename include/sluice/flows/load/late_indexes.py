"""Which batches are written into tables without secondary indexes, and when these are built.

A copy of the snapshot into new tables leaves their secondary indexes out, and builds them from the rows,
which the server sorts: otherwise it searches the index for each row. The copy is one batch and nothing is written
beside it, so that it can be tried again as a whole, and the indexes stand before its checkpoint moves. A dump is many
batches with the log's changes between them, which may need the indexes, so that its tables keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from sluice.coordination.leases import Lease
from sluice.model.batches import Batch
from sluice.model.packing import rows_of
from sluice.model.tables import TableId
from sluice.targets.port import BatchInput, Fence, Target, leaving_out_indexes

_log = structlog.get_logger()

LEAST_ROWS = 100_000
"""The rows from which on it pays to build a table's indexes afterwards: far more than a target writes in one
transaction with its checkpoint.
"""


@dataclass(slots=True)
class LateIndexes:
    """The secondary indexes of one target. ``lease``: of its loader; ``left``: tables that lack theirs."""

    pipeline: str
    target: Target
    lease: Lease
    left: set[TableId] = field(default_factory=set)

    @classmethod
    def of(cls, pipeline: str, target: Target, lease: Lease) -> LateIndexes:
        """Read which tables lack indexes since an earlier attempt. Raises TargetUnavailable."""
        able = leaving_out_indexes(target)
        return cls(pipeline, target, lease, set(able.left_out_indexes() if able is not None else ()))

    def leave_out(self, record: Batch, batch: BatchInput) -> None:
        """Leave out the indexes of the tables that the batch fills, if it is a copy of the snapshot.

        Raises Fenced, TargetUnavailable.
        """
        able = leaving_out_indexes(self.target)
        if able is None or not _fills_tables(record, batch) or self.target.config.consistency == "batch":
            return  # consistency batch: the checkpoint is in the transaction of the rows
        large = sorted({table.target for table in batch.tables if rows_of(table.files) >= LEAST_ROWS} - self.left)
        remaining_indexes = able.leave_out_indexes(self._fence(batch), large) if large else ()
        if remaining_indexes:
            self.left |= set(remaining_indexes)
            _log.info("indexes_left_out", **self._said(remaining_indexes))

    def build(self, batch: BatchInput, *, before: Batch | None = None) -> None:
        """Build all that is left out.

        ``before``: the batch that is written next; if it is a copy, what it fills goes on without its indexes.

        Raises Fenced, TargetUnavailable, LoadError.
        """
        filling = before is not None and _fills_tables(before, batch)
        tables = sorted(self.left - ({table.target for table in batch.tables} if filling else set()))
        able = leaving_out_indexes(self.target)
        if able is None or not tables:
            return
        able.build_indexes(self._fence(batch), tables)
        self.left -= set(tables)
        _log.info("indexes_built", **self._said(tables))

    def _fence(self, given_batch: BatchInput) -> Fence:
        return Fence(self.lease.epoch, given_batch.held, given_batch.number)

    def _said(self, tables: Iterable[TableId]) -> dict[str, str]:
        names = ", ".join(map(str, tables))
        return {"pipeline": self.pipeline, "target": self.target.config.name, "tables": names}


def _fills_tables(record: Batch, given_batch: BatchInput) -> bool:
    """Return True if the batch is a copy of whole tables, and no row is removed for it."""
    return bool(record.snapshot) and not given_batch.reconcile and not given_batch.schema_changes
