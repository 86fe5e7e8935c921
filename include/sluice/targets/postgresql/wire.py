"""Convert Arrow columns to PostgreSQL's binary format, column by column: what is sent is the value itself, or the row
is refused.

There is no Python object per value, except for UUID and INET. No value becomes text in between: a float is sent with
its bits, a decimal with its digits.
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.kernels import kernel
from sluice.model.column_types import ColumnKind
from sluice.model.decimals import without_nan
from sluice.model.fields import neutral_type
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.model.temporal import is_no_date
from sluice.postgresql.type_names import OIDS, PgType

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_EPOCH_DAYS = 10_957
_EPOCH_US = 946_684_800_000_000
_DAY_US = 86_400_000_000
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_NUMERIC_HEAD = 8
_SPATIAL_HEAD = 9
_LARGEST_SRID = 998_999


class Refusal(Exception):
    """Raised for rows (``mask``) with a value that the target's column cannot hold; ``why`` follows "the value" in the
    message.
    """

    def __init__(self, mask: Bools, why: str) -> None:
        super().__init__(why)
        self.mask, self.why = mask, why


@dataclass(frozen=True, slots=True)
class Column:
    """A column's values: the bytes of value i are ``lengths[i]`` (-1: NULL) from ``starts[i]`` of ``data``."""

    data: np.ndarray[Any, np.dtype[np.uint8]]
    starts: Ints
    lengths: Ints


# -- rows and arrays ---------------------------------------------------------------------------------------------------


@kernel
def _place(out: Any, at: Any, data: Any, starts: Any, lengths: Any) -> None:
    """Write each value with its length where its row stands, and move on."""
    for i in range(at.shape[0]):
        size, place = lengths[i], at[i]
        out[place] = (size >> 24) & 255
        out[place + 1] = (size >> 16) & 255
        out[place + 2] = (size >> 8) & 255
        out[place + 3] = size & 255
        place += 4
        if size > 0:
            start = starts[i]
            for j in range(size):
                out[place + j] = data[start + j]
            place += size
        at[i] = place


def copy_head() -> bytes:
    """Return the head of a binary COPY."""
    return _HEAD


def copy_end() -> bytes:
    """Return the end of a binary COPY."""
    return _END


def copy_rows(columns: Sequence[Column]) -> Any:
    """Return the rows for ``COPY … (FORMAT binary)`` (a buffer), without its head and end."""
    count = len(columns[0].lengths)
    sizes = np.full(count, 2 + 4 * len(columns), np.int64)
    for column in columns:
        sizes += np.maximum(column.lengths, 0)
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if count else 0, np.uint8)
    at = ends - sizes
    out[at], out[at + 1] = len(columns) >> 8, len(columns) & 255
    at += 2
    for column in columns:
        _place(out, at, column.data, column.starts, column.lengths)
    return out.data


def array_value(column: Column, sent: str) -> bytes:
    """Return the column as one value of type ``sent[]``."""
    count = len(column.lengths)
    sizes = 4 + np.maximum(column.lengths, 0)
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]), np.uint8)
    _place(out, ends - sizes, column.data, column.starts, column.lengths)
    nulls = int((column.lengths < 0).any())
    return np.array([1, nulls, OIDS[sent], count, 1], ">i4").tobytes() + out.tobytes()


# -- values ------------------------------------------------------------------------------------------------------------


