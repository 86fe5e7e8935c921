"""Statements that take rows away without a change that names them, where a topic has the newest row of each key: their keys would stay."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.targets.base import SchemaChange

_K = ChangeKind


def left_rows(change: SchemaChange) -> str:
    """Return which rows a topic keeps, or lacks, after the statement, as a sentence; "" for none."""
    return "; ".join(_reasons(change))


def _reasons(change: SchemaChange) -> Iterator[str]:
    for table in change.tables:
        if table.table in change.not_captured:
            if _K.RENAME_TABLE in change.wanted and _arrives(change, table):
                yield f"{table.table}, which is not captured, became {table.renamed_to}, whose topic has no row of it"
        elif _K.DROP_TABLE in table.kinds and _K.DROP_TABLE in change.wanted:
            if not table.never_was:
                yield f"the rows of {table.table} are gone, and their keys stay in its topic"
        elif table.renamed_to is not None and _K.RENAME_TABLE in change.wanted:
            if not _stays(change, table):
                yield f"{table.table} is {table.renamed_to} now, and its rows stay in the topic of the old name"
        elif _K.CREATE_TABLE in table.kinds and table.before is not None and _K.CREATE_TABLE in change.wanted:
            yield f"{table.table} was replaced, and the keys of its old rows stay in its topic"


def _arrives(change: SchemaChange, table: TableChange) -> bool:
    """True if a table that is not captured gets the name of one that is, and that name was no captured table's until this statement: at the cut-over
    of an online schema change the rows are the same."""
    new = table.renamed_to
    if new is None or new in change.not_captured:
        return False
    return not any(c.table == new and c.table not in change.not_captured for c in change.tables)


def _stays(change: SchemaChange, table: TableChange) -> bool:
    """True if the topic's rows are right after a rename: an online schema change put the same rows in their place."""
    return any(c.renamed_to == table.table and c.table in change.not_captured for c in change.tables)


__all__ = ["left_rows"]
