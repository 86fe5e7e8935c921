"""Changes that a statement made to a definition, in kinds that a reader can act on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.offset import Offset
from sluice.model.tables import TableId


@dataclass(frozen=True, slots=True)
class StatementSession:
    """The settings of a session that a replica restores before it runs a statement.

    None: the log does not say, as the statement did not use it.

    Attributes:
        timestamp_us: when the statement began (microseconds since 1970): its NOW(). time_zone: ``SYSTEM``, an offset or
            a name.
        collation: number of collation_connection. utf8mb4_collation: number of default_collation_for_utf8mb4 (MySQL).
        lc_time_names: number of the language of months and days.
        auto_increment: step and offset of new numbers. timestamps_explicit: explicit_defaults_for_timestamp.
    """

    timestamp_us: int = 0
    time_zone: str | None = None
    collation: int | None = None
    utf8mb4_collation: int | None = None
    lc_time_names: int | None = None
    auto_increment: tuple[int, int] = (1, 1)
    timestamps_explicit: bool | None = None


TEXTS = ("tinytext", "text", "mediumtext", "longtext")
BLOBS = ("tinyblob", "blob", "mediumblob", "longblob")


class ChangeKind(StrEnum):
    """Kinds of change. A statement may be of several."""

    CREATE_DATABASE = "create database"
    ALTER_DATABASE = "alter database"
    DROP_DATABASE = "drop database"
    CREATE_TABLE = "create table"
    DROP_TABLE = "drop table"
    RENAME_TABLE = "rename table"
    TRUNCATE_TABLE = "truncate table"
    ADD_COLUMN = "add column"
    DROP_COLUMN = "drop column"
    RENAME_COLUMN = "rename column"
    WIDEN_COLUMN = "widen column"
    """Every value of the old type is a value of the new one."""
    CHANGE_COLUMN = "change column"
    """Another type or charset: values may be converted, or not fit."""
    MOVE_COLUMN = "move column"
    ALLOW_NULL = "allow null"
    REQUIRE_VALUE = "require value"
    COLUMN_ATTRIBUTES = "column attributes"
    """Default, comment, visibility, expression."""
    PRIMARY_KEY = "primary key"
    INDEXES = "indexes"
    TABLE_OPTIONS = "table options"
    PARTITIONS = "partitions"
    ROWS_REMOVED = "rows removed"
    """A partition was dropped or emptied: rows went that no row event names."""
    ROWS_REPLACED = "rows replaced"
    """EXCHANGE PARTITION, IMPORT TABLESPACE: rows came and went that no row event names."""
    UNKNOWN = "unknown"
    """The statement, or the table it works on, is not understood."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One column: ``old`` None for a new one, ``new`` None for one that is gone."""

    kind: ChangeKind
    old: ColumnDefinition | None
    new: ColumnDefinition | None


