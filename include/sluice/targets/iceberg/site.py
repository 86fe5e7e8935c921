"""The tables of one target: the name of each, and how it is opened and created."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.targets.iceberg.checkpoints import IcebergCheckpoints
from sluice.targets.iceberg.client import Identifier, Place, errors
from sluice.targets.iceberg.options import IcebergOptions
from sluice.targets.iceberg.tables import MERGE_MANIFESTS, info_of, schema_of
from sluice.targets.lake.columns import LakeColumn, TableInfo
from sluice.targets.lake.names import legal
from sluice.targets.lake.site import LakeSite, Note

RETRIES = "commit.retry.num-retries"
"""The property that keeps the library from committing a lost race by itself."""


@dataclass(frozen=True)
class Site(LakeSite):
    """See :class:`sluice.targets.lake.site.LakeSite`."""

    FORMAT: ClassVar[str] = "iceberg"
    NAME: ClassVar[str] = "Iceberg"

    place: Place
    options: IcebergOptions

    @property
    def checkpoints(self) -> IcebergCheckpoints:
        """The checkpoint store of this target."""
        return IcebergCheckpoints(self.place, self.owner)

    def identifier(self, table: TableId) -> Identifier:
        """Return the identifier of a table."""
        return (legal(table.schema), legal(table.table))

    def uri(self, table: TableId) -> str:
        """Return the name of a table, for messages."""
        return ".".join(self.identifier(table))

    def open(self, table: TableId) -> Any:
        """Open a table as ``Table``, None if there is none."""
        return self.place.open(self.identifier(table), f"reading the metadata of {table}")

    def required(self, table: TableId) -> Any:
        """Return the ``Table``. Raises MappingError, and LoadError for one whose lost races the library would commit by itself."""
        found = super().required(table)
        if str(found.properties.get(RETRIES)) != "0":
            raise LoadError(retries_said(self.uri(table)), where=str(table), hint=RETRIES_HINT)
        return found

    def info(self, table: Any) -> TableInfo:
        """Return the columns and partitions of a ``Table``."""
        return info_of(table)

    def create(self, identifier: Identifier, columns: Sequence[LakeColumn], partitions: Sequence[str]) -> None:
        """Make a table unless there is one. Raises LoadError, TargetUnavailable, Raced."""
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        catalog, name = self.place.catalog(), ".".join(identifier)
        properties = {
            "format-version": "2",
            RETRIES: "0",
            **MERGE_MANIFESTS,
            "write.target-file-size-bytes": str(self.options.file_size),
            "write.metadata.delete-after-commit.enabled": "true",
        }
        with errors(self.place, f"making the table {name}", name):
            schema = schema_of(columns)
            fields = [
                PartitionField(schema.find_field(one).field_id, 1000 + place, IdentityTransform(), one)
                for place, one in enumerate(partitions)
            ]
            catalog.create_namespace_if_not_exists(identifier[:-1])
            catalog.create_table_if_not_exists(
                identifier, schema, partition_spec=PartitionSpec(*fields), properties=properties,
                sort_order=self._order(identifier, columns, partitions, schema),
            )  # fmt: skip

    def _order(
        self, identifier: Identifier, columns: Sequence[LakeColumn], partitions: Sequence[str], schema: Any
    ) -> Any:
        """Return the sort order of a table, which other writers such as Spark follow."""
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
        from pyiceberg.transforms import IdentityTransform

        info = TableInfo(tuple(replace(one, partition=one.name in partitions) for one in columns))
        for name in self.options.cluster_by:
            table = TableId(*name.split(".", 1)) if "." in name else None
            if table is not None and self.identifier(table) == tuple(identifier):
                ids = [schema.find_field(one).field_id for one in self.clusters(table, info)]
                fields = [SortField(one, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_LAST) for one in ids]
                return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER
        return UNSORTED_SORT_ORDER

    def noted(self, table: Any, scope: str, delivery: int) -> int | None:
        """Return the number that a table (``Table``) has noted under ``scope`` in this delivery."""
        found = str(table.properties.get(self._property(scope), "")).split()
        return int(found[1]) if len(found) == 2 and found[0] == str(delivery) else None

    def write_note(self, change: Any, note: Note) -> None:
        """Add a note to a transaction (``Transaction``) that also has a snapshot, by which it is refused if another was committed first."""
        change.set_properties({self._property(note.scope): f"{note.delivery} {note.number}"})

    def _property(self, scope: str) -> str:
        return f"sluice/{self.owner}/{scope}"


RETRIES_HINT = f"`sluice check --apply` sets {RETRIES} to 0"


def retries_said(name: str) -> str:
    """Return why a table is not written to."""
    return f"the Iceberg table {name} does not have {RETRIES} = 0, and the client would commit a lost race by itself, so that rows would be doubled"


__all__ = ["RETRIES", "RETRIES_HINT", "Site", "retries_said"]
