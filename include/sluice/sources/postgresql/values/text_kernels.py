"""The kernels that read the server's texts: one column at a time, from places in a buffer to Arrow's numbers.

``data``: bytes; text ``i`` has ``lengths[i]`` of them from ``starts[i]``, and below 0 there is none: its value stays 0.
Each returns -1, or the first text that is none of the type's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.kernels import kernel
from sluice.model.temporal import DATE_INFINITY, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY
from sluice.sources.machine import copy_bytes, load_u64

DAY_US = 86_400_000_000
_LAST_DAY = 106_751_990
"""The last whole day of which 64 bits count the microseconds since 1970."""
_MINUS, _POINT, _COLON, _SPACE, _PLUS = 45, 46, 58, 32, 43
_EIGHT_SPACES = 0x2020202020202020
_ZERO, _NINE = 48, 57
_LOWER_I, _UPPER_B, _LOWER_T = 105, 66, 116


@kernel
def valid_of(lengths: Any, valid: Any) -> Any:
    """Mark the texts that are there. Returns how many are not."""
    nulls = 0
    for i in range(lengths.shape[0]):
        is_present = lengths[i] >= 0
        valid[i] = is_present
        nulls += not is_present
    return nulls


@kernel
def copied_offsets(lengths: Any, offsets: Any) -> Any:
    """Fill the offsets of the texts, one after the other. Returns the sum of their lengths."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(lengths.shape[0]):
        if lengths[i] > 0:
            total += lengths[i]
        offsets[i + 1] = total
    return total


@kernel
def copy_texts(data: Any, starts: Any, lengths: Any, offsets: Any, out: Any) -> Any:
    """Copy each text to its offset."""
    for i in range(lengths.shape[0]):
        if lengths[i] > 0:
            copy_bytes(out, offsets[i], data, starts[i], lengths[i])


