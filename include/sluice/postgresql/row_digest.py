"""The checksums of :mod:`sluice.postgresql.shared_digest`, computed from decoded rows instead of by the server.

A row has the same hash here as there, bit by bit. A type whose text the server prints in its own way is not covered:
:func:`not_covered` names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.model import decimals
from sluice.model.column_types import ColumnKind
from sluice.model.digests import SHARED_LONG_BYTES, hashes_of_texts
from sluice.model.tables import Column, one_chunk
from sluice.model.temporal import to_text

_PRINTED = frozenset({ColumnKind.FLOAT, ColumnKind.DOUBLE, ColumnKind.TIME, ColumnKind.BIT})


def not_covered(column: Column) -> str:
    """Return why a column's values cannot be hashed here as the server does, "" if they can."""
    if column.type.kind in _PRINTED:
        return f"column {column.name} ({column.sql_type}) is printed by the server in its own way"
    return ""


def hashes_of(values: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray[Any, Any]:
    """Return the hash of each row (uint64): ``values`` has an array for each column, each covered."""
    arrays = [one_chunk(each) if isinstance(each, pa.ChunkedArray) else each for each in values]
    rows = zip(*(map(_piece, _texts(array)) for array in arrays), strict=True)
    return hashes_of_texts(map(b",".join, rows))


def _texts(values: pa.Array) -> list[str | None]:
    """Return the texts of values, as the server makes them of their columns."""
    kind = values.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        values = to_text(values, fsp=0 if pa.types.is_date32(kind) else 6)
    elif pa.types.is_decimal(kind):
        values = decimals.to_text(values)
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int8()).cast(pa.string())
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if value is None else value.hex() for value in values.to_pylist()]
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts


def _piece(text: str | None) -> bytes:
    if text is None:
        return b"N"
    data = text.encode()
    content = hashlib.sha256(data).hexdigest().encode() if len(data) > SHARED_LONG_BYTES else data
    return b"%d:%b" % (len(data), content)
