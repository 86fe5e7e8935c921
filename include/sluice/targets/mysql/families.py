"""Foreign keys at the target: whose rows have to be there before whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluice.model.tables import TableId
from sluice.targets.mysql.tables import rows_about


def read_parents(cursor: Any, tables: Sequence[TableId]) -> dict[TableId, set[TableId]]:
    """The tables that each of ``tables`` refers to; one query however many there are."""
    if not tables:
        return {}
    name, found = rows_about(
        cursor, tables, "referential_constraints",
        "constraint_schema, table_name, unique_constraint_schema, referenced_table_name",
    )  # fmt: skip
    asked = {name(table): table for table in tables}
    result: dict[TableId, set[TableId]] = {}
    for table in tables:
        parents = [TableId(*parent) for parent in found[name(table)]]
        result[table] = {asked.get(name(parent), parent) for parent in parents}
    return result


def generations(parents: Mapping[TableId, Iterable[TableId]]) -> dict[TableId, int | None]:
    """How many steps each table is below one that refers to nothing; None: it refers to itself, straight or around, and has no place in an order."""
    within = {table: {p for p in found if p in parents} for table, found in parents.items()}
    circles = {table for table in within if table in _ancestors(within, table)}
    result: dict[TableId, int | None] = dict.fromkeys(circles)

    def depth(table: TableId) -> int:
        known = result.get(table)
        if known is not None:
            return known
        if table in circles:
            return 0
        result[table] = found = max((depth(parent) + 1 for parent in within[table]), default=0)
        return found

    for table in within:
        depth(table)
    return result


def _ancestors(parents: Mapping[TableId, set[TableId]], table: TableId) -> set[TableId]:
    seen: set[TableId] = set()
    ahead = list(parents[table])
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            ahead += parents[one]
    return seen
