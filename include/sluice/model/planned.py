"""Tables and columns as a target will be written: the plan that a pipeline makes from the source and its mapping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.dialects import UNKNOWN, Dialect
from sluice.model.tables import TableId


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column that will be sent: name at the target, SQL type at the source (``""`` if a rule made it), ordinal in the
    key from 1 or 0.

    ``type``: what its values are, None where nothing but ``arrow_type`` says it (:attr:`value_type`). ``definition``,
    ``default``: the source's, and the value of its default, where they were asked for; None: they are not known.
    ``wanted``: the SQL type that it shall have at the target, "" for the same; ``loses``: what the mapping itself
    cannot keep of its values. ``wanted_type``: what values of the type ``wanted`` are, None if that is in words that no
    source has.
    """

    name: str
    sql_type: str = ""
    key: int = 0
    generated: bool = False
    charset: str = ""
    collation: str = ""
    arrow_type: str = ""
    nullable: bool = True
    wanted: str = ""
    loses: str = ""
    type: ColumnType | None = None
    definition: ColumnDefinition | None = None
    wanted_type: ColumnType | None = None
    default: DefaultValue | None = field(default=None, compare=False)

    @property
    def value_type(self) -> ColumnType:
        """The type of the column's values at the source; told by their Arrow type where a rule made the column."""
        return self.type if self.type is not None else ColumnType.of_arrow(self.arrow_type)

    @property
    def sent_type(self) -> ColumnType:
        """The type as which values are sent: a column whose time zone the mapping changes is a timestamp, or is none
        any more.
        """
        native, mapped = self.value_type, self.wanted_type
        if mapped is not None and {native.kind, mapped.kind} == {ColumnKind.DATETIME, ColumnKind.TIMESTAMP}:
            return replace(native, kind=mapped.kind)
        return native


@dataclass(frozen=True, slots=True)
class CreatedTable:
    """Comments, those of columns by name, and indexes other than the key, as the statement says that makes a table at
    the source.
    """

    comment: str = ""
    comments: tuple[tuple[str, str], ...] = ()
    indexes: tuple[IndexDefinition, ...] = ()


def created_by(definition: TableDefinition, naming: Callable[[str], str | None] = lambda name: name) -> CreatedTable:
    """Return what a definition says, of a source that prints no statement.

    ``naming``: the target's name of a column, None for one that does not go there, nor an index with it.
    """
    names = {column.name: name for column in definition.columns if (name := naming(column.name)) is not None}
    return CreatedTable(
        definition.comment,
        tuple(
            (names[column.name], column.comment)
            for column in definition.columns
            if column.comment and column.name in names
        ),
        tuple(
            replace(index, columns=tuple((names[name], cut) for name, cut in index.columns))
            for index in definition.indexes
            if not index.primary and all(name in names for name, _ in index.columns)
        ),
    )


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table that will be written, and where it comes from.

    ``create_sql``: the statement that makes it as the source has it, if known.

    ``created``: what that says; None: it is not known, or not understood. ``dialect``: whose words the types and
    the statement are. ``unique``: the source's unique keys, each (name at the target, prefix in
    characters or 0), name "" for an expression; None: not known. ``promised``: columns in which no two rows are equal,
    by the mapping. ``made``: names of columns that the table at the source does not have: rules make them.
    """

    target: TableId
    source: TableId
    columns: tuple[PlannedColumn, ...]
    create_sql: str = ""
    dialect: Dialect = UNKNOWN
    unique: tuple[tuple[tuple[str, int], ...], ...] | None = None
    promised: tuple[tuple[str, ...], ...] = ()
    made: frozenset[str] = frozenset()
    created: CreatedTable | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns in key order; empty for a table without a key."""
        return tuple(column.name for column in self.key_columns)

    @property
    def key_columns(self) -> tuple[PlannedColumn, ...]:
        """The key's columns, in key order."""
        return tuple(column for column in sorted(self.columns, key=lambda column: column.key) if column.key)
