"""What a statement's columns have as their defaults' values at the source, whatever the kind of target that follows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.errors import UnsupportedType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.mysql.column_defaults import Statement, default_scalar
from sluice.targets.base import SourceStatement
from sluice.targets.schema.columns import type_of_values

_WRITES_DEFAULTS = frozenset({ChangeKind.ADD_COLUMN, ChangeKind.CREATE_TABLE, ChangeKind.COLUMN_ATTRIBUTES})


def default_values(
    statement: SourceStatement, changes: Iterable[TableChange]
) -> Mapping[ColumnDefinition, DefaultValue]:
    """Return the value of the default of every column that there is after ``statement``.

    A statement that only renames a table did not write its defaults: what depends on the session that did is not known then.
    """
    found: dict[ColumnDefinition, DefaultValue] = {}
    for one in changes:
        if one.after is None:
            continue
        wrote = bool(_WRITES_DEFAULTS & set(one.kinds)) or ChangeKind.RENAME_TABLE not in one.kinds
        session = statement.session if wrote else None
        for column in one.after.columns:
            if statement.dialect in {"mysql", "mariadb"}:
                found[column] = known_value(column, Statement(statement.dialect == "mariadb", statement.mode, session))
            else:
                found[column] = DefaultValue(None, f"statements of {statement.dialect} are not understood")
    return found


def known_value(column: ColumnDefinition, statement: Statement | None = None) -> DefaultValue:
    """Return the value of one default. ``statement``: what wrote it, None if the definition is as the server prints it."""
    made = type_of_values(column)
    if made is None:
        return DefaultValue(None, f"the type {column.type} is not known")
    try:
        return DefaultValue(default_scalar(column, made, statement))
    except UnsupportedType as error:
        return DefaultValue(None, error.message)
