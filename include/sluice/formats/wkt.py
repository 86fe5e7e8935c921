"""Geometries as well-known text, as JTS prints it (Maxwell's writer)."""

from __future__ import annotations

import struct
from decimal import Decimal

from sluice.errors import DecodeError

_NAMES = {
    1: "POINT", 2: "LINESTRING", 3: "POLYGON", 4: "MULTIPOINT", 5: "MULTILINESTRING", 6: "MULTIPOLYGON",
    7: "GEOMETRYCOLLECTION",
}  # fmt: skip


def wkt(stored: bytes) -> str:
    """Return the well-known text of a stored geometry: four bytes of SRID, which the text lacks, and well-known binary.

    Coordinates are in the order in which they are stored: x, y. Raises DecodeError for bytes that are not a geometry.
    """
    try:
        text, end = _tagged(stored, 4)
    except struct.error as error:
        raise DecodeError("a geometry ends too early") from error
    if end != len(stored):
        raise DecodeError(f"a geometry has {len(stored) - end} bytes too many")
    return text


def _tagged(data: bytes, at: int) -> tuple[str, int]:
    kind, body, end = _geometry(data, at)
    return f"{_NAMES[kind]} {body}", end


def _geometry(data: bytes, at: int) -> tuple[int, str, int]:
    order = "<" if data[at : at + 1] == b"\x01" else ">"
    (kind,) = struct.unpack_from(f"{order}I", data, at + 1)
    at += 5
    if kind not in _NAMES:
        raise DecodeError(f"{kind} is not a geometry type")
    if kind == 1:
        text, at = _point(data, at, order)
        return kind, f"({text})", at
    (count,) = struct.unpack_from(f"{order}I", data, at)
    at += 4
    parts: list[str] = []
    for _ in range(count):
        if kind == 2:
            part, at = _point(data, at, order)
        elif kind == 3:
            part, at = _ring(data, at, order)
        elif kind == 7:
            part, at = _tagged(data, at)
        else:
            _, part, at = _geometry(data, at)
        parts.append(part)
    return kind, f"({', '.join(parts)})" if parts else "EMPTY", at


def _ring(data: bytes, at: int, order: str) -> tuple[str, int]:
    (count,) = struct.unpack_from(f"{order}I", data, at)
    at += 4
    points = []
    for _ in range(count):
        point, at = _point(data, at, order)
        points.append(point)
    return f"({', '.join(points)})", at


def _point(data: bytes, at: int, order: str) -> tuple[str, int]:
    x, y = struct.unpack_from(f"{order}dd", data, at)
    return f"{_number(x)} {_number(y)}", at + 16


def _number(value: float) -> str:
    text = f"{Decimal(repr(value)):f}"
    return text.removesuffix(".0")
