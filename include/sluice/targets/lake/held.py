"""The traces of the source's schema changes in a lake table, see :mod:`sluice.targets.schema.policy`."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ColumnChange, TableChange
from sluice.model.tables import TableId
from sluice.targets.lake.changelog import column_name
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.types import TableInfo, takes
from sluice.targets.port import SchemaChange
from sluice.targets.schema.policy import Answer, OnlyColumns, has


class LakeHeld(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`."""

    def __init__(self, change: SchemaChange, tables: LakeTables) -> None:
        super().__init__(change)
        self.tables = tables
        self._infos: dict[TableId, TableInfo | None] = {}

    def _info(self, table: TableId) -> TableInfo | None:
        if table not in self._infos:
            found = self.tables.open(table)
            self._infos[table] = self.tables.format.info(found) if found is not None else None
        return self._infos[table]

    def column(self, one: TableChange, name: str) -> str | None:
        """Return the name by the mapping, escaped in a table of changes if it is one of Sluice's columns."""
        found = super().column(one, name)
        return column_name(found) if found is not None and self.tables.every else found

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of the table, case-folded name -> name; None if the table is missing."""
        info = self._info(table)
        return {one.name.casefold(): one.name for one in info.columns} if info is not None else None

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Return HAS if the table's column takes the values of the new type; UNSEEN if its rows were converted."""
        info, new = self._info(table), part.new
        assert info is not None
        assert new is not None
        there, made = info.find(name), self.change.meaning.types.get(new)
        if there is None or made is None or not isinstance(there.kind, str):
            return Answer.UNSEEN
        fits = takes(made, there.kind)
        return has(fits) if effect is None or not fits else Answer.UNSEEN
