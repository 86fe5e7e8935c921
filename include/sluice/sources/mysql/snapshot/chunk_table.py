"""A table as the server has it now, for the plan of a dump: what cuts it, and what the server says of keys and
conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pymysql

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError
from sluice.model.dumps import TableRequest
from sluice.model.tables import TableId, TableSchema, quoted
from sluice.mysql.client import of_server
from sluice.mysql.condition import rendered
from sluice.mysql.key_sql import among, numbers_of
from sluice.sources.mysql.catalog.live_table import LiveTable
from sluice.sources.mysql.server.connection import ServerInfo, rows_of
from sluice.sources.mysql.snapshot.chunk_queries import key_of, range_of, selection_sql
from sluice.sources.mysql.snapshot.result_set import open_reader, text_rows
from sluice.sources.port import ChunkKey

KEYS_A_SELECT = 2_000


@dataclass(frozen=True)
class MySQLChunkTable:
    """See :class:`sluice.sources.port.ChunkTable`."""

    endpoint: Endpoint
    info: ServerInfo
    live: LiveTable

    @property
    def schema(self) -> TableSchema:
        """The definition that was read when the table was opened."""
        return self.live.plan.schema

    @property
    def whole_rows_logged(self) -> bool:
        """True if ``binlog_row_image`` is FULL."""
        return self.info.variables.get("binlog_row_image", "FULL").upper() == "FULL"

    def key(self, request: TableRequest) -> ChunkKey:
        """Return the primary key or the index that the request names; no columns for a table in one piece."""
        return key_of(self.live, request)

    def has_prefix_key(self, key: ChunkKey) -> bool:
        """Return True if a column of the index is indexed by its first characters only."""
        return self.live.indexes[key.index].prefix

    def condition(self, text: str) -> str:
        """Parse the condition and print it anew, with the names quoted. Raises ConfigError."""
        return rendered(text, self.schema.table, [c.name for c in self.schema.columns])

    def is_reversed(self, lower: tuple[str, ...], upper: tuple[str, ...]) -> bool:
        """Compare the bounds if they are numbers; only the server knows the order of text."""
        low, high = numbers_of(lower), numbers_of(upper)
        return bool(low and high and low[: len(high)] > high[: len(low)])

    def estimate(self, request: TableRequest, key: ChunkKey) -> int:
        """Return the optimizer's estimate of the rows.

        Raises ConfigError if the server does not accept the condition.
        """
        conditions = (*range_of(request, key), f"({request.where})" if request.where else "")
        any_index = ChunkKey(key.columns, "")  # FORCE INDEX would keep the server from looking into it
        sql = selection_sql(request.table, self.schema.columns[:1], any_index, *conditions)
        subject = f"the condition {request.where!r}" if request.where else "the key range"
        plan_row = self._explained(request.table, sql, subject)
        rows, share = (plan_row[8], 100.0) if self.info.is_mariadb else (plan_row[9], float(plan_row[10] or 100))
        return round(int(rows or 0) * share / 100)

    def require_taken(self, request: TableRequest, key: ChunkKey, keys: Sequence[tuple[str, ...]]) -> None:
        """Raise ConfigError if the server does not accept one of the keys as a value."""
        for at in range(0, len(keys), KEYS_A_SELECT):
            sql = selection_sql(
                request.table,
                key.columns[:1],
                ChunkKey(key.columns, ""),
                among(key.names, keys[at : at + KEYS_A_SELECT]),
            )
            self._explained(request.table, sql, "a key of the list")

    def _explained(self, table: TableId, sql: str, subject: str) -> tuple[Any, ...]:
        """Return what the optimizer says of a select. Raises ConfigError if the server does not accept ``subject``."""
        with open_reader(self.endpoint) as reader:
            try:
                rows_of(reader, f"USE {quoted(table.schema)}")
                words = "EXPLAIN" if self.info.is_mariadb else "EXPLAIN FORMAT=TRADITIONAL"
                return text_rows(reader, f"{words} {sql}")[0]
            except pymysql.err.MySQLError as error:
                code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
                if not of_server(code):
                    raise  # the connection, not the condition
                raise ConfigError(
                    f"the source does not take {subject} on {table}: {error.args[-1]}",
                    hint="write what may stand after WHERE in a select of this one table, and keys as the server "
                    "prints them",
                ) from error
