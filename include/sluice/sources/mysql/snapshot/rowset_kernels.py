"""Kernels for result sets in the binary protocol: frame packets, find values, fill Arrow buffers.

The layout is the one of the log's decoder (:mod:`sluice.sources.mysql.decoder.column_kernels`):
first the offset of every value, then one column at a time. Source
of the format: the client/server protocol's ``ProtocolBinary::ResultsetRow``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.kernels import kernel_with_arrays
from sluice.model.temporal import DATE_BASE, TIMESTAMP_BASE
from sluice.sources.machine import copy_bytes, kernel, load_u16, load_u32, load_u64
from sluice.sources.mysql.decoder.column_kernels import _calendar, _days, _moment

MORE, FULL, END, BIG, BAD = range(5)
"""Why :func:`frame` returned: bytes are missing, ``starts`` is full, a packet that is no row, a row of 16 MiB or more,
a contradiction.
"""

COUNTED, TIMED = 0, -1
"""Kinds of value besides fixed widths: a counted string, and a temporal value with a length byte."""

NULL = -1


@kernel
def frame(buf: Any, at: Any, end: Any, starts: Any, ends: Any, state: Any) -> Any:
    """Find the rows in ``buf[at:end]``. Returns their number; ``state``: [offset after them, why it stopped]."""
    count = 0
    while True:
        state[0] = at
        if at + 5 > end:
            state[1] = MORE
            return count
        size = np.int64(buf[at]) | (np.int64(buf[at + 1]) << 8) | (np.int64(buf[at + 2]) << 16)
        if size == 0xFFFFFF:
            state[1] = BIG
            return count
        if at + 4 + size > end:
            state[1] = MORE
            return count
        if size == 0:
            state[1] = BAD
            return count
        if buf[at + 4] != 0:
            state[1] = END
            return count
        if count == len(starts):
            state[1] = FULL
            return count
        starts[count] = at + 4
        ends[count] = at + 4 + size
        count += 1
        at += 4 + size


@kernel
def walk(buf: Any, starts: Any, ends: Any, count: Any, kinds: Any, offsets: Any, sizes: Any) -> Any:
    """Find the values of rows. Returns -1, or a row that is broken.

    ``offsets[column, row]``: where the value's bytes begin (NULL: none), ``sizes``: how many.
    """
    columns = len(kinds)
    nulls = (columns + 9) >> 3
    for r in range(count):
        base = starts[r] + 1
        end = ends[r]
        at = base + nulls
        if at > end:
            return r
        for c in range(columns):
            bit = c + 2
            if (buf[base + (bit >> 3)] >> (bit & 7)) & 1:
                offsets[c, r] = NULL
                sizes[c, r] = 0
                continue
            kind = kinds[c]
            size = np.int64(kind)
            if kind <= 0:
                if at >= end:
                    return r
                first = np.int64(buf[at])
                at += 1
                size = first
                if kind == COUNTED and first > 250:
                    if first == 252:
                        if at + 2 > end:
                            return r
                        size = np.int64(load_u16(buf, at))
                        at += 2
                    elif first == 253:
                        if at + 3 > end:
                            return r
                        size = np.int64(load_u16(buf, at)) | (np.int64(buf[at + 2]) << 16)
                        at += 3
                    elif first == 254:
                        if at + 8 > end:
                            return r
                        size = np.int64(load_u64(buf, at))
                        at += 8
                    else:
                        return r
            if size < 0 or at + size > end:
                return r
            offsets[c, r] = at
            sizes[c, r] = size
            at += size
        if at != end:
            return r
    return -1


@kernel
def counted_ends(offsets: Any, sizes: Any, ends: Any, valid: Any) -> Any:
    """Return the Arrow offsets of counted values in ``ends``, and the number of nulls."""
    nulls = 0
    total = np.int64(0)
    ends[0] = 0
    for i in range(len(valid)):
        if offsets[i] < 0:
            valid[i] = 0
            nulls += 1
        else:
            valid[i] = 1
            total += sizes[i]
        ends[i + 1] = total
    return nulls


@kernel
def counted_bytes(buf: Any, offsets: Any, ends: Any, out: Any) -> None:
    """Copy the bytes of counted values."""
    for i in range(len(ends) - 1):
        size = ends[i + 1] - ends[i]
        if size:
            copy_bytes(out, ends[i], buf, offsets[i], size)


@kernel
def big_endian(buf: Any, offsets: Any, sizes: Any, out: Any, valid: Any) -> Any:
    """Read BIT: a counted string of up to eight bytes, most significant first.

    Returns the number of nulls, -1 for a longer value.
    """
    nulls = 0
    for i in range(len(valid)):
        o = offsets[i]
        if o < 0:
            valid[i] = 0
            out[i] = 0
            nulls += 1
            continue
        if sizes[i] > 8:
            return -1
        valid[i] = 1
        value = np.int64(0)
        for j in range(sizes[i]):
            value = (value << 8) | np.int64(buf[o + j])
        out[i] = value
    return nulls


@kernel
def temporal(buf: Any, offsets: Any, sizes: Any, kind: Any, out: Any, valid: Any) -> Any:
    """Read DATE in days (``kind`` 0), DATETIME (1) and TIMESTAMP (2) in microseconds, or TIME (3).

    Returns the number of nulls, -1 for a broken value.
    """
    nulls = 0
    for i in range(len(valid)):
        o = offsets[i]
        if o < 0:
            valid[i] = 0
            out[i] = 0
            nulls += 1
            continue
        valid[i] = 1
        size = sizes[i]
        if kind == 3:
            if size == 0:
                out[i] = 0
                continue
            if size != 8 and size != 12:
                return -1
            seconds = np.int64(load_u32(buf, o + 1)) * 86400
            seconds += np.int64(buf[o + 5]) * 3600 + np.int64(buf[o + 6]) * 60 + np.int64(buf[o + 7])
            micros = seconds * 1000000
            if size == 12:
                micros += np.int64(load_u32(buf, o + 8))
            out[i] = -micros if buf[o] else micros
            continue
        year = np.int64(0)
        month = np.int64(0)
        day = np.int64(0)
        micros = np.int64(0)
        if size >= 4:
            year = np.int64(load_u16(buf, o))
            month = np.int64(buf[o + 2])
            day = np.int64(buf[o + 3])
        if size >= 7:
            micros = (np.int64(buf[o + 4]) * 3600 + np.int64(buf[o + 5]) * 60 + np.int64(buf[o + 6])) * 1000000
        if size == 11:
            micros += np.int64(load_u32(buf, o + 7))
        if size != 0 and size != 4 and size != 7 and size != 11:
            return -1
        if kind == 0:
            if _calendar(year, month, day):
                out[i] = _days(year, month, day)
            else:
                out[i] = DATE_BASE + (year << 9 | month << 5 | day)
        elif kind == 2 and year == 0:
            out[i] = TIMESTAMP_BASE
        else:
            out[i] = _moment(year, month, day, micros)
    return nulls


@kernel_with_arrays
def decimals(buf: Any, offsets: Any, sizes: Any, scale: Any, limbs: Any, out: Any, valid: Any) -> Any:
    """Convert DECIMAL text to little-endian two's complement, ``out``: uint32[rows, limbs].

    Returns the number of nulls, -1 for a broken value.
    """
    nulls = 0
    number = np.zeros(8, np.uint64)
    for i in range(len(valid)):
        o = offsets[i]
        if o < 0:
            valid[i] = 0
            nulls += 1
            for j in range(limbs):
                out[i, j] = 0
            continue
        valid[i] = 1
        for j in range(limbs):
            number[j] = 0
        at = o
        end = o + sizes[i]
        negative = False
        if at < end and buf[at] == 45:
            negative = True
            at += 1
        fraction = np.int64(-1)
        digit_count = 0
        while at < end or fraction < scale:
            digit = np.uint64(0)
            if at < end:
                char = np.int64(buf[at])
                at += 1
                if char == 46 and fraction < 0:
                    fraction = np.int64(0)
                    continue
                if char < 48 or char > 57:
                    return -1
                digit = np.uint64(char - 48)
                digit_count += 1
            elif fraction < 0:  # no point at all: what follows are the zeros after it
                if scale == 0:
                    break
                fraction = np.int64(0)
            if fraction >= 0:
                fraction += 1
            carry = digit
            for j in range(limbs):
                step = number[j] * np.uint64(10) + carry
                number[j] = step & np.uint64(0xFFFFFFFF)
                carry = step >> np.uint64(32)
        if digit_count == 0 or fraction > scale:
            return -1
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


def warm_up() -> None:
    """Compile every kernel (or load it from Numba's cache) on one made-up row."""
    buf = np.zeros(64, np.uint8)
    buf[0] = 4
    starts, ends, state = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(2, np.int64)
    count = frame(buf, 0, 8, starts, ends, state)
    offsets, sizes = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64)
    walk(buf, starts, ends, int(count), np.array([2], np.int64), offsets, sizes)
    column, size, valid = offsets[0], sizes[0], np.zeros(1, np.uint8)
    column[0] = NULL
    bounds, numbers = np.zeros(2, np.int64), np.zeros(1, np.int64)
    counted_ends(column, size, bounds, valid)
    counted_bytes(buf, column, bounds, np.zeros(1, np.uint8))
    big_endian(buf, column, size, numbers, valid)
    temporal(buf, column, size, 0, numbers, valid)
    decimals(buf, column, size, 2, 4, np.zeros((1, 4), np.uint32), valid)
