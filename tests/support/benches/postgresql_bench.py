"""PostgreSQL for the contract suite: how it makes tables, reads rows from outside, and loses its connections."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sluice.config.connections import parse_connection
from sluice.model.dialects import MYSQL
from sluice.model.tables import Column, TableId, TableSchema
from sluice.postgresql import names as pg
from sluice.targets.port import Target
from sluice.targets.postgresql import session as pg_session
from sluice.targets.postgresql.column_types import own_type
from sluice.targets.postgresql.target import PostgreSQLTarget
from sluice.testing.targets import Bench


class PostgreSQLBench(Bench):
    """A PostgreSQL server."""

    def __init__(self, server: Any, schema: str, consistency: str = "row") -> None:
        self.server, self.schema, self.consistency = server, schema, consistency
        self.dialect = MYSQL
        self.connection = parse_connection("target", server.connection_json(password=self.secret))

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {"ack_schema": self.schema, **config.pop("options", {})}
        made = self.config("postgresql", name=name, options=options, **config)
        return PostgreSQLTarget(made, self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        place = pg.quoted_table(table.table)
        lines = [
            f"{pg.quoted(column.name)} "
            f"{'varchar(80)' if column.name == 'email' else own_type(column.type)}{'' if column.nullable else ' NOT NULL'}"
            for column in table.columns
        ]
        if table.primary_key:
            lines.append(f"PRIMARY KEY ({', '.join(map(pg.quoted, table.primary_key))})")
        self.server.execute(f"DROP TABLE IF EXISTS {place}", f"CREATE TABLE {place} ({', '.join(lines)})")

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        names = ", ".join(pg.quoted(column.name) for column in table.columns)
        return [tuple(row) for row in self.server.execute(f"SELECT {names} FROM {pg.quoted_table(table.table)}")]

    def columns(self, table: TableId) -> list[str] | None:
        found = self.server.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = "
            f"'{table.schema}' AND table_name = '{table.table}' ORDER BY ordinal_position"
        )
        return [str(row[0]) for row in found] or None

    def stored(self, column: Column, value: Any) -> Any:
        """An unsigned BIGINT is a numeric there."""
        return Decimal(value) if value is not None and column.name == "u64" else value

    def refuses(self, column: Column, value: Any) -> bool:
        return isinstance(value, str) and "\0" in value

    def kill(self) -> None:
        pg_session.kept.end()
