"""The traces of the source's schema changes that the catalogs of all SQL targets show alike, see
:mod:`sluice.targets.schema.policy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.targets.port import SchemaChange
from sluice.targets.schema.policy import OnlyColumns
from sluice.targets.sql.names import Naming


class HasColumns(Protocol):
    """A table as a catalog has it."""

    @property
    def columns(self) -> Sequence[Any]:
        """Its columns, each with a ``name``."""


Table = TypeVar("Table", bound=HasColumns)
Column = TypeVar("Column")


class CatalogHeld(OnlyColumns, Generic[Table, Column]):
    """See :class:`sluice.targets.schema.policy.Held`. ``infos``: the tables that the catalog has."""

    def __init__(self, change: SchemaChange, infos: Mapping[TableId, Table]) -> None:
        super().__init__(change)
        self.infos = infos

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns in the catalog, case-folded name -> name; None if the table is missing."""
        info = self.infos.get(table)
        return {column.name.casefold(): column.name for column in info.columns} if info is not None else None

    def info(self, table: TableId, name: str) -> Column:
        """Return a column that is there."""
        target_column: Column = next(
            column for column in self.infos[table].columns if column.name.casefold() == name.casefold()
        )
        return target_column


class SpelledHeld(CatalogHeld[Table, Column]):
    """The same at a target that has a spelling of its own for names. ``spelling``: gives it."""

    def __init__(self, change: SchemaChange, infos: Mapping[TableId, Table], spelling: Naming) -> None:
        super().__init__(change, infos)
        self.spelling = spelling

    def table(self, source: TableId) -> TableId:
        """Return the name by the mapping, as the target's spelling has it."""
        return self.spelling.table(super().table(source))

    def column(self, table_change: TableChange, name: str) -> str | None:
        """Return the name by the mapping, as the target's spelling has it; None for an excluded column."""
        column = super().column(table_change, name)
        return None if column is None else self.spelling.name(column)
