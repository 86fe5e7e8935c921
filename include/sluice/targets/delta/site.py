"""The tables of one target: the location of each, and how it is opened, created and extended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sluice.model.tables import TableId
from sluice.targets.delta.checkpoints import DeltaCheckpoints
from sluice.targets.delta.client import Place, errors, library
from sluice.targets.delta.notes import held, noting
from sluice.targets.delta.options import DeltaOptions
from sluice.targets.delta.tables import field_of, info_of, odd_name, schema_of
from sluice.targets.lake.columns import LakeColumn, TableInfo
from sluice.targets.lake.site import LakeSite, Note


@dataclass(frozen=True)
class Site(LakeSite):
    """See :class:`sluice.targets.lake.site.LakeSite`."""

    FORMAT: ClassVar[str] = "delta"
    NAME: ClassVar[str] = "Delta"

    place: Place
    options: DeltaOptions

    @property
    def checkpoints(self) -> DeltaCheckpoints:
        """The checkpoint store of this target."""
        return DeltaCheckpoints(self.place, self.owner)

    def path(self, table: TableId) -> str:
        """Return the path of a table."""
        return self.options.path_of(table, self.pipeline, self.target)

    def uri(self, table: TableId) -> str:
        """Return the URI of a table, for messages and statements."""
        return self.place.uri(self.path(table))

    def open(self, table: TableId) -> Any:
        """Open a table as ``DeltaTable``, None if there is none."""
        return self.place.open(self.path(table), f"reading the log of {table}")

    def info(self, table: Any) -> TableInfo:
        """Return the columns and partitions of a ``DeltaTable``."""
        return info_of(table)

    def odd_name(self, name: str) -> bool:
        """See :func:`sluice.targets.delta.tables.odd_name`."""
        return odd_name(name)

    def noted(self, table: Any, scope: str, delivery: int) -> int | None:
        """See :mod:`sluice.targets.delta.notes`."""
        return held(table, self.owner, scope, delivery)

    def noting(self, table: Any, note: Note, *, alone: bool = False) -> Any:
        """Return the properties of a commit, see :func:`sluice.targets.delta.notes.noting`."""
        return noting(table, self.owner, note, alone=alone)

    def create(self, uri: str, columns: Sequence[LakeColumn], partitions: Sequence[str]) -> None:
        """Make a table unless there is one. Raises LoadError, TargetUnavailable, Raced."""
        with errors(self.place, f"making the table {uri}", self.place.path(uri) or ""):
            library().DeltaTable.create(
                uri,
                schema_of(columns),
                mode="ignore",
                partition_by=list(partitions),
                storage_options=dict(self.place.storage) or None,
            )

    def add(self, table: Any, path: str, columns: Sequence[LakeColumn]) -> None:
        """Add columns, or parts of a struct. Raises LoadError, TargetUnavailable, Raced."""
        with errors(self.place, f"adding {', '.join(one.name for one in columns)} to {path}", path):
            table.alter.add_columns([field_of(column) for column in columns])
