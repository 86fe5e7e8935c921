"""The declarations of a table, a column, an index: values only, as ``information_schema`` of the server has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from typing import Any, Protocol

from sluice.model.tables import TableId

_FLOAT_DIGITS = 6
"""Digits of a FLOAT's default that information_schema prints at most."""


def may_be_cut(number: str) -> bool:
    """Return True for a number with exactly as many digits as a server prints of a FLOAT's default: there may be more.

    One that is known to be whole is written with a point and more digits (:func:`whole_float`).
    """
    digits = Decimal(number).as_tuple().digits
    if "." in number and len(digits) > _FLOAT_DIGITS:
        return False
    return len(Decimal(number).normalize().as_tuple().digits) == _FLOAT_DIGITS


def whole_float(number: float) -> str:
    """Format a FLOAT with the nine digits that tell any two of them apart."""
    return f"{number:.8e}"


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column.

    Attributes:
        type: as ``COLUMN_TYPE`` prints it (``int unsigned``, ``enum('a','b')``); labels: of ENUM and SET.
        charset, collation: of text, ENUM and SET; None for others.
        default: SQL text of the default (``'x'``, ``0``, ``CURRENT_TIMESTAMP``, ``(uuid())``), None for none (or NULL).
        generated: SQL text of the expression of a generated column, None for others; stored: it is kept in the row.
        invisible: left out of ``SELECT *``; auto_increment: as it says; on_update: SQL text of ON UPDATE.
    """

    name: str
    type: str
    nullable: bool = True
    charset: str | None = None
    collation: str | None = None
    labels: tuple[str, ...] = ()
    default: str | None = None
    generated: str | None = None
    stored: bool = False
    invisible: bool = False
    auto_increment: bool = False
    on_update: str | None = None
    comment: str = ""
    compressed: bool = False

    @property
    def family(self) -> str:
        """The first word of the type: ``int``, ``varchar``, ``enum``."""
        return self.type.split("(")[0].split(" ")[0]

    @property
    def unsigned(self) -> bool:
        """True for an unsigned number."""
        return " unsigned" in self.type

    @property
    def arguments(self) -> tuple[int, ...]:
        """Numbers in the type's brackets: length; precision and scale; digits."""
        inside = self.type.partition("(")[2].partition(")")[0]
        return tuple(int(part) for part in inside.split(",")) if inside and inside[0].isdigit() else ()


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """An index.

    ``columns``: (name, prefix in characters or 0) in order; name "" for an expression. The primary key is called
    PRIMARY.

    ``kind``: index, fulltext, spatial, vector; hash: MariaDB keeps only a hash of its columns to keep them unique.
    ``generated``: made by the server for a foreign key; it goes when another key begins with its columns.
    ``information_schema`` doesn't say.

    ``deferrable``: the server checks that its values are unique when a statement or a transaction ends.
    """

    name: str
    columns: tuple[tuple[str, int], ...]
    unique: bool = False
    kind: str = "index"
    generated: bool = False
    deferrable: bool = False

    @property
    def primary(self) -> bool:
        """True for the primary key."""
        return self.name == "PRIMARY"


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table as of a position. ``charset``, ``collation``: the default of columns added later."""

    table: TableId
    columns: tuple[ColumnDefinition, ...]
    indexes: tuple[IndexDefinition, ...] = ()
    charset: str = ""
    collation: str = ""
    engine: str = ""
    comment: str = ""

    def column(self, name: str) -> ColumnDefinition:
        """Return a column by name (column names know no case). Raises KeyError."""
        return self.columns[self.index_of(name)]

    def index_of(self, name: str) -> int:
        """Return the ordinal of a column, from 0. Raises KeyError."""
        lowered = name.lower()
        for number, column in enumerate(self.columns):
            if column.name.lower() == lowered:
                return number
        raise KeyError(name)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Column names of the primary key, empty if there is none."""
        for index in self.indexes:
            if index.primary:
                return tuple(name for name, _ in index.columns)
        return ()

    @property
    def row_key(self) -> tuple[str, ...]:
        """The key that identifies rows: the primary one, else the first unique key of columns that are not null.

        The server chooses it in this way. MariaDB looks at its first key only, and takes none that is a hash.
        """
        if self.primary_key:
            return self.primary_key
        for index in self.indexes:
            if index.unique and index.kind == "hash":
                return ()
            if index.unique and index.columns and all(name and not prefix for name, prefix in index.columns):
                names = tuple(name for name, _ in index.columns)
                if not any(self.column(name).nullable for name in names):
                    return names
        return ()

    def to_json(self) -> dict[str, Any]:
        """Return the definition as JSON, without defaults."""
        return {
            "schema": self.table.schema,
            "table": self.table.table,
            "columns": [_brief(column) for column in self.columns],
            "indexes": [_brief(index) for index in self.indexes],
            "charset": self.charset,
            "collation": self.collation,
            "engine": self.engine,
            "comment": self.comment,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableDefinition:
        """Read what :meth:`to_json` returned."""
        columns = tuple(
            ColumnDefinition(**{**column, "labels": tuple(column.get("labels", ()))}) for column in data["columns"]
        )
        indexes = tuple(
            IndexDefinition(**{**index, "columns": tuple((str(n), int(p)) for n, p in index["columns"])})
            for index in data["indexes"]
        )
        rest = {name: data.get(name, "") for name in ("charset", "collation", "engine", "comment")}
        return cls(TableId(data["schema"], data["table"]), columns, indexes, **rest)


@dataclass(frozen=True, slots=True)
class DatabaseDefinition:
    """A database and the defaults of its tables."""

    name: str
    charset: str
    collation: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A table whose definition is not known: why, since which place in the log, and the statement that did it."""

    reason: str
    where: str = ""
    sql: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the value as nested dicts and lists."""
        return asdict(self)


def _brief(value: ColumnDefinition | IndexDefinition) -> dict[str, Any]:
    return {
        f.name: getattr(value, f.name)
        for f in fields(value)
        if f.name in _ALWAYS or getattr(value, f.name) != f.default
    }


_ALWAYS = {"name", "type", "columns"}


class Definitions(Protocol):
    """Definitions of a source's tables as of one place in its log; mutable, carried forward statement by statement.

    ``unknown``: tables that exist, or may, under a definition that is not known. ``touched``: changed since they were
    stored.
    """

    tables: dict[TableId, TableDefinition]
    unknown: dict[TableId, Unknown]
    touched: set[TableId]

    def find(self, table: TableId) -> TableDefinition | None:
        """Return the definition of a table, None if it is not known."""

    def why_unknown(self, table: TableId) -> Unknown | None:
        """Return why a definition is not known; None if it is, or if the table was never seen."""

    def put(self, definition: TableDefinition) -> None:
        """Set a table's definition. Raises DecodeError for one that cannot be stored."""

    def to_json(self) -> dict[str, Any]:
        """Return all definitions as JSON."""

    def part(self, names: Iterable[TableId] | None) -> dict[str, Any]:
        """Return the definitions of some tables as JSON."""
