"""The copies that a pipeline would make: the source's current tables, through the mapping, compared with each target's
tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from sluice.config.pipeline import ColumnConversion, TargetConfig
from sluice.errors import SchemaUnknown, SluiceError
from sluice.flows.incomplete_tables import with_definitions
from sluice.flows.load.unique_keys import unique_at_target
from sluice.flows.planned_columns import planned_columns, planned_table, wanted_type
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot.rows import noted_columns
from sluice.flows.stored import definitions_at
from sluice.flows.transform.made_columns import known_when_it_runs, mapped_columns
from sluice.flows.transform.stage_rules import StageRules
from sluice.mapping import Mapping, TableRoute
from sluice.mapping.convert import declared, refuse, remark
from sluice.model.batches import Batch
from sluice.model.definitions import Definitions
from sluice.model.dialects import MARIADB, MYSQL, UNKNOWN, Dialect
from sluice.model.planned import PlannedColumn, PlannedTable, created_by
from sluice.model.tables import TableId
from sluice.operations.arriving import Arriving, next_batch
from sluice.rules import RuleSet
from sluice.segments.changeset import columns_of, read_changeset
from sluice.segments.snapshot_columns import Way
from sluice.segments.store import SegmentStore
from sluice.sources.port import SourceSession, SourceTable
from sluice.sources.table_filter import Selection
from sluice.sources.words import words_of
from sluice.targets.accepted_losses import judged
from sluice.targets.port import TableFinding, Target

_PRINTED = frozenset({MYSQL, MARIADB})
"""Dialects whose servers print the statement that makes a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    remarks: tuple[TableFinding, ...] = ()
    unique: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the planned copy as commands print it."""
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
                {
                    "severity": r.severity,
                    "column": r.column,
                    "why": r.why,
                    "statement": r.statement,
                    "hint": r.hint,
                }
                for r in self.remarks
            ],
        }


def planned_copies(runtime: Runtime) -> tuple[list[PlannedCopy], list[SourceTable]]:
    """Return every captured table for every target, by target; and the source's tables themselves.

    Batches that wait for a target tell what rules make: columns that the source does not have, and tables that only
    rules send rows to.

    Raises:
        MappingError: the mapping contradicts itself.
        SegmentError: such a batch is damaged.
        SourceUnavailable, TargetUnavailable, ConfigError.
    """
    selection = Selection.compile(runtime.pipeline.capture)
    routes = Mapping.of(runtime.pipeline)
    with runtime.source.open() as source:
        dialect = source.identity.dialect
        tables = source.tables(selection.wants)
        by_rules, rule_tables = _MadeByRules.of(runtime), _told_by_rules(runtime, tables, routes)
        copies = []
        for config in runtime.pipeline.targets:
            target = runtime.open_target(config.name)
            extra = {**rule_tables, **by_rules.on_its_way_to(config)} if config.changes != "all" else {}
            plans = [(table, _with_made(plan_of(table, routes.route(table.id), dialect), extra)) for table in tables]
            findings = _said(target, [plan for _, plan in plans])
            absent = {table: [r for r in remarks if r.absent] for table, remarks in findings.items()}
            if any(absent.values()):
                known_captured_definitions = _captured_definitions(runtime)
                plans = [
                    (
                        table,
                        _explained(
                            source, table, plan, routes, absent.get(plan.target, ()), known_captured_definitions
                        ),
                    )
                    for table, plan in plans
                ]
                findings = _said(target, [plan for _, plan in plans])
                arriving = _arriving(runtime, config, target, routes, tables, known_captured_definitions)
                if arriving is not None:
                    findings |= {
                        plan.target: arriving.sorted_out(plan, findings[plan.target])
                        for _, plan in plans
                        if plan.target in findings
                    }
            copies += [_copy(config.name, table, plan, routes, findings.get(plan.target, ())) for table, plan in plans]
            taken_targets = {plan.target for _, plan in plans}
            emitted = [
                replace(plan, dialect=dialect) for (_, to), plan in sorted(extra.items()) if to not in taken_targets
            ]
            findings = _said(target, emitted)
            copies += [_emitted(config.name, plan, findings.get(plan.target, ())) for plan in emitted]
    return copies, tables


_Made = dict[Way, PlannedTable]


@dataclass(frozen=True, slots=True)
class _MadeByRules:
    """The tables and columns that waiting batches and the snapshot have; empty if no rule sees rows.

    Attributes:
        held: the batch that each started target holds.
        batches: merged ones, oldest first, with their tables.
        snapshot: tables of the snapshot, for targets that will start from it.
    """

    held: dict[str, int]
    batches: tuple[tuple[Batch, tuple[PlannedTable, ...]], ...] = ()
    snapshot: tuple[PlannedTable, ...] = ()

    @classmethod
    def of(cls, runtime: Runtime) -> _MadeByRules:
        """Read the tables of waiting batches. Raises SegmentError, ConfigError."""
        if runtime.rules_path is None:
            return cls({})
        with runtime.state() as state:
            known_acks = {target.name: state.acks.get(target.name) for target in runtime.pipeline.targets}
            batches = [batch for number in state.undelivered() if (batch := state.batches.get(number)) is not None]
            cursor = state.cursor()
            rules = RuleSet.of(runtime.rules_path)
            noted = noted_columns(runtime.store, state, cursor.next_batch, rules) if cursor is not None else {}
        return cls(
            {name: process.batch for name, process in known_acks.items() if process is not None},
            tuple((batch, _tables_of(runtime.store, batch.changeset)) for batch in batches if batch.changeset),
            tuple(_noted_table(way, fields) for way, fields in noted.items()),
        )

    def on_its_way_to(self, target: TargetConfig) -> _Made:
        """Return the tables of everything that the target does not have yet, with all of its columns."""
        made_tables: _Made = {}
        if target.changes == "all":
            return made_tables
        last_batch = self.held.get(target.name)
        plans = [*self.snapshot] if last_batch is None and target.start == "snapshot" else []
        for batch, tables in self.batches:
            if batch.number > (last_batch or 0) and batch.is_for(target.name):
                plans += tables
        for plan in plans:
            way = (plan.source, plan.target)
            made_tables[way] = _with_columns(plan, made_tables[way].columns) if way in made_tables else plan
        return made_tables


def _told_by_rules(runtime: Runtime, tables: Sequence[SourceTable], routes: Mapping) -> _Made:
    """Return what built-in and SQL rules make of tables, found without a row.

    A broken rule is left to its own finding.
    """
    plans: _Made = {}
    if runtime.rules_path is None:
        return plans
    with suppress(SluiceError):
        rules = RuleSet.load(runtime.rules_path)
        ruling = StageRules.of(rules, runtime.pipeline, runtime.rules_path, runtime.resolver)
        for table in tables:
            if not rules.matching(table.id) or known_when_it_runs(rules, table.id):
                continue
            route = routes.route(table.id)
            with suppress(SluiceError):
                fields = mapped_columns(ruling, route, table.schema).schema
                columns = planned_columns(columns_of(fields))
                plans[table.id, route.target] = PlannedTable(route.target, table.id, columns)
    return plans


def _tables_of(store: SegmentStore, changeset: str) -> tuple[PlannedTable, ...]:
    return tuple(map(planned_table, read_changeset(store, changeset).manifest.tables))


def _noted_table(way: Way, fields: pa.Schema) -> PlannedTable:
    source, target = way
    return PlannedTable(target, source, planned_columns(columns_of(fields)))


def _with_made(plan: PlannedTable, plans: _Made) -> PlannedTable:
    made_plan = plans.get((plan.source, plan.target))
    if made_plan is None:
        return plan
    columns = _with_columns(plan, made_plan.columns)
    return replace(columns, made=frozenset(column.name for column in columns.columns[len(plan.columns) :]))


def _with_columns(plan: PlannedTable, columns: Sequence[PlannedColumn]) -> PlannedTable:
    names = {column.name for column in plan.columns}
    return replace(plan, columns=(*plan.columns, *(column for column in columns if column.name not in names)))


def _emitted(target: str, plan: PlannedTable, remarks: Sequence[TableFinding]) -> PlannedCopy:
    """Return the copy of a table that only rules send rows to. The number of rows is unknown."""
    key = f"({', '.join(plan.key)})" if plan.key else "whole row"
    return PlannedCopy(target=target, plan=plan, rows=0, left_out=(), renamed=(), key=key, remarks=tuple(remarks))


def _said(target: Target, plans: Sequence[PlannedTable]) -> dict[TableId, list[TableFinding]]:
    """Return the target's findings by table; those about values that are lost as the pipeline file accepts them, or
    not.
    """
    schema = target.schema()
    findings: dict[TableId, list[TableFinding]] = {}
    for finding in judged(target.config, plans, schema.compare(plans) if schema is not None else ()):
        findings.setdefault(finding.table, []).append(finding)
    return findings


def plan_of(table: SourceTable, route: TableRoute, dialect: Dialect = UNKNOWN) -> PlannedTable:
    """Return the plan of ``table``: names at the target, types as declared at the source."""
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
        target_type, loses = _conversion(column.sql_type, route.conversion(column.name))
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
                target_type,
                loses,
                type=column.type,
                wanted_type=wanted_type(target_type),
            )
        )
    return PlannedTable(
        route.target,
        table.id,
        tuple(columns),
        dialect=dialect,
        unique=unique_at_target(table.unique, route),
        promised=route.unique,
    )


def _conversion(sql_type: str, conversion: ColumnConversion | None) -> tuple[str, str]:
    return ("", "") if conversion is None else (declared(sql_type, conversion), remark(sql_type, conversion))


def _explained(
    source: SourceSession,
    table: SourceTable,
    plan: PlannedTable,
    routes: Mapping,
    absent: Sequence[TableFinding],
    known_definitions: Definitions | None,
) -> PlannedTable:
    """Add what is needed to create what the target lacks: the source's own CREATE TABLE, or the definitions of
    columns.
    """
    if any(not finding.column for finding in absent):
        return _with_statement(source, table, plan, routes)
    if not absent or source.history is None or source.head is None:
        return plan
    stored = known_definitions.find(table.id) if known_definitions is not None else None
    if stored is not None:
        return with_definitions(plan, routes, stored)
    try:
        return with_definitions(plan, routes, source.history.definition(table.id, source.head))
    except SchemaUnknown:  # the table was changed after it was read
        return plan


def _captured_definitions(runtime: Runtime) -> Definitions | None:
    """Return the definitions as of the captured position; None before the first capture."""
    with runtime.state() as state:
        cursor = state.cursor()
        return definitions_at(runtime.store, runtime.source, state, cursor.position) if cursor is not None else None


def _arriving(
    runtime: Runtime,
    config: TargetConfig,
    target: Target,
    routes: Mapping,
    tables: Sequence[SourceTable],
    captured: Definitions | None,
) -> Arriving | None:
    """Return what the log brings to a target; None before the first capture."""
    if captured is None:
        return None
    with runtime.state() as state:
        batch = next_batch(state, config.name)
        reached = definitions_at(runtime.store, runtime.source, state, batch.first) if batch is not None else captured
    if reached is None:
        return None
    merged = _tables_of(runtime.store, batch.changeset) if batch is not None and batch.changeset else ()
    waiting = {plan.source: {column.name for column in plan.columns} for plan in merged}
    now = {table.id: table for table in tables}
    return Arriving(runtime.name, config, target.capabilities, routes, reached, captured, waiting, now)


def _with_statement(source: SourceSession, table: SourceTable, plan: PlannedTable, routes: Mapping) -> PlannedTable:
    """Add the source's own CREATE TABLE if the whole table is copied: defaults, secondary keys and options are kept.

    A source that prints none has a definition that says them.
    """
    route = routes.route(table.id)
    sql = source.create_statement(table.id, plan.target) if route.keeps_columns else ""
    if sql:
        return replace(plan, create_sql=sql, created=words_of(plan.dialect).created_table(sql, plan.target.schema))
    if plan.dialect in _PRINTED or source.history is None or source.head is None:
        return plan
    try:
        definition = source.history.definition(table.id, source.head)
    except SchemaUnknown:  # the table was changed after it was read
        return plan
    return with_definitions(replace(plan, created=created_by(definition, route.target_name)), routes, definition)


def _copy(
    target: str, table: SourceTable, plan: PlannedTable, routes: Mapping, remarks: Sequence[TableFinding]
) -> PlannedCopy:
    route = routes.route(table.id)
    names = [column.name for column in table.schema.columns]
    going = {column.name for column in plan.columns}
    renamed = tuple((a, b) for a, b in route.rename if a in names)
    left_out = (*(n for n in names if dict(route.rename).get(n, n) not in going), *table.left_out)
    key = "primary key" if table.schema.primary_key else f"({', '.join(route.key)})" if route.key else "whole row"
    return PlannedCopy(
        target=target,
        plan=plan,
        rows=table.rows,
        left_out=left_out,
        renamed=renamed,
        key=key,
        remarks=tuple(remarks),
        unique=table.unique_not_null,
    )
