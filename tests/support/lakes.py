"""Folders with Delta or Iceberg tables, read from outside. Need the clients, extras."""

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


class IcebergLake:
    """A folder with a SQL catalog as a server of the stack."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def connection_json(self) -> str:
        return f'{{"conn_type": "fs", "extra": {{"path": "{self.folder}"}}}}'

    def catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("sluice", uri=f"sqlite:///{self.folder}/catalog.db")

    def table(self, schema: str, table: str) -> Any:
        return self.catalog().load_table((schema, table))

    def rows(self, schema: str, table: str) -> pa.Table:
        return self.table(schema, table).scan().to_arrow()

    def duckdb_rows(self, schema: str, table: str) -> pa.Table:
        """As DuckDB reads the files of the newest version, without the table's metadata."""
        files = [task.file.file_path for task in self.table(schema, table).scan().plan_files()]
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.sql(
                "SELECT * FROM read_parquet($1, union_by_name = true)", params=[files]
            ).to_arrow_table()
