"""Rows that the source converts in lake tables that are partitioned, by the converted column itself where that may
be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from sluice.model.tables import TableSchema
from sluice.targets.lake.types import LakeColumn, own_type, partitionable
from sluice.targets.port import Target
from sluice.testing.targets import CHECKS, CONVERSIONS, Conversion
from tests.support.benches.delta_bench import DeltaBench
from tests.support.benches.iceberg_bench import IcebergBench


def is_partition(one: Conversion) -> bool:
    """True if the converted column can be the partition: its values are neither empty nor longer than a folder's
    name.
    """
    return partitionable(own_type(one.before.type)) and all(0 < len(str(value)) < 100 for value, _ in one.values)


BY = {f"shop.c{number}": ("v" if is_partition(one) else "id",) for number, one in enumerate(CONVERSIONS)}


def by(**config: Any) -> dict[str, Any]:
    return {**config, "options": {"partition_by": BY, **config.pop("options", {})}}


class PartitionedDelta(DeltaBench):
    def target(self, **config: Any) -> Target:
        return super().target(**by(**config))

    def create_table(self, table: TableSchema) -> None:
        columns = [LakeColumn(c.name, own_type(c.type)) for c in table.columns]
        target: Any = self.target()
        target.format.create(target.format.names(table.table), columns, BY[str(table.table)])


class PartitionedIceberg(IcebergBench):
    def target(self, **config: Any) -> Target:
        return super().target(**by(**config))


@pytest.mark.parametrize("kind", [PartitionedDelta, PartitionedIceberg])
def test_rows_are_converted_in_every_partition_or_the_load_stops(kind: Any, tmp_path: Path) -> None:
    [check] = [one for one in CHECKS if one.number == 26]
    assert {*BY.values()} == {("v",), ("id",)}
    bench = kind(tmp_path)
    check.run(bench)