@kernel
def without_blanks(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    """Fill ``out`` with the lengths of the texts without the spaces at their end."""
    for i in range(lengths.shape[0]):
        size = np.int64(lengths[i])
        while size >= 8 and load_u64(data, starts[i] + size - 8) == np.uint64(_EIGHT_SPACES):
            size -= 8
        while size > 0 and data[starts[i] + size - 1] == _SPACE:
            size -= 1
        out[i] = size


@kernel
def read_booleans(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    """Read ``t``, ``f``, ``true`` and ``false``."""
    for i in range(lengths.shape[0]):
        if lengths[i] > 0:
            out[i] = data[starts[i]] == _LOWER_T
    return -1


@kernel
def read_whole(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    """Read whole numbers of at most 64 bits, modulo 2^64: signed and unsigned ones have the same bits."""
    for i in range(lengths.shape[0]):
        size = lengths[i]
        if size < 0:
            continue
        at = starts[i]
        end = at + size
        negative = size > 1 and data[at] == _MINUS
        if negative:
            at += 1
        if at >= end:
            return i
        value = np.uint64(0)
        while at < end:
            digit = data[at]
            if digit < _ZERO or digit > _NINE:
                return i
            value = value * np.uint64(10) + np.uint64(digit - _ZERO)
            at += 1
        out[i] = np.uint64(0) - value if negative else value
    return -1


@kernel
def read_bits(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    """Read up to 64 characters ``0`` and ``1`` as a number."""
    for i in range(lengths.shape[0]):
        if lengths[i] > 64:
            return i
        value = np.uint64(0)
        for j in range(lengths[i]):
            digit = data[starts[i] + j]
            if digit != _ZERO and digit != _ZERO + 1:
                return i
            value = (value << np.uint64(1)) | np.uint64(digit - _ZERO)
        if lengths[i] > 0:
            out[i] = value
    return -1


@kernel
def _nibble(digit: Any) -> Any:
    if _ZERO <= digit <= _NINE:
        return np.int64(digit) - _ZERO
    lower = digit | 32
    if 97 <= lower <= 102:
        return np.int64(lower) - 87
    return np.int64(-1)


@kernel
def hexadecimal_offsets(lengths: Any, offsets: Any) -> Any:
    r"""Fill the offsets of the bytes of ``\x0aff``. Returns their number, or -1 - i for a text with half a byte."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(lengths.shape[0]):
        size = lengths[i]
        if size >= 0:
            if size < 2 or size & 1:
                return -1 - i
            total += (size - 2) >> 1
        offsets[i + 1] = total
    return total


@kernel
def read_hexadecimal(data: Any, starts: Any, lengths: Any, offsets: Any, out: Any) -> Any:
    r"""Read ``\x0aff``."""
    for i in range(lengths.shape[0]):
        if lengths[i] < 0:
            continue
        start, place = starts[i], offsets[i]
        if data[start] != 92 or data[start + 1] != 120:
            return i
        for j in range((lengths[i] - 2) >> 1):
            high = _nibble(data[start + 2 + 2 * j])
            low = _nibble(data[start + 3 + 2 * j])
            if high < 0 or low < 0:
                return i
            out[place + j] = high << 4 | low
    return -1


@kernel
def _number_at(data: Any, at: Any, end: Any) -> Any:
    """Read digits up to the first other character. Returns (number, where it ends)."""
    value = np.int64(0)
    while at < end and _ZERO <= data[at] <= _NINE:
        value = value * 10 + (np.int64(data[at]) - _ZERO)
        at += 1
    return value, at


@kernel
def _days(year: Any, month: Any, day: Any) -> Any:
    """Return the days since 1970 of a day of the proleptic Gregorian calendar, in which 1 BC is the year 0."""
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    in_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + in_era * 365 + in_era // 4 - in_era // 100 + of_year - 719_468


@kernel
def _day_at(data: Any, at: Any, end: Any) -> Any:
    """Read ``2024-01-31``. Returns (days since 1970 if it is a year after Christ, before Christ, where it ends; -1: it
    is no day).
    """
    year, at = _number_at(data, at, end)
    if at + 6 > end or data[at] != _MINUS or data[at + 3] != _MINUS:
        return np.int64(0), np.int64(0), np.int64(-1)
    month, at = _number_at(data, at + 1, end)
    day, at = _number_at(data, at + 1, end)
    if month < 1 or month > 12 or day < 1 or day > 31:
        return np.int64(0), np.int64(0), np.int64(-1)
    return _days(year, month, day), _days(1 - year, month, day), at


@kernel
def _clock_at(data: Any, at: Any, end: Any) -> Any:
    """Read ``23:59:59.999999``. Returns (microseconds, where it ends; -1: it is no time)."""
    hours, at = _number_at(data, at, end)
    if at + 6 > end or data[at] != _COLON or data[at + 3] != _COLON:
        return np.int64(0), np.int64(-1)
    minutes, at = _number_at(data, at + 1, end)
    seconds, at = _number_at(data, at + 1, end)
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    if at < end and data[at] == _POINT:
        at += 1
        unit = np.int64(100_000)
        while at < end and _ZERO <= data[at] <= _NINE:
            micros += (np.int64(data[at]) - _ZERO) * unit
            unit //= 10
            at += 1
    return micros, at


@kernel
def _is_before_christ(data: Any, at: Any, end: Any) -> Any:
    return at + 3 == end and data[at] == _SPACE and data[at + 1] == _UPPER_B


@kernel
def _infinity(data: Any, at: Any, size: Any) -> Any:
    """Return 1 for ``infinity``, -1 for ``-infinity``, else 0."""
    if size == 8 and data[at] == _LOWER_I:
        return 1
    if size == 9 and data[at] == _MINUS and data[at + 1] == _LOWER_I:
        return -1
    return 0


@kernel
def read_dates(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    """Read ``2024-01-31``, ``0044-03-15 BC`` and ``infinity`` as days since 1970."""
    for i in range(lengths.shape[0]):
        if lengths[i] < 0:
            continue
        at = starts[i]
        end = at + lengths[i]
        infinite = _infinity(data, at, lengths[i])
        if infinite:
            out[i] = DATE_INFINITY if infinite > 0 else -DATE_INFINITY - 1
            continue
        days, before, at = _day_at(data, at, end)
        if at < 0:
            return i
        if at < end:
            if not _is_before_christ(data, at, end):
                return i
            days = before
        out[i] = days
    return -1


@kernel
def read_timestamps(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    """Read ``2024-01-31 23:59:59.5``, with ``+00`` or ``BC`` after it, and ``infinity`` as microseconds since 1970."""
    for i in range(lengths.shape[0]):
        if lengths[i] < 0:
            continue
        at = starts[i]
        end = at + lengths[i]
        infinite = _infinity(data, at, lengths[i])
        if infinite:
            out[i] = TIMESTAMP_INFINITY if infinite > 0 else TIMESTAMP_MINUS_INFINITY
            continue
        days, before, at = _day_at(data, at, end)
        if at < 0 or at >= end or data[at] != _SPACE:
            return i
        micros, at = _clock_at(data, at + 1, end)
        if at < 0:
            return i
        if at + 3 <= end and data[at] == _PLUS:
            if data[at + 1] != _ZERO or data[at + 2] != _ZERO:
                return i
            at += 3
        if at < end:
            if not _is_before_christ(data, at, end):
                return i
            days = before
        if days > _LAST_DAY:
            return i
        out[i] = days * DAY_US + micros
    return -1


@kernel
def read_times(data: Any, starts: Any, lengths: Any, out: Any) -> Any:
    """Read ``23:59:59.999999`` as microseconds; a day may end at ``24:00:00``."""
    for i in range(lengths.shape[0]):
        if lengths[i] < 0:
            continue
        micros, at = _clock_at(data, starts[i], starts[i] + lengths[i])
        if at != starts[i] + lengths[i]:
            return i
        out[i] = micros
    return -1


@kernel
def read_decimals(data: Any, starts: Any, lengths: Any, scale: Any, out: Any) -> Any:
    """Read decimals as two's complement, in words of 32 bits, the lowest first: ``out[i]`` has as many as the type."""
    words = out.shape[1]
    low = np.uint64(0xFFFFFFFF)
    for i in range(lengths.shape[0]):
        size = lengths[i]
        if size < 0:
            continue
        at = starts[i]
        end = at + size
        negative = size > 1 and data[at] == _MINUS
        if negative:
            at += 1
        behind, point, some = np.int64(0), False, False
        while at < end or behind < scale:
            if at < end:
                digit = np.uint64(data[at])
                at += 1
                if digit == _POINT and not point:
                    point = True
                    continue
                if digit < _ZERO or digit > _NINE:
                    return i
                digit -= np.uint64(_ZERO)
                some = True
                if point:
                    behind += 1
                    if behind > scale:
                        return i
            else:
                digit = np.uint64(0)
                behind += 1
            carry = digit
            for j in range(words):
                word = np.uint64(out[i, j]) * np.uint64(10) + carry
                out[i, j] = word & low
                carry = word >> np.uint64(32)
        if not some:
            return i
        if negative:
            carry = np.uint64(1)
            for j in range(words):
                word = (~np.uint64(out[i, j]) & low) + carry
                out[i, j] = word & low
                carry = word >> np.uint64(32)
    return -1
