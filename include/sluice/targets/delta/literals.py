"""Names and values in SQL of the library. Values are exact: no number goes through another type."""

from __future__ import annotations

import pyarrow as pa


def query_name(name: str) -> str:
    """Quote a name as the library's queries read it."""
    return '"' + name.replace('"', '""') + '"'


def sql_literal(value: pa.Scalar) -> str:
    """Return an expression of the value's own type.

    The value is not NULL, and of a type that a column of a lake has.
    """
    kind = value.type
    if pa.types.is_string(kind):
        text = value.as_py()
        return "'" + text.replace("'", "''") + "'" if text.isprintable() else _bytes(text.encode(), "Utf8")
    if pa.types.is_binary(kind):
        return _bytes(value.as_py(), "Binary")
    if pa.types.is_date32(kind):
        return _cast(_cast(str(value.cast(pa.int32()).as_py()), "Int32"), "Date32")
    if pa.types.is_timestamp(kind):
        zone = f'Some("{kind.tz}")' if kind.tz else "None"
        return _cast(_cast(str(value.cast(pa.int64()).as_py()), "Int64"), f"Timestamp(Microsecond, {zone})")
    if pa.types.is_decimal(kind):
        return _cast(f"{value.as_py():f}", f"Decimal128({kind.precision}, {kind.scale})")
    if pa.types.is_floating(kind):
        return _cast(repr(float(value.as_py())), "Float32" if pa.types.is_float32(kind) else "Float64")
    return _cast(str(value.as_py()), str(kind).capitalize())


def _cast(text: str, kind: str) -> str:
    inner = text if text.startswith("arrow_cast(") else f"'{text}'"
    return f"arrow_cast({inner}, '{kind}')"


def _bytes(data: bytes, kind: str) -> str:
    return f"arrow_cast(decode('{data.hex()}', 'hex'), '{kind}')"
