"""Arrow arrays from NumPy buffers and lists of text, without copies and without ``pa.array``, which imports pandas (0.4
s of start-up).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_TYPES = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(), "uint64": pa.uint64(), "float64": pa.float64(),
}  # fmt: skip


def numbers(values: np.ndarray[Any, Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return the array's own numbers (as ``kind``, of the same width), without nulls."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(
        kind or _TYPES[str(values.dtype)], len(values), [None, pa.py_buffer(values)], null_count=0
    )


def booleans(mask: np.ndarray[Any, Any]) -> pa.Array:
    """Return a mask as an Arrow array."""
    return pa.Array.from_buffers(
        pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little"))], null_count=0
    )


def strings(values: Sequence[str | None]) -> pa.Array:
    """Return texts as an Arrow array."""
    return blobs([None if v is None else v.encode("utf-8", "surrogateescape") for v in values], pa.string())


def blobs(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return bytes as an Arrow array (or, with ``kind``, text given as UTF-8)."""
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum([0 if v is None else len(v) for v in values], out=ends[1:])
    data = b"".join(v for v in values if v)
    nulls = sum(v is None for v in values)
    validity = pa.py_buffer(np.packbits([v is not None for v in values], bitorder="little")) if nulls else None
    buffers = [validity, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.binary(), len(values), buffers, null_count=nulls)
