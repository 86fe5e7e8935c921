"""One target's tables: where each lies, and how it is opened, made and extended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import MappingError
from sluice.model.tables import TableId
from sluice.targets.delta.checkpoints import DeltaCheckpoints
from sluice.targets.delta.client import Place, errors, library
from sluice.targets.delta.notes import Application
from sluice.targets.delta.options import DeltaOptions
from sluice.targets.delta.tables import field_of, schema_of
from sluice.targets.lake.columns import LakeColumn


@dataclass(frozen=True)
class Site:
    """Picklable; ``every``: its tables hold changes, not rows; ``about``: what its commits say of the batch."""

    place: Place
    options: DeltaOptions
    pipeline: str
    target: str
    every: bool = False
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """pipeline/target."""
        return f"{self.pipeline}/{self.target}"

    @property
    def checkpoints(self) -> DeltaCheckpoints:
        """Of this target."""
        return DeltaCheckpoints(self.place, self.owner)

    @property
    def wide_decimals(self) -> str:
        """Of the options."""
        return self.options.wide_decimals

    def application(self, scope: str) -> Application:
        """Under which commits are noted in a table."""
        return Application(self.owner, scope, self.about)

    def path(self, table: TableId) -> str:
        """Of a table."""
        return self.options.path_of(table, self.pipeline, self.target)

    def uri(self, table: TableId) -> str:
        """For people, and for statements."""
        return self.place.uri(self.path(table))

    def open(self, table: TableId) -> Any:
        """``DeltaTable``, None if there is none."""
        return self.place.open(self.path(table), f"reading the log of {table}")

    def required(self, table: TableId) -> Any:
        """``DeltaTable``. Raises MappingError."""
        found = self.open(table)
        if found is None:
            raise missing(table, self.uri(table))
        return found

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

    def partitions(self, table: TableId) -> tuple[str, ...]:
        """Of a table that is made here."""
        return self.options.partition_by.get(str(table), ())


def missing(table: TableId, uri: str) -> MappingError:
    """There is no such table."""
    return MappingError(
        f"the target has no table {table}: there is no Delta table at {uri}",
        where=str(table),
        hint="`sluice check --apply` makes it",
    )
