"""What the libraries of lakes say of a table that is gone is an error of the target: it is held alone, and tried again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import deltalake
import pyiceberg.exceptions

from sluice.errors import TargetUnavailable
from sluice.targets.delta import client as delta
from sluice.targets.iceberg import client as iceberg


def test_a_place_where_delta_tables_cannot_be_made(tmp_path: Path) -> None:
    """A share that is not mounted: what stands in its place is no folder."""
    away = tmp_path / "lake"
    away.write_text("", encoding="utf-8")
    place = delta.Place(str(away))
    uri = place.uri("shop/orders")
    with pytest.raises(TargetUnavailable, match="making the table"), delta.errors(place, "making the table", uri):
        deltalake.DeltaTable.create(uri, pa.schema([("id", pa.int64())]), mode="ignore")


def test_a_delta_table_that_goes_while_it_is_read(tmp_path: Path) -> None:
    place = delta.Place(str(tmp_path))
    assert place.open(place.uri("shop/orders"), "opening") is None
    with pytest.raises(TargetUnavailable, match="reading"), delta.errors(place, "reading", place.uri("shop/orders")):
        deltalake.DeltaTable(place.uri("shop/orders"))


@pytest.mark.parametrize("name", ["NoSuchTableError", "NoSuchNamespaceError"])
def test_an_iceberg_table_that_goes_while_it_is_read(name: str) -> None:
    place = iceberg.Place("the catalog")
    with (
        pytest.raises(TargetUnavailable, match=r"reading: shop\.orders"),
        iceberg.errors(place, "reading", "shop.orders"),
    ):
        raise getattr(pyiceberg.exceptions, name)("shop.orders")
