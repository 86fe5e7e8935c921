"""ClickHouse as a target: the newest row of each key in a ReplacingMergeTree, or every change in a MergeTree, and the
checkpoint beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.config.receiver import Receiver
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.clickhouse.checkpoint import ClickHouseCheckpoints
from sluice.targets.clickhouse.compare import ClickHouseComparer
from sluice.targets.clickhouse.follow import FOLLOWED_CHANGES, FOLLOWED_MERGED
from sluice.targets.clickhouse.options import ClickHouseOptions
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.schema import ClickHouseSchema
from sluice.targets.clickhouse.writer import ClickHouseWriter
from sluice.targets.options import options_of, require_connection
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    Consistency,
    Feature,
    Fence,
    Guarantee,
    Input,
    Ordering,
    OtherWriter,
)

_PAGE = "docs/clickhouse-target.md"


def capabilities_of(changes: Input) -> Capabilities:
    """Return the abilities of a target of merged rows, or of every change."""
    every = changes is Input.CHANGES
    merged = {Feature.DELETE, Feature.PARTIAL_ROWS, Feature.ROW_REJECTION, Feature.RECOPIES}
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.IDEMPOTENT,
        ordering=frozenset({Ordering.TABLE if every else Ordering.KEY}),
        consistency=frozenset({Consistency.ROW}),
        schema_changes=FOLLOWED_CHANGES if every else FOLLOWED_MERGED,
        features=frozenset({Feature.DELETE, Feature.KEYLESS}) if every else frozenset(merged),
        max_writers=1 if every else None,
        compares=True,
        lists_keys=True,
        removes_listed_keys=True,
    )


class ClickHouseTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = ClickHouseOptions
    CAPABILITIES: ClassVar[Capabilities] = capabilities_of(Input.MERGED)

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, ClickHouseOptions)
        require_connection(config, endpoint, "clickhouse", "http", "https")
        receiver = Receiver(endpoint, _PAGE)
        receiver.require_usable()
        self.input = Input(config.changes)
        self.place = Place(receiver, self.options, pipeline, config.name, every=self.input is Input.CHANGES)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target: for merged rows, or for every change."""
        return capabilities_of(self.input)

    @property
    def checkpoints(self) -> ClickHouseCheckpoints:
        """The checkpoint store, a table at the same server."""
        return ClickHouseCheckpoints(self.place)

    @contextmanager
    def open(self, epoch: int) -> Iterator[ClickHouseSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield ClickHouseSession(self, epoch)

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table."""
        return self.place.receiver.endpoint.uri("clickhouse", 8123, table.schema, table.table)

    def schema(self) -> ClickHouseSchema:
        """Return what compares the tables."""
        return ClickHouseSchema(self.place)

    def reconciler(self) -> ClickHouseReconciler | None:
        """Return what removes listed keys and all rows of a table, for merged rows; else None."""
        return None if self.place.every else ClickHouseReconciler(self.place)

    def comparer(self) -> ClickHouseComparer | None:
        """Return what compares rows; None for a target with every change, which is not compared."""
        return None if self.place.every else ClickHouseComparer(self.place)

    def interrupt(self) -> None:
        """Do nothing: nothing waits for longer than ``options.retry_for``."""


@dataclass(frozen=True)
class ClickHouseReconciler:
    """See :class:`sluice.targets.port.Reconciler` and :class:`sluice.targets.port.ListReconciler`."""

    place: Place

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range of keys is refused; a whole table is not."""
        return "ranges of a table's keys there are not those of the source" if table.columns else ""

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return "", as listed keys can be removed."""
        return ""

    def others(self) -> tuple[OtherWriter, ...]:
        """Return the other pipelines with a checkpoint at the server."""
        return ClickHouseCheckpoints(self.place).others()


@dataclass(frozen=True)
class ClickHouseSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    target: ClickHouseTarget
    epoch: int

    def begin(self, batch: BatchInput) -> ClickHouseWriter:
        """Return the writer of a batch. No I/O."""
        return ClickHouseWriter(self.target.place, batch, Fence(self.epoch, batch.held, batch.number))


__all__ = ["ClickHouseTarget"]
