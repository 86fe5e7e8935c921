"""Delta Lake tables as a target, written by delta-rs: rows are merged, or every change is appended, and each commit notes its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.model.tables import TableId
from sluice.targets.delta.appending import append
from sluice.targets.delta.checkpoints import DeltaCheckpoints
from sluice.targets.delta.client import place_of
from sluice.targets.delta.comparing import DeltaComparer
from sluice.targets.delta.follow import Follower
from sluice.targets.delta.framing import DeltaFraming
from sluice.targets.delta.maintaining import DeltaMaintainer
from sluice.targets.delta.merging import Merging
from sluice.targets.delta.options import DeltaOptions
from sluice.targets.delta.removing import DeltaReconciler, remove
from sluice.targets.delta.schema import DeltaSchema
from sluice.targets.delta.site import Site
from sluice.targets.delta.versions import DeltaVersions
from sluice.targets.lake.target import LakeTarget
from sluice.targets.lake.writing import LakeWork
from sluice.targets.options import options_of
from sluice.targets.port import (
    Capabilities,
    ChangePiece,
    Execution,
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
class DeltaWork(LakeWork):
    """The work of a Delta target, by delta-rs."""

    site: Site

    def follower(self, fence: Fence, change: SchemaChange) -> Follower:
        """See :class:`Follower`."""
        return Follower(self.site, fence, change)

    def schema(self) -> DeltaSchema:
        """See :class:`DeltaSchema`."""
        return DeltaSchema(self.site)

    def append(self, fence: Fence, table: TableId, pieces: Sequence[ChangePiece]) -> WriteResult:
        """See :func:`sluice.targets.delta.appending.append`."""
        return append(self.site, fence, table, pieces)

    def merge(
        self, fence: Fence, reader: RowReader, table: TableInput, scope: str, replay: str, rejected: RejectedRows | None
    ) -> WriteResult:
        """See :class:`sluice.targets.delta.merging.Merging`."""
        return Merging(self.site, fence, reader, table, scope, replay).run(rejected)

    def remove(self, fence: Fence, reader: RowReader, stored: StoredRange, scope: str) -> WriteResult:
        """See :func:`sluice.targets.delta.removing.remove`."""
        return remove(self.site, fence, reader, stored, scope)

    @property
    def framing(self) -> DeltaFraming | None:
        """The writer through Spark, see :class:`DeltaFraming`; None without Spark."""
        return DeltaFraming(self.site) if self.site.options.execution == "frame" else None


class DeltaTarget(LakeTarget):
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = DeltaOptions

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        super().__init__(config)
        self.options = options_of(config, DeltaOptions)
        place = place_of(endpoint, self.options.location, config.name)
        if self.options.execution == "frame":
            place.require_conditional_puts(config.name)
        self.site = Site(place, self.options, pipeline, config.name, every=self.input is Input.CHANGES)

    @property
    def work(self) -> DeltaWork:
        """The work of this target, see :class:`DeltaWork`."""
        return DeltaWork(self.site)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target: for merged rows or every change, with or without Spark."""
        frame = self.options.execution == "frame"
        return replace(super().capabilities, execution=Execution.FRAME if frame else Execution.UNITS)

    @property
    def checkpoints(self) -> DeltaCheckpoints:
        """A small table in the same location."""
        return self.site.checkpoints

    def reconciler(self) -> DeltaReconciler | None:
        """Return what removes listed keys, for merged rows; else None."""
        return DeltaReconciler(self.site) if self.input is Input.MERGED else None

    def comparer(self) -> DeltaComparer | None:
        """Return what compares rows by key; None for a target with every change, which is not compared."""
        return DeltaComparer(self.site) if self.input is Input.MERGED else None

    def maintainer(self) -> DeltaMaintainer:
        """Return what compacts and vacuums tables."""
        return DeltaMaintainer(self.site)

    def versions(self) -> DeltaVersions:
        """Return what reads older versions; each batch is a commit."""
        return DeltaVersions(self.site)
