"""A folder with Delta tables, read from outside. Needs the client, an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa


class Lake:
    """A folder as a server of the stack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def connection_json(self) -> str:
        return f'{{"conn_type": "fs", "extra": {{"path": "{self.folder}"}}}}'

    def table(self, schema: str, table: str) -> Any:
        return deltalake.DeltaTable(str(self.folder / schema / table))

    def rows(self, schema: str, table: str) -> pa.Table:
        return self.table(schema, table).to_pyarrow_table()

    def duckdb_rows(self, schema: str, table: str) -> pa.Table:
        """As DuckDB reads the files of the newest version."""
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            files = self.table(schema, table).file_uris()
            return connection.sql(
                "SELECT * FROM read_parquet($1, union_by_name = true)", params=[files]
            ).to_arrow_table()
