"""What a pipeline would copy where: the source's tables as they are now, through the mapping, compared with what each target has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice.config.pipeline import ColumnConversion, TargetConfig
from sluice.flows.load.unique_keys import unique_at_target
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot_columns import noted_columns
from sluice.mapping import Mapping, TableRoute
from sluice.mapping.convert import declared, refuse, remark
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.segments.changeset import columns_of, read_changeset
from sluice.sources.base import SourceSession, SourceTable
from sluice.sources.table_filter import Selection
from sluice.targets.base import Finding, Target


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """One source table on its way to one target.

    Attributes:
        target: name of the target. plan: the table there and the columns that go.
        rows: the source's estimate; left_out: columns that do not go; renamed: (source, target) names.
        key: how rows are told apart: "primary key", the columns of mapping.key, or "whole row".
        unique: columns of a unique key that could be mapping.key.
        remarks: what the target said about it.
    """

    target: str
    plan: PlannedTable
    rows: int
    left_out: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    key: str
    remarks: tuple[Finding, ...] = ()
    unique: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "source_table": str(self.plan.source),
            "target_table": str(self.plan.target),
            "rows": self.rows,
            "columns": [
                {"name": c.name, "type": c.sql_type, "key": c.key, "generated": c.generated} for c in self.plan.columns
            ],
            "left_out": list(self.left_out),
            "renamed": dict(self.renamed),
            "identified_by": self.key,
            "remarks": [
                {"severity": r.severity, "column": r.column, "why": r.why, "statement": r.statement}
                for r in self.remarks
            ],
        }


def planned_copies(runtime: Runtime) -> tuple[list[PlannedCopy], list[SourceTable]]:
    """Every captured table for every target, by target; and the source's tables themselves.

    What rules make is known by the batches that wait for a target: columns that the source does not have, and tables that only rules send rows to.

    Raises:
        MappingError: the mapping contradicts itself. SourceUnavailable, TargetUnavailable, ConfigError. SegmentError: such a batch is damaged.
    """
    selection = Selection.compile(runtime.pipeline.capture)
    routes = Mapping.compile(runtime.pipeline.mapping)
    with runtime.source.open() as source:
        dialect = source.identity.dialect
        tables = source.tables(selection.wants)
        copies = []
        for config in runtime.pipeline.targets:
            target = runtime.open_target(config.name)
            waiting = _waiting(runtime, config)
            plans = [(table, _with_made(plan_of(table, routes.route(table.id), dialect), waiting)) for table in tables]
            said = _said(target, [plan for _, plan in plans])
            if any(r.statement.startswith("CREATE") for remarks in said.values() for r in remarks):
                plans = [(table, _with_statement(source, table, plan, routes)) for table, plan in plans]
                said = _said(target, [plan for _, plan in plans])
            copies += [_copy(config.name, table, plan, routes, said.get(plan.target, ())) for table, plan in plans]
            taken = {plan.target for _, plan in plans}
            emitted = [replace(plan, flavour=dialect) for (_, to), plan in sorted(waiting.items()) if to not in taken]
            said = _said(target, emitted)
            copies += [_emitted(config.name, plan, said.get(plan.target, ())) for plan in emitted]
    return copies, tables


_Waiting = dict[tuple[TableId, TableId], PlannedTable]
"""By the name at the source, or the one that a rule gave the rows, and the name at the target."""


def _waiting(runtime: Runtime, target: TargetConfig) -> _Waiting:
    """Where rules see rows: the tables of merged batches that the target does not have yet, and of the snapshot that it will start from, with the
    columns of all of them."""
    found: _Waiting = {}
    if runtime.rules_path is None or target.changes == "all":
        return found
    with runtime.state() as state:
        process, cursor = state.process(target.name), state.cursor()
        records = [state.batch(number) for number in state.undelivered()]
        if process is None and cursor is not None and target.start == "snapshot":
            for way, fields in noted_columns(runtime, state, cursor.next_batch).items():
                found[way] = PlannedTable(way[1], way[0], tuple(column.planned for column in columns_of(fields)))
    for record in records:
        has_it = process is not None and record is not None and record.number <= process.batch
        if record is None or has_it or not record.changeset or not record.is_for(target.name):
            continue
        for table in read_changeset(runtime.store, record.changeset).manifest.tables:
            way, plan = (TableId(table.source_schema, table.source_table), table.target), table.plan
            found[way] = _with_columns(plan, found[way].columns) if way in found else plan
    return found


def _with_made(plan: PlannedTable, waiting: _Waiting) -> PlannedTable:
    made = waiting.get((plan.source, plan.target))
    return plan if made is None else _with_columns(plan, made.columns)


def _with_columns(plan: PlannedTable, columns: Sequence[PlannedColumn]) -> PlannedTable:
    names = {column.name for column in plan.columns}
    return replace(plan, columns=(*plan.columns, *(column for column in columns if column.name not in names)))


def _emitted(target: str, plan: PlannedTable, remarks: Sequence[Finding]) -> PlannedCopy:
    """A table that only rules send rows to. How many rows that will be is not known."""
    key = f"({', '.join(plan.key)})" if plan.key else "whole row"
    return PlannedCopy(target, plan, 0, (), (), key, tuple(remarks))


def _said(target: Target, plans: Sequence[PlannedTable]) -> dict[TableId, list[Finding]]:
    """What a target has to say about the tables, if it has any to compare."""
    schema = target.schema()
    said: dict[TableId, list[Finding]] = {}
    for finding in schema.compare(plans) if schema is not None else ():
        said.setdefault(finding.table, []).append(finding)
    return said


def plan_of(table: SourceTable, route: TableRoute, flavour: str = "") -> PlannedTable:
    """What goes over of ``table``: target names, types as declared at the source."""
    key = table.schema.primary_key or route.key
    columns = []
    for column in table.schema.columns:
        if conversion := route.conversion(column.name):
            refuse(column.name, column.sql_type, column.name in key, conversion, str(table.id))
    for column in table.schema.columns:
        ordinal = key.index(column.name) + 1 if column.name in key else 0
        name = route.target_name(column.name)
        if name is None and not ordinal:
            continue
        columns.append(
            PlannedColumn(
                name or dict(route.rename).get(column.name, column.name),
                column.sql_type,
                ordinal,
                column.generated,
                column.charset or "",
                column.collation or "",
                str(column.arrow_type),
                column.nullable,
                *_conversion(column.sql_type, route.conversion(column.name)),
                type=column.type,
            )
        )
    return PlannedTable(
        route.target,
        table.id,
        tuple(columns),
        flavour=flavour,
        unique=unique_at_target(table.unique, route),
        promised=route.unique,
    )


def _conversion(sql_type: str, conversion: ColumnConversion | None) -> tuple[str, str]:
    return ("", "") if conversion is None else (declared(sql_type, conversion), remark(sql_type, conversion))


def _with_statement(source: SourceSession, table: SourceTable, plan: PlannedTable, routes: Mapping) -> PlannedTable:
    """With the source's own CREATE TABLE where the whole table goes: defaults, secondary keys and options come along."""
    route = routes.route(table.id)
    if not route.keeps_columns:
        return plan
    return replace(plan, create_sql=source.create_statement(table.id, plan.target))


def _copy(
    target: str, table: SourceTable, plan: PlannedTable, routes: Mapping, remarks: Sequence[Finding]
) -> PlannedCopy:
    route = routes.route(table.id)
    names = [column.name for column in table.schema.columns]
    going = {column.name for column in plan.columns}
    renamed = tuple((a, b) for a, b in route.rename if a in names)
    left_out = tuple(n for n in names if dict(route.rename).get(n, n) not in going)
    key = "primary key" if table.schema.primary_key else f"({', '.join(route.key)})" if route.key else "whole row"
    return PlannedCopy(target, plan, table.rows, left_out, renamed, key, tuple(remarks), table.unique_not_null)
