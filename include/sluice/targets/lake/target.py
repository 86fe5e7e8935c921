"""A target of lake tables: rows are merged, or every change is appended, and each commit notes its batch.

Its kind names the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.pipeline import TargetConfig
from sluice.errors import SluiceError
from sluice.model.tables import TableId
from sluice.targets.lake.checkpoint import LakeCheckpointStore
from sluice.targets.lake.compare import LakeComparer
from sluice.targets.lake.format import LakeFormat, Raced
from sluice.targets.lake.schema import LakeSchema
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.versions import LakeVersions
from sluice.targets.lake.writer import LakeReconciler, LakeSession, LakeSparkWriter, capabilities_of
from sluice.targets.port import Capabilities, Input, Upkeep


@dataclass(frozen=True)
class LakeMaintainer:
    """Makes small files larger ones, and deletes what no version within its retention needs.

    Nothing here is fenced: a compaction or clustering changes no row. If its commit conflicts with a load's, the later
    one of the two is refused.
    """

    tables: LakeTables

    def maintain(self, tables: Sequence[TableId], *, dry_run: bool = False) -> list[Upkeep]:
        """See :meth:`sluice.targets.port.Maintainer.maintain`."""
        upkeeps = [self._maintain(table, dry_run) for table in tables]
        return [upkeep for upkeep in upkeeps if upkeep != Upkeep(upkeep.table)]

    def _maintain(self, table: TableId, dry_run: bool) -> Upkeep:
        format_ = self.tables.format
        try:
            lake_table = self.tables.open(table)
            if lake_table is None:
                return Upkeep(table)
            return format_.expire(
                format_.compact(table, lake_table, self.tables.owner, dry_run=dry_run), dry_run=dry_run
            )
        except Raced:
            return Upkeep(table, error=f"loads of {table} came first; it is tried again at the next run")
        except SluiceError as error:
            return Upkeep(table, error=str(error))


class LakeTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]]
    CAPABILITIES: ClassVar[Capabilities] = capabilities_of(Input.MERGED)

    def __init__(self, config: TargetConfig, format_: LakeFormat, pipeline: str) -> None:
        self.config = config
        self.tables = LakeTables(format_, pipeline, config.name, every=self.input is Input.CHANGES)

    @property
    def input(self) -> Input:
        """The form in which it gets changes."""
        return Input(self.config.changes)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target: for merged rows, or for every change."""
        return capabilities_of(self.input)

    @property
    def checkpoints(self) -> LakeCheckpointStore:
        """A small table in the same location."""
        return self.tables.checkpoints

    @property
    def spark_writer(self) -> LakeSparkWriter | None:
        """The writer through Spark; None: Spark does not write."""
        return None

    @contextmanager
    def open(self, epoch: int) -> Iterator[LakeSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield LakeSession(self.tables, epoch, self.spark_writer)

    def location_of(self, table: TableId) -> str:
        """Return the folder of a table as a URI; "" if a catalog has its name only."""
        uri = self.tables.format.uri(table)
        return f"file://{uri}" if uri.startswith("/") else uri if "://" in uri else ""

    def schema(self) -> LakeSchema:
        """Return what compares the tables."""
        return LakeSchema(self.tables)

    def reconciler(self) -> LakeReconciler | None:
        """Return what removes listed keys, for merged rows; else None."""
        return LakeReconciler(self.tables) if self.input is Input.MERGED else None

    def comparer(self) -> LakeComparer | None:
        """Return what compares rows by key; None for a target with every change, which is not compared."""
        return LakeComparer(self.tables) if self.input is Input.MERGED else None

    def maintainer(self) -> LakeMaintainer:
        """Return what compacts tables, and removes what old versions alone need."""
        return LakeMaintainer(self.tables)

    def versions(self) -> LakeVersions:
        """Return what reads older versions; each batch is a commit."""
        return LakeVersions(self.tables)

    def interrupt(self) -> None:
        """Do nothing: a commit succeeds or is refused, and nothing waits at the target."""
