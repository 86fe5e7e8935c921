"""Tables whose names become one at the target, whichever batch the other table was in.

Decision: the source's definitions are read, and nothing is stored at the target. They contain every captured table at
the start of a batch, even one that never had a row; and what the target once got, even from a pipeline of an older
version, needs no note. Tables that only rules make are in no definition: two of them are compared if one batch has
both.
"""

from __future__ import annotations

from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.targets.port import BatchInput, SchemaChange
from sluice.targets.sql.names import Naming, Route

_Known = dict[TableId, TableId]
"""The captured tables by now: source table -> target table."""


def refuse_clashes(naming: Naming, batch: BatchInput, pipeline: str) -> None:
    """Check the batch in the order of its log: statements before the rows, rows, statements after them.

    Raises:
        MappingError: rows, or a statement, are for a target table that another source table has by its name.
    """
    known_captured_tables = dict(batch.facts.captured_tables())
    plans = [*(table.plan for table in batch.tables), *(stored_range.plan for stored_range in batch.reconcile)]
    rows = [Route(plan.source, plan.target) for plan in plans]

    def require(routes: list[Route]) -> None:
        naming.refuse_clash(routes, (Route(*pair) for pair in known_captured_tables.items()), pipeline)

    def follow(*, before_rows: bool) -> None:
        for change in batch.schema_changes:
            if change.before_rows is before_rows:
                require([
                    Route(table, known_captured_tables[table])
                    for table_change in change.tables
                    for table in table_change.tables
                    if table in known_captured_tables
                ])
                require(_carried_forward(known_captured_tables, change))

    follow(before_rows=True)
    require(rows)
    follow(before_rows=False)


def _carried_forward(known_tables: _Known, change: SchemaChange) -> list[Route]:
    """Update ``known_tables`` to the state after the statement; return the tables that it created."""
    routes: list[Route] = []
    for table in change.tables:
        if ChangeKind.DROP_TABLE in table.kinds or table.renamed_to is not None:
            known_tables.pop(table.table, None)
        new = _new_name(table)
        if new is not None and new not in change.not_captured:
            known_tables[new] = change.target(new)
            routes.append(Route(new, known_tables[new]))
    return routes


def _new_name(change: TableChange) -> TableId | None:
    if change.renamed_to is not None:
        return change.renamed_to
    return change.table if ChangeKind.CREATE_TABLE in change.kinds else None
