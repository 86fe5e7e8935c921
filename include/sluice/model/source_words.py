"""The meaning of a source's definitions and statements, whatever their dialect: values, and who reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition
from sluice.model.planned import CreatedTable
from sluice.model.row_effects import Ran
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange

_WRITES_DEFAULTS = frozenset({ChangeKind.ADD_COLUMN, ChangeKind.CREATE_TABLE, ChangeKind.COLUMN_ATTRIBUTES})
_NOT_ASKED = DefaultValue(None, "the change came without it")


@dataclass(frozen=True, slots=True)
class AlteredNames:
    """Columns that a statement names: those that it renamed, by their old names, and those that it dropped.

    Old names are in lower case.

    The definitions before and after it do not tell a new name from another column.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Collection[str] = ()


class SourceWords(Protocol):
    """Reads the words of one dialect. Pure."""

    def column_type(self, column: ColumnDefinition) -> ColumnType | None:
        """Return what the values of a column are, None for a type that is not known."""

    def altered_names(self, statement: Ran) -> AlteredNames | None:
        """Return the columns that a statement names, None for one that alters no table.

        Raises DecodeError for one that is not understood.
        """

    def default_value(self, column: ColumnDefinition, wrote: Ran | None = None) -> DefaultValue:
        """Return the value of a column's default.

        ``wrote``: the statement that it stands in, None for a text as the server prints it.
        """

    def created_table(self, text: str, schema: str) -> CreatedTable | None:
        """Return what a statement that makes a table says. None for another one, and for one that is not understood."""


@dataclass(frozen=True, slots=True)
class StatementMeaning:
    """The meaning of a statement of the source.

    Attributes:
        types, defaults: of the columns that there are before and after it, and after it; a column whose type is not
            known has none.
        names: the columns that it names, None if it alters no table. unclear: why that is not understood, "" if it is.
    """

    types: Mapping[ColumnDefinition, ColumnType] = field(default_factory=dict)
    defaults: Mapping[ColumnDefinition, DefaultValue] = field(default_factory=dict)
    names: AlteredNames | None = None
    unclear: str = ""

    @classmethod
    def read(cls, words: SourceWords, statement: Ran, changes: Collection[TableChange]) -> StatementMeaning:
        """Read a statement that did ``changes``."""
        names, unclear = None, ""
        try:
            names = words.altered_names(statement)
        except DecodeError as error:
            unclear = error.message
        definitions = [
            definition for change in changes for definition in (change.before, change.after) if definition is not None
        ]
        typed = ((column, words.column_type(column)) for definition in definitions for column in definition.columns)
        types = {column: column_type for column, column_type in typed if column_type is not None}
        return cls(types, dict(_defaults(words, statement, changes)), names, unclear)

    def default_value(self, column: ColumnDefinition) -> DefaultValue:
        """Return the value that the source has for the default of a column: what rows have that were there when it was
        added.
        """
        return self.defaults.get(column, _NOT_ASKED)

    def altered_columns(self, change: TableChange) -> tuple[ColumnChange, ...] | None:
        """Return what the statement did, column by column, to a table whose definitions before and after are known."""
        assert change.before is not None
        assert change.after is not None
        if self.unclear:
            raise DecodeError(self.unclear)
        if self.names is None:
            return None
        return change.compared_columns(self.names.renamed, self.names.dropped)


def _defaults(
    words: SourceWords, statement: Ran, changes: Iterable[TableChange]
) -> Iterable[tuple[ColumnDefinition, DefaultValue]]:
    """Read the default of each column that there is after a statement.

    A statement that only renames a table did not write its defaults: what depends on the session that did is not known
    then.
    """
    for change in changes:
        wrote = bool(_WRITES_DEFAULTS & set(change.kinds)) or ChangeKind.RENAME_TABLE not in change.kinds
        ran = statement if wrote else replace(statement, session=None)
        for column in change.after.columns if change.after is not None else ():
            yield column, words.default_value(column, ran)
