"""A table as the server has it now, for the plan of a dump: what cuts it, and what the server says of keys and
conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError
from sluice.model.dumps import TableRequest
from sluice.model.tables import TableId, TableSchema
from sluice.postgresql.connection import Connection, is_gone, said
from sluice.sources.port import ChunkKey
from sluice.sources.postgresql.catalog.identity import read_identities
from sluice.sources.postgresql.catalog.table import CatalogTable, read_table
from sluice.sources.postgresql.catalog.table_list import planned_rows
from sluice.sources.postgresql.snapshot.chunk_queries import key_of, range_of, selection_sql
from sluice.sources.postgresql.snapshot.condition import rendered
from sluice.sources.postgresql.snapshot.key_text import among, numbers_of
from sluice.sources.table_filter import Selection

KEYS_A_SELECT = 2_000


@dataclass(frozen=True)
class PostgresChunkTable:
    """See :class:`sluice.sources.port.ChunkTable`."""

    endpoint: Endpoint
    connection: Connection
    live: CatalogTable

    @property
    def schema(self) -> TableSchema:
        """The definition that was read when the table was opened."""
        return self.live.schema

    @property
    def whole_rows_logged(self) -> bool:
        """True with REPLICA IDENTITY FULL, of all partitions, too: else the log has only the key of a deleted row."""
        return all(identity.kind == "f" for identity in read_identities(self.connection)[self.live.id])

    def key(self, request: TableRequest) -> ChunkKey:
        """Return the primary key or the index that the request names; no columns for a table in one piece."""
        return key_of(self.live, request)

    def has_prefix_key(self, key: ChunkKey) -> bool:
        """Return False: an index holds whole columns."""
        return False

    def condition(self, text: str) -> str:
        """Read the condition and write it anew, with names quoted. Raises ConfigError."""
        return rendered(text, self.schema.table, [column.name for column in self.schema.columns])

    def is_reversed(self, lower: tuple[str, ...], upper: tuple[str, ...]) -> bool:
        """Compare the bounds if they are numbers; only the server knows the order of text."""
        low, high = numbers_of(lower), numbers_of(upper)
        return bool(low and high and low[: len(high)] > high[: len(low)])

    def estimate(self, request: TableRequest, key: ChunkKey) -> int:
        """Return the planner's estimate of the rows.

        Raises ConfigError if the server does not accept the condition.
        """
        conditions = (*range_of(request, key), f"({request.where})" if request.where else "")
        subject = f"the condition {request.where!r}" if request.where else "the key range"
        return self._explained(selection_sql(self.live, self.schema.columns[:1], *conditions), subject)

    def require_taken(self, request: TableRequest, key: ChunkKey, keys: Sequence[tuple[str, ...]]) -> None:
        """Raise ConfigError if the server does not accept one of the keys as a value."""
        names = request.identity or key.names
        for at in range(0, len(keys), KEYS_A_SELECT):
            condition = among(names, keys[at : at + KEYS_A_SELECT])
            self._explained(selection_sql(self.live, key.columns[:1], condition), "a key of the list")

    def _explained(self, sql: str, subject: str) -> int:
        """Return the rows that the planner expects. Raises ConfigError if the server does not accept ``subject``."""
        try:
            return planned_rows(self.connection, sql)
        except psycopg.Error as error:
            if is_gone(error) or error.sqlstate == "42501":
                raise  # the connection or a right, not the condition
            raise ConfigError(
                f"the source does not take {subject} on {self.schema.table}: {said(error)}",
                hint="write what may stand after WHERE in a select of this one table, and keys as the server prints "
                "them",
            ) from error


def open_chunk_table(
    endpoint: Endpoint, connection: Connection, table: TableId, selection: Selection
) -> PostgresChunkTable:
    """Return a table as it is now. Raises ConfigError if there is none."""
    return PostgresChunkTable(endpoint, connection, present(connection, table, selection))


def present(connection: Any, table: TableId, selection: Selection) -> CatalogTable:
    """Return a table's present definition; its ``schema`` lacks the columns that are kept out of storage.

    Raises ConfigError if there is none.
    """
    live = read_table(connection, table)
    if live is None:
        raise ConfigError(
            f"the source has no table {table}",
            hint="was it dropped or renamed? `sluice dump list PIPELINE` shows the dumps, `sluice dump cancel PIPELINE "
            "ID` ends one",
        )
    return replace(live, schema=selection.kept(live.schema))


__all__ = ["PostgresChunkTable", "open_chunk_table", "present"]
