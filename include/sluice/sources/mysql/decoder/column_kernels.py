"""The fill kernels: one column at a time, from the offsets of its values in the arena to an Arrow buffer.

``offsets[image]`` is where a column's value lies in the arena (at its length bytes for variable ones), ABSENT_NULL for
null and ABSENT_COLUMN for a column that the image does not hold. ``select[row]`` names the image of each output row, -1
for none. The walk has checked that every value lies inside its event; arenas have sixteen spare bytes, so a load of
eight never leaves them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.kernels import kernel_with_arrays
from sluice.model.temporal import DATE_BASE, TIMESTAMP_BASE
from sluice.sources.machine import copy_bytes, kernel, load_u16, load_u32, load_u64
from sluice.sources.mysql.decoder.scan_kernel import walk_image

ABSENT_NULL = -1
ABSENT_COLUMN = -2

(
    MODE_DATE, MODE_DATETIME2, MODE_TIMESTAMP2, MODE_TIME2, MODE_TIME, MODE_DATETIME, MODE_TIMESTAMP, MODE_OLD_TIME,
    MODE_OLD_DATETIME,
    MODE_OLD_TIMESTAMP,
) = range(10)  # fmt: skip
"""The last three: MariaDB's own formats with digits, before 10.1."""


@kernel
def walk_values(
    arena: Any, starts: Any, ends: Any, bitmaps: Any, columns: Any, widths: Any, first: Any, out: Any
) -> Any:
    """Fill ``out[column, image]`` with the offset of each value.

    Returns -1, or the first image that does not fit its event.
    """
    for m in range(len(starts)):
        at = starts[m]
        end = ends[m]
        bitmap = bitmaps[m]
        if walk_image(arena, at, end, bitmap, columns, widths, first) < 0:
            return m
        present = 0
        for c in range(columns):
            present += (arena[bitmap + (c >> 3)] >> (c & 7)) & 1
        q = at + ((present + 7) >> 3)
        k = 0
        for c in range(columns):
            if (arena[bitmap + (c >> 3)] >> (c & 7)) & 1 == 0:
                out[c, m] = ABSENT_COLUMN
                continue
            null = (arena[at + (k >> 3)] >> (k & 7)) & 1
            k += 1
            if null:
                out[c, m] = ABSENT_NULL
                continue
            out[c, m] = q
            w = np.int64(widths[first + c])
            if w >= 0:
                q += w
            else:
                q += _length(arena, q, w) - w
    return -1


@kernel
def _length(arena: Any, at: Any, w: Any) -> Any:
    if w == -1:
        return np.int64(arena[at])
    if w == -2:
        return np.int64(load_u16(arena, at))
    if w == -3:
        return np.int64(load_u16(arena, at)) | (np.int64(arena[at + 2]) << 16)
    return np.int64(load_u32(arena, at))


@kernel
def fill_copy(arena: Any, offsets: Any, select: Any, width: Any, out: Any, valid: Any) -> Any:
    """Copy values of 1, 2, 4 or 8 bytes. ``out``: uint8[rows * width]. Returns the number of nulls."""
    nulls = 0
    for i in range(len(select)):
        m = select[i]
        o = offsets[m] if m >= 0 else np.int64(-1)
        if o < 0:
            valid[i] = 0
            nulls += 1
            continue
        valid[i] = 1
        if width == 4:
            copy_bytes(out, i * 4, arena, o, 4)
        elif width == 8:
            copy_bytes(out, i * 8, arena, o, 8)
        elif width == 2:
            copy_bytes(out, i * 2, arena, o, 2)
        else:
            out[i] = arena[o]
    return nulls


@kernel
def fill_little(arena: Any, offsets: Any, select: Any, width: Any, signed: Any, out: Any, valid: Any) -> Any:
    """Read little-endian integers of 1 to 8 bytes. ``out``: int64[rows]. Returns the number of nulls."""
    nulls = 0
    shift = np.uint64(64 - 8 * width)
    for i in range(len(select)):
        m = select[i]
        o = offsets[m] if m >= 0 else np.int64(-1)
        if o < 0:
            valid[i] = 0
            out[i] = 0
            nulls += 1
            continue
        valid[i] = 1
        word = load_u64(arena, o) << shift
        out[i] = np.int64(word) >> np.int64(shift) if signed else np.int64(word >> shift)
    return nulls


