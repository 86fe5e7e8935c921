"""The contents of a data definition statement, once parsed: values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.model.tables import TableId

VERSIONED = "a table with system versioning is not understood"
"""The reason why the definition of such a table is not known; its rows are refused for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSpec:
    """A column type as written. ``name``: in lower case, synonyms replaced; ``arguments``: numbers in brackets.

    ``labels``: of ENUM and SET; bytes are in the column's charset; ``labels_charset``: of the session that wrote those
    that are text.
    """

    name: str
    arguments: tuple[int, ...] = ()
    labels: tuple[str | bytes, ...] = ()
    labels_charset: str = "utf8mb4"
    unsigned: bool = False
    zerofill: bool = False
    charset: str | None = None
    collation: str | None = None
    binary: bool = False
    compressed: bool = False


@dataclass(slots=True)
class ColumnSpec:
    """A column as written. ``nullable`` None: not said; ``keys``: primary, unique, foreign written after the type."""

    name: str
    type: TypeSpec
    nullable: bool | None = None
    default: str | None = None
    has_default: bool = False
    generated: str | None = None
    stored: bool = False
    invisible: bool = False
    auto_increment: bool = False
    on_update: str | None = None
    comment: str = ""
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """A key as written.

    ``kind``: primary, unique, index, fulltext, spatial, vector, foreign or check; ``name`` "" : the server's choice.

    ``hashed``: written with USING HASH.
    """

    kind: str
    name: str
    columns: tuple[tuple[str, int], ...] = ()
    if_not_exists: bool = False
    references: TableId | None = None
    hashed: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a column: ``after`` a column, or first; None stands for the end."""

    after: str | None


@dataclass(slots=True)
class TableOptions:
    """Options of a table that its columns, or a reader of them, depend on."""

    charset: str | None = None
    collation: str | None = None
    engine: str | None = None
    comment: str | None = None
    versioned: bool = False


# clauses of ALTER TABLE -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Clause ``ADD COLUMN``."""

    column: ColumnSpec
    place: Place | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Clause ``DROP COLUMN``."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """MODIFY (``old`` is the column's own name) and CHANGE."""

    old: str
    column: ColumnSpec
    place: Place | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Clause ``RENAME COLUMN``."""

    old: str
    new: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterColumn:
    """SET DEFAULT (``default``), DROP DEFAULT (None), SET VISIBLE, SET INVISIBLE (``invisible``)."""

    name: str
    default: str | None = None
    touches_default: bool = False
    invisible: bool | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddIndex:
    """Clause that adds an index or a key."""

    index: IndexSpec


@dataclass(frozen=True, slots=True)
class DropIndex:
    """``name`` PRIMARY: the primary key."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropConstraint:
    """Clause ``DROP CONSTRAINT``."""

    name: str


@dataclass(frozen=True, slots=True)
class RenameIndex:
    """Clause ``RENAME INDEX`` or ``RENAME KEY``."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class ConvertCharset:
    """CONVERT TO CHARACTER SET; charset None: the database's default."""

    charset: str | None
    collation: str | None


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Table options within an ``ALTER TABLE``."""

    options: TableOptions


@dataclass(frozen=True, slots=True)
class RenameTo:
    """Clause ``RENAME TO``."""

    table: TableId


@dataclass(frozen=True, slots=True)
class PartitionAction:
    """A change of partitions.

    ``what``: add, drop, truncate, exchange, reorganize, coalesce, remove, by, ...; ``other``: the table of EXCHANGE.
    """

    what: str
    names: tuple[str, ...] = ()
    other: TableId | None = None


@dataclass(frozen=True, slots=True)
class Tablespace:
    """DISCARD or IMPORT TABLESPACE: the table's rows come and go without a trace in the log."""

    what: str


@dataclass(frozen=True, slots=True)
class Harmless:
    """A clause that changes neither columns nor keys nor rows."""

    what: str


Action = (
    AddColumn | DropColumn | ChangeColumn | RenameColumn | AlterColumn | AddIndex | DropIndex | DropConstraint | RenameIndex  # noqa: E501
    | ConvertCharset | SetOptions | RenameTo | PartitionAction | Tablespace | Harmless
)  # fmt: skip


# statements -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTable:
    """A CREATE TABLE.

    ``like``: the model of CREATE TABLE … LIKE; ``select``: it ends in a query whose columns the text does not name.

    ``order``: columns and keys as they follow each other.
    """

    table: TableId
    columns: tuple[ColumnSpec, ...] = ()
    indexes: tuple[IndexSpec, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)
    like: TableId | None = None
    select: bool = False
    temporary: bool = False
    if_not_exists: bool = False
    replace: bool = False
    order: tuple[ColumnSpec | IndexSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterTable:
    """Statement ``ALTER TABLE``, its clauses in their order."""

    table: TableId
    actions: tuple[Action, ...]
    if_exists: bool = False
    ignore: bool = False


@dataclass(frozen=True, slots=True)
class RenameTables:
    """Statement ``RENAME TABLE``: pairs of old and new name, in their order."""

    pairs: tuple[tuple[TableId, TableId], ...]


@dataclass(frozen=True, slots=True)
class DropTables:
    """Statement ``DROP TABLE``."""

    tables: tuple[TableId, ...]
    temporary: bool = False
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """Statement ``TRUNCATE TABLE``."""

    table: TableId


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    """Statement ``CREATE DATABASE``."""

    name: str
    charset: str | None = None
    collation: str | None = None
    if_not_exists: bool = False
    replace: bool = False


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    """Statement ``ALTER DATABASE``."""

    name: str
    charset: str | None = None
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class DropDatabase:
    """Statement ``DROP DATABASE``."""

    name: str


@dataclass(frozen=True, slots=True)
class OtherObjects:
    """Views or sequences, which share their names with tables, that a statement makes or drops."""

    names: tuple[TableId, ...]
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class NoDefinition:
    """A statement that changes no table's definition."""

    what: str = ""


Statement = (
    CreateTable | AlterTable | RenameTables | DropTables | TruncateTable | CreateDatabase | AlterDatabase | DropDatabase | OtherObjects | NoDefinition  # noqa: E501
)  # fmt: skip
