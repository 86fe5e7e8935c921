"""The columns of a changed table, for every kind of target: which came, went or got another name."""

from __future__ import annotations

from sluice.errors import DecodeError
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange
from sluice.targets.port import SchemaChange

NAMES = frozenset({ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN})
"""Kinds after which a table has other names of columns, or the same ones for other columns."""


def changed_columns(change: SchemaChange, one: TableChange) -> tuple[ColumnChange, ...] | None:
    """Return what became of a table's columns, one by one; which was renamed, only the statement tells.

    None: it does not.
    """
    assert one.before is not None
    assert one.after is not None
    if not set(one.kinds) & NAMES:
        return one.compared_columns()
    try:
        found = change.meaning.altered_columns(one)
    except DecodeError:
        return None
    return found if found is not None or not change.cut_overs else one.columns
