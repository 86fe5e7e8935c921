"""The server of a target, and its names there."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.receiver import Receiver
from sluice.model.tables import TableId
from sluice.targets.clickhouse.options import ClickHouseOptions


@dataclass(frozen=True)
class Place:
    """A target at its server. Picklable. ``every``: it has every change, not the newest row of each key."""

    receiver: Receiver
    options: ClickHouseOptions
    pipeline: str
    target: str
    every: bool = False

    @property
    def owner(self) -> str:
        """The pipeline and the target, by name: the writer of its rows."""
        return f"{self.pipeline}.{self.target}"

    @property
    def checkpoint_table(self) -> TableId:
        """The table in which checkpoints are."""
        return TableId(self.options.checkpoint_database, "_sluice_checkpoints")

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"rows of {self.owner} in table {self.checkpoint_table} at {self.receiver.base}"

    def view_of(self, table: TableId) -> TableId | None:
        """Return the view with the newest rows of a table, None if there is none."""
        view = self.options.view
        return TableId(table.schema, view.format(table=table.table)) if view and not self.every else None


__all__ = ["Place"]