def encode(field: pa.Field, values: pa.Array, target: PgType, *, zero_dates: str = "refuse") -> Column:
    """Encode the values of ``field`` for a column of type ``target``.

    Raises Refusal, and TypeError for a pair that :func:`takes` refuses.
    """
    kind = values.type
    column_type = neutral_type(field)
    word = target.word
    if pa.types.is_null(kind):
        return _nothing(len(values))
    if pa.types.is_boolean(kind):
        values = pc.cast(values, pa.int8())
        kind = values.type
    if pa.types.is_integer(kind):
        if column_type is not None and column_type.kind is ColumnKind.BIT and word in {"bit", "bit varying"}:
            return _bits(values, column_type.length or 1)
        return _whole(values, target)
    if pa.types.is_decimal(kind) and word == "numeric":
        return _decimal(values, target)
    if pa.types.is_floating(kind) and word in {"real", "double precision"}:
        return _float(values, word)
    if pa.types.is_date32(kind) and word == "date":
        return _date(_calendar(values, zero_dates))
    if pa.types.is_timestamp(kind) and word.startswith("timestamp"):
        return _timestamp(_calendar(_micros(values), zero_dates), target)
    if pa.types.is_duration(kind) and word in {"interval", "time without time zone"}:
        return _time(
            pc.cast(values, pa.duration("us")), target, ends_days=column_type is not None and bool(column_type.native)
        )
    if _is_bytes(kind) and word == "bytea":
        return _bytes(values)
    if _is_bytes(kind) and word == "geometry":
        return _spatial(_bytes(values))
    if _is_text(kind):
        return _text(field, values, target)
    raise TypeError(f"{kind} has no way into {target.declared}")


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def _valid(values: pa.Array) -> Bools:
    return np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False))


def _nothing(count: int) -> Column:
    return Column(np.zeros(0, np.uint8), np.zeros(count, np.int64), np.full(count, -1, np.int64))


def _fixed(numbers: np.ndarray[Any, Any], valid: Bools) -> Column:
    """Return a column of ``numbers``, which have the byte order and the width that are sent."""
    width = numbers.dtype.itemsize
    data = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1)
    return Column(data, np.arange(len(numbers), dtype=np.int64) * width, np.where(valid, width, -1).astype(np.int64))


def _numbers(values: pa.Array, dtype: str) -> np.ndarray[Any, Any]:
    """Return the buffer of the values; NULLs have arbitrary numbers."""
    buffer = values.buffers()[1]
    return np.frombuffer(buffer, dtype, len(values), values.offset * np.dtype(dtype).itemsize)


_RANGES = {
    "boolean": (0, 1, "i1"), "smallint": (-(2**15), 2**15 - 1, ">i2"), "integer": (-(2**31), 2**31 - 1, ">i4"),
    "bigint": (-(2**63), 2**63 - 1, ">i8"),
}  # fmt: skip


def _whole(values: pa.Array, target: PgType) -> Column:
    valid = _valid(values)
    signed = pa.types.is_signed_integer(values.type)
    numbers = _numbers(pc.cast(values, pa.int64() if signed else pa.uint64()), "i8" if signed else "u8")
    if target.word == "numeric":
        words = np.zeros((len(numbers), 3), np.uint32)
        words[:, :2] = numbers.view(np.uint32).reshape(-1, 2)
        if signed:
            words[:, 2] = np.where(numbers < 0, 0xFFFFFFFF, 0)
        return _numeric(words, 0, valid)
    least, most, dtype = _RANGES[target.word]
    outside = (numbers > most) if not signed else (numbers < least) | (numbers > most)
    _refuse(valid & outside, f"is outside of {target.declared}")
    return _fixed(numbers.astype(dtype), valid)


def _bits(values: pa.Array, bits: int) -> Column:
    valid = _valid(values)
    size = (bits + 7) // 8
    numbers = _numbers(pc.cast(values, pa.uint64()), "u8") << np.uint64(8 * size - bits)
    out = np.empty((len(numbers), 4 + size), np.uint8)
    out[:, :4] = np.frombuffer(np.array([bits], ">i4").tobytes(), np.uint8)
    out[:, 4:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - size :]
    return _fixed(out.reshape(-1).view(f"V{4 + size}"), valid)


