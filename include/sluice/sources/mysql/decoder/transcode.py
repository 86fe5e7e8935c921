"""Text columns to UTF-8: a kernel over the charset's tables, Python's codecs for UTF-16, UTF-32 and gb18030."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import DecodeError
from sluice.mysql.charsets import UTF8, decode_bytes, tables_of
from sluice.sources.machine import kernel
from sluice.sources.mysql.events.unreadable import AROUND

_Array = np.ndarray[Any, Any]


@kernel
def transcode(data: Any, ends: Any, first: Any, second: Any, third: Any, write: Any, out: Any, out_ends: Any) -> Any:
    """Convert the text of one column to UTF-8; without ``write`` only its ``out_ends``.

    Returns -1, or the offset of bytes that are no character.
    """
    q = np.int64(0)
    out_ends[0] = 0
    for i in range(len(ends) - 1):
        j = ends[i]
        while j < ends[i + 1]:
            p = np.int64(first[data[j]])
            start = j
            j += 1
            if p < -1:
                j += 1 if p == -2 else 2
                if j > ends[i + 1]:
                    return start
                if p == -2:
                    p = np.int64(second[np.int64(data[j - 2]) << 8 | np.int64(data[j - 1])])
                else:
                    p = np.int64(third[np.int64(data[j - 2]) << 8 | np.int64(data[j - 1])])
            if p < 0:
                return start
            if p < 0x80:
                if write:
                    out[q] = p
                q += 1
            elif p < 0x800:
                if write:
                    out[q] = 0xC0 | (p >> 6)
                    out[q + 1] = 0x80 | (p & 63)
                q += 2
            else:
                if write:
                    out[q] = 0xE0 | (p >> 12)
                    out[q + 1] = 0x80 | ((p >> 6) & 63)
                    out[q + 2] = 0x80 | (p & 63)
                q += 3
        out_ends[i + 1] = q
    return np.int64(-1)


def to_utf8(charset: str, data: _Array, ends: _Array) -> tuple[_Array, _Array]:
    """Convert values ``data[ends[i]:ends[i + 1]]`` (uint8, int64) of a charset to (data, ends) in UTF-8.

    Raises:
        DecodeError: bytes that are no character of the charset. UnsupportedType: a charset that is not known.
    """
    if charset in UTF8:
        _check(charset, data, ends)
        return data, ends
    tables = tables_of(charset)
    if tables is None:
        return _by_codec(charset, data, ends)
    wide = np.empty(len(ends), np.int64)
    bad = transcode(data, ends, *tables, False, data, wide)
    if bad >= 0:
        raise _no_character(charset, data[bad : bad + 3].tobytes())
    out = np.empty(int(wide[-1]), np.uint8)
    transcode(data, ends, *tables, True, out, wide)
    return out, wide


def _check(charset: str, data: _Array, ends: _Array) -> None:
    if int(data.max(initial=0)) < 0x80:
        return
    probe = pa.Array.from_buffers(pa.large_string(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    try:
        probe.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"a value is not valid {charset}") from error


def _by_codec(charset: str, data: _Array, ends: _Array) -> tuple[_Array, _Array]:
    raw, bounds = data.tobytes(), ends.tolist()
    try:
        encoded = [decode_bytes(raw[a:b], charset).encode() for a, b in itertools.pairwise(bounds)]
    except UnicodeError as error:
        raise DecodeError(f"a value is not valid {charset}: {error}") from error
    wide = np.zeros(len(ends), np.int64)
    np.cumsum([len(m) for m in encoded], out=wide[1:])
    return np.frombuffer(bytearray(b"".join(encoded)), np.uint8), wide


def _no_character(charset: str, data: bytes) -> DecodeError:
    return DecodeError(
        f"the bytes {data.hex(' ')} begin with no character of {charset}",
        hint=f"the server itself reads them as '?': correct the value there and leave the log's out: {AROUND}; or "
        "exclude the table",
    )