@dataclass(frozen=True, slots=True)
class TableChange:
    """The change that one statement made to one table (or database: ``table.table`` is ``""``).

    ``table``: its name before (or of the new table); ``before``, ``after``: None where there was none, or it is not
    known. ``renamed_to``: its new name.
    """

    table: TableId
    kinds: tuple[ChangeKind, ...]
    before: TableDefinition | None = None
    after: TableDefinition | None = None
    columns: tuple[ColumnChange, ...] = ()
    renamed_to: TableId | None = None
    reason: str = ""

    @property
    def tables(self) -> tuple[TableId, ...]:
        """Both names."""
        return (self.table, self.renamed_to) if self.renamed_to else (self.table,)

    @property
    def never_was(self) -> bool:
        """True for a table that was dropped ``IF EXISTS`` and did not exist."""
        return self.kinds == (ChangeKind.DROP_TABLE,) and self.before is None and not self.reason

    @property
    def names_differ(self) -> bool:
        """True if the columns have other names than before, whatever their order."""
        before, after = (
            {c.name.lower() for c in d.columns} if d is not None else None for d in (self.before, self.after)
        )
        return before != after

    @property
    def reuses_names(self) -> bool:
        """True if a column came or went that the names before and after do not show: dropped and added anew in one
        statement.
        """
        visible = (
            {change.kind for change in column_changes(self.before, self.after)} if self.before and self.after else None
        )
        return visible is not None and not {ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN} & set(self.kinds) <= visible

    def compared_columns(
        self, renames: Mapping[str, str] | None = None, dropped: Collection[str] = ()
    ) -> tuple[ColumnChange, ...]:
        """Compare the definitions before and after, see :func:`column_changes`.

        Whether types widen, the source said with :attr:`kinds`: each has types of its own.
        """
        assert self.before is not None
        assert self.after is not None
        columns = column_changes(self.before, self.after, renames, dropped)
        kinds = {ChangeKind.WIDEN_COLUMN, ChangeKind.CHANGE_COLUMN} & set(self.kinds)
        if len(kinds) != 1:
            return columns
        [kind] = kinds
        return tuple(
            replace(column, kind=kind) if column.kind in {ChangeKind.WIDEN_COLUMN, ChangeKind.CHANGE_COLUMN} else column
            for column in columns
        )

    def to_json(self) -> dict[str, Any]:
        """Return the change for a manifest.

        It omits ``columns``, which follow from before and after, unless :attr:`reuses_names`.
        """
        return {
            "table": [self.table.schema, self.table.table],
            "kinds": [kind.value for kind in self.kinds],
            "before": self.before.to_json() if self.before else None,
            "after": self.after.to_json() if self.after else None,
            "renamed_to": [self.renamed_to.schema, self.renamed_to.table] if self.renamed_to else None,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableChange:
        """Read a stored change; the changed columns are found anew from both definitions."""
        before = TableDefinition.from_json(data["before"]) if data["before"] else None
        after = TableDefinition.from_json(data["after"]) if data["after"] else None
        change = cls(
            TableId(*data["table"]),
            tuple(ChangeKind(kind) for kind in data["kinds"]),
            before,
            after,
            (),
            TableId(*data["renamed_to"]) if data["renamed_to"] else None,
            data.get("reason", ""),
        )
        return replace(change, columns=change.compared_columns()) if before and after else change


def column_changes(
    before: TableDefinition,
    after: TableDefinition,
    renames: Mapping[str, str] | None = None,
    dropped: Collection[str] = (),
) -> tuple[ColumnChange, ...]:
    """Compare two definitions column by column.

    ``renames``: old name in lower case -> new name; ``dropped``: in lower case, gone even if another column has the
    name now.
    """
    renames = renames or {}
    changes: list[ColumnChange] = []
    new = {column.name.lower(): column for column in after.columns}
    met: set[str] = set()
    order: list[str] = []
    for column in before.columns:
        name = renames.get(column.name.lower(), column.name).lower()
        renamed = new.get(name)
        if renamed is None or column.name.lower() in dropped:
            changes.append(ColumnChange(ChangeKind.DROP_COLUMN, column, None))
            continue
        met.add(name)
        order.append(name)
        changes += [ColumnChange(kind, column, renamed) for kind in _kinds(column, renamed)]
    remaining = [column.name.lower() for column in after.columns if column.name.lower() in met]
    for was, now in zip(order, remaining, strict=True):
        if was != now:
            changes.append(ColumnChange(ChangeKind.MOVE_COLUMN, new[now], new[now]))
    for column in after.columns:
        if column.name.lower() not in met:
            changes.append(ColumnChange(ChangeKind.ADD_COLUMN, None, column))
    return tuple(changes)


def _kinds(old: ColumnDefinition, new: ColumnDefinition) -> list[ChangeKind]:
    kinds = []
    if old.name != new.name:
        kinds.append(ChangeKind.RENAME_COLUMN)
    if (old.type, old.charset, old.collation, old.compressed) != (new.type, new.charset, new.collation, new.compressed):
        kinds.append(ChangeKind.WIDEN_COLUMN if widens(old, new) else ChangeKind.CHANGE_COLUMN)
    elif old.labels != new.labels:
        grows = new.labels[: len(old.labels)] == old.labels
        kinds.append(ChangeKind.WIDEN_COLUMN if grows else ChangeKind.CHANGE_COLUMN)
    if old.nullable != new.nullable:
        kinds.append(ChangeKind.ALLOW_NULL if new.nullable else ChangeKind.REQUIRE_VALUE)
    plain = replace(old, name=new.name, type=new.type, charset=new.charset, collation=new.collation,
        nullable=new.nullable,
                    labels=new.labels, compressed=new.compressed)  # fmt: skip
    if plain != new:
        kinds.append(ChangeKind.COLUMN_ATTRIBUTES)
    return kinds


_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}


