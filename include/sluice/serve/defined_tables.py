"""Tables that are captured and of which no stored batch has a row: their columns, by the stored definitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from sluice.coordination.state import PipelineState
from sluice.errors import MappingError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import definitions_at
from sluice.flows.transform.made_columns import mapped_columns
from sluice.model.tables import TableId, user_schema
from sluice.serve.batch_rows import BatchRows, Wants
from sluice.sources.table_filter import Selection


def defined_tables(
    runtime: Runtime, state: PipelineState, rows: BatchRows, wants: Wants
) -> Iterator[tuple[TableId, pa.Schema]]:
    """Yield the user's columns of captured tables that are wanted, as readers get them. Raises SegmentError, RuleError.

    A table for which only rows tell what rules make of it is not among them.
    """
    cursor = state.cursor()
    known = definitions_at(runtime.store, runtime.source, state, cursor.position) if cursor is not None else None
    selection = Selection.compile(runtime.pipeline.capture)
    for source, definition in sorted(known.tables.items() if known is not None else ()):
        route = rows.routes.whole_route(source)
        if not selection.wants(source) or not wants(route.target):
            continue
        with suppress(MappingError):
            empty = mapped_columns(rows.ruling, route, runtime.source.stored_table(definition))
            shown = rows.without_hidden(empty, source).schema
            yield route.target, user_schema(shown)
