"""What the benches of lake tables share: rows and changes as they are read from outside, in the form of the contract
suite.
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.lake.changelog import columns_of
from sluice.targets.lake.types import LakeColumn
from sluice.targets.port import Input
from sluice.testing.targets import Bench, Received


class LakeBench(Bench):
    """Rows are read with the library alone."""

    def __init__(self, changes: str, consistency: str) -> None:
        self.changes, self.consistency = Input(changes), consistency
        self.appends = self.changes is Input.CHANGES
        self.types: dict[str, TableSchema] = {}

    @abstractmethod
    def table(self, table: TableId) -> Any:
        """As it is now, in the library's words."""

    @abstractmethod
    def read(self, table: TableId) -> pa.Table:
        """All of its rows."""

    def made(self, table: TableSchema, users: list[LakeColumn]) -> list[LakeColumn]:
        """Columns of a table that is made for the suite, which are remembered."""
        self.types[str(table.table)] = table
        return list(columns_of(users)) if self.appends else users

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        found = self.read(table.table).to_pylist()
        return [tuple(_value(c, row[c.name]) for c in table.columns) for row in found]

    def received(self) -> list[Received]:
        found = []
        for name, table in self.types.items():
            rows = self.read(table.table).to_pylist()
            for row in sorted(rows, key=lambda row: (row["_batch"], row["_seq"], row["_row"], row["_part"])):
                place = f"{name}/{row['_batch']}/{row['_seq']}/{row['_row']}/{row['_part']}"
                image = {c.name: _value(c, row[c.name]) for c in table.columns}
                old = row["_before"]
                before = {c.name: _value(c, old[c.name]) for c in table.columns} if old is not None else None
                found.append(Received(place, name, row["_op"], before, None if row["_op"] == "d" else image))
        return found

    def stored(self, column: Column, value: Any) -> Any:
        """An unsigned BIGINT is a decimal there."""
        return Decimal(value) if value is not None and column.name == "u64" else value


def _value(column: Column, value: Any) -> Any:
    return dt.timedelta(microseconds=value) if value is not None and column.kind is ColumnKind.TIME else value
