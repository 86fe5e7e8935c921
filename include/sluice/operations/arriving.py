"""Columns and tables that a target lacks because their statement is still on its way in the log.

``sluice check --apply`` must not make them: the statement may be a rename, which would find its new name taken, or
would leave the rows under the old one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.config.pipeline import DdlKind, DdlPolicy, TargetConfig
from sluice.coordination.state import PipelineState
from sluice.mapping import Mapping as Routes
from sluice.model.batches import Batch
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.planned import PlannedTable
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.sources.port import SourceTable
from sluice.targets.port import Capabilities, TableFinding


@dataclass(frozen=True, slots=True)
class Arriving:
    """The changes that the log brings to one target.

    Attributes:
        reached: the source's definitions as of the position up to which the target has the log (:func:`next_batch`).
        captured: those as of the captured position.
        waiting: tables and columns (names at the target) of the rows that the target gets next. A copy may have read a
            column before the log tells of it, and then only ``sluice check --apply`` makes it.
        tables: the source's tables now.
    """

    pipeline: str
    config: TargetConfig
    offered: Capabilities
    routes: Routes
    reached: Definitions
    captured: Definitions
    waiting: Mapping[TableId, Collection[str]]
    tables: Mapping[TableId, SourceTable]

    def sorted_out(self, plan: PlannedTable, findings: Sequence[TableFinding]) -> list[TableFinding]:
        """Return the findings about a planned table; those of what the log brings make nothing, and say so."""
        now = self.tables.get(plan.source)
        if now is None:
            return list(findings)
        return [
            self._arrives(finding) if finding.absent and self._brings(plan, now, finding.column) else finding
            for finding in findings
        ]

    # -- inside ----------------------------------------------------------------------------------------------------
    def _arrives(self, finding: TableFinding) -> TableFinding:
        what = "column" if finding.column else "table"
        why = (
            f"the target has no such {what} yet: the statement that made it at the source is behind the position that "
            f"target {self.config.name} has reached, and arrives with the log"
        )
        hint = f"`sluice run {self.pipeline}` delivers it"
        return replace(finding, severity="warning", why=why, statement="", hint=hint, absent=False)

    def _brings(self, plan: PlannedTable, now: SourceTable, column: str) -> bool:
        definition = self.captured.find(plan.source)
        if definition is None or (column and column not in {self._name(plan, name) for name in _names(definition)}):
            rows = self.waiting.get(plan.source)
            if rows is not None and (not column or column in rows):
                return False
        if not column:
            return self._follows(DdlKind.RENAME_TABLE, ChangeKind.RENAME_TABLE) and any(self._renamed(plan, now))
        was = self.reached.find(plan.source)
        if was is None or column in plan.made or column in {self._name(plan, name) for name in _names(was)}:
            return False
        adds, renames = (self.config.ddl_policy(kind) for kind in (DdlKind.ADD_COLUMN, DdlKind.RENAME_COLUMN))
        if ChangeKind.ADD_COLUMN not in self.offered.schema_changes:
            return False
        if _names(was) - _names_now(now):  # one of them may have the new name
            return {adds, renames} != {DdlPolicy.IGNORE}
        return adds in {DdlPolicy.APPLY, DdlPolicy.WIDEN_ONLY}

    def _renamed(self, plan: PlannedTable, now: SourceTable) -> Iterator[TableId]:
        """Yield tables that are gone at the source, and of which a table may be the new name."""
        if self.reached.find(plan.source) is not None:
            return
        for table, was in self.reached.tables.items():
            if table not in self.tables and _names(was) == _names_now(now):
                yield table

    def _follows(self, policy: DdlKind, kind: ChangeKind) -> bool:
        return self.config.ddl_policy(policy) is not DdlPolicy.IGNORE and kind in self.offered.schema_changes

    def _name(self, plan: PlannedTable, column: str) -> str | None:
        route = self.routes.route(plan.source)
        return route.target_name(column) or dict(route.rename).get(column, column)


def next_batch(state: PipelineState, target: str) -> Batch | None:
    """Return the first captured batch that a target lacks; None if it has all."""
    held_acknowledgement = state.acks.get(target)
    for number in state.undelivered():
        batch = state.batches.get(number)
        if (
            batch is not None
            and number > (held_acknowledgement.batch if held_acknowledgement is not None else 0)
            and batch.is_for(target)
        ):
            return batch
    return None


def _names(definition: TableDefinition) -> set[str]:
    return {column.name for column in definition.columns if column.generated is None}


def _names_now(table: SourceTable) -> set[str]:
    return {column.name for column in table.schema.columns if not column.generated}


__all__ = ["Arriving", "next_batch"]
