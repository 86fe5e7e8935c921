"""Iceberg tables in a folder for the contract suite. Needs the client, an extra."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")  # the client is an extra

from sluice.config.connections import Endpoint
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.base import Input, Target
from sluice.targets.contract import Bench, Received
from sluice.targets.iceberg import merging
from sluice.targets.iceberg.tables import info_of
from sluice.targets.iceberg.target import IcebergTarget
from sluice.targets.lake.changelog import columns_of
from sluice.targets.lake.column_types import own_type
from sluice.targets.lake.columns import LakeColumn, TableInfo


class IcebergBench(Bench):
    """A SQL catalog in ``root``, a folder; rows are read with the library alone."""

    def __init__(self, root: Path, changes: str = "latest", consistency: str = "row") -> None:
        self.root, self.changes, self.consistency = root, Input(changes), consistency
        self.root.mkdir(parents=True, exist_ok=True)
        hidden = {"s3.secret-access-key": self.secret}
        self.connection = Endpoint("target", "fs", "", extra={"path": str(root), "catalog": hidden})
        self.appends = self.changes is Input.CHANGES
        self.types: dict[str, TableSchema] = {}

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        return IcebergTarget(self.config("iceberg", name=name, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        self.types[str(table.table)] = table
        users = [LakeColumn(c.name, own_type(c.type)) for c in table.columns]
        target: Any = self.target()
        columns = columns_of(users) if self.appends else users
        target.site.create(target.site.identifier(table.table), columns, target.site.partitions(table.table))

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        found = self.table(table.table).scan().to_arrow().to_pylist()
        return [tuple(_value(c, row[c.name]) for c in table.columns) for row in found]

    def columns(self, table: TableId) -> list[str] | None:
        found = self.table(table)
        return [field.name for field in found.schema().fields] if found is not None else None

    def table(self, table: TableId) -> Any:
        """As it is now."""
        target: Any = self.target()
        return target.site.open(table)

    def received(self) -> list[Received]:
        found = []
        for name, table in self.types.items():
            rows = self.table(table.table).scan().to_arrow().to_pylist()
            for row in sorted(rows, key=lambda row: (row["_batch"], row["_seq"], row["_row"], row["_part"])):
                place = f"{name}/{row['_batch']}/{row['_seq']}/{row['_row']}/{row['_part']}"
                image = {c.name: _value(c, row[c.name]) for c in table.columns}
                old = row["_before"]
                before = {c.name: _value(c, old[c.name]) for c in table.columns} if old is not None else None
                found.append(Received(place, name, row["_op"], before, None if row["_op"] == "d" else image))
        return found

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Iceberg has no texts of a length: the column is given one where rows are converted."""

        def short(table: Any) -> TableInfo:
            info = info_of(table)
            return replace(info, columns=tuple(replace(c, length=80 * (c.name == "email")) for c in info.columns))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merging, "info_of", short)
            yield

    def stored(self, column: Column, value: Any) -> Any:
        """An unsigned BIGINT is a decimal there."""
        return Decimal(value) if value is not None and column.name == "u64" else value


def _value(column: Column, value: Any) -> Any:
    return dt.timedelta(microseconds=value) if value is not None and column.kind is ColumnKind.TIME else value
