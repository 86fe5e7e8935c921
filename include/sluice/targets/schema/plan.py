"""The plan of a schema change: what a target has to do to its tables, in a safe order and in no target's words.

What the target has already is left out. A kind of target renders the steps: as SQL, as a commit of a lake's table, or
as edits of a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sluice.errors import DecodeError, LoadError
from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange
from sluice.model.tables import TableId
from sluice.targets.port import SchemaChange
from sluice.targets.schema.policy import Followed, Tables, followed, never_seen, not_followed, require_told_columns

K = ChangeKind
_NOT_OF_COLUMNS = frozenset({K.TRUNCATE_TABLE, K.RENAME_TABLE, K.PARTITIONS, K.NOTHING})
"""Kinds after which a table has the columns and keys that it had."""


@dataclass(frozen=True, slots=True)
class DropTable:
    """Drop a table."""

    table: TableId


@dataclass(frozen=True, slots=True)
class EmptyTable:
    """Remove all rows of a table."""

    table: TableId
    source: TableId


@dataclass(frozen=True, slots=True)
class RenameTable:
    """Give a table another name. ``before``: the source's definition, None if it is not known."""

    table: TableId
    to: TableId
    before: TableDefinition | None


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column, called ``name`` at the target. ``there``: the target has one of that name already."""

    name: str
    column: ColumnDefinition
    there: bool = False


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Make a table. ``key``: names of columns at the target by which rows are told apart."""

    table: TableId
    source: TableId
    one: TableChange
    after: TableDefinition
    columns: tuple[AddColumn, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """Change something of a column. ``name``: at the target, after columns were renamed; ``was``: before."""

    kind: ChangeKind
    name: str
    was: str
    old: ColumnDefinition
    new: ColumnDefinition


@dataclass(frozen=True, slots=True)
class AlterTable:
    """Change a table. Its parts stand in the order in which they are safe: a column may take the name of one that went.

    Attributes:
        source, before, after: the source's table. one: all that the statement did to it.
        copied: its rows are copied again, so that it is emptied before.
        drops: names at the target. renames: (name, new name); columns may swap their names.
        changes: of columns that stay. adds: new columns. key: names at the target of another key, None if it stays.
        comment: another comment of the table, None if it stays. indexes: others than the primary key differ.
        clash: a new name that another column has, "" if there is none. A target without transactions may have made the
            change already.
    """

    table: TableId
    source: TableId
    one: TableChange
    before: TableDefinition
    after: TableDefinition
    parts: tuple[ColumnChange, ...]
    copied: bool = False
    drops: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    changes: tuple[ChangeColumn, ...] = ()
    adds: tuple[AddColumn, ...] = ()
    key: tuple[str, ...] | None = None
    comment: str | None = None
    indexes: bool = False
    clash: str = ""

    @property
    def renamed(self) -> dict[str, str]:
        """The new names of columns, by the names that they have at the target."""
        return dict(self.renames)

    @property
    def takes_names(self) -> bool:
        """True if a column takes the name of another one, which a load that is repeated would do twice."""
        return bool({new for _, new in self.renames} & {*self.renamed, *self.drops})

    @property
    def new(self) -> tuple[AddColumn, ...]:
        """The added columns that the target does not have yet."""
        return tuple(added for added in self.adds if not added.there)

    def columns_after(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the target's columns after the change. ``columns``: those before it."""
        renamed = self.renamed
        remaining = (renamed.get(name, name) for name in columns if name not in self.drops)
        return (*remaining, *(added.name for added in self.new))

    def key_after(self, key: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the key's columns at the target after the change. ``key``: those before it."""
        renamed = self.renamed
        return self.key if self.key is not None else tuple(renamed.get(name, name) for name in key)


Step = DropTable | EmptyTable | RenameTable | CreateTable | AlterTable


def steps_of(change: SchemaChange, tables: Tables, *, generated: bool = False) -> Iterator[Step]:
    """Yield a target's steps for a statement. ``generated``: the target has generated columns. Raises LoadError."""
    planner = Planner(change, tables, generated=generated)
    for part in followed(change):
        for step in planner.steps(part):
            if isinstance(step, AlterTable) and step.clash:
                raise name_taken(change, step.clash)
            yield step


def _other_keys(table: TableDefinition) -> list[IndexDefinition]:
    return [index for index in table.indexes if not index.primary]


def type_of(change: SchemaChange, column: ColumnDefinition) -> ColumnType:
    """Return the type of a column's values. Raises LoadError for a type that is not known."""
    column_type = change.meaning.types.get(column)
    if column_type is None:
        raise not_followed(change, f"the type {column.type} of column {column.name} is not known")
    return column_type


def name_taken(change: SchemaChange, name: str) -> LoadError:
    """Return the error for a column whose new name another one has."""
    return not_followed(change, f"the table has a column {name} already")


class Planner:
    """Plans the tables of a statement one after the other: what the steps before did to the target's tables is taken
    into account.
    """

    def __init__(self, change: SchemaChange, tables: Tables, *, generated: bool = False) -> None:
        self._change, self._tables, self._generated = change, tables, generated
        self._now: dict[TableId, dict[str, str] | None] = {}

    def steps(self, part: Followed) -> Iterator[Step]:
        """Yield the steps for one table. Raises LoadError."""
        table_change, kinds = part.one, part.kinds
        table = self._tables.table(table_change.table)
        if K.DROP_TABLE in kinds:
            if self._has(table):
                self._now[table] = None
                yield DropTable(table)
            return
        if K.CREATE_TABLE in kinds:
            yield from self._created(table_change, table)
            return
        if K.TRUNCATE_TABLE in kinds and self._has(table):
            yield EmptyTable(table, table_change.table)
        alters = part.captured and bool(kinds - _NOT_OF_COLUMNS)
        if alters and self._has(table) and table_change.before is not None and table_change.after is not None:
            yield self._altered(part, table, table_change.before, table_change.after)
        if K.RENAME_TABLE in kinds and table_change.renamed_to is not None:
            yield from self._renamed(part, table, table_change.renamed_to)

    # -- inside ----------------------------------------------------------------------------------------------------
    def _columns(self, table: TableId) -> dict[str, str] | None:
        if table not in self._now:
            columns = self._tables.columns(table)
            self._now[table] = dict(columns) if columns is not None else None
        return self._now[table]

    def _has(self, table: TableId) -> bool:
        return self._columns(table) is not None

    def _created(self, table_change: TableChange, table: TableId) -> Iterator[Step]:
        if table_change.after is None or (self._has(table) and table_change.before is None):
            return
        if self._has(table):
            yield DropTable(table)  # CREATE OR REPLACE TABLE
        columns = tuple(
            AddColumn(name, column)
            for column in table_change.after.columns
            if (name := self._name(table_change, column)) is not None
        )
        self._now[table] = {added.name.casefold(): added.name for added in columns}
        yield CreateTable(
            table,
            table_change.table,
            table_change,
            table_change.after,
            columns,
            self._key(table_change, table_change.after),
        )

    def _renamed(self, part: Followed, table: TableId, to: TableId) -> Iterator[Step]:
        new = self._tables.table(to)
        if not part.captured and not self._has(new):
            raise never_seen(self._change, part.one, new)
        if not part.captured or table == new or not self._has(table) or self._has(new):
            return
        self._now[new], self._now[table] = self._now[table], None
        yield RenameTable(table, new, part.one.before)

    def _name(self, table_change: TableChange, column: ColumnDefinition) -> str | None:
        """Return the target's name of a column that it has, or shall have."""
        return (
            None
            if column.generated is not None and not self._generated
            else self._tables.column(table_change, column.name)
        )

    def _key(self, table_change: TableChange, after: TableDefinition) -> tuple[str, ...]:
        return tuple(self._tables.column(table_change, name) or name for name in after.row_key)

    def _altered(self, part: Followed, table: TableId, before: TableDefinition, after: TableDefinition) -> AlterTable:
        table_change, kinds = part.one, part.kinds
        columns = self._columns(table)
        assert columns is not None
        require_told_columns(self._change, part)
        parts = self._parts(part)
        drops = tuple(self._drops(table_change, [p for p in parts if p.kind in kinds & {K.DROP_COLUMN}], columns))
        renames, clash = self._renames(table_change, [p for p in parts if p.kind in kinds & {K.RENAME_COLUMN}], columns)
        was = {new.casefold(): old for old, new in renames}
        stays = {
            p.old.name.lower()
            for p in parts
            if p.kind in {K.DROP_COLUMN, K.RENAME_COLUMN} - kinds and p.old is not None
        }
        changes, adds = [], []
        for each in parts:
            name = self._name(table_change, each.new) if each.new is not None and each.kind in kinds else None
            if each.new is None or name is None or each.kind is K.RENAME_COLUMN:
                continue
            stored_name = columns.get(name.casefold())
            if each.kind is K.ADD_COLUMN:
                if stored_name is not None and each.new.name.lower() in stays:
                    raise not_followed(
                        self._change, f"the old column {stored_name} stays, and the new one would have its values"
                    )
                adds.append(AddColumn(name, each.new, there=stored_name is not None))
            elif stored_name is not None and each.old is not None:
                changes.append(
                    ChangeColumn(
                        each.kind, stored_name, was.get(stored_name.casefold(), stored_name), each.old, each.new
                    )
                )
        columns.update({added.name.casefold(): added.name for added in adds if not added.there})
        return AlterTable(
            table,
            table_change.table,
            table_change,
            before,
            after,
            parts,
            copied=table_change.table in self._change.copies,
            drops=drops,
            renames=renames,
            changes=tuple(changes),
            adds=tuple(adds),
            key=self._key(table_change, after) if K.PRIMARY_KEY in kinds and before.row_key != after.row_key else None,
            comment=after.comment if K.TABLE_OPTIONS in kinds and before.comment != after.comment else None,
            indexes=bool(kinds & {K.INDEXES, K.DROP_COLUMN}) and _other_keys(before) != _other_keys(after),
            clash=clash,
        )

    def _parts(self, part: Followed) -> tuple[ColumnChange, ...]:
        """Return the change of each column. Only the statement tells which was renamed."""
        table_change = part.one
        if part.cut_over:
            return table_change.columns
        if K.RENAME_COLUMN not in table_change.kinds and not table_change.reuses_names:
            return table_change.compared_columns()
        try:
            changes = self._change.meaning.altered_columns(table_change)
        except DecodeError as error:
            raise not_followed(self._change, f"it is not understood: {error.message}") from error
        if changes is None:
            raise not_followed(self._change, "which columns were renamed is not known")
        return changes

    def _drops(
        self, table_change: TableChange, parts: Sequence[ColumnChange], columns: dict[str, str]
    ) -> Iterator[str]:
        for part in parts:
            assert part.old is not None
            name = self._tables.column(table_change, part.old.name)
            stored_name = columns.pop(name.casefold(), None) if name is not None else None
            if stored_name is not None:
                yield stored_name

    def _renames(
        self, table_change: TableChange, parts: Sequence[ColumnChange], columns: dict[str, str]
    ) -> tuple[tuple[tuple[str, str], ...], str]:
        """Return (old, new) target names, and a new name that the table has already."""
        pairs: list[tuple[str, str]] = []
        for part in parts:
            assert part.old is not None
            assert part.new is not None
            was, name = (self._tables.column(table_change, each.name) for each in (part.old, part.new))
            stored_name = columns.get(was.casefold()) if was is not None else None
            if name is None and stored_name is None:
                continue
            if name is None or (was is None and part.new.generated is None and name.casefold() not in columns):
                excluded = "the old" if was is None else "the new"
                why = f"column {part.old.name} is {part.new.name} now, and the mapping leaves {excluded} one out"
                raise not_followed(self._change, why)
            if stored_name is not None and stored_name != name:
                pairs.append((stored_name, name))
        for stored_name, _ in pairs:
            del columns[stored_name.casefold()]
        clash = next((name for _, name in pairs if name.casefold() in columns), "")
        columns.update({name.casefold(): name for _, name in pairs})
        return tuple(pairs), clash
