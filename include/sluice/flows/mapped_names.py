"""Look up the mapping's column names before rows are loaded by them: a name misspelt in ``exclude`` would let its
column reach the target.

A name is looked up once, when a batch first meets it: among the columns of the source now, of the stored definitions,
and of the batch itself. After that it may be dropped at the source; a name that is new in the file is looked up again.

The tables that options of targets name are looked up, too; one that gets no rows is only warned of, as it may still be
created.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from sluice.config.pipeline import PipelineConfig, TargetConfig
from sluice.coordination.state import PipelineState
from sluice.errors import MappingError, SluiceError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import captured_tables_at_cursor, definitions_at
from sluice.mapping import Mapping
from sluice.mapping.names import KnownTable, misspelt_tables, named_columns, protects, tables_by_line, wrong_names
from sluice.model.fields import true_name
from sluice.model.findings import Finding
from sluice.model.nearest import did_you_mean, meant_table
from sluice.model.tables import META_COLUMNS, TableId
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.sources.port import SourceTable
from sluice.sources.table_filter import Selection
from sluice.targets.options import options_of, tables_named
from sluice.targets.registry import kind_of

if TYPE_CHECKING:
    from sluice.rules import RuleSet

_log = structlog.get_logger()

_warned: set[tuple[str, Finding]] = set()
"""(pipeline, option) of which this process has logged a warning."""


def known_tables(tables: Iterable[SourceTable]) -> dict[TableId, KnownTable]:
    """Return the columns of the source's tables as they are now."""
    return {
        table.id: KnownTable(
            frozenset([
                *(column.name for column in table.schema.columns),
                *(name for name, _ in table.unknown),
                *table.left_out,
            ]),
            frozenset(table.schema.primary_key),
            frozenset(table.left_out),
        )
        for table in tables
    }


def options_without_table(
    pipeline: PipelineConfig, rules: RuleSet, tables: Iterable[TableId], places: Collection[TableId] = ()
) -> list[Finding]:
    """Return a warning for each table that an option of a target names, and to which no rows go.

    Args:
        tables: captured ones. places: further tables of the targets that get rows.
    """
    routes = Mapping.of(pipeline)
    emitted = [TableId(*name.split(".", 1)) for rule in rules for name in rule.config.emits]
    filled = [str(place) for place in [*places, *(routes.route(table).target for table in [*tables, *emitted])]]
    return [
        Finding(
            "warning",
            f"options.{option}",
            table,
            f"no captured table goes to {table}, so that the option changes nothing"
            f"{did_you_mean(meant_table(table, filled))}",
            "write schema.table as at the target, or leave it out",
            part=f"target {config.name}",
        )
        for config in pipeline.targets
        for option, table in tables_named(options_of(config, kind_of(config.type, config.name).load().Options))
        if table not in filled
    ]


def options_without_captured_table(runtime: Runtime, state: PipelineState) -> list[Finding]:
    """Return :func:`options_without_table` by the definitions at the captured position; none before the first capture.

    The source is not asked.
    """
    from sluice.rules import RuleSet

    pipeline = runtime.pipeline
    if any(map(_may_name_tables, pipeline.targets)):
        with suppress(SluiceError):  # what cannot be read stops those that need it
            tables = captured_tables_at_cursor(pipeline, runtime.store, runtime.source, state)
            return options_without_table(pipeline, RuleSet.of(runtime.rules_path), tables) if tables else []
    return []


def _may_name_tables(config: TargetConfig) -> bool:
    """Return True if an option has keys like ``schema.table``; the kind, which knows, need not be imported for that."""
    keys = (key for value in config.options.values() if isinstance(value, dict) for key in value)
    return any("." in str(key) for key in keys)


def warn_of_options(runtime: Runtime, state: PipelineState) -> None:
    """Log options of targets that name a table without rows, each once per process."""
    for finding in options_without_captured_table(runtime, state):
        if (runtime.name, finding) not in _warned:
            _warned.add((runtime.name, finding))
            _log.warning(
                "option_without_table",
                pipeline=runtime.name,
                target=finding.part.removeprefix("target "),
                option=finding.setting,
                table=finding.value,
                reason=finding.why,
            )


def require_known_names(runtime: Runtime, state: PipelineState, manifest: SegmentManifest) -> None:
    """Look up the names of the mapping that no batch has met yet. Costs nothing if there are none.

    Raises:
        MappingError: no table of the line has such a column; or a line that keeps columns back names a table that is
            probably misspelt.
        SourceUnavailable: there are new names, and the source does not answer.
    """
    lines = runtime.pipeline.mapping
    named = named_columns(lines)
    if not named:
        return
    seen_name = state.mapped_names.read()
    if all(name.stored in seen_name for name in named):
        return
    selection = Selection.compile(runtime.pipeline.capture)
    with runtime.source.open() as source:
        tables = known_tables(source.tables(selection.wants))
    for at in (manifest.first, manifest.last):
        definitions = definitions_at(runtime.store, runtime.source, state, at)
        for id_, table in (definitions.tables if definitions is not None else {}).items():
            if selection.wants(id_):
                _join(tables, id_, (column.name for column in table.columns))
    for file in manifest.files:
        _join(tables, TableId(file.schema_, file.table), _columns_of(runtime.store, file.path))
    misspelt = [wrong for wrong in misspelt_tables(lines, tables) if protects(lines[wrong.name.number])]
    for wrong in [*misspelt, *wrong_names(lines, tables)]:
        if wrong.name.stored not in seen_name:
            raise MappingError(
                f"{wrong.name.place}: {wrong.why}",
                where=f"pipeline {runtime.name}",
                hint=f"correct the pipeline file; {wrong.fix}. The batch is kept, and nothing of it went over",
            )
    looked_up = tables_by_line(lines, tables)
    state.mapped_names.add(name.stored for name in named if name.number in looked_up)


def _join(tables: dict[TableId, KnownTable], table: TableId, columns: Iterable[str]) -> None:
    known_table = tables.get(table, KnownTable(frozenset()))
    tables[table] = replace(known_table, columns=known_table.columns | frozenset(columns))


def _columns_of(store: SegmentStore, path: str) -> list[str]:
    """Return the columns of the rows in a segment; none if it is damaged, which the merge reports."""
    try:
        with store.open_input(path) as source:
            schema = pq.read_schema(source)
    except (pa.ArrowException, OSError):
        return []
    return [true_name(field) for field in schema if field.name not in META_COLUMNS]
