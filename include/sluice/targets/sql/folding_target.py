"""The common part of targets whose names of tables and columns may be folded, as the server reads them without
quotes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.port import BatchInput, TableFinding
from sluice.targets.sql.ack_rows import AckRows
from sluice.targets.sql.loader import Again, compared_again
from sluice.targets.sql.name_clashes import refuse_clashes
from sluice.targets.sql.names import Naming, Route
from sluice.targets.sql.tables import TargetTable
from sluice.targets.sql.target import Session, SqlOptions, SqlTarget

_S = TypeVar("_S", bound=Session)
_O = TypeVar("_O", bound=SqlOptions)
_A = TypeVar("_A", bound=AckRows)


Comparison = Callable[[Sequence[PlannedTable]], Mapping[TableId, TargetTable]]
"""Compares planned tables, in the target's names, with what was read of the target. Raises MappingError."""


class FoldingTarget(SqlTarget[_S, _O, _A]):
    """See :class:`SqlTarget`: what it asks of a dialect is asked here in the target's own names."""

    @property
    @abstractmethod
    def naming(self) -> Naming:
        """The names of tables and columns at the target."""

    @abstractmethod
    def _comparison(self, session: _S, places: Sequence[TableId]) -> Comparison:
        """Read tables, in the target's names, from its catalogs, to compare planned ones with them."""

    @abstractmethod
    def _reviewed(self, session: _S, plans: Sequence[PlannedTable]) -> list[TableFinding]:
        """Return everything to say about planned tables, in the target's names."""

    @abstractmethod
    def _replaceable(self, session: _S, plan: PlannedTable, *, listed: bool) -> tuple[TargetTable | None, str]:
        """Return :meth:`replaceable` of a plan whose target has its own name there."""

    def examine(self, batch: BatchInput) -> None:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.examine`."""
        if self.naming.folds:
            refuse_clashes(self.naming, batch, self.owner[0])

    def check(self, tables: Sequence[PlannedTable], again: Again | None = None) -> Mapping[TableId, TargetTable]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.check`."""
        plans = [self.naming.plan(plan) for plan in tables]
        self._refuse_clash(tables)
        with self.session("reading the target's tables") as session:
            compare = self._comparison(session, [plan.target for plan in plans])
        target_tables = compare(plans)
        known_target_tables = {
            plan.target: _called(target_tables[folded.target], plan) for plan, folded in zip(tables, plans, strict=True)
        }
        compare([self.naming.plan(plan) for plan in compared_again(tables, known_target_tables, again)])
        return known_target_tables

    def replaceable(self, plan: PlannedTable, *, listed: bool = False) -> tuple[TargetTable | None, str]:
        """See :meth:`SqlTarget.replaceable`."""
        with self.session("reading the target's tables") as session:
            table, why = self._replaceable(session, plan, listed=listed)
        return replace(table, named=self.naming.table(plan.target)) if table is not None else None, why

    def refuses_listed(self, table: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.ListReconciler.refuses_listed`: texts are told apart, though not sorted, as at
        the source.
        """
        return self.replaceable(table, listed=True)[1]

    def compare(self, tables: Sequence[PlannedTable]) -> list[TableFinding]:
        """Return missing tables and columns, losses and triggers, with the DDL that corrects them."""
        self._refuse_clash(tables)
        plans = {self.naming.table(plan.target): plan.target for plan in tables}
        with self.session("reading the target's tables") as session:
            findings = self._reviewed(session, [self.naming.plan(plan) for plan in tables])
        return [replace(finding, table=plans[finding.table]) for finding in findings]

    def _refuse_clash(self, tables: Sequence[PlannedTable]) -> None:
        routes = [Route(plan.source, plan.target) for plan in tables]
        self.naming.refuse_clash(routes, (), self.owner[0])


def _called(table: TargetTable, plan: PlannedTable) -> TargetTable:
    """Return the table as the pipeline knows it, with its name at the target."""
    return replace(table, table=plan.target, named=table.table) if table.table != plan.target else table