def _spatial(column: Column) -> Column:
    """Convert the source's order (SRID, byte order, type, rest) to PostGIS's (EWKB): the SRID follows the type, which
    says so.
    """
    mask = column.lengths >= _SPATIAL_HEAD
    at = column.starts[mask]
    data = np.array(column.data)
    head = data[at[:, None] + np.arange(_SPATIAL_HEAD)]
    unknown = np.zeros(len(mask), bool)
    unknown[mask] = np.ascontiguousarray(head[:, :4]).view("<u4").reshape(-1) > _LARGEST_SRID
    _refuse(unknown, f"has an SRID of more than {_LARGEST_SRID}, which PostGIS does not keep")
    data[at[:, None] + np.arange(_SPATIAL_HEAD)] = head[:, [4, 5, 6, 7, 8, 0, 1, 2, 3]]
    data[at + 4] |= 0x20
    return Column(data, column.starts, column.lengths)


_NAN = np.frombuffer(b"\0\0\0\0\xc0\0\0\0", np.uint8)
"""NaN as numeric_recv reads it: no digits, and a sign of its own."""


def _decimal(values: pa.Array, target: PgType) -> Column:
    plain, nan = without_nan(values)
    if nan is not None:
        decimals = _decimal(plain, target)
        decimals.lengths[nan] = len(_NAN)
        decimals.data[decimals.starts[nan][:, None] + np.arange(len(_NAN))] = _NAN
        return decimals
    kind, valid = values.type, _valid(values)
    if target.numbers:
        scale = (*target.numbers, 0)[1]
        if scale < kind.scale:
            wide = pc.cast(values, pa.decimal256(76, kind.scale))
            cut = pc.cast(
                pc.cast(wide, pa.decimal256(76, scale), safe=False), pa.decimal256(76, kind.scale), safe=False
            )
            same = np.asarray(pc.fill_null(pc.equal(wide, cut), True).to_numpy(zero_copy_only=False))
            _refuse(~same, f"has more digits than {target.declared}")
    width = kind.bit_width // 32
    words = _numbers(values, f"V{kind.bit_width // 8}").view(np.uint32).reshape(-1, width)
    return _numeric(words, kind.scale, valid)


