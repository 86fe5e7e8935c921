"""What the log's table maps leave open, asked from the server once a drain: names of collations, and which columns are generated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from sluice.binlog.connection import collations, rows_of
from sluice.binlog.plan import TablePlan, close_open, is_left_open, plan_table
from sluice.binlog.tablemap import TableMap
from sluice.errors import UnsupportedType

_GENERATED = (
    "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
    "AND GENERATION_EXPRESSION IS NOT NULL AND GENERATION_EXPRESSION <> ''"
)
_TYPES = "SELECT COLUMN_NAME, DATA_TYPE, DATETIME_PRECISION FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"


class Catalog:
    """Plans by table map. ``connect`` opens an SQL connection; it is called at the first table."""

    def __init__(self, connect: Callable[[], AbstractContextManager[Any]], *, mariadb: bool = False) -> None:
        self._connect = connect
        self._mariadb = mariadb
        self._stack = ExitStack()
        self._connection: Any = None
        self._collations: dict[int, tuple[str, str]] | None = None

    def close(self) -> None:
        """Hang up."""
        self._stack.close()

    def plan(self, table_map: TableMap, where: str) -> TablePlan:
        """The plan of a captured table. Raises UnsupportedType, DecodeError, SourceUnavailable."""
        if not table_map.named:
            raise UnsupportedType(
                f"the log does not carry the column names of {table_map.table}",
                where=where,
                hint="SET GLOBAL binlog_row_metadata = 'FULL', then start behind this point (`sluice seek`)",
            )
        generated = {
            str(row[0]) for row in rows_of(self._sql(), _GENERATED, (table_map.table.schema, table_map.table.table))
        }
        self._settle(table_map)
        return plan_table(table_map, self._collation, frozenset(generated), where)

    def _settle(self, table_map: TableMap) -> None:
        """What MariaDB's log leaves open even with full metadata."""
        columns = {column.name: column for column in table_map.columns if is_left_open(column)}
        if not self._mariadb or not columns:
            return
        for name, family, digits in rows_of(self._sql(), _TYPES, (table_map.table.schema, table_map.table.table)):
            if name in columns:
                close_open(columns[str(name)], str(family), int(digits or 0))

    def _sql(self) -> Any:
        if self._connection is None:
            self._connection = self._stack.enter_context(self._connect())
        return self._connection

    def _collation(self, number: int) -> tuple[str, str]:
        if self._collations is None:
            self._collations = collations(self._sql())
        found = self._collations.get(number)
        if found is None:
            raise UnsupportedType(f"collation {number} is not one the server lists")
        return found
