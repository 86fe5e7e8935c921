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
    known = dict(batch.facts.captured_tables())
    plans = [*(table.plan for table in batch.tables), *(one.plan for one in batch.reconcile)]
    rows = [Route(plan.source, plan.target) for plan in plans]

    def require(routes: list[Route]) -> None:
        naming.refuse_clash(routes, (Route(*pair) for pair in known.items()), pipeline)

    def follow(*, before_rows: bool) -> None:
        for change in batch.schema_changes:
            if change.before_rows is before_rows:
                require([Route(table, known[table]) for one in change.tables for table in one.tables if table in known])
                require(_carried_forward(known, change))

    follow(before_rows=True)
    require(rows)
    follow(before_rows=False)


def _carried_forward(known: _Known, change: SchemaChange) -> list[Route]:
    """Update ``known`` to the state after the statement; return the tables that it created."""
    made: list[Route] = []
    for one in change.tables:
        if ChangeKind.DROP_TABLE in one.kinds or one.renamed_to is not None:
            known.pop(one.table, None)
        new = _new_name(one)
        if new is not None and new not in change.not_captured:
            known[new] = change.target(new)
            made.append(Route(new, known[new]))
    return made


def _new_name(one: TableChange) -> TableId | None:
    if one.renamed_to is not None:
        return one.renamed_to
    return one.table if ChangeKind.CREATE_TABLE in one.kinds else None
