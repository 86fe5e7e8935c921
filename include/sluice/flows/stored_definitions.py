"""The source's definitions as they were at a place of its log."""

from __future__ import annotations

from sluice.coordination.state import PipelineState
from sluice.flows.runtime import Runtime
from sluice.model.definitions import Definitions
from sluice.model.positions import Position
from sluice.segments.schemas import SchemaStore


def definitions_at(runtime: Runtime, state: PipelineState, first: Position) -> Definitions | None:
    """The stored definitions that the changes from ``first`` on have, as far as they are known. Raises SegmentError."""
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


__all__ = ["definitions_at"]
