"""Changes that an ALTER TABLE made to a definition, in the kinds of :mod:`sluice.model.schema_changes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.model.definitions import TableDefinition
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange, column_changes
from sluice.model.tables import TableId
from sluice.mysql.ddl import ast as s


def altered(
    before: TableDefinition,
    after: TableDefinition,
    actions: Sequence[s.Action],
    renamed_to: TableId | None = None,
    *,
    ignore: bool = False,
) -> TableChange:
    """Return what an ALTER TABLE did.

    ``ignore``: MariaDB's ALTER IGNORE, which removes rows that a new definition refuses and logs none of them.
    """
    renames = {a.old.lower(): a.new for a in actions if isinstance(a, s.RenameColumn)}
    renames |= {a.old.lower(): a.column.name for a in actions if isinstance(a, s.ChangeColumn)}
    dropped = {a.name.lower() for a in actions if isinstance(a, s.DropColumn)}
    columns = column_changes(before, after, renames, dropped)
    kinds = [change.kind for change in columns]
    if before.primary_key != after.primary_key and _renamed(before.primary_key, renames) != after.primary_key:
        kinds.append(ChangeKind.PRIMARY_KEY)
    if _others(before) != _others(after):
        kinds.append(ChangeKind.INDEXES)
    if (before.charset, before.collation, before.engine, before.comment) != (
        after.charset,
        after.collation,
        after.engine,
        after.comment,
    ):
        kinds.append(ChangeKind.TABLE_OPTIONS)
    for action in actions:
        if isinstance(action, s.PartitionAction):
            kinds.append(
                {"drop": ChangeKind.ROWS_REMOVED, "truncate": ChangeKind.ROWS_REMOVED,
                    "exchange": ChangeKind.ROWS_REPLACED,
                 "convert in": ChangeKind.ROWS_REPLACED, "convert out": ChangeKind.ROWS_REMOVED}.get(action.what,
                 ChangeKind.PARTITIONS)
            )  # fmt: skip
        elif isinstance(action, s.Tablespace):
            kinds.append(ChangeKind.ROWS_REPLACED)
    if ignore and _may_refuse_rows(before, after, columns, actions, renames):
        kinds.append(ChangeKind.ROWS_REMOVED)
    if renamed_to is not None:
        kinds.append(ChangeKind.RENAME_TABLE)
    return TableChange(
        before.table, tuple(dict.fromkeys(kinds)) or (ChangeKind.NOTHING,), before, after, columns, renamed_to
    )


_KEEPS_VALUES = frozenset({
    ChangeKind.RENAME_COLUMN, ChangeKind.MOVE_COLUMN, ChangeKind.ALLOW_NULL, ChangeKind.COLUMN_ATTRIBUTES,
    ChangeKind.WIDEN_COLUMN,
})  # fmt: skip


def _may_refuse_rows(
    before: TableDefinition,
    after: TableDefinition,
    columns: Sequence[ColumnChange],
    actions: Sequence[s.Action],
    renames: Mapping[str, str],
) -> bool:
    """Return True if older rows may violate a unique key, a CHECK or a partition of the new definition."""
    if any(
        isinstance(a, s.PartitionAction) or (isinstance(a, s.AddIndex) and a.index.kind == "check") for a in actions
    ):
        return True
    had = {_unique(index.columns, renames) for index in before.indexes if index.unique}
    keys = [_unique(index.columns, {}) for index in after.indexes if index.unique]
    if any(key not in had for key in keys):
        return True
    touched = {
        part.new.name.lower()
        for part in columns
        if part.new is not None
        and part.old is not None
        and not (part.kind in _KEEPS_VALUES and part.old.collation == part.new.collation)
    }
    return any(name in touched for key in keys for name, _ in key)


def _unique(columns: Sequence[tuple[str, int]], renames: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    return tuple((renames.get(name.lower(), name).lower(), prefix) for name, prefix in columns)


def _renamed(names: tuple[str, ...], renames: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(renames.get(name.lower(), name) for name in names)


def _others(table: TableDefinition) -> tuple[Any, ...]:
    return tuple(index for index in table.indexes if not index.primary)
