"""The source's unique keys as of a batch, under the target's names: they show whether a target's own keys would merge
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from sluice.config.pipeline import TableMapping
from sluice.mapping import Mapping as Routes
from sluice.mapping import TableRoute
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.planned import PlannedTable
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.segments.manifest import SegmentManifest

Key = tuple[tuple[str, int], ...]


def unique_at_target(keys: Iterable[Key], route: TableRoute) -> tuple[Key, ...]:
    """Return the keys of source columns under their names at the target, without those that have a column the target
    does not get.
    """
    named = [[(route.target_name(column) if column else "", prefix) for column, prefix in key] for key in keys]
    return tuple(
        tuple((name, prefix) for name, prefix in key if name is not None)
        for key in named
        if all(name is not None for name, _ in key)
    )


class SourceKeys:
    """Reads the source's unique keys from its definitions as of the start of a batch."""

    def __init__(
        self,
        mapping: Sequence[TableMapping],
        read: Callable[[], Definitions | None],
        changed: Callable[[], Mapping[TableId, TableDefinition]] = dict,
    ) -> None:
        """Prepare to read.

        ``read``: returns the definitions at the start of the batch; ``changed``: those that statements in front of its
        rows made. Each is called at most once.
        """
        self._read, self._read_changed = read, changed
        self._routes = Routes.compile(mapping)

    def __call__(self, plan: PlannedTable) -> tuple[PlannedTable, frozenset[str]]:
        """Return the plan with the source's unique keys, as far as known, and the columns that only a rule makes, in
        lower case.

        The stored definitions are read at the first call.
        """
        definition = self._changed.get(plan.source)
        if definition is None and self._definitions is not None:
            definition = self._definitions.find(plan.source)
        if definition is None:
            return plan, frozenset()
        route = self._routes.route(plan.source)
        keys = [index.columns for index in definition.indexes if index.unique]
        mapped = {(route.target_name(column.name) or "").casefold() for column in definition.columns}
        rule_columns = frozenset(column.name.casefold() for column in plan.columns) - mapped
        return replace(plan, unique=unique_at_target(keys, route)), rule_columns

    @cached_property
    def _definitions(self) -> Definitions | None:
        """The definitions at the start of the batch: a statement behind its rows counts for the next batch's."""
        return self._read()

    @cached_property
    def _changed(self) -> Mapping[TableId, TableDefinition]:
        return self._read_changed()


def changed_before_rows(manifest: SegmentManifest, *, after: bool = False) -> dict[TableId, TableDefinition]:
    """Return the definitions that statements in front of a batch's rows made, by the tables' names after them.

    ``after``: those of statements behind all rows, too.
    """
    definitions: dict[TableId, TableDefinition] = {}
    for record in manifest.ddl:
        for change in map(TableChange.from_json, record.changes if after or record.seq < manifest.changes else ()):
            definitions.pop(change.table, None)
            if change.after is not None:
                definitions[change.renamed_to or change.table] = change.after
    return definitions
