"""Oracle for the contract suite, on H2 in Oracle mode: how it makes tables, and reads rows from outside."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from sluice.config.connections import Endpoint
from sluice.model.column_types import ColumnKind
from sluice.model.dialects import MYSQL
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.oracle import session as oracle_session
from sluice.targets.oracle.column_types import own_type
from sluice.targets.oracle.target import OracleTarget
from sluice.targets.port import Target
from sluice.targets.sql.names import Naming, quoted, quoted_table
from sluice.testing.targets import Bench
from tests.support.twins.oracle_twin import OracleTwin

NAMING = Naming(True, upper=True)
_NUMBERS = {
    ColumnKind.TINYINT, ColumnKind.SMALLINT, ColumnKind.INT, ColumnKind.BIGINT, ColumnKind.DECIMAL, ColumnKind.YEAR,
}  # fmt: skip
_WHOLE = _NUMBERS - {ColumnKind.DECIMAL}


class OracleBench(Bench):
    """H2 in Oracle mode, in place of a server."""

    def __init__(self, twin: OracleTwin, consistency: str = "row") -> None:
        self.twin, self.consistency = twin, consistency
        self.dialect = MYSQL
        self.connection = Endpoint("target", "oracle", "localhost", 1521, "sluice", self.secret, "FREEPDB1")
        twin.run("DROP TABLE IF EXISTS SLUICE_ACK")
        for owner, name in twin.run("SELECT OWNER, TABLE_NAME FROM SYS.ALL_TABLES WHERE OWNER = 'SHOP'"):
            twin.run(f"DROP TABLE {quoted_table(TableId(owner, name))}")

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {"empty_strings": "null", **config.pop("options", {})}
        return OracleTarget(self.config("oracle", name=name, options=options, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        place = quoted_table(NAMING.table(table.table))
        lines = [
            f"{quoted(NAMING.name(column.name))} "
            f"{'VARCHAR2(80 CHAR)' if column.name == 'email' else own_type(column.type)}"
            f"{'' if column.nullable else ' NOT NULL'}"
            for column in table.columns
        ]
        if table.primary_key:
            lines.append(f"PRIMARY KEY ({', '.join(quoted(NAMING.name(one)) for one in table.primary_key)})")
        self.twin.run(f"DROP TABLE IF EXISTS {place}", f"CREATE TABLE {place} ({', '.join(lines)})")

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        names = ", ".join(quoted(NAMING.name(column.name)) for column in table.columns)
        found = self.twin.run(f"SELECT {names} FROM {quoted_table(NAMING.table(table.table))}")
        return [tuple(_read(v, c) for v, c in zip(row, table.columns, strict=True)) for row in found]

    def columns(self, table: TableId) -> list[str] | None:
        place = NAMING.table(table)
        found = self.twin.run(
            f"SELECT COLUMN_NAME FROM SYS.ALL_TAB_COLS WHERE OWNER = '{place.schema}' "
            f"AND TABLE_NAME = '{place.table}' ORDER BY COLUMN_ID"
        )
        return [str(row[0]).lower() for row in found] or None

    def stored(self, column: Column, value: Any) -> Any:
        """An empty text is NULL, and a DATE has a time."""
        if value in ("", b""):
            return None
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return dt.datetime.combine(value, dt.time())
        return value

    def kill(self) -> None:
        oracle_session.kept.end()


def _read(value: Any, column: Column) -> Any:
    """Numbers without a fraction are integers to the suite."""
    return int(value) if isinstance(value, Decimal) and column.kind in _WHOLE else value
