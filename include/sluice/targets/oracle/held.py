"""The traces of the source's schema changes in an Oracle target's dictionary, see
:mod:`sluice.targets.schema.policy`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ColumnChange
from sluice.model.tables import TableId
from sluice.targets.oracle.catalog import ColumnInfo, TableInfo, Wanted
from sluice.targets.oracle.column_types import holds_all, oracle_type, own_type
from sluice.targets.port import SchemaChange
from sluice.targets.schema.policy import Answer, has
from sluice.targets.sql.held import SpelledHeld
from sluice.targets.sql.names import Naming


class OracleHeld(SpelledHeld[TableInfo, ColumnInfo]):
    """See :class:`sluice.targets.schema.policy.Held`. Other indexes than the key are the target's own choice."""

    def __init__(
        self, change: SchemaChange, infos: Mapping[TableId, TableInfo], spelling: Naming, wanted: Wanted
    ) -> None:
        super().__init__(change, infos, spelling)
        self.wanted = wanted

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Compare the declared type with the one of the change, which it may exceed.

        Rows that the source converted leave no trace in it (UNSEEN).
        """
        declared = self.info(table, name).declared
        old, new = (self.change.meaning.types.get(one) if one is not None else None for one in (part.old, part.new))
        size = self.wanted.string_bytes
        if new is not None and declared == own_type(new, size) and (old is None or declared != own_type(old, size)):
            return Answer.HAS  # somebody changed it
        if effect is not None or new is None:
            return Answer.UNSEEN
        return has(holds_all(new, oracle_type(declared)))

    def nullable(self, table: TableId, name: str) -> bool | None:
        """Return True if the dictionary's column takes NULL; None if that is the target's own choice."""
        found = self.info(table, name)
        return None if found.nullable and self.wanted.empty_strings == "null" else found.nullable

    def attributes(self, table: TableId, name: str, part: ColumnChange) -> Answer:
        """Compare only whether there is a default at all: its text is Oracle's own."""
        if part.old is None or part.new is None or part.old.default == part.new.default:
            return Answer.HAS
        if (part.new.default is None) is self.info(table, name).default:
            return Answer.LACKS
        return Answer.HAS if part.new.default is None or part.old.default is None else Answer.UNSEEN

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if a unique key has these columns; without names, if there is no primary key."""
        wanted = {name.casefold() for name in names}
        keys = [{column.casefold() for column in key.columns} for key in self.infos[table].keys]
        return has(wanted in keys if wanted else not self.infos[table].primary)
