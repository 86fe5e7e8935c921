"""The library's SQL catalog, which reads each metadata file once, and its transaction of a table, without its copies.

Decision: a commit loads its table, the checkpoint's for the fence, and in the library its table again before it writes;
each time the file that the catalog's row names is read. Such a file never changes: a commit
writes another one. So the row is read each time, by one statement that is compiled once, and the file only if it is
another than before, and than the one that this process wrote. The commit itself does not load the table a third time:
the statement that moves the row moves nothing if the row names another file than the transaction began from.

Decision: inside a transaction the library computes the table's metadata anew, with a deep copy, at each access: twenty
times per commit, and the longer the more snapshots a table has. Nothing changes in metadata once it is made, so each
step of a transaction applies its own updates to what the step before it made, and copies nothing. The commit itself
does not copy the result either, which took a sixth of the time of a commit to a small table. A version of the library
that caches it would make this needless.

Imports the library: only functions of this package import it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, StagedTable, Table, Transaction
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    AssertDefaultSortOrderId,
    SetDefaultSortOrderUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from sqlalchemy import bindparam, select, update

from sluice.targets.iceberg.kept import MostRecent
from sluice.targets.iceberg.snapshot import ReplacedFiles, replacing

_USUAL_BYTES, _SNAPSHOT_BYTES = 8 * 2**10, 2**10
"""Bytes of a file of metadata, and of a snapshot in it."""
_MOST_BYTES = 16 * 2**20
"""Bytes of files whose content is cached in a process; in memory it takes a few times as much."""


class KeptCatalog(SqlCatalog):  # type: ignore[misc]
    """The SQL catalog."""

    def __init__(self, name: str, **properties: str) -> None:
        self._contents: MostRecent[TableMetadata] = MostRecent(_MOST_BYTES)
        super().__init__(name, **properties)

    def load_table(self, identifier: Any) -> Table:
        """Load a table as the library does, except that the file's content is cached."""
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        name = Catalog.table_name_from(identifier)
        with self.engine.connect() as connection:
            row = connection.execute(self._location, {"of": self.name, "space": namespace, "called": name}).first()
        if row is None or not row[0]:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
        return self._table(namespace, name, row[0])

    @cached_property
    def _location(self) -> Any:
        """The statement that reads where a table's metadata is."""
        statement = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == bindparam("of"),
            IcebergTables.table_namespace == bindparam("space"),
            IcebergTables.table_name == bindparam("called"),
        )
        only_tables = self._iceberg_type_filter()
        return statement if only_tables is None else statement.where(only_tables)

    @cached_property
    def _move(self) -> Any:
        """The statement that makes a file the metadata of a table, unless the table has another than ``there``."""
        return (
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == bindparam("of"),
                IcebergTables.table_namespace == bindparam("space"),
                IcebergTables.table_name == bindparam("called"),
                IcebergTables.metadata_location == bindparam("there"),
            )
            .values(metadata_location=bindparam("to"), previous_metadata_location=bindparam("before"))
            .execution_options(synchronize_session=False)
        )

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        """Commit as the library does; the metadata that it wrote is cached."""
        response = self._moved(table, requirements, updates) or super().commit_table(table, requirements, updates)
        size = (self._contents.size(table.metadata_location) or _USUAL_BYTES) + _SNAPSHOT_BYTES
        self._contents.put(response.metadata_location, response.metadata, size)
        return response

    def _moved(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse | None:
        """Commit on top of the metadata of ``table``; return None if it is not the current one, or nothing changes."""
        if not self.engine.dialect.supports_sane_rowcount or not isinstance(table.catalog, KeptCatalog):
            return None
        path = table.metadata_location
        staged = self._update_and_stage_table(table, table.name(), requirements, updates)
        if staged.metadata is table.metadata:
            return None
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(table.name()))
        binds = {"of": self.name, "space": namespace, "called": Catalog.table_name_from(table.name()), "there": path}
        self._write_metadata(metadata=staged.metadata, io=staged.io, metadata_path=staged.metadata_location)
        with self.engine.begin() as connection:
            moved = connection.execute(self._move, {**binds, "to": staged.metadata_location, "before": path})
        if moved.rowcount < 1:  # nothing names the file
            staged.io.delete(staged.metadata_location)
            return None
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)

    def _update_and_stage_table(
        self, current_table: Table | None, table_identifier: Any, requirements: Any, updates: Any
    ) -> StagedTable:
        """Stage a commit as the library does, without a deep copy of the metadata."""
        if current_table is None:
            return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)
        for requirement in requirements:
            requirement.validate(current_table.metadata)
        metadata = _updated(current_table.metadata, updates, current_table.metadata_location)
        number = self._parse_metadata_version(current_table.metadata_location) + 1
        at = load_location_provider(metadata.location, metadata.properties).new_table_metadata_file_location(number)
        return StagedTable(table_identifier, metadata, at, self._load_file_io(metadata.properties, at), self)

    def _convert_orm_to_iceberg(self, orm_table: Any) -> Table:
        """Convert a row of the catalog as the library does, except that the file's content is cached."""
        location = orm_table.metadata_location
        if not location or not orm_table.table_namespace or not orm_table.table_name:
            return super()._convert_orm_to_iceberg(orm_table)
        return self._table(orm_table.table_namespace, orm_table.table_name, location)

    def _table(self, namespace: str, name: str, location: str) -> Table:
        metadata = self._metadata(location)
        identifier = (*Catalog.identifier_to_tuple(namespace), name)
        return Table(identifier, metadata, location, self._load_file_io(metadata.properties, location), self)

    def _metadata(self, location: str) -> Any:
        metadata = self._contents.get(location)
        if metadata is None:
            file = load_file_io(properties=self.properties, location=location).new_input(location)
            metadata = FromInputFile.table_metadata(file)
            self._contents.put(location, metadata, len(file))
        return metadata


