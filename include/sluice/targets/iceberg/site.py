"""One target's tables: what each is called, and how it is opened and made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import LoadError, MappingError
from sluice.model.tables import TableId
from sluice.targets.base import Fence
from sluice.targets.iceberg.checkpoints import IcebergCheckpoints
from sluice.targets.iceberg.client import Identifier, Place, errors
from sluice.targets.iceberg.options import IcebergOptions
from sluice.targets.iceberg.tables import schema_of
from sluice.targets.lake.columns import LakeColumn
from sluice.targets.lake.names import legal

RETRIES = "commit.retry.num-retries"
"""The library would commit a lost race by itself."""


@dataclass(frozen=True)
class Site:
    """Picklable; ``every``: its tables hold changes, not rows; ``about``: what its commits say of the batch."""

    place: Place
    options: IcebergOptions
    pipeline: str
    target: str
    every: bool = False
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """pipeline/target."""
        return f"{self.pipeline}/{self.target}"

    @property
    def checkpoints(self) -> IcebergCheckpoints:
        """Of this target."""
        return IcebergCheckpoints(self.place, self.owner)

    @property
    def wide_decimals(self) -> str:
        """Of the options."""
        return self.options.wide_decimals

    def identifier(self, table: TableId) -> Identifier:
        """Of a table."""
        return (legal(table.schema), legal(table.table))

    def uri(self, table: TableId) -> str:
        """For people."""
        return ".".join(self.identifier(table))

    def open(self, table: TableId) -> Any:
        """``Table``, None if there is none."""
        return self.place.open(self.identifier(table), f"reading the metadata of {table}")

    def required(self, table: TableId) -> Any:
        """``Table``. Raises MappingError, and LoadError for one whose lost races the library would commit by itself."""
        found = self.open(table)
        if found is None:
            raise missing(table, self.uri(table))
        if str(found.properties.get(RETRIES)) != "0":
            raise LoadError(retries_said(self.uri(table)), where=str(table), hint=RETRIES_HINT)
        return found

    def create(self, identifier: Identifier, columns: Sequence[LakeColumn], partitions: Sequence[str]) -> None:
        """Make a table unless there is one. Raises LoadError, TargetUnavailable, Raced."""
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        catalog, name = self.place.catalog(), ".".join(identifier)
        properties = {
            "format-version": "2",
            RETRIES: "0",
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
                identifier, schema, partition_spec=PartitionSpec(*fields), properties=properties
            )

    def partitions(self, table: TableId) -> tuple[str, ...]:
        """Of a table that is made here."""
        return self.options.partition_by.get(str(table), ())

    # -- what a table itself says about the batches that it holds ------------------------------------------------------
    def noted(self, table: Any, scope: str, delivery: int) -> int | None:
        """The number that a table (``Table``) has noted under ``scope`` in this delivery."""
        found = str(table.properties.get(self._property(scope), "")).split()
        return int(found[1]) if len(found) == 2 and found[0] == str(delivery) else None

    def note(self, change: Any, scope: str, number: int, delivery: int) -> None:
        """Into a transaction (``Transaction``) that also has a snapshot, by which it is refused if another came first."""
        change.set_properties({self._property(scope): f"{delivery} {number}"})

    def said(self, fence: Fence, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Properties of a snapshot: for people, and to find the snapshot of a batch."""
        made = {"sluice.owner": self.owner, "sluice.batch": str(fence.batch), "sluice.epoch": str(fence.epoch)}
        return made | {**self.about, **(more or {})}

    def _property(self, scope: str) -> str:
        return f"sluice/{self.owner}/{scope}"


RETRIES_HINT = f"`sluice check --apply` sets {RETRIES} to 0"


def retries_said(name: str) -> str:
    """Why a table is not written to."""
    return f"the Iceberg table {name} does not have {RETRIES} = 0, and the client would commit a lost race by itself, so that rows would be doubled"


def missing(table: TableId, name: str) -> MappingError:
    """There is no such table."""
    return MappingError(
        f"the target has no table {table}: the catalog has no Iceberg table {name}",
        where=str(table),
        hint="`sluice check --apply` makes it",
    )


__all__ = ["RETRIES", "RETRIES_HINT", "Site", "missing", "retries_said"]
