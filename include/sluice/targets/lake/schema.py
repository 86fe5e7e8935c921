"""Compare planned tables with existing ones, and create the missing ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sluice.errors import LoadError, MappingError
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.targets.lake.changelog import BEFORE, ENVELOPE, column_name, planned
from sluice.targets.lake.checkpoints import Raced
from sluice.targets.lake.column_types import TOO_WIDE, lost, made_type, takes
from sluice.targets.lake.columns import LakeColumn, Shape, TableInfo, clusterable, partitionable
from sluice.targets.lake.site import LakeSite
from sluice.targets.lake.statements import Statement, add_text, create_text, read_statement, type_text
from sluice.targets.port import Finding


@dataclass(frozen=True)
class LakeSchema(ABC):
    """See :class:`sluice.targets.port.TargetSchema`."""

    site: LakeSite

    def compare(self, tables: Sequence[PlannedTable]) -> list[Finding]:
        """Return missing tables and columns, types that do not fit, and losses."""
        return [finding for plan in tables for finding in self._compare(plan)]

    def require(self, plan: PlannedTable) -> None:
        """Raise MappingError unless the table can hold the planned rows."""
        for one in self._compare(plan):
            if one.severity != "error":
                continue
            if not one.column and one.statement.startswith("CREATE"):
                raise self.site.missing(plan.target)
            raise MappingError(
                f"table {plan.target}: {one.why}",
                where=f"{plan.target}.{one.column}" if one.column else str(plan.target),
                hint="; ".join(filter(None, (one.hint, "`sluice check --apply` does it" if one.statement else "")))
                or None,
            )

    def apply(self, statement: str) -> None:
        """Make a table, or add columns. Raises LoadError."""
        told = read_statement(statement)
        try:
            self._apply(told, statement)
        except Raced as error:
            raise LoadError(
                f"another writer changed the table at the same time: {error}: {statement[:200]}", hint="run it again"
            ) from None

    # -- of the format ---------------------------------------------------------------------------------------------
    @abstractmethod
    def _apply(self, told: Statement, text: str) -> None:
        """Apply a statement. Raises LoadError, Raced, TargetUnavailable."""

    @abstractmethod
    def _place(self, table: TableId) -> str:
        """Return the table in Spark's words."""

    def _refused(self, table: Any) -> tuple[str, str]:
        """Return why the client cannot write to a table, "" if it can, and the remedy."""
        return "", ""

    # -- inside ----------------------------------------------------------------------------------------------------
    def _compare(self, plan: PlannedTable) -> list[Finding]:
        site, wide = self.site, self.site.wide_decimals
        found = self._unfit(plan)
        if found:
            return found
        columns = planned(plan, wide) if site.every else _merged(plan, wide)
        table = site.open(plan.target)
        if table is None:
            partitions = site.partitions(plan.target)
            unfit = _unfit_partitions(plan, partitions, columns)
            if unfit:
                return unfit
            unknown = [name for name in partitions if name not in {one.name for one in columns}]
            if unknown:
                return [
                    Finding(
                        "error",
                        plan.target,
                        unknown[0],
                        f"options.partition_by names {unknown[0]!r}, which the table does not have",
                    )
                ]
            unfit = self._unfit_clusters(plan, TableInfo(columns, partitions), "error")
            if unfit:
                return unfit
            statement = create_text(self._place(plan.target), columns, partitions, self.site.FORMAT.upper())
            return [
                Finding(
                    "error",
                    plan.target,
                    "",
                    f"there is no {self.site.NAME} table at {site.uri(plan.target)}",
                    statement,
                    absent=True,
                )
            ]
        info = self.site.info(table)
        refusal, help_ = self._refused(table)
        if refusal:
            return [Finding("error", plan.target, "", refusal, hint=help_)]
        unfit = _unfit_partitions(plan, info.partitions, info.columns)
        if unfit:
            return unfit
        found = [*self._columns(plan, info), *self._unfit_clusters(plan, info, "warning")]
        return found or [self._well(plan, info)]

    def _unfit_clusters(
        self, plan: PlannedTable, info: TableInfo, severity: Literal["error", "warning"]
    ) -> list[Finding]:
        """Return the columns of the option that do not fit. For an existing table that is a warning.

        Rows keep arriving, and a column may have been renamed at the source since.
        """
        found, said = [], "options.cluster_by names"
        for name in self.site.options.cluster_by.get(str(plan.target), ()):
            one = info.find(name)
            if one is None:
                why = f"{said} {name!r}, which the table does not have"
            elif one.partition or one.name in info.partitions:
                why = f"{said} {name!r}, by which the table is partitioned"
            elif not clusterable(one.kind):
                why = f"{said} {name!r}: files have no bounds of {type_text(one.kind)} that readers look at"
            else:
                continue
            hint = "cluster by columns of numbers, texts, dates or times, or leave it out"
            found.append(Finding(severity, plan.target, name, why, hint=hint))
        return found

    def _unfit(self, plan: PlannedTable) -> list[Finding]:
        """Return what no table could hold."""
        found: list[Finding] = []
        if not plan.key and not self.site.every:
            found.append(Finding(
                "error", plan.target, "", "it has no key, and changes: latest needs one",
                hint="give it a primary key, name one (mapping: key), or give the target changes: all",
            ))  # fmt: skip
        for column in plan.columns:
            if column.generated:
                continue
            if self.site.odd_name(column.name):
                why = f"{self.site.NAME} takes no such name of a column: {column.name!r}"
                found.append(Finding("error", plan.target, column.name, why, hint="rename it: mapping.columns.rename"))
            elif not made_type(column, self.site.wide_decimals):
                found.append(Finding(
                    "error", plan.target, column.name, f"{column.sql_type or column.arrow_type}: {TOO_WIDE}",
                    hint="options: {wide_decimals: string} stores the digits as text; or leave the column out: mapping.columns.exclude",
                ))  # fmt: skip
        return found

    def _columns(self, plan: PlannedTable, info: TableInfo) -> list[Finding]:
        found: list[Finding] = []
        every = self.site.every
        inner = info.find(BEFORE)
        parts = TableInfo(inner.kind) if inner is not None and not isinstance(inner.kind, str) else None
        if every:
            there = {one.name: one.kind for one in info.columns}
            wrong = [name for name, kind in ENVELOPE if there.get(name) != kind] + ([BEFORE] if parts is None else [])
            if wrong:
                why = f"it is no table of changes: it lacks {wrong[0]!r}, or has it as another type"
                return [
                    Finding(
                        "error",
                        plan.target,
                        wrong[0],
                        why,
                        hint="give the target another location, or options: {table: …}",
                    )
                ]
        elif parts is not None and info.find("_batch") is not None:
            why = "it is a table of changes (changes: all), not of rows"
            return [Finding("error", plan.target, "", why, hint="give the target another location")]
        for column in plan.columns:
            if column.generated:
                continue
            name = column_name(column.name) if every else column.name
            found += self._column(plan, column, name, info, parts if every else None)
        sent = {one.name.casefold() for one in plan.columns if not one.generated}
        if not every:
            for other in info.columns:
                if not other.nullable and other.name.casefold() not in sent:
                    why = f"column {other.name!r} needs a value, and {plan.source} has no such column"
                    found.append(
                        Finding(
                            "error", plan.target, other.name, why, hint="ALTER TABLE … ALTER COLUMN … DROP NOT NULL"
                        )
                    )
        return found

    def _column(
        self, plan: PlannedTable, column: PlannedColumn, name: str, info: TableInfo, parts: TableInfo | None
    ) -> list[Finding]:
        made, own = column.sent_type, made_type(column, self.site.wide_decimals)
        there = info.find(name)
        said = column.sql_type or column.arrow_type
        new = [LakeColumn(name, own)] if there is None else []
        if parts is not None and parts.find(name) is None:
            new.append(LakeColumn(BEFORE, (LakeColumn(name, own),)))
        if new:
            why = f"it has no column {name!r}, which {plan.source} has"
            hint = "or leave it out: mapping.columns.exclude"
            add = add_text(self._place(plan.target), new)
            return [Finding("error", plan.target, column.name, why, add, hint, absent=True)]
        for one in filter(None, (there, parts.find(name) if parts is not None else None)):
            if not isinstance(one.kind, str) or not takes(made, one.kind):
                why = f"column {one.name!r} is {type_text(one.kind)}, which cannot hold values of {said}"
                hint = "make the table anew, or rewrite it with Spark with a wider type, or leave the column out: mapping.columns.exclude"
                return [Finding("error", plan.target, column.name, why, hint=hint)]
        assert there is not None
        assert isinstance(there.kind, str)
        why = lost(made, there.kind) or column.loses
        if there.length and not 0 < made.length <= there.length:
            why = f"texts of more than {there.length} characters are refused"
        elif not there.nullable and column.nullable and not column.key:
            why = "NULL is refused"
        return (
            [Finding("warning", plan.target, column.name, f"{said} -> {type_text(there.kind)}: {why}")] if why else []
        )

    def _well(self, plan: PlannedTable, info: TableInfo) -> Finding:
        by = f", partitioned by {', '.join(info.partitions)}" if info.partitions else ""
        clusters = self.site.clusters(plan.target, info)
        by += f", clustered by {', '.join(clusters)}" if clusters else ""
        what = "every change is appended to" if self.site.every else "rows are merged into"
        return Finding("ok", plan.target, "", f"{what} the {self.site.NAME} table {self.site.uri(plan.target)}{by}")


def _unfit_partitions(plan: PlannedTable, names: Sequence[str], columns: Sequence[LakeColumn]) -> list[Finding]:
    found = []
    for one in columns:
        if one.name in names and not partitionable(one.kind):
            why = f"a table cannot be partitioned by {one.name!r}: not all values of {type_text(one.kind)} are read back as they were"
            hint = "partition by whole numbers, texts or dates"
            found.append(Finding("error", plan.target, one.name, why, hint=hint))
    return found


def _merged(plan: PlannedTable, wide: str) -> tuple[LakeColumn, ...]:
    return tuple(LakeColumn(one.name, made_type(one, wide)) for one in plan.columns if not one.generated)


def wanting(columns: Sequence[LakeColumn], info: TableInfo) -> list[LakeColumn]:
    """Return the columns that a table lacks; for a struct, its missing parts."""
    found: list[LakeColumn] = []
    for one in columns:
        there = info.find(one.name)
        if there is None:
            found.append(one)
        elif not isinstance(one.kind, str) and not isinstance(there.kind, str):
            parts: Shape = tuple(wanting(one.kind, TableInfo(there.kind)))
            if parts:
                found.append(LakeColumn(one.name, parts))
    return found
