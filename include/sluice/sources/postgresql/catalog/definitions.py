"""The definitions of a pipeline's tables as of a place in the log, with what tells one column from another: numbers
that a rename keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sluice.errors import DecodeError
from sluice.model.definitions import TableDefinition, Unknown
from sluice.model.tables import TableId
from sluice.sources.postgresql.catalog.table import Attribute, CatalogTable

UNKNOWN_NUMBER = 0
"""The number of a column of which nobody knows the number: it was there in the log, and the catalog has it no more."""


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table of the history.

    Attributes:
        oid: of the table at the server, which a rename keeps.
        attributes: of the columns that the log sends, in its order.
    """

    oid: int
    definition: TableDefinition
    attributes: tuple[Attribute, ...]

    @classmethod
    def of(cls, table: CatalogTable) -> KnownTable:
        """Return a table as the catalog has it."""
        return cls(table.oid, table.definition, table.attributes)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON: a definition with two more fields."""
        numbers = [
            [attribute.number, attribute.name, attribute.type_oid, attribute.typmod] for attribute in self.attributes
        ]
        return {**self.definition.to_json(), "oid": self.oid, "attributes": numbers}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KnownTable:
        """Read what :meth:`to_json` returned."""
        attributes = tuple(
            Attribute(int(number), str(name), int(oid), int(typmod)) for number, name, oid, typmod in data["attributes"]
        )
        return cls(int(data["oid"]), TableDefinition.from_json(data), attributes)


@dataclass
class PostgreSQLDefinitions:
    """See :class:`sluice.model.definitions.Definitions`. ``known``: the same tables with the numbers of columns."""

    known: dict[TableId, KnownTable] = field(default_factory=dict)
    tables: dict[TableId, TableDefinition] = field(default_factory=dict)
    unknown: dict[TableId, Unknown] = field(default_factory=dict)
    touched: set[TableId] = field(default_factory=set)

    def find(self, table: TableId) -> TableDefinition | None:
        """Return the definition of a table, None if it is not known."""
        known_table = self.known.get(table)
        return known_table.definition if known_table is not None else None

    def why_unknown(self, table: TableId) -> Unknown | None:
        """Return why a definition is not known; None if it is, or if the table was never seen."""
        return self.unknown.get(table)

    def put(self, definition: TableDefinition) -> None:
        """Set a table's definition, without the numbers of its columns: the next row of the log gives them."""
        _require_text(definition)
        was = self.known.get(definition.table)
        self.put_known(KnownTable(was.oid if was is not None else 0, definition, ()))

    def put_known(self, table: KnownTable) -> None:
        """Set a table. Raises DecodeError for a definition that cannot be stored."""
        _require_text(table.definition)
        name = table.definition.table
        self.known[name] = table
        self.tables[name] = table.definition
        self.unknown.pop(name, None)
        self.touched.add(name)

    def forget(self, table: TableId) -> None:
        """Remove a table that has another name now, or is gone."""
        self.known.pop(table, None)
        self.tables.pop(table, None)
        self.unknown.pop(table, None)
        self.touched.add(table)

    def by_oid(self, oid: int) -> KnownTable | None:
        """Return the table of that number, whatever its name."""
        return (
            next((known_table for known_table in self.known.values() if known_table.oid == oid), None) if oid else None
        )

    # -- storing -------------------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """Return all definitions as JSON."""
        return self.part(None)

    def part(self, names: Iterable[TableId] | None) -> dict[str, Any]:
        """Return the named tables as they are now, and those of them that are gone; None: all there is."""
        wanted_names = set(names) if names is not None else {*self.known, *self.unknown}
        removed_tables = wanted_names - self.known.keys() - self.unknown.keys()
        return {
            "databases": [],
            "tables": [self.known[name].to_json() for name in sorted(wanted_names & self.known.keys())],
            "unknown": [
                [name.schema, name.table, asdict(self.unknown[name])]
                for name in sorted(wanted_names & self.unknown.keys())
            ],
            "gone": [[name.schema, name.table] for name in sorted(removed_tables)],
        }

    @classmethod
    def from_stored(cls, base: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> PostgreSQLDefinitions:
        """Read a :meth:`to_json`, then each :meth:`part`, oldest first."""
        definitions = cls()
        for data in (base, *parts):
            for schema, table in data["gone"]:
                definitions.forget(TableId(schema, table))
            for stored_table in data["tables"]:
                definitions.put_known(KnownTable.from_json(stored_table))
            for schema, table, why in data["unknown"]:
                definitions.forget(TableId(schema, table))
                definitions.unknown[TableId(schema, table)] = Unknown(**why)
        definitions.touched.clear()
        return definitions


def _require_text(definition: TableDefinition) -> None:
    try:
        str(definition.to_json()).encode()
    except UnicodeEncodeError:
        raise DecodeError(f"the definition of {definition.table} has bytes that are not text") from None


__all__ = ["UNKNOWN_NUMBER", "KnownTable", "PostgreSQLDefinitions"]
