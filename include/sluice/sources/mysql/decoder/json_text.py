"""The JSON kernel: columns of MySQL's binary JSON to the text the server prints.

Source: sql-common/json_binary.cc and json_dom.cc.

Two passes over the same walk. The first checks bounds, measures, and notes the values that the kernel does not print
itself (doubles, and opaque values as decimals and dates); those become text outside, all doubles at once; the second
pass writes. A value that points backwards, or whose parts together are larger than itself, is broken: so no value makes
the walk leave it or run forever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import DecodeError
from sluice.kernels import kernel_with_arrays
from sluice.sources import arrow_buffers
from sluice.sources.machine import copy_bytes, kernel, load_u16, load_u32, load_u64
from sluice.sources.mysql.decoder import json_binary

_DEPTH = 128
_BROKEN = -1
_FULL = -2
_DOUBLE, _STRING, _OPAQUE = 11, 12, 15


@kernel
def _number(value: Any, negative: Any, write: Any, out: Any, q: Any) -> Any:
    """Write the digits of ``value`` (uint64), with a sign. Returns the offset after."""
    ten = np.uint64(10)
    size = 1
    rest = value // ten
    while rest:
        size += 1
        rest //= ten
    if negative:
        if write:
            out[q] = 45
        q += 1
    if write:
        rest = value
        for i in range(size):
            out[q + size - 1 - i] = 48 + np.int64(rest % ten)
            rest //= ten
    return q + size


@kernel
def _quoted(d: Any, at: Any, size: Any, write: Any, out: Any, q: Any) -> Any:
    """Write a JSON string with its quotes. Returns the offset after."""
    if write:
        out[q] = 34
    q += 1
    for i in range(at, at + size):
        c = d[i]
        if c >= 32 and c != 34 and c != 92:
            if write:
                out[q] = c
            q += 1
            continue
        short = np.uint8(0)
        if c == 34 or c == 92:
            short = c
        elif c == 8:
            short = np.uint8(98)
        elif c == 9:
            short = np.uint8(116)
        elif c == 10:
            short = np.uint8(110)
        elif c == 12:
            short = np.uint8(102)
        elif c == 13:
            short = np.uint8(114)
        if write:
            out[q] = 92
            if short:
                out[q + 1] = short
            else:
                out[q + 1] = 117
                out[q + 2] = 48
                out[q + 3] = 48
                out[q + 4] = 48 + (c >> 4)
                low = c & 15
                out[q + 5] = (48 if low < 10 else 87) + low
        q += 2 if short else 6
    if write:
        out[q] = 34
    return q + 1


@kernel
def _literal(which: Any, write: Any, out: Any, q: Any) -> Any:
    """Write null, true or false. Returns the offset after."""
    if not write:
        return q + (5 if which == 2 else 4)
    if which == 0:
        out[q], out[q + 1], out[q + 2], out[q + 3] = 110, 117, 108, 108
        return q + 4
    if which == 1:
        out[q], out[q + 1], out[q + 2], out[q + 3] = 116, 114, 117, 101
        return q + 4
    out[q], out[q + 1], out[q + 2], out[q + 3], out[q + 4] = 102, 97, 108, 115, 101
    return q + 5


@kernel
def _varlen(d: Any, at: Any, end: Any) -> Any:
    """Read a length of seven bits per byte. Returns (size, offset after), or (-1, 0) if it is broken."""
    size = np.int64(0)
    for i in range(5):
        if at + i >= end:
            return np.int64(-1), np.int64(0)
        byte = np.int64(d[at + i])
        size |= (byte & 0x7F) << (7 * i)
        if byte & 0x80 == 0:
            return size, np.int64(at + i + 1)
    return np.int64(-1), np.int64(0)


@kernel
def _walk(
    d: Any,
    start: Any,
    end: Any,
    write: Any,
    out: Any,
    q: Any,
    foreign: Any,
    count: Any,
    texts: Any,
    text_ends: Any,
    stack: Any,
) -> Any:
    """Walk one value ``d[start:end]``.

    Returns (offset after its text, foreign values so far), or (_BROKEN or _FULL, 0).

    Without ``write`` nothing is written and the places of foreign values go into ``foreign``; with it their ``texts``
    are copied.
    """
    kind = np.int64(d[start])
    at = np.int64(start + 1)
    limit = np.int64(end)
    spent = np.int64(0)
    depth = 0
    while True:
        # -- one value of this kind at this place, inside limit
        if kind == 4:
            if at >= limit or d[at] > 2:
                return _BROKEN, count
            q = _literal(d[at], write, out, q)
        elif 5 <= kind <= 10:
            width = 2 if kind <= 6 else (4 if kind <= 8 else 8)
            if at + width > limit:
                return _BROKEN, count
            if width == 2:
                word = load_u16(d, at) << np.uint64(48)
            elif width == 4:
                word = load_u32(d, at) << np.uint64(32)
            else:
                word = load_u64(d, at)
            shift = 64 - 8 * width
            if kind & 1:
                signed = np.int64(word) >> shift
                if signed < 0:
                    q = _number(~np.uint64(signed) + np.uint64(1), True, write, out, q)
                else:
                    q = _number(np.uint64(signed), False, write, out, q)
            else:
                q = _number(word >> np.uint64(shift), False, write, out, q)
        elif kind == _STRING:
            size, at = _varlen(d, at, limit)
            if size < 0 or at + size > limit:
                return _BROKEN, count
            spent += size
            if spent > end - start:
                return _BROKEN, count
            q = _quoted(d, at, size, write, out, q)
        elif kind == _DOUBLE or kind == _OPAQUE:  # noqa: SIM109
            if at + (8 if kind == _DOUBLE else 2) > limit:
                return _BROKEN, count
            if kind == _OPAQUE:
                size, behind = _varlen(d, at + 1, limit)
                if size < 0 or behind + size > limit:
                    return _BROKEN, count
                spent += size
                if spent > end - start:
                    return _BROKEN, count
            if write:
                size = text_ends[count + 1] - text_ends[count]
                copy_bytes(out, q, texts, text_ends[count], size)
                q += size
            else:
                if count >= len(foreign):
                    return _FULL, count
                foreign[count] = -at if kind == _OPAQUE else at
            count += 1
        elif kind <= 3:
            width = 4 if kind & 1 else 2
            if depth >= _DEPTH or at + 2 * width > limit:
                return _BROKEN, count
            items = np.int64(load_u32(d, at)) if width == 4 else np.int64(load_u16(d, at))
            size = np.int64(load_u32(d, at + width)) if width == 4 else np.int64(load_u16(d, at + width))
            entries = items * ((width + 2 if kind <= 1 else 0) + width + 1)
            spent += entries
            if at + size > limit or 2 * width + entries > size or spent > end - start:
                return _BROKEN, count
            if write:
                out[q] = 123 if kind <= 1 else 91
            q += 1
            stack[depth, 0] = kind
            stack[depth, 1] = at
            stack[depth, 2] = at + size
            stack[depth, 3] = items
            stack[depth, 4] = 0
            depth += 1
        else:
            return _BROKEN, count
        # -- close what is complete, then go to the next element
        while depth and stack[depth - 1, 3] == stack[depth - 1, 4]:
            depth -= 1
            if write:
                out[q] = 125 if stack[depth, 0] <= 1 else 93
            q += 1
        if depth == 0:
            return q, count
        level = depth - 1
        i = stack[level, 4]
        stack[level, 4] = i + 1
        if i:
            if write:
                out[q] = 44
                out[q + 1] = 32
            q += 2
        box, base = stack[level, 0], stack[level, 1]
        limit = stack[level, 2]
        items = stack[level, 3]
        width = 4 if box & 1 else 2
        values = base + 2 * width
        if box <= 1:
            entry = values + i * (width + 2)
            key = base + (np.int64(load_u32(d, entry)) if width == 4 else np.int64(load_u16(d, entry)))
            size = np.int64(load_u16(d, entry + width))
            spent += size
            if key + size > limit or spent > end - start:
                return _BROKEN, count
            q = _quoted(d, key, size, write, out, q)
            if write:
                out[q] = 58
                out[q + 1] = 32
            q += 2
            values += items * (width + 2)
        entry = values + i * (width + 1)
        kind = np.int64(d[entry])
        if 4 <= kind <= 6 or (width == 4 and 7 <= kind <= 8):
            at = entry + 1
        else:
            step = np.int64(load_u32(d, entry + 1)) if width == 4 else np.int64(load_u16(d, entry + 1))
            at = base + step
            if step <= 0 or at >= limit:
                return _BROKEN, count


@kernel
def measure(d: Any, ends: Any, valid: Any, foreign: Any, out_ends: Any, stack: Any) -> Any:
    """Do the first pass: fill ``out_ends`` (int64[rows + 1]) without foreign values, and note their places.

    The place of an opaque value is negative. Returns (number of foreign values, row at which it stopped, why: 0,
    _BROKEN or _FULL); ``out_ends[rows]`` of a null row is empty.
    """
    total = np.int64(0)
    count = np.int64(0)
    out_ends[0] = 0
    for row in range(len(ends) - 1):
        if valid[row]:
            if ends[row] == ends[row + 1]:
                total += 4  # an empty value (an old server's damaged row) is null
            else:
                q, count = _walk(d, ends[row], ends[row + 1], False, d, total, foreign, count, d, ends, stack)
                if q < 0:
                    return count, row, q
                total = q
        out_ends[row + 1] = total
    return count, 0, 0


@kernel
def write(d: Any, ends: Any, valid: Any, texts: Any, text_ends: Any, out: Any, out_ends: Any, stack: Any) -> None:
    """Do the second pass: write the text, and its true ``out_ends``.

    ``texts`` are those of the foreign values, in the order in which the first pass met them.
    """
    q = np.int64(0)
    count = np.int64(0)
    for row in range(len(ends) - 1):
        if valid[row]:
            if ends[row] == ends[row + 1]:
                q = _literal(0, True, out, q)
            else:
                q, count = _walk(d, ends[row], ends[row + 1], True, out, q, ends, count, texts, text_ends, stack)
        out_ends[row + 1] = q


@kernel_with_arrays
def double_texts(shortest: Any, ends: Any, out: Any, out_ends: Any) -> None:
    """Convert shortest digits in any notation to the server's (``my_gcvt``).

    It keeps ``.0``, and has an exponent only for large and small numbers, without plus. ``out`` has 32 bytes for each.
    """
    q = np.int64(0)
    out_ends[0] = 0
    digits = np.zeros(800, np.uint8)
    for i in range(len(ends) - 1):
        count = 0
        point = 0
        seen_point = False
        exponent: Any = np.int64(0)
        at = ends[i]
        negative = shortest[at] == 45
        if negative:
            at += 1
        while at < ends[i + 1]:
            c = shortest[at]
            at += 1
            if c == 46:
                seen_point = True
            elif c == 101 or c == 69:
                down = shortest[at] == 45
                if down or shortest[at] == 43:
                    at += 1
                while at < ends[i + 1]:
                    exponent = exponent * np.int64(10) + np.int64(shortest[at]) - np.int64(48)
                    at += 1
                if down:
                    exponent = -exponent
            else:
                if count or c != 48:
                    digits[count] = c
                    count += 1
                    if not seen_point:
                        point += 1
                elif seen_point:
                    point -= 1
        point += exponent
        while count and digits[count - 1] == 48:
            count -= 1
        if negative:
            out[q] = 45
            q += 1
        if count == 0:
            out[q], out[q + 1], out[q + 2] = 48, 46, 48
            q += 3
        elif -14 <= point <= 15 or count > point > 0:
            if point <= 0:
                out[q], out[q + 1] = 48, 46
                q += 2
                for _ in range(-point):
                    out[q] = 48
                    q += 1
                for k in range(count):
                    out[q + k] = digits[k]
                q += count
            else:
                for k in range(max(count, point + 1)):
                    if k == point:
                        out[q] = 46
                        q += 1
                    out[q] = digits[k] if k < count else 48
                    q += 1
        else:
            out[q] = digits[0]
            q += 1
            if count > 1:
                out[q] = 46
                q += 1
                for k in range(1, count):
                    out[q] = digits[k]
                    q += 1
            out[q] = 101
            q += 1
            q = _number(np.uint64(abs(point - 1)), point < 1, True, out, q)
        out_ends[i + 1] = q


def json_texts(data: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> pa.Array:
    """Return a string array from binary values ``data[ends[i]:ends[i + 1]]``. Raises DecodeError.

    ``data``: uint8, ``ends``: int64.
    """
    rows = len(valid)
    spare = np.zeros(len(data) + 16, np.uint8)
    spare[: len(data)] = data
    stack = np.empty((_DEPTH, 5), np.int64)
    out_ends = np.empty(rows + 1, np.int64)
    foreign = np.empty(1024, np.int64)
    while True:
        count, row, why = measure(spare, ends, valid, foreign, out_ends, stack)
        if why == _BROKEN:
            raise DecodeError(f"a JSON value is broken (value {row} of {rows})")
        if why == 0:
            break
        foreign = np.empty(4 * len(foreign), np.int64)
    texts, text_ends = _foreign(spare, foreign[:count])
    size = int(out_ends[-1]) + int(text_ends[-1])
    if size >= 2**31:
        raise DecodeError("the values of one JSON column of one arena take 2 GiB or more")
    out = np.empty(size, np.uint8)
    write(spare, ends, valid, texts, text_ends, out, out_ends, stack)
    nulls = rows - int(np.count_nonzero(valid))
    validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    buffers = [validity, pa.py_buffer(out_ends.astype(np.int32)), pa.py_buffer(out)]
    json_texts = pa.Array.from_buffers(pa.string(), rows, buffers, null_count=nulls)
    try:
        json_texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"a JSON value is broken: {error}") from error
    return json_texts


def _foreign(
    d: np.ndarray[Any, Any], places: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (text bytes, ends) of doubles (place > 0) and opaque values (place < 0), in order."""
    if not len(places):
        return np.zeros(16, np.uint8), np.zeros(1, np.int64)
    doubles = places > 0
    at = places[doubles]
    texts, ends = _doubles(d[at[:, None] + np.arange(8)].view("<f8").ravel())
    if doubles.all():
        return texts, ends
    raw, limits = texts.tobytes(), ends.tolist()
    pieces: list[bytes] = []
    next_double = 0
    for place in places.tolist():
        if place > 0:
            pieces.append(raw[limits[next_double] : limits[next_double + 1]])
            next_double += 1
        else:
            pieces.append(json_binary.opaque_at(d, -place).encode())
    lengths = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(m) for m in pieces], out=lengths[1:])
    return np.frombuffer(bytearray(b"".join(pieces) + bytes(16)), np.uint8), lengths


def _doubles(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if not np.isfinite(values).all():
        raise DecodeError("a JSON number is not finite")
    shortest = pc.cast(arrow_buffers.numbers(values), pa.large_string())
    source_ends = np.frombuffer(shortest.buffers()[1], np.int64)[: len(values) + 1].copy()
    source = np.frombuffer(bytearray(shortest.buffers()[2] or b""), np.uint8)
    out = np.empty(32 * len(values) + 16, np.uint8)
    ends = np.empty(len(values) + 1, np.int64)
    double_texts(source, source_ends, out, ends)
    return out[: int(ends[-1])], ends
