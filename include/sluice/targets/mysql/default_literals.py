"""The value of a default as a literal that MySQL and MariaDB may read alike."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa


def alike(first: pa.Scalar | None, second: pa.Scalar | None) -> bool:
    """Return True for two known values that are the same, including the sign of a zero."""
    if first is None or second is None or first.type != second.type or first.is_valid != second.is_valid:
        return False
    if first.is_valid and pa.types.is_floating(first.type):
        return struct.pack("<d", first.as_py()) == struct.pack("<d", second.as_py())
    return bool(first.equals(second))


def literals_of(value: pa.Scalar | None) -> Iterator[str]:
    """Yield texts that may be the value, the plainest first; the caller has to ask the server how it reads one.

    Yields none for what depends on the session: a point in time, characters that are escaped.
    """
    if value is None:
        return
    if not value.is_valid:
        yield "NULL"
        return
    kind = value.type
    if pa.types.is_string(kind):
        text = value.as_py()
        if text.isprintable() and "\\" not in text:
            yield "'" + text.replace("'", "''") + "'"
    elif pa.types.is_binary(kind):
        if value.as_py():
            yield f"0x{value.as_py().hex()}"
    elif pa.types.is_decimal(kind):
        yield format(value.as_py(), "f")
    elif pa.types.is_integer(kind):
        yield str(value.as_py())
        yield f"'{value.as_py():04d}'"
    elif pa.types.is_floating(kind):
        yield f"{value.as_py()!r}e0" if "e" not in repr(value.as_py()) else repr(value.as_py())
        yield f"'{value.as_py()!r}'"
    elif pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
        try:
            yield f"'{value.as_py()}'"
        except (ValueError, OverflowError):  # a date that no calendar has
            return
