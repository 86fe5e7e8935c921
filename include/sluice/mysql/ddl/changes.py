"""What an ALTER TABLE did to a definition, in the kinds of :mod:`sluice.model.schema_changes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.model.definitions import TableDefinition
from sluice.model.schema_changes import ChangeKind, TableChange, column_changes
from sluice.model.tables import TableId
from sluice.mysql.ddl import ast as s


def altered(
    before: TableDefinition, after: TableDefinition, actions: Sequence[s.Action], renamed_to: TableId | None = None
) -> TableChange:
    """What an ALTER TABLE did."""
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
                {"drop": ChangeKind.ROWS_REMOVED, "truncate": ChangeKind.ROWS_REMOVED, "exchange": ChangeKind.ROWS_REPLACED,
                 "convert in": ChangeKind.ROWS_REPLACED, "convert out": ChangeKind.ROWS_REMOVED}.get(action.what, ChangeKind.PARTITIONS)
            )  # fmt: skip
        elif isinstance(action, s.Tablespace):
            kinds.append(ChangeKind.ROWS_REPLACED)
    if renamed_to is not None:
        kinds.append(ChangeKind.RENAME_TABLE)
    return TableChange(
        before.table, tuple(dict.fromkeys(kinds)) or (ChangeKind.NOTHING,), before, after, columns, renamed_to
    )


def _renamed(names: tuple[str, ...], renames: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(renames.get(name.lower(), name) for name in names)


def _others(table: TableDefinition) -> tuple[Any, ...]:
    return tuple(index for index in table.indexes if not index.primary)