def widens(old: ColumnDefinition, new: ColumnDefinition) -> bool:
    """Return True if every value of the old type is the same value of the new one."""
    if (old.charset, old.collation) != (new.charset, new.collation) and not _wider_charset(old.charset, new.charset):
        return False
    old_family, new_family = old.family, new.family
    if old_family in _INTEGERS and new_family in _INTEGERS:
        if old.unsigned and not new.unsigned:
            return _INTEGERS[new_family] > _INTEGERS[old_family]
        return (old.unsigned or not new.unsigned) and _INTEGERS[new_family] >= _INTEGERS[old_family]
    if old_family == new_family == "decimal":
        (p1, s1), (p2, s2) = old.arguments, new.arguments
        return s2 >= s1 and p2 - s2 >= p1 - s1 and (old.unsigned or not new.unsigned)
    if {old_family, new_family} <= {"float", "double"}:
        return (
            (old_family == new_family or new_family == "double")
            and not new.arguments
            and (old.unsigned or not new.unsigned)
        )
    if old_family in {"enum", "set"} and old_family == new_family:
        return new.labels[: len(old.labels)] == old.labels
    if (old_family, new_family) in {
        ("varchar", "varchar"),
        ("varbinary", "varbinary"),
        ("char", "char"),
        ("bit", "bit"),
    }:
        return new.arguments[0] >= old.arguments[0]
    for family in (TEXTS, BLOBS):
        if old_family in family and new_family in family:
            grows = old.charset != new.charset and family.index(old_family) < len(family) - 1
            return family.index(new_family) >= family.index(old_family) + grows
    if old_family in {"datetime", "timestamp", "time"} and old_family == new_family:
        return (new.arguments or (0,))[0] >= (old.arguments or (0,))[0]
    return old.type == new.type


def _wider_charset(old: str | None, new: str | None) -> bool:
    if old is None or new is None:
        return False
    return old == new or new == "utf8mb4" or (old == "ascii" and new in {"latin1", "utf8", "utf8mb3"})


def cut_overs(changes: Sequence[TableChange], foreign: Collection[TableId]) -> tuple[TableChange, ...]:
    """Return the changes that online schema changes made: a RENAME puts a table that is not captured in the place of
    one that is.

    Both have the same rows, copied by another program. ``foreign``: tables that are not captured.
    """
    arrived = {change.renamed_to: change for change in changes if change.renamed_to is not None}
    replaced = []
    for old in changes:
        new = arrived.get(old.table) if old.renamed_to is not None and old.table not in foreign else None
        if new is None or new.table not in foreign or old.before is None or new.after is None:
            continue
        if new.table in arrived:
            continue  # a captured table may be under way under that name: t TO x, u TO t, x TO u
        columns = column_changes(old.before, new.after)
        kinds = (*dict.fromkeys(change.kind for change in columns), *_kinds_of_table(old.before, new.after))
        replaced.append(TableChange(old.table, kinds, old.before, new.after, columns))
    return tuple(replaced)


def _kinds_of_table(before: TableDefinition, after: TableDefinition) -> list[ChangeKind]:
    """Return the kinds that two definitions of one table show besides those of columns."""
    indexes = [tuple(index for index in table.indexes if not index.primary) for table in (before, after)]
    options = [(table.charset, table.collation, table.engine, table.comment) for table in (before, after)]
    differences = [(before.primary_key != after.primary_key, ChangeKind.PRIMARY_KEY)]
    differences += [
        (indexes[0] != indexes[1], ChangeKind.INDEXES),
        (options[0] != options[1], ChangeKind.TABLE_OPTIONS),
    ]
    return [kind for differs, kind in differences if differs]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatement:
    """A statement that changed definitions, as the log has it.

    Attributes:
        position: of the statement. schema: default schema of the session that ran it.
        table: the captured table that it names, None where none could be told.
        seq: number in the batch of the first row change after it.
        commit_time_us: microseconds since 1970 UTC. sql_mode: bits of the session's sql_mode.
        session: what else its effect may depend on, None where the log does not say.
        changes: what it did to definitions.
    """

    position: Offset
    schema: str
    table: TableId | None
    sql: str
    seq: int
    gtid: str | None
    commit_time_us: int
    sql_mode: int = 0
    session: StatementSession | None = None
    changes: tuple[TableChange, ...] = ()
