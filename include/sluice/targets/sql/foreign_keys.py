"""The order that foreign keys give to tables: parents are written before children."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sluice.model.tables import TableId
from sluice.targets.sql.tables import Reference, TargetTable


def ordered(tables: Mapping[TableId, TargetTable], references: Sequence[Reference]) -> dict[TableId, TargetTable]:
    """Return the tables with their place in the order and what has to be checked after them.

    A value that others refer to counts as unique: a row that changes it is deleted first, so that no ON UPDATE meets
    it.
    """
    parents: dict[TableId, set[TableId]] = {table: set() for table in tables}
    for reference in references:
        if reference.child in parents:
            parents[reference.child].add(reference.parent)
    order = generations(parents)
    result = {}
    for table, info in tables.items():
        own_references = [r for r in references if table in {r.parent, r.child}]
        key = {name.casefold() for name in info.key}
        named = dict.fromkeys(r.parent_columns for r in own_references if r.parent == table)
        more = [c for c in named if not {name.casefold() for name in c} <= key and c not in info.unique_keys]
        result[table] = replace(
            info, generation=order[table], references=tuple(own_references), unique_keys=(*info.unique_keys, *more)
        )
    return result


def generations(parents: Mapping[TableId, Iterable[TableId]]) -> dict[TableId, int | None]:
    """Return the depth of each table in the foreign-key graph; None if it is part of a cycle."""
    within = {table: {p for p in table_parents if p in parents} for table, table_parents in parents.items()}
    circles = {table for table in within if table in _ancestors(within, table)}
    result: dict[TableId, int | None] = dict.fromkeys(circles)

    def depth(table: TableId) -> int:
        known_depth = result.get(table)
        if known_depth is not None:
            return known_depth
        if table in circles:
            return 0
        result[table] = table_depth = max((depth(parent) + 1 for parent in within[table]), default=0)
        return table_depth

    for table in within:
        depth(table)
    return result


def _ancestors(parents: Mapping[TableId, set[TableId]], table: TableId) -> set[TableId]:
    seen_tables: set[TableId] = set()
    ahead = list(parents[table])
    while ahead:
        ancestor = ahead.pop()
        if ancestor not in seen_tables:
            seen_tables.add(ancestor)
            ahead += parents[ancestor]
    return seen_tables
