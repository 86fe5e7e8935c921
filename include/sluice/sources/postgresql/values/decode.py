"""Turn the server's texts of a column into Arrow, without a Python object a value.

The log (``pgoutput`` in text mode) and a copy (``COPY`` of values as text) give the same texts, so that one decoder
serves both. The session's settings (:data:`sluice.sources.postgresql.server.connection.SESSION`) fix how they look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import DecodeError, UnsupportedValue
from sluice.model import decimals
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column
from sluice.sources.postgresql.values import text_kernels as kernels

K = ColumnKind
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[Any]]
_NAN = decimals.NAN.encode()
MOST_BYTES = 2**31 - 1
"""Bytes of the texts of one array, at most; the caller hands over fewer."""


def decode(column: Column, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    """Return the values of a column, of the Arrow type that its segments have.

    Args:
        data: any bytes; ``starts``: where each text begins in them. lengths: its bytes; below 0: NULL, or not sent.

    Raises:
        UnsupportedValue: a value that the column's type in segments does not hold.
        DecodeError: a text that is no value of the type.
    """
    return _FILLS[column.kind](column, data, np.asarray(starts, np.int64), np.asarray(lengths, np.int32))


def _validity(lengths: Ints) -> tuple[pa.Buffer | None, int]:
    mask = np.empty(len(lengths), np.bool_)
    nulls = int(kernels.valid_of(lengths, mask))
    return (pa.py_buffer(np.packbits(mask, bitorder="little")) if nulls else None), nulls


def _numbers(arrow_type: pa.DataType, lengths: Ints, values: Ints) -> pa.Array:
    validity, nulls = _validity(lengths)
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(arrow_type, len(lengths), buffers, null_count=nulls)


def _read_by(kernel: Any, dtype: str, narrow: str = "") -> Callable[[Column, Bytes, Ints, Ints], pa.Array]:
    """Return a filler by a kernel that writes numbers of ``dtype``, which are stored as ``narrow``."""

    def fill(column: Column, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
        values = np.zeros(len(lengths), dtype)
        wrong = kernel(data, starts, lengths, values)
        if wrong >= 0:
            raise _unread(column, data, starts, lengths, int(wrong))
        return _numbers(column.arrow_type, lengths, values.astype(narrow) if narrow else values)

    return fill


def _whole(column: Column, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    if column.native == "boolean":
        return _booleans(column, data, starts, lengths)
    values = np.zeros(len(lengths), np.uint64)
    wrong = kernels.read_whole(data, starts, lengths, values)
    if wrong >= 0:
        raise _unread(column, data, starts, lengths, int(wrong))
    dtype = column.arrow_type.to_pandas_dtype()
    return _numbers(column.arrow_type, lengths, values.astype(dtype))


def _floats(column: Column, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    try:
        return pc.cast(_strings(data, starts, lengths), column.arrow_type)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"a value of {column.name} is no number: {error}", where=column.name) from error


def _decimals(column: Column, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    arrow_type = column.arrow_type
    values = np.zeros((len(lengths), arrow_type.bit_width // 32), np.uint32)
    wrong = int(kernels.read_decimals(data, starts, lengths, arrow_type.scale, values))
    if wrong < 0:
        return _numbers(arrow_type, lengths, values)
    nan = lengths == len(_NAN)
    for at, byte in enumerate(_NAN):
        nan[nan] = data[starts[nan] + at] == byte
    if not nan[wrong]:
        raise _unread(column, data, starts, lengths, wrong)
    return decimals.with_nan(_decimals(column, data, starts, np.where(nan, -1, lengths).astype(np.int32)), nan)


def _strings(data: Bytes, starts: Ints, lengths: Ints, arrow_type: pa.DataType | None = None) -> pa.Array:
    offsets = np.empty(len(lengths) + 1, np.int64)
    total = int(kernels.copied_offsets(lengths, offsets))
    if total > MOST_BYTES:
        raise DecodeError(f"a column has {total} bytes of text in one piece, and Arrow takes {MOST_BYTES}")
    out = np.empty(total, np.uint8)
    kernels.copy_texts(data, starts, lengths, offsets, out)
    validity, nulls = _validity(lengths)
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(arrow_type or pa.string(), len(lengths), buffers, null_count=nulls)


def _texts(column: Column, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    return _strings(data, starts, lengths)


def is_blank_padded(column: Column) -> bool:
    """Return True for CHAR, whose spaces at the end mean nothing."""
    return column.native.startswith(("character(", "bpchar")) and not column.native.endswith("]")


def _characters(column: Column, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    """Read CHAR without the spaces at its end, other texts as they are."""
    if is_blank_padded(column):
        trimmed = np.empty(len(lengths), np.int32)
        kernels.without_blanks(data, starts, lengths, trimmed)
        lengths = trimmed
    return _strings(data, starts, lengths)


def _bytes(column: Column, data: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    offsets = np.empty(len(lengths) + 1, np.int64)
    total = int(kernels.hexadecimal_offsets(lengths, offsets))
    if total < 0:
        raise _unread(column, data, starts, lengths, -1 - total)
    if total > MOST_BYTES:
        raise DecodeError(f"a column has {total} bytes in one piece, and Arrow takes {MOST_BYTES}", where=column.name)
    out = np.empty(total, np.uint8)
    wrong = kernels.read_hexadecimal(data, starts, lengths, offsets, out)
    if wrong >= 0:
        raise _unread(column, data, starts, lengths, int(wrong))
    validity, nulls = _validity(lengths)
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers, null_count=nulls)


_booleans = _read_by(kernels.read_booleans, "i1")

_FILLS: Mapping[ColumnKind, Callable[[Column, Bytes, Ints, Ints], pa.Array]] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.INT, K.BIGINT), _whole),
    **dict.fromkeys((K.FLOAT, K.DOUBLE), _floats),
    K.DECIMAL: _decimals,
    K.BIT: _read_by(kernels.read_bits, "u8"),
    K.DATE: _read_by(kernels.read_dates, "i8", "i4"),
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP), _read_by(kernels.read_timestamps, "i8")),
    K.TIME: _read_by(kernels.read_times, "i8"),
    **dict.fromkeys((K.CHAR, K.VARCHAR, K.TEXT), _characters),
    **dict.fromkeys((K.ENUM, K.JSON, K.UUID), _texts),
    K.BLOB: _bytes,
}
"""The filler of each kind that :func:`sluice.postgresql.column_types.neutral_type` returns."""


def _unread(column: Column, data: Bytes, starts: Ints, lengths: Ints, number: int) -> UnsupportedValue | DecodeError:
    start = int(starts[number])
    text = bytes(data[start : start + int(lengths[number])])[:80].decode(errors="backslashreplace")
    if column.kind in {K.DATETIME, K.TIMESTAMP} and text[:6].isdigit():
        return UnsupportedValue(
            f"a value of column {column.name} is {text!r}; times after the year 294246 are not kept",
            where=column.name,
            hint="change the value at the source, for example to infinity; the log has the row as it was: then "
            "`sluice seek PIPELINE latest`, and, with the pipeline running, `sluice verify run PIPELINE --repair`",
        )
    return DecodeError(
        f"the server's text {text!r} is no value of column {column.name} ({column.kind})", where=column.name
    )


__all__ = ["decode", "is_blank_padded"]
