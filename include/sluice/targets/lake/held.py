"""The traces of the source's schema changes in a lake table, see :mod:`sluice.targets.schema.policy`."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ColumnChange, TableChange
from sluice.model.tables import TableId
from sluice.targets.lake.changelog import column_name
from sluice.targets.lake.column_types import takes
from sluice.targets.lake.columns import TableInfo
from sluice.targets.lake.site import LakeSite
from sluice.targets.port import SchemaChange
from sluice.targets.schema.policy import Answer, OnlyColumns, has


class LakeHeld(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`."""

    def __init__(self, change: SchemaChange, site: LakeSite) -> None:
        super().__init__(change)
        self.site = site
        self._infos: dict[TableId, TableInfo | None] = {}

    def _info(self, table: TableId) -> TableInfo | None:
        if table not in self._infos:
            found = self.site.open(table)
            self._infos[table] = self.site.info(found) if found is not None else None
        return self._infos[table]

    def column(self, one: TableChange, name: str) -> str | None:
        """Return the name by the mapping, escaped in a table of changes if it is one of Sluice's columns."""
        found = super().column(one, name)
        return column_name(found) if found is not None and self.site.every else found

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
