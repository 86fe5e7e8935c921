"""Compare planned tables with existing ones, and create the missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sluice.errors import LoadError, MappingError
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.targets.feature_check import without_key
from sluice.targets.lake.changelog import BEFORE, ENVELOPE, SCOPE, column_name, planned
from sluice.targets.lake.format import Raced
from sluice.targets.lake.statements import add_text, create_text, read_statement, type_text
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.types import (
    TOO_WIDE,
    LakeColumn,
    TableInfo,
    clusterable,
    lost,
    made_type,
    partitionable,
    takes,
    wanting,
)
from sluice.targets.port import TableFinding, about_values


@dataclass(frozen=True)
class LakeSchema:
    """See :class:`sluice.targets.port.TargetSchema`."""

    tables: LakeTables

    def compare(self, tables: Sequence[PlannedTable]) -> list[TableFinding]:
        """Return missing tables and columns, types that do not fit, and losses."""
        checkpoint = self.tables.checkpoints.held()
        findings = []
        for plan in tables:
            table = self.tables.open(plan.target) if checkpoint is not None else None
            scope = SCOPE if self.tables.every else str(plan.source)
            back = (
                self.tables.set_back(plan.target, table, scope, checkpoint.delivery) if checkpoint and table else None
            )
            findings += [_error(plan, "", back.message, back.hint or "")] if back is not None else self._compare(plan)
        return findings

    def require(self, plan: PlannedTable) -> None:
        """Raise MappingError unless the table can hold the planned rows."""
        applies = f"`sluice check {self.tables.pipeline} --apply` does it"
        for finding in self._compare(plan):
            if finding.severity != "error":
                continue
            if not finding.column and finding.statement.startswith("CREATE"):
                raise self.tables.missing(plan.target)
            raise MappingError(
                f"table {plan.target}: {finding.why}",
                where=f"{plan.target}.{finding.column}" if finding.column else str(plan.target),
                hint="; ".join(filter(None, (finding.hint, applies if finding.statement else ""))) or None,
            )

    def apply(self, statement: str) -> None:
        """Make a table, add columns, or set properties. Raises LoadError."""
        parsed, table = read_statement(statement), self.tables.format
        try:
            if parsed.create:
                table.create(parsed.names, parsed.columns, parsed.partitions)
                return
            lake_table = table.open(parsed.names, f"reading the metadata of {'.'.join(parsed.names)}")
            if lake_table is None:
                raise LoadError(f"there is no such {table.NAME} table: {statement[:200]}")
            if parsed.properties:
                table.set_properties(parsed.names, lake_table, parsed.properties)
            new = wanting(parsed.columns, table.info(lake_table))
            if new:
                table.add_columns(parsed.names, lake_table, new)
        except Raced as error:
            raise LoadError(
                f"another writer changed the table at the same time: {error}: {statement[:200]}", hint="run it again"
            ) from None

    # -- inside ----------------------------------------------------------------------------------------------------
    def _compare(self, plan: PlannedTable) -> list[TableFinding]:
        target, tables, options = plan.target, self.tables, self.tables.options
        findings = self._unfit(plan)
        if findings:
            return findings
        table = tables.open(target)
        if table is None:
            wide = options.wide_decimals
            columns = planned(plan, wide) if tables.every else _merged(plan, wide)
            return self.unfit_layout(target, columns) or [self._absent(plan, columns)]
        refusal = tables.format.refusal(target, table, every=tables.every)
        if refusal is not None:
            return [refusal]
        info = tables.format.info(table)
        unfit = _unfit_partitions(target, info.partitions, info.columns)
        return (
            unfit
            or [*self._columns(plan, info), *self._unfit_clusters(target, info, "warning")]
            or [self._well(plan, info)]
        )

    def unfit_layout(self, table: TableId, columns: Sequence[LakeColumn]) -> list[TableFinding]:
        """Return why a table with these columns cannot be made as the options say."""
        tables, column_names = self.tables, {column.name for column in columns}
        partitions = tables.options.partitions(table)
        unknown = next((name for name in partitions if name not in column_names), None)
        if unknown is not None:
            why = f"options.partition_by names {unknown!r}, which the table does not have"
            return [TableFinding("error", table, unknown, why)]
        if column_names == {*partitions} and not tables.format.KEEPS_PARTITIONS:
            why = f"options.partition_by names all columns, and no column is left for files of {tables.format.NAME}"
            return [TableFinding("error", table, partitions[-1], why, hint="partition by some of the columns")]
        unfit = _unfit_partitions(table, partitions, columns)
        return unfit or self._unfit_clusters(table, TableInfo(tuple(columns), partitions), "error")

    def _absent(self, plan: PlannedTable, columns: Sequence[LakeColumn]) -> TableFinding:
        format_ = self.tables.format
        partitions = self.tables.options.partitions(plan.target)
        statement = create_text(format_.sql_name(plan.target), columns, partitions, format_.FORMAT.upper())
        why = f"there is no {format_.NAME} table at {format_.uri(plan.target)}"
        return TableFinding("error", plan.target, "", why, statement, absent=True)

    def _unfit_clusters(
        self, table: TableId, info: TableInfo, severity: Literal["error", "warning"]
    ) -> list[TableFinding]:
        """Return the columns of the option that do not fit. For an existing table that is a warning.

        Rows keep arriving, and a column may have been renamed at the source since.
        """
        findings, prefix = [], "options.cluster_by names"
        for name in self.tables.options.cluster_by.get(str(table), ()):
            column = info.find(name)
            if column is None:
                why = f"{prefix} {name!r}, which the table does not have"
            elif column.partition or column.name in info.partitions:
                why = f"{prefix} {name!r}, by which the table is partitioned"
            elif not clusterable(column.kind):
                why = f"{prefix} {name!r}: files have no bounds of {type_text(column.kind)} that readers look at"
            else:
                continue
            hint = "cluster by columns of numbers, texts, dates or times, or leave it out"
            findings.append(TableFinding(severity, table, name, why, hint=hint))
        return findings

    def _unfit(self, plan: PlannedTable) -> list[TableFinding]:
        """Return the findings about columns that no table of the format can hold."""
        findings: list[TableFinding] = []
        if not plan.key and not self.tables.every:
            findings.append(without_key(plan))
        for column in plan.columns:
            if column.generated:
                continue
            if self.tables.format.odd_name(column.name):
                why = f"{self.tables.format.NAME} takes no such name of a column: {column.name!r}"
                findings.append(_error(plan, column.name, why, "rename it: mapping.columns.rename"))
            elif not made_type(column, self.tables.options.wide_decimals):
                hint = (
                    "options: {wide_decimals: string} stores the digits as text; or leave the column out: "
                    "mapping.columns.exclude"
                )
                findings.append(_error(plan, column.name, f"{column.sql_type or column.arrow_type}: {TOO_WIDE}", hint))
        return findings

    def _columns(self, plan: PlannedTable, info: TableInfo) -> list[TableFinding]:
        findings: list[TableFinding] = []
        every = self.tables.every
        inner = info.find(BEFORE)
        parts = TableInfo(inner.kind) if inner is not None and not isinstance(inner.kind, str) else None
        if every:
            types = {column.name: column.kind for column in info.columns}
            wrong = [name for name, kind in ENVELOPE if types.get(name) != kind] + ([BEFORE] if parts is None else [])
            if wrong:
                why = f"it is no table of changes: it lacks {wrong[0]!r}, or has it as another type"
                return [_error(plan, wrong[0], why, "give the target another location, or options: {table: …}")]
        elif parts is not None and info.find("_batch") is not None:
            why = "it is a table of changes (changes: all), not of rows"
            return [_error(plan, "", why, "give the target another location")]
        for column in plan.columns:
            if column.generated:
                continue
            name = column_name(column.name) if every else column.name
            findings += self._column(plan, column, name, info, parts if every else None)
        sent = {column.name.casefold() for column in plan.columns if not column.generated}
        if not every:
            for stored in info.columns:
                if not stored.nullable and stored.name.casefold() not in sent:
                    why = f"column {stored.name!r} needs a value, and {plan.source} has no such column"
                    findings.append(_error(plan, stored.name, why, "ALTER TABLE … ALTER COLUMN … DROP NOT NULL"))
        return findings

    def _column(
        self, plan: PlannedTable, column: PlannedColumn, name: str, info: TableInfo, parts: TableInfo | None
    ) -> list[TableFinding]:
        sent_type, own = column.sent_type, made_type(column, self.tables.options.wide_decimals)
        stored = info.find(name)
        source_type = column.sql_type or column.arrow_type
        new = [LakeColumn(name, own)] if stored is None else []
        if parts is not None and parts.find(name) is None:
            new.append(LakeColumn(BEFORE, (LakeColumn(name, own),)))
        if new:
            why = f"it has no column {name!r}, which {plan.source} has"
            hint = "or leave it out: mapping.columns.exclude"
            add = add_text(self.tables.format.sql_name(plan.target), new)
            return [TableFinding("error", plan.target, column.name, why, add, hint, absent=True)]
        for lake_column in filter(None, (stored, parts.find(name) if parts is not None else None)):
            if not isinstance(lake_column.kind, str) or not takes(sent_type, lake_column.kind):
                why = (
                    f"column {lake_column.name!r} is {type_text(lake_column.kind)}, which cannot hold values of "
                    f"{source_type}"
                )
                hint = (
                    "make the table anew, or rewrite it with Spark with a wider type, or leave the column out: "
                    "mapping.columns.exclude"
                )
                return [_error(plan, column.name, why, hint)]
        assert stored is not None
        assert isinstance(stored.kind, str)
        why = lost(sent_type, stored.kind)
        if stored.length and not 0 < sent_type.length <= stored.length:
            why = f"texts of more than {stored.length} characters are refused"
        elif not stored.nullable and column.nullable and not column.key:
            why = "NULL is refused"
        return (
            [about_values(plan.target, column.name, f"{source_type} -> {type_text(stored.kind)}", why)] if why else []
        )

    def _well(self, plan: PlannedTable, info: TableInfo) -> TableFinding:
        by = f", partitioned by {', '.join(info.partitions)}" if info.partitions else ""
        clusters = self.tables.options.clusters(plan.target, info)
        by += f", clustered by {', '.join(clusters)}" if clusters else ""
        what = "every change is appended to" if self.tables.every else "rows are merged into"
        return TableFinding(
            "ok",
            plan.target,
            "",
            f"{what} the {self.tables.format.NAME} table {self.tables.format.uri(plan.target)}{by}",
        )


def _error(plan: PlannedTable, column: str, why: str, hint: str = "") -> TableFinding:
    return TableFinding("error", plan.target, column, why, hint=hint)


def _unfit_partitions(table: TableId, names: Sequence[str], columns: Sequence[LakeColumn]) -> list[TableFinding]:
    findings = []
    for column in columns:
        if column.name in names and not partitionable(column.kind):
            why = (
                f"a table cannot be partitioned by {column.name!r}: not all values of {type_text(column.kind)} are "
                "read back as they were"
            )
            hint = "partition by whole numbers, texts or dates"
            findings.append(TableFinding("error", table, column.name, why, hint=hint))
    return findings


def _merged(plan: PlannedTable, wide: str) -> tuple[LakeColumn, ...]:
    return tuple(LakeColumn(column.name, made_type(column, wide)) for column in plan.columns if not column.generated)