def _numeric(words: np.ndarray[Any, Any], scale: int, valid: Bools) -> Column:
    """Encode numbers for numeric. ``words``: two's complement, four bytes each, the lowest first."""
    count, width = words.shape
    stride = _NUMERIC_HEAD + 2 * (width * 32 // 13 + 3)
    data = np.empty(count * stride, np.uint8)
    lengths = np.full(count, -1, np.int64)
    _digits(
        np.ascontiguousarray(words),
        scale,
        valid,
        data,
        stride,
        lengths,
        np.empty(width + 1, np.uint64),
        np.empty(stride, np.int64),
    )
    return Column(data, np.arange(count, dtype=np.int64) * stride, lengths)


@kernel
def _digits(
    words: Any, scale: Any, valid: Any, data: Any, stride: Any, lengths: Any, work: Any, groups: Any
) -> None:  # fmt: skip
    """Write numbers as groups of four decimal digits, as numeric_recv reads them."""
    width = words.shape[1]
    pad = (4 - scale % 4) % 4
    factor = np.uint64(1)
    for _ in range(pad):
        factor *= np.uint64(10)
    behind = (scale + pad) // 4
    low = np.uint64(0xFFFFFFFF)
    for i in range(words.shape[0]):
        if not valid[i]:
            continue
        negative = words[i, width - 1] >> 31 != 0
        carry = np.uint64(1) if negative else np.uint64(0)
        top = 0
        for j in range(width):
            word = np.uint64(words[i, j])
            if negative:
                word = (~word & low) + carry
                carry = word >> np.uint64(32)
                word &= low
            work[j] = word
        work[width] = 0
        if pad:
            carry = np.uint64(0)
            for j in range(width + 1):
                word = work[j] * factor + carry
                work[j] = word & low
                carry = word >> np.uint64(32)
        top = width
        while top >= 0 and work[top] == 0:
            top -= 1
        count = 0
        while top >= 0:
            rest = np.uint64(0)
            for k in range(top + 1):
                j = top - k
                word = (rest << np.uint64(32)) | work[j]
                work[j] = word // np.uint64(10000)
                rest = word % np.uint64(10000)
            groups[count] = rest
            count += 1
            while top >= 0 and work[top] == 0:
                top -= 1
        first = 0
        while first < count and groups[first] == 0:
            first += 1
        place = i * stride
        digits = count - first
        weight = count - 1 - behind if digits else 0
        data[place] = digits >> 8
        data[place + 1] = digits & 255
        data[place + 2] = (weight >> 8) & 255
        data[place + 3] = weight & 255
        data[place + 4] = 0x40 if negative and digits else 0
        data[place + 5] = 0
        data[place + 6] = scale >> 8
        data[place + 7] = scale & 255
        for k in range(digits):
            group = groups[count - 1 - k]
            data[place + 8 + 2 * k] = group >> 8
            data[place + 9 + 2 * k] = group & 255
        lengths[i] = 8 + 2 * digits


def _float(values: pa.Array, word: str) -> Column:
    valid = _valid(values)
    numbers = _numbers(values, "f4" if pa.types.is_float32(values.type) else "f8")
    if word == "real" and numbers.dtype.itemsize == 8:
        with np.errstate(over="ignore", invalid="ignore"):
            _refuse(valid & (numbers.astype("f4").astype("f8") != numbers), "is no number of four bytes")
            return _fixed(numbers.astype(">f4"), valid)
    return _fixed(numbers.astype(">f4" if word == "real" else ">f8"), valid)


def _micros(values: pa.Array) -> pa.Array:
    """Convert to microseconds. Raises Refusal for nanoseconds that are more exact."""
    unit = pa.timestamp("us", values.type.tz)
    if values.type == unit:
        return values
    micros = pc.cast(values, unit, safe=False)
    same = pc.fill_null(pc.equal(pc.cast(micros, values.type, safe=False), values), True).to_numpy(zero_copy_only=False)
    _refuse(~np.asarray(same), "has more than six digits of a second")
    return micros


def _calendar(values: pa.Array, zero_dates: str) -> pa.Array:
    """Replace dates that no calendar has by NULL, or raise Refusal, as ``zero_dates`` says."""
    special = is_no_date(values)
    if not special.any():
        return values
    if zero_dates == "refuse":
        raise Refusal(special, "is a date that no calendar has (options.zero_dates: null makes NULL of it)")
    return pc.if_else(pa.array(special), pa.scalar(None, values.type), values)


def _date(values: pa.Array) -> Column:
    return _fixed(_since_2000(_numbers(values, "i4"), np.int32(_EPOCH_DAYS)).astype(">i4"), _valid(values))


def _since_2000(numbers: Any, epoch: Any) -> Any:
    """Count from PostgreSQL's first day; the greatest and the least number are infinite for both."""
    return np.where(_infinite(numbers), numbers, numbers - epoch)


def _infinite(numbers: Any) -> Any:
    limits = np.iinfo(numbers.dtype)
    return (numbers == limits.max) | (numbers == limits.min)


def _timestamp(values: pa.Array, target: PgType) -> Column:
    valid, numbers = _valid(values), _numbers(values, "i8")
    if target.numbers and target.numbers[0] < 6:
        _refuse(
            valid & (numbers % 10 ** (6 - target.numbers[0]) != 0) & ~_infinite(numbers),
            f"has more digits of a second than {target.declared}",
        )
    return _fixed(_since_2000(numbers, np.int64(_EPOCH_US)).astype(">i8"), valid)


def _time(values: pa.Array, target: PgType, *, ends_days: bool = False) -> Column:
    """Encode times; ``ends_days``: 24:00:00 is a time of a day, as it is for PostgreSQL."""
    valid, numbers = _valid(values), _numbers(values, "i8")
    if target.numbers and target.numbers[0] < 6:
        _refuse(
            valid & (numbers % 10 ** (6 - target.numbers[0]) != 0),
            f"has more digits of a second than {target.declared}",
        )
    if target.word != "interval":
        _refuse(valid & ((numbers < 0) | (numbers > _DAY_US - (not ends_days))), "is no time of a day")
        return _fixed(numbers.astype(">i8"), valid)
    out = np.zeros(len(numbers), np.dtype([("us", ">i8"), ("days", ">i4"), ("months", ">i4")]))
    out["us"] = numbers
    return _fixed(out, valid)


def _bytes(values: pa.Array) -> Column:
    """Return bytes, or the UTF-8 of texts, without a copy."""
    if pa.types.is_fixed_size_binary(values.type):
        values = pc.cast(values, pa.binary())
    large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    _, offsets, data = values.buffers()
    width = 8 if large else 4
    ends = np.frombuffer(offsets, f"i{width}", len(values) + 1, values.offset * width).astype(np.int64)
    lengths = np.diff(ends)
    if values.null_count:
        lengths[~_valid(values)] = -1
    payload = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return Column(payload, ends[:-1], lengths)


def _text(field: pa.Field, values: pa.Array, target: PgType) -> Column:
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, pa.string())
    column_type = neutral_type(field)
    if column_type is not None and column_type.kind is ColumnKind.ENUM:  # an ENUM's error value has no text
        values = pc.if_else(pc.equal(values, ENUM_ERROR_VALUE), "", values)
    if target.label:
        return _bytes(values)
    if target.word == "uuid":
        return _made([None if v is None else uuid.UUID(v).bytes for v in values.to_pylist()])
    if target.word == "inet":
        return _made([None if v is None else _address(v) for v in values.to_pylist()])
    column = _bytes(values)
    if len(column.data):
        first, last = int(column.starts[0]), int((column.starts + np.maximum(column.lengths, 0))[-1])
        if not column.data[first:last].all():
            has_nul = pc.fill_null(pc.match_substring(values, "\x00"), False).to_numpy(zero_copy_only=False)
            _refuse(np.asarray(has_nul), "has a NUL character, which PostgreSQL does not store")
    if target.word in {"character varying", "character"} and target.numbers:
        sure = (
            column_type is not None
            and column_type.kind in {ColumnKind.CHAR, ColumnKind.VARCHAR}
            and 0 < column_type.length <= target.numbers[0]
        )
        if not sure and int(column.lengths.max(initial=0)) > target.numbers[0]:
            long = pc.fill_null(pc.greater(pc.utf8_length(values), target.numbers[0]), False).to_numpy(
                zero_copy_only=False
            )
            _refuse(np.asarray(long), f"is longer than {target.declared}")
    if target.word == "jsonb":
        return _versioned(column)
    return column


def _versioned(column: Column) -> Column:
    """Put jsonb's version byte before each text."""
    mask = column.lengths >= 0
    lengths = np.where(mask, column.lengths + 1, -1)
    ends = np.cumsum(np.maximum(lengths, 0))
    starts = ends - np.maximum(lengths, 0)
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    _shift(data, starts, column.data, column.starts, column.lengths)
    return Column(data, starts, lengths)


@kernel
def _shift(out: Any, places: Any, data: Any, starts: Any, lengths: Any) -> None:
    for i in range(places.shape[0]):
        if lengths[i] >= 0:
            place, start = places[i], starts[i]
            out[place] = 1
            for j in range(lengths[i]):
                out[place + 1 + j] = data[start + j]


def _address(text: str) -> bytes:
    address = ipaddress.ip_address(text)
    family = 2 if address.version == 4 else 3
    return bytes((family, address.max_prefixlen, 0, len(address.packed))) + address.packed


def _made(values: Sequence[bytes | None]) -> Column:
    return _bytes(pa.array(values, pa.binary()))


def _refuse(mask: Bools, why: str) -> None:
    if mask.any():
        raise Refusal(mask, why)
