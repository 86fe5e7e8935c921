"""Iceberg tables as a target, written by pyiceberg: rows are merged, or every change is appended, and each commit notes its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.model.tables import TableId
from sluice.targets.iceberg.appending import append
from sluice.targets.iceberg.checkpoints import IcebergCheckpoints
from sluice.targets.iceberg.client import place_of
from sluice.targets.iceberg.comparing import IcebergComparer
from sluice.targets.iceberg.follow import Follower
from sluice.targets.iceberg.maintaining import IcebergMaintainer
from sluice.targets.iceberg.merging import Merging
from sluice.targets.iceberg.options import IcebergOptions
from sluice.targets.iceberg.removing import IcebergReconciler, remove
from sluice.targets.iceberg.schema import IcebergSchema
from sluice.targets.iceberg.site import Site
from sluice.targets.iceberg.versions import IcebergVersions
from sluice.targets.lake.target import LakeTarget
from sluice.targets.lake.writing import LakeWork
from sluice.targets.options import options_of
from sluice.targets.port import (
    ChangePiece,
    Fence,
    Input,
    RejectedRows,
    RowReader,
    SchemaChange,
    StoredRange,
    TableInput,
    WriteResult,
)


@dataclass(frozen=True)
class IcebergWork(LakeWork):
    """The work of an Iceberg target, by pyiceberg."""

    site: Site

    def follower(self, fence: Fence, change: SchemaChange) -> Follower:
        """See :class:`Follower`."""
        return Follower(self.site, fence, change)

    def schema(self) -> IcebergSchema:
        """See :class:`IcebergSchema`."""
        return IcebergSchema(self.site)

    def append(self, fence: Fence, table: TableId, pieces: Sequence[ChangePiece]) -> WriteResult:
        """See :func:`sluice.targets.iceberg.appending.append`."""
        return append(self.site, fence, table, pieces)

    def merge(
        self, fence: Fence, reader: RowReader, table: TableInput, scope: str, replay: str, rejected: RejectedRows | None
    ) -> WriteResult:
        """See :class:`sluice.targets.iceberg.merging.Merging`."""
        return Merging(self.site, fence, reader, table, scope, replay).run(rejected)

    def remove(self, fence: Fence, reader: RowReader, stored: StoredRange, scope: str) -> WriteResult:
        """See :func:`sluice.targets.iceberg.removing.remove`."""
        return remove(self.site, fence, reader, stored, scope)


class IcebergTarget(LakeTarget):
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = IcebergOptions

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        super().__init__(config)
        self.options = options_of(config, IcebergOptions)
        place = place_of(endpoint, self.options.catalog, config.name)
        self.site = Site(place, self.options, pipeline, config.name, every=self.input is Input.CHANGES)

    @property
    def work(self) -> IcebergWork:
        """The work of this target, see :class:`IcebergWork`."""
        return IcebergWork(self.site)

    @property
    def checkpoints(self) -> IcebergCheckpoints:
        """A small table in the same catalog."""
        return self.site.checkpoints

    def reconciler(self) -> IcebergReconciler | None:
        """Return what removes listed keys, for merged rows; else None."""
        return IcebergReconciler(self.site) if self.input is Input.MERGED else None

    def comparer(self) -> IcebergComparer | None:
        """Return what compares rows by key; None for a target with every change, which is not compared."""
        return IcebergComparer(self.site) if self.input is Input.MERGED else None

    def maintainer(self) -> IcebergMaintainer:
        """Return what compacts tables, expires old snapshots, and deletes files that nothing names."""
        return IcebergMaintainer(self.site)

    def versions(self) -> IcebergVersions:
        """Return what reads older versions; each batch is a snapshot."""
        return IcebergVersions(self.site)
