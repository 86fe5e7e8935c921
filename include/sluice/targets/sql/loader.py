"""The operations that a dialect of SQL provides for the shared writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.config.pipeline import TargetConfig
from sluice.errors import TargetUnavailable
from sluice.model.offset import Offset
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.port import BatchInput, CheckpointStore, Fence, RejectedRows, SchemaChange, WriteResult
from sluice.targets.sql.tables import TableChanges, TargetTable

Again = Callable[[PlannedTable, TargetTable], PlannedTable]
"""Returns a planned table with what is looked up once the target's table is known; itself if that is nothing."""


def compared_again(
    plans: Sequence[PlannedTable], target_tables: Mapping[TableId, TargetTable], again: Again | None
) -> list[PlannedTable]:
    """Return the planned tables of which ``again`` made others."""
    if again is None:
        return []
    replanned = [(plan, again(plan, target_tables[plan.target])) for plan in plans]
    return [new_plan for plan, new_plan in replanned if new_plan is not plan]


class Contention(TargetUnavailable):
    """A deadlock or lock wait: the transaction was rolled back and is retried."""


@dataclass(frozen=True, slots=True)
class DdlProgress:
    """The progress of a batch with schema changes.

    ``rows``: all its rows are written; ``steps``: number of statements that have run.
    """

    rows: bool = False
    steps: int = 0


class SqlLoader(Protocol):
    """One server of an SQL dialect, for one target of one pipeline. Picklable; connects at each call."""

    config: TargetConfig

    @property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoint store, in the target: rows and checkpoint commit together."""

    def examine(self, batch: BatchInput) -> None:
        """Check a batch before anything of it is written. Raises MappingError for tables that would be one here."""

    def check(self, tables: Sequence[PlannedTable], again: Again | None = None) -> Mapping[TableId, TargetTable]:
        """Compare with what the target has, by target table, and compare what ``again`` makes of the planned tables.

        The target's catalogs are read once. Raises MappingError that names table, column and the statement that helps.
        """

    def replaceable(self, plan: PlannedTable, *, listed: bool = False) -> tuple[TargetTable | None, str]:
        """Return the table if a range of its keys (``plan.columns``; none: the whole table) can be replaced; else None
        and why not.

        ``listed``: only listed keys are to be removed.
        """

    def ddl_progress(self, batch: int) -> DdlProgress:
        """Return the progress of ``batch``, for a repeat after a crash."""

    def rows_loaded(self, fence: Fence) -> None:
        """Record that all rows of a batch with schema changes are written; the statements follow. Raises Fenced."""

    def note_loading(self, fence: Fence) -> None:
        """Note that a batch will be written in several transactions, if that matters. Raises Fenced."""

    def note_tables(self, fence: Fence, tables: Sequence[TableId]) -> None:
        """Note which tables the pipeline writes, before it does, so that others remove no rows from them.

        Raises Fenced.
        """

    def apply_ddl(self, fence: Fence, change: SchemaChange) -> tuple[str, ...]:
        """Make the target's tables follow a statement, exactly once.

        Returns what was run, nothing if the target had it already.

        Raises:
            LoadError: the target refused it, or policy and state need a person. Fenced.
        """

    def finished_units(self, fence: Fence, plan: str) -> Mapping[int, WriteResult]:
        """Return what units of this batch and plan wrote in earlier attempts, by number.

        If there are units of another plan or batch, all notes are removed, including those of this one: what the others
        wrote since may have removed their rows. Raises Fenced.
        """

    def forget_units(self, fence: Fence) -> None:
        """Remove the notes of written units. Raises Fenced."""

    def load(
        self,
        fence: Fence,
        changes: Sequence[TableChanges],
        *,
        one_transaction: bool = False,
        acknowledge: Offset | None = None,
        rejected: RejectedRows | None = None,
        unit: str = "",
    ) -> WriteResult:
        """Write changes; a repeat ends in the same state.

        Args:
            acknowledge: commit the batch's checkpoint in the same transaction.
            rejected: stores rows that the target refuses, which are left out; None: the first one stops the load.
            unit: noted as written with the last of the rows (``PLAN:NUMBER``); "": no unit is.
        """
