"""The JSON kernel against the tree, which is written the plain way: the same text, and the same fate for damaged
values.
"""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import DecodeError
from sluice.sources.mysql.decoder.json_binary import tree, tree_text
from sluice.sources.mysql.decoder.json_diff import parse_path, patched_text
from sluice.sources.mysql.decoder.json_text import json_texts

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=200),
    lambda children: st.lists(children, max_size=6) | st.dictionaries(st.text(max_size=20), children, max_size=6),
    max_leaves=40,
)


def packed_length(size: int) -> bytes:
    out = b""
    while size > 127:
        out += bytes([size & 127 | 128])
        size >>= 7
    return out + bytes([size])


def scalar(value) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([0 if value is None else 1 if value else 2])
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        data = value.encode()
        return 12, packed_length(len(data)) + data
    for kind, fmt, low, high in (
        (5, "<h", -(2**15), 2**15),
        (6, "<H", 0, 2**16),
        (7, "<i", -(2**31), 2**31),
        (8, "<I", 0, 2**32),
        (9, "<q", -(2**63), 2**63),
    ):
        if low <= value < high:
            return kind, struct.pack(fmt, value)
    return 10, struct.pack("<Q", value)


def encode(value, large: bool) -> tuple[int, bytes]:
    """As the server writes it; ``large``: with offsets of four bytes."""
    if not isinstance(value, dict | list):
        return scalar(value)
    width, fmt = (4, "<I") if large else (2, "<H")
    keys = sorted((k.encode() for k in value), key=lambda k: (len(k), k)) if isinstance(value, dict) else []
    items = [value[k.decode()] for k in keys] if keys else list(value) if isinstance(value, list) else []
    head = 2 * width + len(keys) * (width + 2) + len(items) * (width + 1)
    key_entries, data = b"", b""
    for key in keys:
        key_entries += struct.pack(fmt, head + len(data)) + struct.pack("<H", len(key))
        data += key
    entries = b""
    for item in items:
        kind, raw = encode(item, large)
        if kind in {4, 5, 6} or (large and kind in {7, 8}):
            entries += bytes([kind]) + raw.ljust(width, b"\0")
        else:
            entries += bytes([kind]) + struct.pack(fmt, head + len(data))
            data += raw
    body = struct.pack(fmt, len(items)) + struct.pack(fmt, head + len(data)) + key_entries + entries + data
    return (0 if isinstance(value, dict) else 2) + large, body


def binary(value, large: bool) -> bytes:
    kind, data = encode(value, large)
    return bytes([kind]) + data


def printed(values: list[bytes | None]) -> list[str | None]:
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(v or b"") for v in values], out=ends[1:])
    data = np.frombuffer(bytearray(b"".join(v or b"" for v in values)), np.uint8)
    return json_texts(data, ends, np.array([v is not None for v in values], np.uint8)).to_pylist()


@given(st.lists(documents, max_size=5), st.booleans())
def test_the_kernel_prints_what_the_tree_prints(values, large):
    try:
        raw = [None, *(binary(v, large) for v in values), b""]
    except struct.error:  # too large for offsets of two bytes
        return
    texts = printed(raw)
    assert texts == [None, *(tree_text(tree(v)) for v in raw[1:])]
    assert [json.loads(t) for t in texts[1:-1]] == values


@given(documents, st.booleans(), st.data())
def test_damaged_values_are_broken_or_text_but_never_more(value, large, data):
    raw = bytearray(binary(value, large))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(1, len(raw)))]
    try:
        (text,) = printed([bytes(raw)])
    except DecodeError:
        return
    assert len(text) < 40 * len(raw) + 100


def test_values_that_share_their_parts_end():
    inner = struct.pack("<HH", 0, 4)
    for _ in range(60):  # arrays of two elements that both are the same next array
        size = 4 + 6 + len(inner)
        inner = struct.pack("<HH", 2, size) + 2 * (b"\x02" + struct.pack("<H", 10)) + inner
    for print_it in (lambda v: printed([v]), tree):
        with pytest.raises(DecodeError):
            print_it(b"\x02" + inner)


@pytest.mark.parametrize(
    ("path", "legs"),
    [("$", []), ("$.a[3].b", [b"a", 3, b"b"]), ('$."b c"."q\\""[0]', [b"b c", b'q"', 0]), ("$.é", ["é".encode()])],
)
def test_paths(path, legs):
    assert parse_path(path) == legs


@given(documents, st.binary(max_size=60))
def test_differences_made_of_anything_end(value, diffs):
    with contextlib.suppress(DecodeError):
        assert isinstance(patched_text(binary(value, True), diffs), str)