@kernel
def _big(arena: Any, at: Any, count: Any) -> Any:
    value = np.int64(0)
    for i in range(count):
        value = (value << 8) | np.int64(arena[at + i])
    return value


@kernel
def fill_big(arena: Any, offsets: Any, select: Any, width: Any, out: Any, valid: Any) -> Any:
    """Read big-endian unsigned integers of 1 to 8 bytes (BIT). ``out``: int64[rows]. Returns the number of nulls."""
    nulls = 0
    for i in range(len(select)):
        m = select[i]
        o = offsets[m] if m >= 0 else np.int64(-1)
        if o < 0:
            valid[i] = 0
            out[i] = 0
            nulls += 1
        else:
            valid[i] = 1
            out[i] = _big(arena, o, width)
    return nulls


@kernel
def _days(year: Any, month: Any, day: Any) -> Any:
    """Return the days since 1970-01-01 of a date of the proleptic Gregorian calendar."""
    y = year - (1 if month <= 2 else 0)
    era = y // 400
    yoe = y - era * 400
    doy = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    doe = yoe * 365 + yoe // 4 - yoe // 100 + doy
    return era * 146097 + doe - 719468


@kernel
def _calendar(year: Any, month: Any, day: Any) -> Any:
    """Return True if the calendar has this day."""
    if year < 1 or month < 1 or month > 12 or day < 1:
        return False
    if day <= 28:
        return True
    if month == 2:
        return day == 29 and (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))
    if month == 4 or month == 6 or month == 9 or month == 11:
        return day <= 30
    return day <= 31


@kernel
def _moment(year: Any, month: Any, day: Any, micros: Any) -> Any:
    if _calendar(year, month, day):
        return _days(year, month, day) * 86400000000 + micros
    return TIMESTAMP_BASE + (((year << 9 | month << 5 | day) << 37) | micros)


@kernel
def _fraction(arena: Any, at: Any, digits: Any) -> Any:
    if digits == 0:
        return np.int64(0)
    if digits <= 2:
        return np.int64(arena[at]) * 10000
    if digits <= 4:
        return _big(arena, at, 2) * 100
    return _big(arena, at, 3)


