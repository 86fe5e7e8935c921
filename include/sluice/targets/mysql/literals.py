"""Convert Arrow columns to SQL text, column by column, exactly: what is written reads back as the same bytes.

There is no Python object per value, except for TIME, for dates that no calendar has, and for JSON that holds DECIMAL.
Strings are escaped for a session without NO_BACKSLASH_ESCAPES in utf8mb4. Binary is written as ``X'..'``, floats as
quoted shortest round-trip text (a quoted number is read by strtod, so 0.1 in FLOAT stays 0.1), decimals as plain
digits, YEAR with four digits (a bare '0' would be 2000), ENUM and SET as numbers if the target's labels are known.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model import decimals, fields, temporal
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.targets.mysql import documents, labelled
from sluice.targets.sql.rows import target_type

_HEX = np.frombuffer(b"".join(f"{byte:02X}".encode() for byte in range(256)), np.uint16)
_FLT_MAX = float(np.finfo(np.float32).max)
_DIGITS = re.compile(r"\((\d+),(\d+)\)")
_FSP = re.compile(r"\((\d)\)")


def sql_type(field: pa.Field) -> str:
    """Return the column's SQL type at the source in lower case, ``""`` if a rule made the column."""
    return fields.declared_type(field).lower()


_MOST_DIGITS, _MOST_SCALE = 65, 30
"""Digits of a number that the server does not cut: a wider one is a text, in a column of texts."""


_EQUALS_NONE = "1e300"
"""A number that no decimal column of the server holds."""


def literals(field: pa.Field, values: pa.Array, *, comparing: bool = False) -> pa.Array:
    """Return SQL literals (string array, null where the value is NULL).

    ``comparing``: for ``column = literal`` in a WHERE clause.

    Raises:
        LoadError: the target's ENUM or SET lacks a label of the source's.
    """
    kind, declared = values.type, sql_type(field)
    if pa.types.is_integer(kind):
        if declared.startswith("year"):
            return _quoted(pc.utf8_lpad(pc.cast(values, pa.string()), 4, "0"))
        return pc.cast(values, pa.string())
    if pa.types.is_boolean(kind):
        return pc.cast(pc.cast(values, pa.int8()), pa.string())
    if pa.types.is_decimal(kind):
        text = decimals.to_text(values)
        wide = kind.precision > _MOST_DIGITS or kind.scale > _MOST_SCALE
        if wide and not (comparing and target_type(field).lower().startswith("decimal")):
            return _quoted(text)
        return pc.replace_with_mask(text, pa.array(decimals.is_nan(values)), _EQUALS_NONE if comparing else "'NaN'")
    if pa.types.is_floating(kind):
        if comparing:  # every FLOAT is exactly a double
            return _wrapped("CAST('", pc.cast(pc.cast(values, pa.float64()), pa.string()), "' AS DOUBLE)")
        return _quoted(_float_text(values, target_type(field).lower() or declared))
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        digits = _FSP.search(declared)
        fsp = int(digits[1]) if digits else (0 if declared else 6)
        if pa.types.is_timestamp(kind) and kind.unit != "us":
            values = pc.cast(values, pa.timestamp("us", kind.tz))
        return _quoted(temporal.to_text(values, fsp=fsp))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _wrapped("X'", hexadecimal(pc.cast(values, pa.binary())), "'")
    if pa.types.is_null(kind):
        return pc.cast(values, pa.string())
    text = pc.cast(values, pa.string())
    target = target_type(field)
    if labelled.is_labelled(target):
        return _labels(field, text, target, comparing=comparing)
    if declared.startswith("enum"):
        text = pc.if_else(pc.equal(text, ENUM_ERROR_VALUE), "", text)
    if documents.is_json(target):
        return _documents(text)
    return _quoted(escaped(text))


def in_statements_only(field: pa.Field, values: pa.Array) -> np.ndarray[Any, Any]:
    """Return a mask of the values that LOAD DATA would not store exactly.

    These are an ENUM's error value, a label given by its text, and DECIMAL in JSON.
    """
    target = target_type(field)
    if documents.is_json(target) and pa.types.is_string(values.type):
        return documents.inexact(values)
    mask = enum_errors(field, values)
    if labelled.is_labelled(target) and pa.types.is_string(values.type):
        digits, which = labelled.numbers(values, _raw_type(field), target, fields.true_name(field))
        unknown = pa.array([number is None for number in digits], pa.bool_())
        mask = mask | pc.fill_null(unknown.take(which), False).to_numpy(zero_copy_only=False)
    return mask


