"""The machine-level pieces under the kernels: unaligned loads, block copies, CRC32. No bounds are checked here; callers check."""

from __future__ import annotations

from typing import Any, TypeVar

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

_F = TypeVar("_F")


def kernel(function: _F) -> _F:
    """Compile for this processor, without the interpreter lock, and keep the result on disk."""
    return nb.njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]


def _loader(bits: int, result: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(typing_context: Any, array: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            view = context.make_array(signature.args[0])(context, builder, args[0])
            offset = context.cast(builder, args[1], signature.args[1], types.intp)
            pointer = builder.gep(view.data, [offset])
            pointer = builder.bitcast(pointer, ir.IntType(bits).as_pointer())
            value = builder.load(pointer)
            value.align = 1
            return builder.zext(value, ir.IntType(64)) if bits < 64 else value

        return result(array, index), codegen

    return load


load_u16 = _loader(16, types.uint64)
load_u32 = _loader(32, types.uint64)
load_u64 = _loader(64, types.uint64)


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, count: Any) -> Any:
    """memcpy of ``count`` bytes between two uint8 arrays."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, args[0])
        out_of = context.make_array(signature.args[2])(context, builder, args[2])
        to_offset = context.cast(builder, args[1], signature.args[1], types.intp)
        from_offset = context.cast(builder, args[3], signature.args[3], types.intp)
        size = context.cast(builder, args[4], signature.args[4], types.intp)
        cgutils.raw_memcpy(
            builder, builder.gep(into.data, [to_offset]), builder.gep(out_of.data, [from_offset]), size, 1
        )
        return context.get_dummy_value()

    return types.void(target, target_at, source, source_at, count), codegen


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


@kernel
def crc32_of(buf: Any, start: Any, end: Any, tables: Any) -> Any:
    """CRC32 (zlib's) of ``buf[start:end]``, sixteen bytes a step; ``tables`` is CRC_TABLES."""
    crc = np.uint64(0xFFFFFFFF)
    i = np.int64(start)
    m = np.uint64(0xFF)
    while i + 16 <= end:
        a = load_u64(buf, i) ^ crc
        b = load_u64(buf, i + 8)
        crc = np.uint64(
            tables[15, a & m]
            ^ tables[14, (a >> np.uint64(8)) & m]
            ^ tables[13, (a >> np.uint64(16)) & m]
            ^ tables[12, (a >> np.uint64(24)) & m]
            ^ tables[11, (a >> np.uint64(32)) & m]
            ^ tables[10, (a >> np.uint64(40)) & m]
            ^ tables[9, (a >> np.uint64(48)) & m]
            ^ tables[8, a >> np.uint64(56)]
            ^ tables[7, b & m]
            ^ tables[6, (b >> np.uint64(8)) & m]
            ^ tables[5, (b >> np.uint64(16)) & m]
            ^ tables[4, (b >> np.uint64(24)) & m]
            ^ tables[3, (b >> np.uint64(32)) & m]
            ^ tables[2, (b >> np.uint64(40)) & m]
            ^ tables[1, (b >> np.uint64(48)) & m]
            ^ tables[0, b >> np.uint64(56)]
        )
        i += 16
    while i < end:
        crc = np.uint64(tables[0, (crc ^ np.uint64(buf[i])) & m]) ^ (crc >> np.uint64(8))
        i += 1
    return crc ^ np.uint64(0xFFFFFFFF)
