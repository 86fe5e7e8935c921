"""Folders with Delta or Iceberg tables, read from outside. Need the clients, extras."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq


class Lake:
    """A folder as a server of the stack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def connection_json(self) -> str:
        return f'{{"conn_type": "fs", "extra": {{"path": "{self.folder}"}}}}'

    def table(self, schema: str, table: str) -> Any:
        return deltalake.DeltaTable(str(self.folder / schema / table))

    def rows(self, schema: str, table: str, version: int | None = None) -> pa.Table:
        found = self.table(schema, table)
        if version is not None:
            found.load_as_version(version)
        return found.to_pyarrow_table()

    def files(self, schema: str, table: str) -> list[str]:
        """Of the newest version."""
        return list(self.table(schema, table).file_uris())

    def versions(self, schema: str, table: str) -> int:
        """How many there were."""
        return int(self.table(schema, table).version())

    def duckdb_rows(self, schema: str, table: str) -> pa.Table:
        """As DuckDB reads the files of the newest version."""
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.sql(
                "SELECT * FROM read_parquet($1, union_by_name = true)", params=[self.files(schema, table)]
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

    def rows(self, schema: str, table: str, version: int | None = None) -> pa.Table:
        found = self.table(schema, table)
        return (found.scan(snapshot_id=version) if version is not None else found.scan()).to_arrow()

    def files(self, schema: str, table: str) -> list[str]:
        """Of the newest version."""
        return [task.file.file_path for task in self.table(schema, table).scan().plan_files()]

    def versions(self, schema: str, table: str) -> int:
        """How many there are."""
        return len(self.table(schema, table).snapshots())

    def duckdb_rows(self, schema: str, table: str) -> pa.Table:
        """As DuckDB reads the files of the newest version, without the table's metadata."""
        files = self.files(schema, table)
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.sql(
                "SELECT * FROM read_parquet($1, union_by_name = true)", params=[files]
            ).to_arrow_table()


def delete_by_position(table: Any, column: str, value: Any) -> None:
    """As an engine that merges on read does, for an unpartitioned Iceberg table: rows stay in their file, and a delete
    file names them.
    """
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
    )
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    named: dict[str, list[Any]] = {"file_path": [], "pos": []}
    for task in table.scan().plan_files():
        rows = pq.read_table(task.file.file_path.removeprefix("file://"), columns=[column])
        found = [place for place, one in enumerate(rows[column].to_pylist()) if one == value]
        named["file_path"] += [task.file.file_path] * len(found)
        named["pos"] += found
    folder = table.location()
    path = f"{folder}/data/deletes-{uuid.uuid4()}.parquet"
    ids = {"file_path": 2147483546, "pos": 2147483545}
    schema = pa.schema([
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(ids[name])})
        for name, kind in (("file_path", pa.string()), ("pos", pa.int64()))
    ])
    pq.write_table(pa.table(named, schema=schema), path.removeprefix("file://"))
    size = Path(path.removeprefix("file://")).stat().st_size
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=path, file_format=FileFormat.PARQUET, partition=Record(),
        record_count=len(named["pos"]),
        file_size_in_bytes=size, spec_id=0,
    )  # fmt: skip

    class Deletes(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    class Append(_FastAppendFiles):
        def _existing_manifests(self) -> list[Any]:
            output = table.io.new_output(f"{folder}/metadata/deletes-{uuid.uuid4()}.avro")
            with Deletes(table.spec(), table.schema(), output, self._snapshot_id, "deflate") as writer:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file
                )
                writer.add_entry(entry)
            return [*super()._existing_manifests(), writer.to_manifest_file()]

    said = {"added-delete-files": "1", "added-position-deletes": str(len(named["pos"]))}
    change = table.transaction()
    with Append(Operation.OVERWRITE, change, table.io, snapshot_properties=said):
        pass
    change.commit_transaction()
