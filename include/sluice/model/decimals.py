"""NaN inside decimal columns: PostgreSQL's ``numeric(p,s)`` has it, and Arrow's decimals do not.

It is stored as the least number of more digits than the column has (``10 ** p``, unscaled), which fits into the bytes
of every precision, also in Parquet, and is above all numbers, as NaN is for PostgreSQL. (Infinite numbers are in
columns without digits only, which are texts.)

``as_py()``, ``cast()`` and arithmetic must not see it: use :func:`to_python`, :func:`to_text` and :func:`cast`, or ask
:func:`is_nan` first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.batches import Op
from sluice.model.fields import true_name
from sluice.model.tables import META_COLUMNS, member, one_chunk

NAN = "NaN"
_Mask = np.ndarray[Any, Any]


def _words(kind: pa.DataType) -> _Mask:
    """Return NaN's number as stored: 64 bits each, the lowest first."""
    number = 10**kind.precision
    return np.array([number >> shift & (2**64 - 1) for shift in range(0, kind.bit_width, 64)], np.uint64)


def is_nan(values: pa.Array) -> _Mask:
    """Return a mask (bool, one per value; False for null) of NaN. All False for values that are no decimals."""
    if not pa.types.is_decimal(values.type) or values.buffers()[1] is None:
        return np.zeros(len(values), bool)
    words = _words(values.type)
    size = len(words)
    stored = np.frombuffer(values.buffers()[1], np.uint64)[values.offset * size :][: len(values) * size]
    mask: _Mask = stored[::size] == words[0]
    if mask.any():
        mask = (stored.reshape(-1, size) == words).all(axis=1)
        mask &= np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
    return mask


def with_nan(values: pa.Array, mask: _Mask) -> pa.Array:
    """Return decimals with NaN where ``mask`` says so; other values, also nulls, stay."""
    if not mask.any():
        return values
    words = _words(values.type)
    stored = np.frombuffer(values.buffers()[1], np.uint64)[values.offset * len(words) :]
    stored = np.array(stored[: len(values) * len(words)]).reshape(-1, len(words))
    stored[mask] = words
    valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False)) | mask
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(values.type, len(values), [bits, pa.py_buffer(stored)])


def without_nan(values: pa.Array) -> tuple[pa.Array, _Mask | None]:
    """Return values with null in place of NaN, and a mask of NaN; None: there is none."""
    odd = is_nan(values)
    if not odd.any():
        return values, None
    return pc.if_else(pa.array(odd), pa.scalar(None, values.type), values), odd


def nan_columns(rows: pa.Table, key: Collection[str]) -> dict[int, str]:
    """Return a column that has NaN, by the number of each row that stays and has it, or has it in its key."""
    is_deleted = np.asarray(pc.equal(rows["_op"], Op.DELETE.value).to_numpy(zero_copy_only=False))
    columns: dict[int, str] = {}
    for field in rows.schema:
        if pa.types.is_decimal(field.type) and field.name not in META_COLUMNS:
            odd = is_nan(one_chunk(rows[field.name]))
            for number in np.flatnonzero(odd if true_name(field) in key else odd & ~is_deleted).tolist():
                columns.setdefault(number, true_name(field))
    return columns


def rows_without_nan(rows: pa.Table) -> pa.Table:
    """Return rows with null in place of NaN, also as they were before."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_decimal(field.type):
            rows = rows.set_column(number, field, without_nan(one_chunk(rows[field.name]))[0])
        elif field.name == "_before" and any(pa.types.is_decimal(child.type) for child in field.type):
            struct = one_chunk(rows[field.name])
            children = [without_nan(member(struct, child.name))[0] for child in field.type]
            filled = pa.StructArray.from_arrays(children, fields=list(field.type), mask=pc.is_null(struct))
            rows = rows.set_column(number, field, filled)
    return rows


def to_text(values: pa.Array) -> pa.Array:
    """Return decimals with all their digits, without an exponent, and NaN (string); null stays null."""
    plain, odd = without_nan(values)
    texts = plain.cast(pa.string())
    short = pc.fill_null(pc.match_substring(texts, "E"), False)
    if pc.any(short).as_py():
        places = np.flatnonzero(short.to_numpy(zero_copy_only=False))
        texts = pc.replace_with_mask(
            texts, short, pa.array([f"{plain[int(p)].as_py():f}" for p in places], pa.string())
        )
    return texts if odd is None else pc.if_else(pa.array(odd), NAN, texts)


def to_python(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values as Python has them: a NaN of decimals is ``Decimal("NaN")``."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    plain, odd = without_nan(values)
    numbers: list[Any] = plain.to_pylist()
    for place in () if odd is None else np.flatnonzero(odd):
        numbers[place] = Decimal(NAN)
    return numbers


def from_python(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of a decimal type, with NaN where a value is. Raises what Arrow raises for others."""
    odd = np.array([isinstance(value, Decimal | float) and value != value for value in values], bool)
    plain = [None if nan else value for value, nan in zip(values, odd, strict=True)] if odd.any() else values
    return with_nan(pa.array(plain, kind), odd)


def cast(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast as Arrow does; NaN stays NaN in decimals, floats and texts. Raises ArrowInvalid where ``kind`` lacks it."""
    if values.type == kind or not pa.types.is_decimal(values.type):
        return values.cast(kind)
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([cast(chunk, kind) for chunk in values.chunks], kind)
    plain, odd = without_nan(values)
    converted = plain.cast(kind)
    if odd is None:
        return converted
    if pa.types.is_decimal(kind):
        return with_nan(converted, odd)
    if pa.types.is_floating(kind):
        return pc.if_else(pa.array(odd), pa.scalar(float("nan"), kind), converted)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.if_else(pa.array(odd), pa.scalar(NAN, kind), converted)
    raise pa.ArrowInvalid(f"NaN is no value of {kind}")


__all__ = ["NAN", "cast", "from_python", "is_nan", "to_python", "to_text", "with_nan", "without_nan"]
