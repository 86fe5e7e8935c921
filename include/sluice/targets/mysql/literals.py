"""Arrow columns to SQL text, column by column, exactly: what is written reads back as the same bytes.

No Python object a value, except for TIME and for dates that no calendar has. Strings are escaped for a session without
NO_BACKSLASH_ESCAPES in utf8mb4. Binary goes as ``X'..'``, floats as quoted shortest round-trip text (a quoted number is read by strtod, so
0.1 in FLOAT stays 0.1), decimals as plain digits, YEAR with four digits (a bare '0' would be 2000).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model import temporal
from sluice.model.tables import ENUM_ERROR_VALUE

_HEX = np.frombuffer(b"".join(f"{byte:02X}".encode() for byte in range(256)), np.uint16)
_FSP = re.compile(r"\((\d)\)")


def sql_type(field: pa.Field) -> str:
    """The column's SQL type at the source in lower case, ``""`` if a rule made the column."""
    return str((field.metadata or {}).get(b"sluice.type", b"").decode()).lower()


def column_name(field: pa.Field) -> str:
    """The column's name at the target."""
    return str((field.metadata or {}).get(b"sluice.name", field.name.encode()).decode())


def literals(field: pa.Field, values: pa.Array, *, comparing: bool = False) -> pa.Array:
    """SQL literals (string array, null where the value is NULL).

    ``comparing``: for ``column = literal`` in a WHERE clause, where FLOAT needs the column's own precision.
    """
    kind, declared = values.type, sql_type(field)
    if pa.types.is_integer(kind):
        if declared.startswith("year"):
            return _quoted(pc.utf8_lpad(pc.cast(values, pa.string()), 4, "0"))
        return pc.cast(values, pa.string())
    if pa.types.is_boolean(kind):
        return pc.cast(pc.cast(values, pa.int8()), pa.string())
    if pa.types.is_decimal(kind):
        return _plain_decimals(values)
    if pa.types.is_floating(kind):
        text = _quoted(pc.cast(values, pa.string()))
        if comparing and pa.types.is_float32(kind):
            return _wrapped("CAST(", text, " AS FLOAT)")
        return _wrapped("CAST(", text, " AS DOUBLE)") if comparing else text
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
    if declared.startswith("enum"):
        text = pc.if_else(pc.equal(text, ENUM_ERROR_VALUE), "", text)
    return _quoted(escaped(text))


def escaped(text: pa.Array) -> pa.Array:
    """Backslash, quote and NUL escaped."""
    for raw, safe in (("\\", "\\\\"), ("'", "\\'"), ("\x00", "\\0")):
        if pc.any(pc.match_substring(text, raw)).as_py():
            text = pc.replace_substring(text, raw, safe)
    return text


def has_enum_errors(field: pa.Field, values: pa.Array) -> bool:
    """True if an ENUM column may hold the error value (index 0), which a strict session refuses."""
    if not sql_type(field).startswith("enum"):
        return False
    return bool(pc.any(pc.is_in(values, pa.array(["", ENUM_ERROR_VALUE]))).as_py())


def hexadecimal(values: pa.Array) -> pa.Array:
    """Binary to upper-case hexadecimal text, through one table look-up a byte."""
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
    """``a,b,NULL`` a row, from the literals of each column."""
    joined = columns[0] if len(columns) == 1 else None
    if joined is not None:
        return pc.fill_null(joined, "NULL")
    return pc.binary_join_element_wise(*columns, ",", null_handling="replace", null_replacement="NULL")


def _plain_decimals(values: pa.Array) -> pa.Array:
    text = pc.cast(values, pa.string())
    scientific = pc.fill_null(pc.match_substring(text, "E"), False)
    if not pc.any(scientific).as_py():
        return text
    return pa.array([None if value is None else format(value, "f") for value in values.to_pylist()], pa.string())


def _quoted(text: pa.Array) -> pa.Array:
    return _wrapped("'", text, "'")


def _wrapped(left: str, text: pa.Array, right: str) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(left), text, pa.scalar(right), "")