def _updated(base: TableMetadata, updates: Iterable[Any], location: str) -> TableMetadata:
    """Return the metadata of a table with the updates of a commit, and with the file at ``location`` as the one before.

    Parts that do not change are shared with ``base``.
    """
    context, metadata = _TableMetadataUpdateContext(), base
    for table_update in updates:
        metadata = _apply_table_update(table_update, metadata, context)
    if context.has_changes():
        metadata = _update_table_metadata_log(metadata, location, base.last_updated_ms)
        if metadata.last_updated_ms == base.last_updated_ms:
            metadata = metadata.model_copy(update={"last_updated_ms": time.time_ns() // 10**6})
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return metadata


class KeptTransaction(Transaction):  # type: ignore[misc]
    """The transaction of a table."""

    _kept: tuple[Any, Any, Any, TableMetadata] | None = None
    """The base metadata, the updates, the library's notes of them, and the resulting metadata."""

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the updates applied. Nobody changes it."""
        base, updates, cached = self._table.metadata, self._updates, self._kept
        if cached is not None and cached[0] is base and cached[1] is updates:
            return cached[3]
        applied, context, metadata = (), _TableMetadataUpdateContext(), base
        if cached is not None and cached[0] is base and updates[: len(cached[1])] == cached[1]:
            _, applied, context, metadata = cached
        for table_update in updates[len(applied) :]:
            metadata = _apply_table_update(table_update, metadata, context)
        self._kept = (base, updates, context, metadata)
        return metadata

    def unsort(self) -> None:
        """Remove the table's sort order. The library's ``update_sort_order`` fails unless it had none before."""
        metadata, none = self.table_metadata, UNSORTED_SORT_ORDER
        new = () if metadata.sort_order_by_id(none.order_id) is not None else (AddSortOrderUpdate(sort_order=none),)
        requirement = AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id)
        self._apply((*new, SetDefaultSortOrderUpdate(sort_order_id=none.order_id)), (requirement,))

    def replacing(self, summary: Mapping[str, str]) -> ReplacedFiles:
        """Open a snapshot of this transaction that adds and removes files, as a context manager.

        ``summary``: properties of its summary.
        """
        return replacing(self, dict(summary))
