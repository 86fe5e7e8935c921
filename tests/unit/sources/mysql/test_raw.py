"""The machine-level pieces: checksums as zlib has them, by tables and by carry-less multiplication."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.sources import instructions, machine

KINDS = [instructions._crc32_by_tables, machine.crc32_of]


@pytest.mark.parametrize("sum_of", KINDS, ids=["tables", "this processor"])
def test_every_length_and_alignment(sum_of):
    noise = np.random.default_rng(7).integers(0, 256, 1400, dtype=np.uint8)
    for size in range(600):
        for start in (0, 1, 7, 13):
            want = zlib.crc32(noise[start : start + size].tobytes())
            assert int(sum_of(noise, start, start + size, machine.CRC_TABLES)) == want, (size, start)


@given(data=st.binary(max_size=5000), start=st.integers(0, 40))
def test_any_bytes(data, start):
    buffer = np.frombuffer(bytearray(b"\x5a" * start + data + b"\xa5" * 16), np.uint8)
    for sum_of in KINDS:
        assert int(sum_of(buffer, start, start + len(data), machine.CRC_TABLES)) == zlib.crc32(data)
