"""The schema history of a PostgreSQL source: definitions are the catalog's, and change when the log shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sluice.errors import ConfigError, SchemaUnknown
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.sources.port import TableFilter
from sluice.sources.postgresql.catalog.definitions import KnownTable, PostgreSQLDefinitions
from sluice.sources.postgresql.catalog.table import CatalogTable


class Asked(Protocol):
    """The session that answers about tables and positions."""

    def catalog_table(self, table: TableId) -> CatalogTable | None:
        """Return the present definition of a table; None if there is none."""

    def catalog_tables(self, wants: Callable[[TableId], bool]) -> list[CatalogTable]:
        """Return the present definitions of the tables that ``wants`` accepts."""

    def keeps(self, at: Offset) -> bool:
        """Return True if the log from there on is still sent."""

    def is_same_log(self, at: Offset) -> bool:
        """Return True unless the position belongs to another log."""


@dataclass(frozen=True)
class PostgreSQLSchemaHistory:
    """See :class:`sluice.sources.port.SchemaHistory`."""

    session: Asked

    def snapshot(
        self, at: Offset, table_filter: TableFilter, progress: Callable[[], None] | None = None
    ) -> PostgreSQLDefinitions:
        """Return today's definitions.

        Of a table that was altered since ``at``, the log shows the older definition at its first row, and it is taken
        from there.
        """
        definitions = PostgreSQLDefinitions()
        for table in self.session.catalog_tables(table_filter.wants):
            if not table.partition:  # its changes come as those of the partitioned table
                definitions.put_known(KnownTable.of(table))
        definitions.touched.clear()
        return definitions

    def has(self, at: Offset) -> bool:
        """Return True if the slot still sends what comes after ``at``."""
        return self.session.keeps(at)

    def is_same_log(self, at: Offset) -> bool:
        """Return False for a position of another server or timeline."""
        return self.session.is_same_log(at)

    def fold(
        self, definitions: Definitions, start: Offset, stop: Offset, progress: Callable[[], None] | None = None
    ) -> None:
        """Do nothing: the log shows a changed definition at the next row of its table."""

    def definition(self, table: TableId, at: Offset) -> TableDefinition:
        """Return today's definition. Raises SchemaUnknown if there is no such table."""
        present = self.session.catalog_table(table)
        if present is None:
            raise SchemaUnknown(
                f"there is no table {table}, or the pipeline's login does not see it", hint="check its name and grants"
            )
        return present.definition

    def parse(self, definitions: Definitions, table: TableId, sql: str) -> TableDefinition:
        """Raise ConfigError: statements of PostgreSQL are not read."""
        raise ConfigError(
            "a definition of a PostgreSQL table is not read from a CREATE TABLE",
            where=str(table),
            hint=f"`sluice schema reload PIPELINE {table}` takes today's from the server",
        )


__all__ = ["PostgreSQLSchemaHistory"]
