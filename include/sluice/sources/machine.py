"""The machine-level pieces under the kernels: unaligned loads, block copies, CRC32.

No bounds are checked here; callers check.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.kernels import Deferred, kernel

__all__ = ["CRC_TABLES", "copy_bytes", "crc32_of", "kernel", "load_u16", "load_u32", "load_u64"]

_INSTRUCTIONS = "sluice.sources.instructions"

load_u16: Any = Deferred(_INSTRUCTIONS, "load_u16")
load_u32: Any = Deferred(_INSTRUCTIONS, "load_u32")
load_u64: Any = Deferred(_INSTRUCTIONS, "load_u64")
copy_bytes: Any = Deferred(_INSTRUCTIONS, "copy_bytes")
crc32_of: Any = Deferred(_INSTRUCTIONS, "crc32_of")
"""``crc32_of(buf, start, end, CRC_TABLES)``: CRC32 (zlib's) of ``buf[start:end]``, a uint64."""


def _crc_tables() -> np.ndarray[Any, Any]:
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for i in range(1, 16):
        previous = tables[i - 1]
        tables[i] = (previous >> 8) ^ tables[0][previous & 0xFF]
    return tables


CRC_TABLES = _crc_tables()
