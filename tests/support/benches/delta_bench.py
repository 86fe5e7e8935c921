"""Delta tables in a folder for the contract suite. Needs the client, an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")  # the client is an extra

from deltalake import DeltaTable

from sluice.config.connections import Endpoint
from sluice.model.tables import TableId, TableSchema
from sluice.targets.delta.target import DeltaTarget
from sluice.targets.lake.types import LakeColumn, own_type
from sluice.targets.port import StatementRunner, Target
from tests.support.benches.lake_bench import LakeBench


class DeltaBench(LakeBench):
    """Tables in ``root``, a folder or a URL. ``connection``: to it, else one of type fs.

    ``spark``: writes all of them.
    """

    def __init__(
        self,
        root: Path | str,
        changes: str = "latest",
        consistency: str = "row",
        connection: Endpoint | None = None,
        spark: StatementRunner | None = None,
    ) -> None:
        super().__init__(changes, consistency)
        self.root, self.spark = str(root), spark
        self.options = {"execution": "frame", "frame_from": 1} if spark is not None else {}
        hidden = {"aws_secret_access_key": self.secret}
        plain = Endpoint("target", "fs", "", extra={"path": self.root, "storage_options": hidden})
        self.connection = connection or plain

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {"location": self.root, **self.options, **config.pop("options", {})}
        return DeltaTarget(self.config("delta", name=name, options=options, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        users = [
            LakeColumn(c.name, own_type(c.type), length=80 if c.name == "email" and not self.appends else 0)
            for c in table.columns
        ]
        target: Any = self.target()
        target.format.create(target.format.names(table.table), self.made(table, users), ())

    def columns(self, table: TableId) -> list[str] | None:
        there = DeltaTable.is_deltatable(self.uri(table))
        return [field.name for field in self.table(table).schema().fields] if there else None

    def table(self, table: TableId) -> DeltaTable:
        """The newest version."""
        storage: Any = self.target()
        return DeltaTable(self.uri(table), storage_options=dict(storage.format.place.storage))

    def read(self, table: TableId) -> pa.Table:
        return self.table(table).to_pyarrow_table()

    def uri(self, table: TableId) -> str:
        return f"{self.root}/{table.schema}/{table.table}"
