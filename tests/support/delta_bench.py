"""Delta tables in a folder for the contract suite. Needs the client, an extra."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")  # the client is an extra

from deltalake import DeltaTable

from sluice.config.connections import Endpoint
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.base import Input, Target
from sluice.targets.contract import Bench, Received
from sluice.targets.delta.target import DeltaTarget
from sluice.targets.lake.changelog import columns_of
from sluice.targets.lake.column_types import own_type
from sluice.targets.lake.columns import LakeColumn


class DeltaBench(Bench):
    """Tables in ``root``, a folder or a URL; rows are read with the library alone. ``connection``: to it, else one of type fs."""

    def __init__(
        self, root: Path | str, changes: str = "latest", consistency: str = "row", connection: Endpoint | None = None
    ) -> None:
        self.root, self.changes, self.consistency = str(root), Input(changes), consistency
        hidden = {"aws_secret_access_key": self.secret}
        plain = Endpoint("target", "fs", "", extra={"path": self.root, "storage_options": hidden})
        self.connection = connection or plain
        self.appends = self.changes is Input.CHANGES
        self.types: dict[str, TableSchema] = {}

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {"location": self.root, **config.pop("options", {})}
        return DeltaTarget(self.config("delta", name=name, options=options, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        self.types[str(table.table)] = table
        users = [
            LakeColumn(c.name, own_type(c.type), length=80 if c.name == "email" and not self.appends else 0)
            for c in table.columns
        ]
        target: Any = self.target()
        target.site.create(target.site.uri(table.table), columns_of(users) if self.appends else users, ())

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        found = self.table(table.table).to_pyarrow_table().to_pylist()
        return [tuple(_value(c, row[c.name]) for c in table.columns) for row in found]

    def columns(self, table: TableId) -> list[str] | None:
        there = DeltaTable.is_deltatable(self.uri(table))
        return [field.name for field in self.table(table).schema().fields] if there else None

    def table(self, table: TableId) -> DeltaTable:
        """The newest version."""
        storage: Any = self.target()
        return DeltaTable(self.uri(table), storage_options=dict(storage.site.place.storage))

    def received(self) -> list[Received]:
        found = []
        for name, table in self.types.items():
            rows = self.table(table.table).to_pyarrow_table().to_pylist()
            for row in sorted(rows, key=lambda row: (row["_batch"], row["_seq"], row["_row"], row["_part"])):
                place = f"{name}/{row['_batch']}/{row['_seq']}/{row['_row']}/{row['_part']}"
                image = {c.name: _value(c, row[c.name]) for c in table.columns}
                old = row["_before"]
                before = {c.name: _value(c, old[c.name]) for c in table.columns} if old is not None else None
                found.append(Received(place, name, row["_op"], before, None if row["_op"] == "d" else image))
        return found

    def uri(self, table: TableId) -> str:
        return f"{self.root}/{table.schema}/{table.table}"

    def stored(self, column: Column, value: Any) -> Any:
        """An unsigned BIGINT is a decimal there."""
        return Decimal(value) if value is not None and column.name == "u64" else value


def _value(column: Column, value: Any) -> Any:
    return dt.timedelta(microseconds=value) if value is not None and column.kind is ColumnKind.TIME else value
