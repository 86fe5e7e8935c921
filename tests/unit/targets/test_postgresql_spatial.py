"""Spatial types at a PostgreSQL target: which column holds which shapes, and values in PostGIS's order of bytes."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.postgresql.type_names import pg_type
from sluice.targets.postgresql import wire
from sluice.targets.postgresql.column_types import lost, own_type, takes


def shape(name: str) -> ColumnType:
    return ColumnType(ColumnKind.GEOMETRY, shape=name)


def test_what_is_made_of_a_shape() -> None:
    assert own_type(shape("point")) == "bytea"
    assert own_type(shape("point"), spatial="gis.geometry") == "gis.geometry(point)"
    assert own_type(shape("geomcollection"), spatial="gis.geometry") == "gis.geometry(geometrycollection)"
    assert own_type(shape("geometry"), spatial='"my gis".geometry') == '"my gis".geometry'


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("geometry", ""),
        ("geometry(Point)", ""),
        ('"my gis".geometry(Point)', ""),
        ("geometry(Point,4326)", "other shapes are refused"),
        ("gis.geometry(LineString)", "other shapes are refused"),
        ("bytea", "it is bytes: four of the SRID, then WKB"),
    ],
)
def test_what_a_column_does_not_keep(declared: str, said: str) -> None:
    found = pg_type(declared)
    assert takes(shape("point"), found)
    assert lost(shape("point"), found) == said


def test_values_in_the_order_of_postgis() -> None:
    """SRID, byte order, type -> byte order, type with the flag, SRID; NULL stays; the source's buffer is left as it
    is.
    """
    point = struct.pack("<dd", 1.0, -2.5)
    stored = [struct.pack("<IBI", 4326, 1, 1) + point, None, struct.pack("<IBI", 0, 1, 1) + point]
    values = pa.array(stored, pa.binary())
    made = wire.encode(pa.field("g", pa.binary()), values, pg_type("geometry(Point)"))
    found = [
        bytes(made.data[start : start + size]) if size >= 0 else None
        for start, size in zip(made.starts, made.lengths, strict=True)
    ]
    flagged = [struct.pack("<BII", 1, 1 | 0x20000000, srid) + point for srid in (4326, 0)]
    assert found == [flagged[0], None, flagged[1]]
    assert values.to_pylist() == stored
    far = pa.array([*stored, struct.pack("<IBI", 1_000_000, 1, 1) + point], pa.binary())
    with pytest.raises(wire.Refusal, match="SRID of more than") as refused:
        wire.encode(pa.field("g", pa.binary()), far, pg_type("geometry"))
    assert refused.value.mask.tolist() == [False, False, False, True]
