"""The tables of the newest stored batches of a pipeline, and their columns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from sluice.coordination.state import PipelineState
from sluice.errors import BatchesGone, MappingError, SegmentError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import definitions_at
from sluice.flows.transform.made_columns import mapped_columns
from sluice.model.tables import TableId, user_schema
from sluice.segments.manifest import SegmentFile
from sluice.serve.batch_range import StoredBatches, read_manifest
from sluice.serve.batch_rows import BatchRows, Wants
from sluice.sources.table_filter import Selection


def defined_tables(
    runtime: Runtime, state: PipelineState, rows: BatchRows, wants: Wants
) -> Iterator[tuple[TableId, pa.Schema]]:
    """Yield the user's columns of captured tables that are wanted, as readers get them. Raises SegmentError, RuleError.

    A table for which only rows tell what rules make of it is not among them.
    """
    cursor = state.cursor()
    known_definitions = (
        definitions_at(runtime.store, runtime.source, state, cursor.position) if cursor is not None else None
    )
    selection = Selection.compile(runtime.pipeline.capture)
    for source, definition in sorted(known_definitions.tables.items() if known_definitions is not None else ()):
        route = rows.routes.whole_route(source)
        if not selection.wants(source) or not wants(route.target):
            continue
        with suppress(MappingError):
            empty = mapped_columns(rows.ruling, route, runtime.source.stored_table(definition))
            shown_schema = rows.without_hidden(empty, source).schema
            yield route.target, user_schema(shown_schema)


LOOK_BACK = 1_000
"""Batches that are looked through for tables: the newest ones when the service first hears of the pipeline, then those
that come.
"""


class TableIndex:
    """The tables of one pipeline. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[TableId, SegmentFile] = {}
        self._seen = 0

    def refresh(self, stored: StoredBatches, state: PipelineState) -> None:
        """Look through the batches that came since; one that retention has removed meanwhile says nothing.

        Raises SegmentError, StorageUnavailable, CoordinationUnavailable.
        """
        with self._lock:
            for number in [n for n in stored.numbers[-LOOK_BACK:] if n > self._seen]:
                with suppress(BatchesGone):
                    manifest = read_manifest(stored.runtime, number, state)
                    for file in manifest.files if manifest is not None else ():
                        self._newest[file.table_id] = file
                self._seen = number

    def columns(self, rows: BatchRows, wants: Wants) -> Iterator[tuple[TableId, pa.Schema]]:
        """Yield the user's columns of the wanted tables, as readers get them.

        A file that retention removed meanwhile is skipped.
        """
        with self._lock:
            newest = sorted(self._newest.items())
        for source, file in newest:
            if rows.may_give(source, wants):
                with suppress(SegmentError):
                    yield from ((table, schema) for table, schema in rows.columns_of(file).items() if wants(table))
