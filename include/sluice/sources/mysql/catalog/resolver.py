"""Completion of the log's table maps, from the schema history at that place in the log and the server's collations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import structlog

from sluice.config.connections import Endpoint
from sluice.errors import DecodeError, UnsupportedType
from sluice.model.definitions import TableDefinition, Unknown
from sluice.model.tables import TableId, quoted_table
from sluice.mysql.ddl.ast import VERSIONED
from sluice.mysql.ddl.catalog import SchemaState
from sluice.sources.mysql.catalog.complete_table_map import is_hash_column
from sluice.sources.mysql.catalog.history_tracker import Rereader, SchemaTracker
from sluice.sources.mysql.decoder.row_layout import RowLayout, close_open, is_left_open, plan_table
from sluice.sources.mysql.events.table_map import TableMap
from sluice.sources.mysql.events.unreadable import AROUND
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.server.connection import IS_GENERATED, collations, rows_of, source_errors
from sluice.sources.mysql.server.merge_tables import is_merge
from sluice.sources.table_filter import NOTHING, Selection, key_left_out

_log = structlog.get_logger()

_GENERATED = (
    "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "  # noqa: S608
    f"AND {IS_GENERATED}"
)
_TYPES = (
    "SELECT COLUMN_NAME, DATA_TYPE, DATETIME_PRECISION FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s "
    "AND TABLE_NAME = %s"
)


_FRACTIONAL = {"datetime", "timestamp", "time"}


_SEQUENCE_NAMES = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment", "cache_size", "cycle_option",
    "cycle_count",
)  # fmt: skip
_SEQUENCE_TYPES = [8, 8, 8, 8, 8, 8, 1, 8]
"""BIGINT, and TINYINT for the option, as a table map has them."""


class TableResolver:
    """Plans by table map.

    Args:
        connect: opens an SQL connection to ``endpoint``; called at the first table.
        history: gives the schema history as of the start of the capture; None: only logs with
            ``binlog_row_metadata=FULL`` can be read.
        reread: see :data:`sluice.sources.mysql.catalog.history_tracker.Rereader`.
        selection: the captured tables, and the columns that are skipped.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Any]],
        endpoint: Endpoint,
        *,
        mariadb: bool = False,
        history: Callable[[], SchemaState] | None = None,
        reread: Rereader | None = None,
        selection: Selection = NOTHING,
    ) -> None:
        self._connect = connect
        self._selection = selection
        self._endpoint = endpoint
        self._mariadb = mariadb
        self._stack = ExitStack()
        self._connection: Any = None
        self._collations: dict[int, tuple[str, str]] | None = None
        self.tracker = SchemaTracker(history, self.collations, reread, selection.wants) if history is not None else None

    def close(self) -> None:
        """Close the connection."""
        self._stack.close()

    def plan(self, table_map: TableMap, position: Position, where: str) -> RowLayout:
        """Return the plan of a captured table. ``position``: the end of the transaction before its rows.

        Raises:
            UnsupportedType, DecodeError, SchemaUnknown, SourceUnavailable.
        """
        definition: TableDefinition | None = None
        if not table_map.named:
            if self.tracker is None:
                raise UnsupportedType(
                    f"the log does not carry the column names of {table_map.table}",
                    where=where,
                    hint="SET GLOBAL binlog_row_metadata = 'FULL' and reconnect the source's applications; then "
                    f"{AROUND}",
                )
            if self._mariadb and self.tracker.state.find(table_map.table) is None:
                self._refuse_versioned(table_map.table, where)
            table_map = self.tracker.complete(table_map, position, where)
            definition = self.tracker.state.find(table_map.table)
        elif self.tracker is not None:
            table_map, definition = self._agreed(table_map, where)
        if definition is not None and is_merge(definition.engine):
            raise UnsupportedType(
                f"{table_map.table} is a MERGE table: its rows are those of its members, and the log names only it",
                where=where,
                hint="exclude it (capture.exclude), capture its members, and write to them by their own names",
            )
        if definition is None and self._mariadb:
            self._refuse_versioned(table_map.table, where)
            table_map = self._without_hashes(table_map)
        self._settle(table_map, definition)
        self._skip(table_map)
        plan = plan_table(table_map, self._collation, self._generated(table_map, definition), where)
        return replace(plan, definition=definition)

    def _refuse_versioned(self, table: TableId, where: str) -> None:
        """Raise UnsupportedType for a table with system versioning; the definition of one is never known.

        Its log has rows of the history under the keys of rows that exist, and deletes as updates.
        """
        unknown = self.tracker.state.why_unknown(table) if self.tracker is not None else None
        if (unknown is not None and VERSIONED in unknown.reason) or self._kind(table) == "SYSTEM VERSIONED":
            raise UnsupportedType(
                f"{table} has system versioning: its log has rows of the history, and deletes as updates",
                where=where,
                hint=f"exclude it (capture.exclude), or end its history: ALTER TABLE {quoted_table(table)} DROP SYSTEM "
                f"VERSIONING; then {AROUND}",
            )

    def _kind(self, table: TableId) -> str:
        """Return the TABLE_TYPE that the server has now, "" if there is no such table."""
        query = "SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        rows = self._rows(query, (table.schema, table.table))
        return str(rows[0][0]) if rows else ""

    def _agreed(self, table_map: TableMap, where: str) -> tuple[TableMap, TableDefinition | None]:
        """Return the table map as the log describes it. Its description counts, and a history that differs is wrong."""
        assert self.tracker is not None
        state = self.tracker.state
        if state.find(table_map.table) is None:
            return table_map, None
        try:
            return self.tracker.complete(table_map, Position("", "", 0), where), state.find(table_map.table)
        except DecodeError as error:
            _log.warning("schema_history_contradicted", table=str(table_map.table), position=where, error=error.message)
            state.lose(table_map.table, Unknown(f"the log contradicts it: {error.message}", where))
            return table_map, None

    def _without_hashes(self, table_map: TableMap) -> TableMap:
        """Skip the columns at the end that the server keeps for unique keys over hashes, and tells nobody of."""
        columns = list(table_map.columns)
        last = len(columns)
        while last and is_hash_column(columns[last - 1]):
            last -= 1
        if last < len(columns):
            server_columns = {row[0] for row in self._rows(_TYPES, (table_map.table.schema, table_map.table.table))}
            columns[last:] = [replace(c, skipped=c.name not in server_columns) for c in columns[last:]]
        return replace(table_map, columns=columns)

    def _skip(self, table_map: TableMap) -> None:
        """Skip columns that are kept out of storage. Raises ConfigError if one of them is a part of the key."""
        table, columns = table_map.table, table_map.columns
        for column in columns if self._selection.columns else ():
            column.skipped = column.skipped or self._selection.skips(table, column.name or "")
        keyed = [str(columns[i].name) for i in table_map.primary_key or () if columns[i].skipped]
        if keyed:
            raise key_left_out(table, keyed)

    def _generated(self, table_map: TableMap, definition: TableDefinition | None) -> frozenset[str]:
        if definition is not None:
            return frozenset(column.name for column in definition.columns if column.generated)
        rows = self._rows(_GENERATED, (table_map.table.schema, table_map.table.table))
        return frozenset(str(row[0]) for row in rows)

    def _settle(self, table_map: TableMap, definition: TableDefinition | None) -> None:
        """Settle what MariaDB's log leaves open even with full metadata."""
        columns = {column.name: column for column in table_map.columns if is_left_open(column)}
        if not self._mariadb or not columns:
            return
        if definition is not None:
            for name, column in columns.items():
                known_column = definition.column(str(name))
                digits = known_column.arguments[0] if known_column.arguments else 0
                close_open(column, known_column.family, digits if known_column.family in _FRACTIONAL else 0)
            return
        for name, family, digits in self._rows(_TYPES, (table_map.table.schema, table_map.table.table)):
            if name in columns:
                close_open(columns[str(name)], str(family), int(digits or 0))

    def _sql(self) -> Any:
        if self._connection is None:
            self._connection = self._stack.enter_context(self._connect())
        return self._connection

    def is_sequence(self, table_map: TableMap) -> bool:
        """Return True for a sequence of MariaDB, whose next values the log has as rows of a table.

        The server is asked only about tables with a sequence's columns.
        """
        if [column.type for column in table_map.columns] != _SEQUENCE_TYPES:
            return False
        if table_map.named:
            return tuple(column.name for column in table_map.columns) == _SEQUENCE_NAMES
        if self.tracker is not None and self.tracker.state.find(table_map.table) is not None:
            return False
        return self._kind(table_map.table) == "SEQUENCE"

    def engine(self, table: TableId, definition: TableDefinition | None = None) -> str:
        """Return the storage engine of a table in lower case.

        It is the one of the history, or, where no statement named it, the one that the server has now.
        """
        if definition is None and self.tracker is not None:
            definition = self.tracker.state.find(table)
        if definition is not None and definition.engine:
            return definition.engine.lower()
        query = "SELECT COALESCE(ENGINE, '') FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        rows = self._rows(query, (table.schema, table.table))
        return str(rows[0][0]).lower() if rows else ""

    def _rows(self, sql: str, names: tuple[str, str]) -> list[tuple[Any, ...]]:
        with source_errors(self._endpoint, f"asking the source about {'.'.join(names)}"):
            return rows_of(self._sql(), sql, names)

    def collations(self) -> Mapping[int, tuple[str, str]]:
        """Return collation id -> (collation, charset). Raises SourceUnavailable."""
        if self._collations is None:
            with source_errors(self._endpoint, "asking the source for its collations"):
                self._collations = collations(self._sql())
        return self._collations

    def _collation(self, number: int) -> tuple[str, str]:
        collation = self.collations().get(number)
        if collation is None:
            raise UnsupportedType(f"collation {number} is not one the server lists")
        return collation