def _raw_type(field: pa.Field) -> str:
    """Return the declared type with its labels as they are spelled."""
    return fields.declared_type(field)


def _labels(field: pa.Field, text: pa.Array, target: str, *, comparing: bool) -> pa.Array:
    digits, which = labelled.numbers(text, _raw_type(field), target, fields.true_name(field))
    if comparing:  # both servers compare a SET of 64 labels as a signed number
        digits = [str(int(n) - (1 << 64)) if n is not None and int(n) >> 63 else n for n in digits]
    if None not in digits:
        return pa.array(digits, pa.string()).take(which)
    by_number = pa.array(digits, pa.string()).take(which)
    return pc.coalesce(by_number, _quoted(escaped(text)))


def _documents(text: pa.Array) -> pa.Array:
    plain = _quoted(escaped(text))
    special = documents.inexact(text)
    if not special.any():
        return plain
    literals = [documents.literal(text[int(row)].as_py()) for row in np.flatnonzero(special)]
    return pc.replace_with_mask(plain, pa.array(special), pa.array(literals, pa.string()))


def escaped(text: pa.Array) -> pa.Array:
    """Escape backslash, quote and NUL."""
    for raw, safe in (("\\", "\\\\"), ("'", "\\'"), ("\x00", "\\0")):
        if pc.any(pc.match_substring(text, raw)).as_py():
            text = pc.replace_substring(text, raw, safe)
    return text


def enum_errors(field: pa.Field, values: pa.Array) -> np.ndarray[Any, Any]:
    """Return a mask of an ENUM's error values (index 0), which a strict session refuses."""
    target = target_type(field)
    if not sql_type(field).startswith("enum") or (target and not labelled.is_labelled(target)):
        return np.zeros(len(values), bool)
    return labelled.errors(values, _raw_type(field))


def hexadecimal(values: pa.Array) -> pa.Array:
    """Convert binary to upper-case hexadecimal text, through one table look-up per byte."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    low, high = int(ends[0]), int(ends[-1])
    chars = np.frombuffer(data, np.uint8)[low:high] if data is not None and high > low else np.zeros(0, np.uint8)
    if (high - low) * 2 >= 1 << 31:
        return pa.array([None if v is None else v.hex() for v in values.to_pylist()], pa.large_string())
    text: Any = pa.Array.from_buffers(
        pa.string(),
        len(values),
        [None, pa.py_buffer(((ends - low) * 2).astype(np.int32)), pa.py_buffer(_HEX[chars])],
    )
    return pc.if_else(pc.is_valid(values), text, pa.scalar(None, pa.string())) if values.null_count else text


def rows(columns: list[pa.Array]) -> pa.Array:
    """Join the literals of the columns to ``a,b,NULL`` per row."""
    joined = columns[0] if len(columns) == 1 else None
    if joined is not None:
        return pc.fill_null(joined, "NULL")
    return pc.binary_join_element_wise(*columns, ",", null_handling="replace", null_replacement="NULL")


def _float_text(values: pa.Array, declared: str) -> pa.Array:
    """Return the shortest text that the server reads as the same number; -0 keeps its sign.

    The server reads a double first. A FLOAT whose shortest text would become another FLOAT, or is out of range as
    FLT_MAX is, gets the text of the next double. FLOAT(M,D) compares with the largest number of M digits, which as a
    FLOAT may be larger than that.
    """
    text = pc.cast(values, pa.string())
    if not pa.types.is_float32(values.type):
        return text
    floats = values.to_numpy(zero_copy_only=False)
    valid = np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False))
    read = pc.fill_null(pc.cast(text, pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        wrong = valid & ((np.abs(read) > _FLT_MAX) | (read.astype(np.float32) != floats))
    digits = _DIGITS.search(declared)
    exact = floats.astype(np.float64)
    double = pa.array(exact, mask=~valid)
    if digits and declared.startswith("float"):
        precision, fraction = int(digits[1]), int(digits[2])
        limit = min(_FLT_MAX, 10.0 ** (precision - fraction) - 1.0 / 10.0**fraction)
        beyond = valid & (np.abs(exact) > limit)
        if beyond.any():
            clamped = np.where(beyond, np.copysign(limit, exact), exact)
            double, wrong = pa.array(clamped, mask=~valid), wrong | beyond
    return pc.if_else(pa.array(wrong), pc.cast(double, pa.string()), text) if wrong.any() else text


def _quoted(text: pa.Array) -> pa.Array:
    return _wrapped("'", text, "'")


def _wrapped(prefix: str, text: pa.Array, suffix: str) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(prefix), text, pa.scalar(suffix), "")
