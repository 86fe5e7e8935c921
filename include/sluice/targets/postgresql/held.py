"""The traces of the source's schema changes in a PostgreSQL target's catalog, see
:mod:`sluice.targets.schema.policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.model.definitions import IndexDefinition
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ColumnChange
from sluice.model.tables import TableId
from sluice.postgresql.type_names import pg_type
from sluice.targets.port import SchemaChange
from sluice.targets.postgresql.catalog import ColumnInfo, TableInfo, Wanted
from sluice.targets.postgresql.column_types import holds_all, own_type
from sluice.targets.postgresql.extras import index_name
from sluice.targets.schema.policy import Answer, has
from sluice.targets.sql.held import SpelledHeld
from sluice.targets.sql.names import Naming

Exists = Callable[[str, tuple[object, ...]], bool]
"""A function that returns True if a query with these parameters has a row."""

_INDEX = (
    "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('i', 'I') AND "
    "n.nspname = %s AND c.relname = %s"
)
_DEFAULT = (
    "SELECT 1 FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND c.relname = %s AND a.attname = %s AND a.atthasdef"
)


class PostgresHeld(SpelledHeld[TableInfo, ColumnInfo]):
    """See :class:`sluice.targets.schema.policy.Held`."""

    def __init__(
        self, change: SchemaChange, infos: Mapping[TableId, TableInfo], spelling: Naming, setup: Wanted, exists: Exists
    ) -> None:
        super().__init__(change, infos, spelling)
        self.wanted, self.exists = setup, exists

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Compare the declared type with the one of the change, which it may exceed.

        Rows that the source converted leave no trace in it (UNSEEN).
        """
        assert part.old is not None
        assert part.new is not None
        declared = self.info(table, name).declared
        types = [self.change.meaning.types.get(definition) for definition in (part.old, part.new)]
        old, new = (None if kind is None else own_type(kind, self.wanted.json, self.wanted.spatial) for kind in types)
        if declared == new and old != new:
            return Answer.HAS  # somebody changed it
        if effect is not None or types[1] is None:
            return Answer.UNSEEN
        return has(holds_all(types[1], pg_type(declared)))

    def nullable(self, table: TableId, name: str) -> bool | None:
        """Return True if the catalog's column takes NULL."""
        return self.info(table, name).nullable

    def attributes(self, table: TableId, name: str, part: ColumnChange) -> Answer:
        """Compare only whether there is a default at all: its text is PostgreSQL's own."""
        if part.old is None or part.new is None or part.old.default == part.new.default:
            return Answer.HAS
        has_default = self.exists(_DEFAULT, (table.schema, table.table, self.info(table, name).name))
        if (part.new.default is None) is has_default:
            return Answer.LACKS
        return Answer.HAS if part.new.default is None or part.old.default is None else Answer.UNSEEN

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if a key that an upsert can use has these columns; without names, if there is no primary key."""
        folded_names = {name.casefold() for name in names}
        keys = [{column.casefold() for column in key.columns} for key in self.infos[table].keys if key.arbiter]
        return has(folded_names in keys if folded_names else not any(key.primary for key in self.infos[table].keys))

    def index(self, table: TableId, index: IndexDefinition, names: tuple[str, ...], *, wanted: bool) -> Answer:
        """Tell whether the index exists under the name that Sluice gives it.

        Without ``options.indexes`` the target's indexes are its own choice, so that nothing is missing.
        """
        if not self.wanted.indexes:
            return Answer.HAS
        return has(self.exists(_INDEX, (table.schema, index_name(table, index.name))) is wanted)