@kernel
def fill_temporal(arena: Any, offsets: Any, select: Any, mode: Any, digits: Any, out: Any, valid: Any) -> Any:
    """Read DATE (days), DATETIME, TIMESTAMP, TIME (microseconds), in new and old encodings.

    Returns the number of nulls.

    ``out``: int64[rows]. Days that no calendar has are stored as :mod:`sluice.model.temporal` says.
    """
    nulls = 0
    unit = np.int64(1)  # of the old formats' last digit, in microseconds
    for _ in range(digits, 6):
        unit *= 10
    parts = 1000000 // unit
    for i in range(len(select)):
        m = select[i]
        o = offsets[m] if m >= 0 else np.int64(-1)
        if o < 0:
            valid[i] = 0
            out[i] = 0
            nulls += 1
            continue
        valid[i] = 1
        if mode == MODE_DATE:
            v = np.int64(arena[o]) | (np.int64(arena[o + 1]) << 8) | (np.int64(arena[o + 2]) << 16)
            year, month, day = v >> 9, (v >> 5) & 15, v & 31
            if _calendar(year, month, day):
                out[i] = _days(year, month, day)
            else:
                out[i] = DATE_BASE + v
        elif mode == MODE_DATETIME2:
            v = _big(arena, o, 5) - 0x8000000000
            day_part = v >> 17
            clock = v & 0x1FFFF
            months = day_part >> 5
            seconds = (clock >> 12) * 3600 + ((clock >> 6) & 63) * 60 + (clock & 63)
            out[i] = _moment(
                months // 13, months % 13, day_part & 31, seconds * 1000000 + _fraction(arena, o + 5, digits)
            )
        elif mode == MODE_TIMESTAMP2:
            seconds = _big(arena, o, 4)
            micros = _fraction(arena, o + 4, digits)
            out[i] = TIMESTAMP_BASE if seconds == 0 and micros == 0 else seconds * 1000000 + micros
        elif mode == MODE_TIME2:
            fraction_bytes = (digits + 1) >> 1
            bits = 8 * fraction_bytes
            v = _big(arena, o, 3 + fraction_bytes) - (np.int64(0x800000) << bits)
            negative = v < 0
            if negative:
                v = -v
            clock = v >> bits
            rest = v & ((np.int64(1) << bits) - 1)
            scale = (
                0 if fraction_bytes == 0 else (10000 if fraction_bytes == 1 else (100 if fraction_bytes == 2 else 1))
            )
            seconds = ((clock >> 12) & 0x3FF) * 3600 + ((clock >> 6) & 63) * 60 + (clock & 63)
            micros = seconds * 1000000 + rest * scale
            out[i] = -micros if negative else micros
        elif mode == MODE_TIME:
            v = np.int64(arena[o]) | (np.int64(arena[o + 1]) << 8) | (np.int64(arena[o + 2]) << 16)
            if v & 0x800000:
                v -= 0x1000000
            a = -v if v < 0 else v
            micros = ((a // 10000) * 3600 + (a // 100 % 100) * 60 + a % 100) * 1000000
            out[i] = -micros if v < 0 else micros
        elif mode == MODE_DATETIME:
            v = np.int64(load_u64(arena, o))
            d = v // 1000000
            t = v % 1000000
            seconds = (t // 10000) * 3600 + (t // 100 % 100) * 60 + t % 100
            out[i] = _moment(d // 10000, d // 100 % 100, d % 100, seconds * 1000000)
        elif mode == MODE_OLD_TIME:
            size = 4 if digits <= 2 else (5 if digits <= 5 else 6)
            out[i] = (_big(arena, o, size) - 3020400 * parts) * unit
        elif mode == MODE_OLD_DATETIME:
            size = 6 if digits <= 2 else (7 if digits <= 5 else 8)
            v = _big(arena, o, size)
            micros = v % parts * unit
            v //= parts
            clock = v % 86400 * 1000000 + micros
            v //= 86400
            out[i] = _moment(v // 416, v // 32 % 13, v % 32, clock)
        elif mode == MODE_OLD_TIMESTAMP:
            seconds = _big(arena, o, 4)
            micros = _big(arena, o + 4, (digits + 1) >> 1) * unit
            out[i] = TIMESTAMP_BASE if seconds == 0 and micros == 0 else seconds * 1000000 + micros
        else:
            seconds = np.int64(load_u32(arena, o))
            out[i] = TIMESTAMP_BASE if seconds == 0 else seconds * 1000000
    return nulls


@kernel
def _digits_bytes(digits: Any) -> Any:
    return (digits + 1) >> 1


@kernel_with_arrays
def fill_decimal(
    arena: Any, offsets: Any, select: Any, precision: Any, scale: Any, limbs: Any, out: Any, valid: Any
) -> Any:
    """Read DECIMAL as little-endian two's complement.

    ``out``: uint32[rows, limbs], 4 limbs for decimal128, 8 for decimal256.

    Returns the number of nulls. Source: ``decimal2bin`` in MySQL's strings/decimal.cc (groups of nine digits,
    big-endian).
    """
    nulls = 0
    integer_digits = precision - scale
    lead = integer_digits % 9
    tail = scale % 9
    groups_before = integer_digits // 9
    groups = groups_before + scale // 9
    lead_bytes = _digits_bytes(lead) if lead < 9 else 4
    tail_bytes = _digits_bytes(tail)
    number = np.zeros(8, np.uint64)
    for i in range(len(select)):
        m = select[i]
        o = offsets[m] if m >= 0 else np.int64(-1)
        if o < 0:
            valid[i] = 0
            nulls += 1
            for j in range(limbs):
                out[i, j] = 0
            continue
        valid[i] = 1
        negative = arena[o] & 0x80 == 0
        flip = np.uint64(0xFF) if negative else np.uint64(0)
        at = o
        top = np.uint64(0x80)
        small = precision <= 18
        value = np.uint64(0)
        if not small:
            for j in range(limbs):
                number[j] = 0
        total = groups + (1 if lead else 0) + (1 if tail else 0)
        for g in range(total):
            if g == 0 and lead:
                size = lead_bytes
                power = 1
            elif g == total - 1 and tail:
                size = tail_bytes
                power = 1
                for _ in range(tail):
                    power *= 10
            else:
                size = 4
                power = 1000000000
            word = np.uint64(0)
            for j in range(size):
                byte = np.uint64(arena[at + j]) ^ flip ^ top
                top = np.uint64(0)
                word = (word << np.uint64(8)) | (byte & np.uint64(0xFF))
            at += size
            if small:
                value = value * np.uint64(power) + word
            else:
                carry = word
                for j in range(limbs):
                    step = number[j] * np.uint64(power) + carry
                    number[j] = step & np.uint64(0xFFFFFFFF)
                    carry = step >> np.uint64(32)
        if small:
            number[0] = value & np.uint64(0xFFFFFFFF)
            number[1] = value >> np.uint64(32)
            for j in range(2, limbs):
                number[j] = 0
        if negative:
            carry = np.uint64(1)
            for j in range(limbs):
                step = ((~number[j]) & np.uint64(0xFFFFFFFF)) + carry
                out[i, j] = step & np.uint64(0xFFFFFFFF)
                carry = step >> np.uint64(32)
        else:
            for j in range(limbs):
                out[i, j] = number[j]
    return nulls


@kernel
def fill_ends(arena: Any, offsets: Any, select: Any, prefix: Any, ends: Any, valid: Any) -> Any:
    """Sum the lengths of variable values to Arrow offsets. Returns the number of nulls.

    ``ends`` is int64[rows + 1]. ``prefix``: length bytes.
    """
    nulls = 0
    total = np.int64(0)
    ends[0] = 0
    for i in range(len(select)):
        m = select[i]
        o = offsets[m] if m >= 0 else np.int64(-1)
        if o < 0:
            valid[i] = 0
            nulls += 1
        else:
            valid[i] = 1
            total += _length(arena, o, -prefix)
        ends[i + 1] = total
    return nulls


@kernel
def fill_bytes(arena: Any, offsets: Any, select: Any, prefix: Any, ends: Any, out: Any) -> None:
    """Copy the bytes of variable values; ``ends`` as :func:`fill_ends` made them."""
    for i in range(len(select)):
        size = ends[i + 1] - ends[i]
        if size:
            copy_bytes(out, ends[i], arena, offsets[select[i]] + prefix, size)


@kernel
def fill_padded(arena: Any, offsets: Any, select: Any, prefix: Any, size: Any, ends: Any, out: Any, valid: Any) -> Any:
    """Read BINARY(size), whose trailing zero bytes the log leaves out.

    Returns the number of nulls, -1 for a value too long.

    ``out`` (zeroed): uint8[rows * size].
    """
    nulls = 0
    total = np.int64(0)
    ends[0] = 0
    for i in range(len(select)):
        m = select[i]
        o = offsets[m] if m >= 0 else np.int64(-1)
        if o < 0:
            valid[i] = 0
            nulls += 1
        else:
            valid[i] = 1
            length = _length(arena, o, -prefix)
            if length > size:
                return -1
            copy_bytes(out, total, arena, o + prefix, length)
            total += size
        ends[i + 1] = total
    return nulls


@kernel
def all_present(arena: Any, bitmaps: Any, select: Any, columns: Any) -> Any:
    """Return True if no row's columns-present bitmap lacks a column."""
    size = columns >> 3
    rest = (1 << (columns & 7)) - 1
    for i in range(len(select)):
        at = bitmaps[select[i]]
        for j in range(size):
            if arena[at + j] != 0xFF:
                return False
        if rest and (arena[at + size] & rest) != rest:
            return False
    return True


@kernel
def keys_moved(arena: Any, offsets: Any, before: Any, after: Any, key: Any, widths: Any, first: Any, out: Any) -> Any:
    """Mark (1) updates whose key columns' bytes differ.

    ``before``/``after``: image of each update; returns their number.

    A key column that the after image does not hold has not changed.
    """
    count = 0
    for i in range(len(before)):
        moved = 0
        for k in range(len(key)):
            c = key[k]
            a = offsets[c, before[i]]
            b = offsets[c, after[i]]
            if b == ABSENT_COLUMN or a == ABSENT_COLUMN:
                continue
            if a < 0 or b < 0:
                if a != b:
                    moved = 1
                continue
            w = np.int64(widths[first + c])
            size = w
            if w < 0:
                size = _length(arena, a, w) - w
                if size != _length(arena, b, w) - w:
                    moved = 1
                    continue
            for j in range(size):
                if arena[a + j] != arena[b + j]:
                    moved = 1
                    break
        out[i] = moved
        count += moved
    return count
