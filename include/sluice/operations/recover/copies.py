"""Copies of tables as a repair: recorded here, read by the running pipeline.

Their ids say what they are for, so that none is made twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.flows.dump.reconcile import kept_on_purpose, key_plan, why_not
from sluice.flows.dump.start import DumpOrder, captured_tables, dump_tables
from sluice.flows.runtime import Runtime
from sluice.mapping import Mapping as Routes
from sluice.model.dialects import Dialect
from sluice.model.dumps import POSITION_LOST
from sluice.model.tables import TableId
from sluice.operations.copy_plan import plan_of
from sluice.sources.port import SourceSession, SourceTable
from sluice.targets.port import Target, other_writers, refuses

_NAMED = 5
"""Tables that a sentence names, at most."""


def rows_of(
    pipeline: PipelineConfig, source: SourceSession, tables: Iterable[TableId] | None = None
) -> dict[TableId, int]:
    """Return the captured tables that the source has (or those of ``tables``), with its estimate of their rows."""
    captured = captured_tables(pipeline, source)
    wanted_tables = None if tables is None else set(tables)
    return {table: rows for table, rows in captured.items() if wanted_tables is None or table in wanted_tables}


def cost_of(tables: dict[TableId, int]) -> str:
    """Describe what a copy of these tables costs."""
    named = ", ".join(sorted(map(str, tables))[:5]) + (", …" if len(tables) > 5 else "")
    return f"a copy of {len(tables)} tables, about {sum(tables.values()):,} rows ({named or 'none'})"


@dataclass(frozen=True, slots=True)
class Replacement:
    """The treatment of rows that the source does not have, by a copy.

    Attributes:
        steps: sentences for the plan.
        left: rows that stay until ``after`` has run, or for good; "" for none.
        after: commands for a person.
    """

    steps: tuple[str, ...]
    left: str = ""
    after: str = ""


def replacement(
    runtime: Runtime, source: SourceSession, tables: Iterable[TableId], targets: Iterable[str] = ()
) -> Replacement:
    """Return what a copy of ``tables`` removes at ``targets`` (none: all), by the same questions as the load asks when
    it comes to it.

    Nothing stays in a table that the target does not have. A kind of target that removes no ranges of keys keeps such
    rows; where it removes listed keys, a verification with repair does it afterwards.
    """
    wanted_tables = list(tables)
    chosen = frozenset(wanted_tables)
    routes, dialect, keyless = Routes.of(runtime.pipeline), source.identity.dialect, source.keyless()
    captured = captured_tables(runtime.pipeline, source)
    reasons = why_not(runtime.pipeline, runtime.rules_path, wanted_tables, captured, keyless)
    source_tables = source.tables(chosen.__contains__)
    steps, notes, after = [], [], []
    for name in [*targets] or [target.name for target in runtime.pipeline.targets]:
        if runtime.pipeline.target(name).changes == "all":
            continue
        why, repairable = "", True
        stay: list[TableId] = []
        try:
            target = runtime.open_target(name)
            others = other_writers(target)
        except SluiceError as error:
            steps.append(f"which rows {name} keeps that the source does not have is not known: {error.message}")
            continue
        lacked = cache(partial(_lacked, target, source_tables, routes, dialect))
        for each in source_tables:
            table, route, key = each.id, routes.route(each.id), () if each.id in keyless else each.schema.primary_key
            plan = key_plan(table, each.schema.arrow_schema, key, route, dialect)
            kept_reason = reasons.get(table, "") or kept_on_purpose(runtime.pipeline, name, others, route.target)
            reason = kept_reason or refuses(target, plan, listed=False)
            if reason and route.target not in lacked():
                why, stay = why or reason, [*stay, table]
                repairable &= not kept_reason and bool(key) and not refuses(target, plan, listed=True)
        if not stay:
            steps.append(f"rows that the source does not have are removed at {name}")
            continue
        named = ", ".join(map(str, stay[:_NAMED])) + (f" and {len(stay) - _NAMED} more" if len(stay) > _NAMED else "")
        command = f"sluice verify run {runtime.name} --target {name}" + (" --repair" if repairable else "")
        does = "removes them" if repairable else "lists them"
        notes.append(f"rows of {named} at {name} that the source does not have stay ({why}) until `{command}` {does}")
        after.append(command)
        steps.append(notes[-1])
    return Replacement(tuple(steps), "; ".join(notes), " && ".join(after))


def _lacked(target: Target, tables: Iterable[SourceTable], routes: Routes, dialect: Dialect) -> Collection[TableId]:
    """Return those of the tables that the target does not have, under its names; none if it could not be asked."""
    with suppress(SluiceError):
        schema = target.schema()
        if schema is not None:
            findings = schema.compare([plan_of(table, routes.route(table.id), dialect) for table in tables])
            return {finding.table for finding in findings if finding.absent and not finding.column}
    return ()


def copy(
    runtime: Runtime,
    state: PipelineState,
    source: SourceSession,
    tables: Iterable[TableId] | None,
    id_: str,
    *,
    targets: tuple[str, ...] = (),
    replace_rows: bool = True,
) -> None:
    """Record a dump of ``tables`` (None: all that are captured). The running pipeline reads it by itself."""
    rows = rows_of(runtime.pipeline, source, tables)
    if rows:
        dump_tables(
            runtime.pipeline,
            runtime.rules_path,
            state,
            source,
            rows,
            DumpOrder(POSITION_LOST, id_, targets),
            replace_rows=replace_rows,
        )
