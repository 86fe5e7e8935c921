"""Tables of which a target holds rows and the source none: the sign of a replica that skipped or filtered changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.flows.dump.reconcile import key_plan, why_not
from sluice.flows.runtime import Runtime
from sluice.flows.stored import definitions_at
from sluice.mapping import Mapping as Routes
from sluice.model.dialects import Dialect
from sluice.model.offset import Offset
from sluice.model.tables import TableId, TableSchema, stored_name
from sluice.sources.port import SourceSession
from sluice.sources.table_filter import Selection
from sluice.targets.port import KeyRange, comparer_of, key_lister

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class LostTable:
    """A captured table: ``missing`` at the source, or empty there, although ``target`` holds rows of it."""

    table: TableId
    target: str
    missing: bool

    @property
    def why(self) -> str:
        """The sentence for people."""
        lack = "does not have the table" if self.missing else "has no row in it"
        return f"target {self.target} holds rows of {self.table}, and the source {lack}"


def lost_tables(
    runtime: Runtime, state: PipelineState, session: SourceSession, at: Offset, targets: Iterable[str] = ()
) -> list[LostTable]:
    """Return the captured tables that the source of ``session`` lacks or has empty while a target still holds rows of
    them.

    Args:
        at: the captured position, whose definitions tell which tables existed.
        targets: names of the targets to ask; none: all. A target that does not answer is left out: this is a hint, and
            nothing waits for it.
    """
    suspects = {schema.table: (schema, missing) for schema, missing in _suspects(runtime, state, session, at)}
    if not suspects:
        return []
    refused = why_not(runtime.pipeline, runtime.rules_path, suspects, suspects, ())
    lost_tables = []
    for name in [*targets] or [target.name for target in runtime.pipeline.targets]:
        with suppress(SluiceError):
            lost_tables += [
                LostTable(table, name, missing)
                for table, (schema, missing) in suspects.items()
                if table not in refused and _holds_rows(runtime, name, schema, session.identity.dialect)
            ]
    return lost_tables


def _suspects(
    runtime: Runtime, state: PipelineState, session: SourceSession, at: Offset
) -> Iterator[tuple[TableSchema, bool]]:
    """Yield (table, True if it is missing) for each captured table with a key that has no row at the source."""
    selection = Selection.compile(runtime.pipeline.capture)
    schemas = {table.id: table.schema for table in session.tables(selection.wants)}
    for table in session.empty_tables([table for table, schema in schemas.items() if schema.primary_key]):
        yield schemas[table], False
    known_definitions = definitions_at(runtime.store, runtime.source, state, at)
    for table, definition in known_definitions.tables.items() if known_definitions is not None else ():
        if selection.wants(table) and table not in schemas:
            with suppress(SluiceError):
                schema = runtime.source.stored_table(definition)
                if schema.primary_key:
                    yield schema, True


def _holds_rows(runtime: Runtime, target: str, schema: TableSchema, dialect: Dialect) -> bool:
    config = runtime.pipeline.target(target)
    if config.changes == "all":
        return False
    opened = runtime.open_target(target)
    comparer = comparer_of(opened)
    if comparer is None:
        return False
    key = schema.primary_key
    route = Routes.of(runtime.pipeline).route(schema.table)
    plan = key_plan(schema.table, schema.arrow_schema, key, route, dialect)
    lister = key_lister(opened, comparer)
    if lister is not None:
        return not lister.not_listed(plan) and any(keys.num_rows for keys in lister.keys(plan))
    fields = pa.schema([schema.arrow_schema.field(stored_name(name)) for name in key])
    return comparer.compare(plan, route.apply(fields.empty_table()), KeyRange(plan.key)).extra is not None


def shown(lost: Iterable[LostTable]) -> str:
    """Join the findings into one text, shortened if there are many tables; "" for none."""
    sentences = list(dict.fromkeys(lost_table.why for lost_table in lost))
    more = f"; and {len(sentences) - _SHOWN} more tables" if len(sentences) > _SHOWN else ""
    return "; ".join(sentences[:_SHOWN]) + more


__all__ = ["LostTable", "lost_tables", "shown"]
