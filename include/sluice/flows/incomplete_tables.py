"""Tables that a target lacked, wholly or some columns of: they are noted, the repair has two steps, and a full copy or
a clean verification ends it.

The statement that adds a missing column gives no value to existing rows: the pipeline would continue, and both sides
would differ.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from sluice.coordination.incomplete import IncompleteTable
from sluice.coordination.state import PipelineState
from sluice.errors import MappingError, SluiceError
from sluice.flows.planned_columns import with_definition
from sluice.flows.runtime import Runtime
from sluice.flows.stored import definitions_at
from sluice.mapping import Mapping
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.dumps import Dump, DumpState
from sluice.model.offset import Offset
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.segments.store import SegmentStore
from sluice.sources.port import Source
from sluice.targets.port import TableFinding, Target

FILLED = "it got a partition that had rows, or a composite type of a column changed: its log does not have these rows"
_LOOK_BACK_S = 86_400.0
"""Seconds since the end of a dump whose rows may still be on their way to a target that stops."""
SHOWN_TABLES = 5
"""Tables whose statements are in one hint, at most."""


def with_definitions(plan: PlannedTable, routes: Mapping, table: TableDefinition | None) -> PlannedTable:
    """Add the source's definitions to the plan's columns, so that a statement that adds a column has its default."""
    if table is None:
        return plan
    route = routes.route(plan.source)
    renamed = dict(route.rename)
    known_columns = {renamed.get(column.name, column.name): column for column in table.columns}
    return replace(
        plan,
        columns=tuple(with_definition(column, known_columns.get(column.name), plan.dialect) for column in plan.columns),
    )


def explain_absence(
    runtime: Runtime,
    state: PipelineState,
    target: Target,
    plans: Sequence[PlannedTable],
    at: Offset,
    error: MappingError,
) -> None:
    """Note the tables or columns that the target lacks of a batch that ended ``at``, and put the repair into the hint
    of ``error``.
    """
    with suppress(SluiceError):  # the original error is the one to show
        routes = Mapping.of(runtime.pipeline)
        known_definitions = _definitions(runtime.source, runtime.store, state, at)
        schema = target.schema()
        if schema is None:
            return
        dialect = runtime.source.dialect(at)
        wanted_definitions = [
            with_definitions(
                replace(plan, dialect=dialect),
                routes,
                known_definitions.find(plan.source) if known_definitions is not None else None,
            )
            for plan in plans
        ]
        findings = [finding for finding in schema.compare(wanted_definitions) if finding.absent]
        if findings:
            note_absent(state, target.config.name, findings, wanted_definitions)
            error.hint = way_back(runtime.name, target.config.name, findings, wanted_definitions)


def _definitions(source: Source, store: SegmentStore, state: PipelineState, at: Offset) -> Definitions | None:
    with suppress(SluiceError):
        return definitions_at(store, source, state, at)
    return None


def note_absent(
    state: PipelineState, target: str, findings: Sequence[TableFinding], plans: Sequence[PlannedTable]
) -> None:
    """Note the tables that a started target lacks, wholly or some columns of; a target that has not started has no rows
    to lose.

    A whole copy of the table of which the target has nothing yet will bring all rows: one that is still read ends the
    note, and for one that was read nothing is noted.
    """
    acknowledged = state.acks.get(target)
    if acknowledged is None:
        return
    copies = _copies_ahead(state, target, acknowledged.batch)
    missing = []
    for plan in plans:
        own_findings = [finding for finding in findings if finding.absent and finding.table == plan.target]
        if own_findings and copies.get(plan.source, 1):
            lacks_table = any(not finding.column for finding in own_findings)
            missing.append((
                plan.source,
                () if lacks_table else tuple(dict.fromkeys(finding.column for finding in own_findings)),
            ))
    if missing:
        state.incomplete.add(target, missing, since_ms=copies)


def _copies_ahead(state: PipelineState, target: str, batch: int) -> dict[TableId, int]:
    """Return the tables of which a dump copies every row in batches after ``batch``: when it began; 0: it has read
    them all.
    """
    copies: dict[TableId, int] = {}
    for dump in state.dumps.under_way_since(int((time.time() - _LOOK_BACK_S) * 1000)):
        if dump.state is DumpState.CANCELLED or (dump.targets and target not in dump.targets):
            continue
        for ordinal, request in enumerate(dump.tables):
            placed = state.dumps.placed(dump.id, ordinal)
            is_read = dump.state is DumpState.DONE
            if request.is_whole and placed.undelivered(batch) == placed.rows and (placed.rows or not is_read):
                copies[request.table] = 0 if is_read else dump.created_ms
    return copies


def note_filled(state: PipelineState, targets: Sequence[str], tables: Sequence[TableId]) -> None:
    """Note tables that got rows at the source which its log lacks: every target lacks them until they are copied."""
    for target in targets:
        state.incomplete.add(target, [(table, ()) for table in tables], why=FILLED)


def way_back(pipeline: str, target: str, findings: Sequence[TableFinding], plans: Sequence[PlannedTable]) -> str:
    """Return the commands that add what is missing, then copy the values that the rows lack; then the statements.

    The commands are first, as a long text may be cut.
    """
    tables = list(dict.fromkeys(finding.table for finding in findings))
    statements = [
        f"{finding.statement};" for finding in findings if finding.statement and finding.table in tables[:SHOWN_TABLES]
    ]
    if len(tables) > SHOWN_TABLES:
        statements.append(f"(and so for {len(tables) - SHOWN_TABLES} more tables)")
    columns = any(finding.column for finding in findings)
    sources = [plan.source for plan in plans if plan.target in tables]
    copied = " ".join(f"--table {source}" for source in sources[:SHOWN_TABLES])
    text = (
        f"`sluice check {pipeline} --apply` {'adds' if columns else 'creates'} it; then `sluice dump start {pipeline} "
        f"{copied} --target {target}`: rows that it had before lack what is made now until they are copied"
    )
    text += "; or leave it out: mapping.columns.exclude" if columns else ""
    return f"{text}. By hand: {' '.join(statements)}" if statements else text


def sentence(pipeline: str, table: IncompleteTable) -> str:
    """Return the warning: what may be missing, and which command ends it."""
    if table.why:
        return (
            f"table {table.source} at target {table.target} may lack rows: {table.why}: "
            f"`{copy_command(pipeline, table)}` copies it"
        )
    what = f"columns {', '.join(table.columns)} of it were" if table.columns else "the table was"
    lacks = "values" if table.columns else "rows"
    return (
        f"table {table.source} at target {table.target} may lack {lacks} from before {what} made there by hand: "
        f"`{copy_command(pipeline, table)}` copies it, `sluice verify {pipeline} --table {table.source} --target "
        f"{table.target}` finds whether it does"
    )


def copy_command(pipeline: str, table: IncompleteTable) -> str:
    """Return the command that copies the table."""
    return f"sluice dump start {pipeline} --table {table.source} --target {table.target}"


def copied(state: PipelineState, dump: Dump) -> None:
    """Mark the tables that a finished dump copied whole as complete, if the dump began after they were noted."""
    tables = {request.table for request in dump.tables if request.is_whole}
    state.incomplete.complete(
        lambda table: (
            table.source in tables
            and table.since_ms <= dump.created_ms
            and (not dump.targets or table.target in dump.targets)
        )
    )
