"""The source's definitions as they were at a position of its log."""

from __future__ import annotations

from functools import lru_cache

from sluice.coordination.state import PipelineState
from sluice.flows.runtime import Runtime
from sluice.model.definitions import Definitions
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.segments.schemas import DefinitionsReader, SchemaStore
from sluice.segments.store import SegmentStore


def definitions_at(runtime: Runtime, state: PipelineState, first: Offset) -> Definitions | None:
    """Return the stored definitions that apply to changes from ``first`` on, as far as they are known. Raises SegmentError."""
    schemas, read = SchemaStore(runtime.store), runtime.source.stored_definitions
    cursor = state.cursor()
    if cursor is None or not cursor.schema:
        return None
    for path in (cursor.schema, *schemas.parents(cursor.schema)):
        at = schemas.position(path)
        if at.log_epoch == first.log_epoch and at.order <= first.order:
            return schemas.load(path, read)
    earlier = schemas.before(first)
    return schemas.load(earlier[0].path, read) if earlier else None


def tables_at(runtime: Runtime, state: PipelineState, first: Offset) -> frozenset[TableId]:
    """Return the tables of :func:`definitions_at`, none if nothing is known. Raises SegmentError.

    The newest file of the history is read once per process: while no definition changes, a batch reads none.
    """
    cursor, store, read = state.cursor(), runtime.store, runtime.source.stored_definitions
    if cursor is not None and cursor.schema:
        at, tables = _tables_in(store.uri, store.pipeline, cursor.schema, read)
        if at.log_epoch == first.log_epoch and at.order <= first.order:
            return tables
    return _names(definitions_at(runtime, state, first))


@lru_cache(maxsize=8)
def _tables_in(uri: str, pipeline: str, path: str, read: DefinitionsReader) -> tuple[Offset, frozenset[TableId]]:
    """Return the position of a history file, which never changes, and the tables that it knows."""
    schemas = SchemaStore(SegmentStore(uri, pipeline))
    return schemas.position(path), _names(schemas.load(path, read))


def _names(definitions: Definitions | None) -> frozenset[TableId]:
    return frozenset({*definitions.tables, *definitions.unknown}) if definitions is not None else frozenset()


__all__ = ["definitions_at", "tables_at"]
