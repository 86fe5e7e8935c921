"""The instructions behind :mod:`sluice.sources.machine`; importing them imports Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba.core import cgutils, config, types
from numba.extending import intrinsic

from sluice.kernels import kernel

__all__ = ["copy_bytes", "crc32_of", "load_u16", "load_u32", "load_u64"]


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
    """Copy ``count`` bytes between two uint8 arrays (memcpy)."""

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


@kernel
def _crc32_by_tables(buf: Any, start: Any, end: Any, tables: Any) -> Any:
    """Compute a CRC32, sixteen bytes per step: about 1.5 bytes per nanosecond."""
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


# The sum by carry-less multiplication, as "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Gopal et al.,
# Intel 2009) has it: sixteen bytes are folded onto the next sixteen, four such lanes side by side in long events. The
# constants are powers of x modulo the polynomial, bits reversed, as they stand there: x^(4*128+32), x^(4*128-32) and
# x^(128+32), x^(128-32).
_FOLD_64 = (0x154442BD4, 0x1C6E41596)
_FOLD_16 = (0x1751997D0, 0x0CCAA009E)
_FOLD_4 = 0x163CD6124  # x^64
_QUOTIENT, _POLYNOMIAL = 0x1F7011641, 0x1DB710641  # x^64 divided by the polynomial; the polynomial
_LANES = ir.VectorType(ir.IntType(64), 2)


@intrinsic  # type: ignore[untyped-decorator]
def _fold(typing_context: Any, buf: Any, at: Any, end: Any, low: Any, high: Any) -> Any:
    """Fold ``buf[at:end]`` (a multiple of 16 bytes) onto the 128 bits (low, high); returns the folded 128 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, byte = ir.IntType(64), ir.IntType(8)
        view = context.make_array(signature.args[0])(context, builder, args[0])
        at, end = (context.cast(builder, args[i], signature.args[i], types.int64) for i in (1, 2))
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_LANES, [_LANES, _LANES, byte]), "llvm.x86.pclmulqdq"
        )

        def load(position: Any) -> Any:
            pointer = builder.bitcast(builder.gep(view.data, [position]), _LANES.as_pointer())
            value = builder.load(pointer)
            value.align = 1
            return value

        def folded(state: Any, by: tuple[int, int], onto: Any) -> Any:
            constant = ir.Constant(_LANES, [ir.Constant(word, by[0]), ir.Constant(word, by[1])])
            lows = builder.call(multiply, [state, constant, byte(0x00)])
            highs = builder.call(multiply, [state, constant, byte(0x11)])
            return builder.xor(builder.xor(lows, highs), onto)

        state = builder.insert_element(ir.Constant(_LANES, ir.Undefined), args[3], ir.IntType(32)(0))
        state = builder.insert_element(state, args[4], ir.IntType(32)(1))
        entry = builder.block
        wide, wide_body, join, narrow, narrow_body, finish = (
            builder.append_basic_block(name) for name in ("wide", "wide_body", "join", "narrow", "narrow_body", "done")
        )
        # four lanes: the state is the first, the next 48 bytes are the others
        builder.cbranch(builder.icmp_signed(">=", builder.sub(end, at), word(48 + 64)), wide, narrow)
        builder.position_at_end(wide)
        lanes = [state, *(load(builder.add(at, word(16 * i))) for i in range(3))]
        behind = builder.add(at, word(48))
        builder.branch(wide_body)
        builder.position_at_end(wide_body)
        here = builder.phi(word)
        here.add_incoming(behind, wide)
        phis = []
        for lane in lanes:
            phi = builder.phi(_LANES)
            phi.add_incoming(lane, wide)
            phis.append(phi)
        stepped = [folded(phi, _FOLD_64, load(builder.add(here, word(16 * i)))) for i, phi in enumerate(phis)]
        next_at = builder.add(here, word(64))
        here.add_incoming(next_at, wide_body)
        for phi, lane in zip(phis, stepped, strict=True):
            phi.add_incoming(lane, wide_body)
        builder.cbranch(builder.icmp_signed(">=", builder.sub(end, next_at), word(64)), wide_body, join)
        builder.position_at_end(join)
        joined = stepped[0]
        for lane in stepped[1:]:
            joined = folded(joined, _FOLD_16, lane)
        builder.branch(narrow)
        builder.position_at_end(narrow)
        position, current = builder.phi(word), builder.phi(_LANES)
        for block, offset, value in ((entry, at, state), (join, next_at, joined)):
            position.add_incoming(offset, block)
            current.add_incoming(value, block)
        builder.cbranch(builder.icmp_signed("<", position, end), narrow_body, finish)
        builder.position_at_end(narrow_body)
        position.add_incoming(builder.add(position, word(16)), narrow_body)
        current.add_incoming(folded(current, _FOLD_16, load(position)), narrow_body)
        builder.branch(narrow)
        builder.position_at_end(finish)
        pair = [builder.extract_element(current, ir.IntType(32)(i)) for i in (0, 1)]
        return context.make_tuple(builder, signature.return_type, pair)

    pair = types.UniTuple(types.uint64, 2)  # type: ignore[attr-defined]
    return pair(buf, at, end, types.uint64, types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def _reduce(typing_context: Any, low: Any, high: Any) -> Any:
    """Reduce the folded 128 bits modulo the polynomial.

    Two more products reduce them to 96 and 64 bits, Barrett's method to 32 (constants: same paper).
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, byte, index = ir.IntType(64), ir.IntType(8), ir.IntType(32)
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_LANES, [_LANES, _LANES, byte]), "llvm.x86.pclmulqdq"
        )

        def product(value: Any, by: int) -> tuple[Any, Any]:
            lanes = builder.insert_element(ir.Constant(_LANES, [0, 0]), value, index(0))
            carryless = builder.call(multiply, [lanes, ir.Constant(_LANES, [by, 0]), byte(0)])
            return builder.extract_element(carryless, index(0)), builder.extract_element(carryless, index(1))

        def lower(value: Any) -> Any:
            return builder.and_(value, word(0xFFFFFFFF))

        first, second = product(args[0], _FOLD_16[1])
        first = builder.xor(first, args[1])
        above = builder.or_(builder.lshr(first, word(32)), builder.shl(second, word(32)))
        rest = builder.xor(product(lower(first), _FOLD_4)[0], above)
        quotient = product(lower(rest), _QUOTIENT)[0]
        return builder.lshr(builder.xor(rest, product(lower(quotient), _POLYNOMIAL)[0]), word(32))

    return types.uint64(types.uint64, types.uint64), codegen


@kernel
def _crc32_by_folding(buf: Any, start: Any, end: Any, tables: Any) -> Any:
    """Compute a CRC32: some 15 bytes per nanosecond in long events, 7 ns for one of 27 bytes.

    The odd bytes come first, after zero bytes, which do not change a sum that is still empty.
    """
    size = np.int64(end) - np.int64(start)
    if size < 16:
        return _crc32_by_tables(buf, start, end, tables)
    at = np.int64(start)
    odd = size & 15
    low = load_u64(buf, at) ^ np.uint64(0xFFFFFFFF)
    high = load_u64(buf, at + 8)
    if odd == 0:
        at += 16
    else:
        # the first ``odd`` bytes, moved to the top of the 128 bits
        bits = np.uint64(8 * (16 - odd))
        if bits >= 64:
            high = low << (bits - np.uint64(64))
            low = np.uint64(0)
        else:
            high = (high << bits) | (low >> (np.uint64(64) - bits))
            low = low << bits
        at += odd
        if odd < 4:  # the start value's ones reach into the next sixteen bytes: fold those by hand
            rest = np.uint64(0xFFFFFFFF) >> np.uint64(8 * odd)
            low, high = _fold(buf, at, at + 16, low, high)
            low ^= rest
            at += 16
    low, high = _fold(buf, at, end, low, high)
    return _reduce(low, high) ^ np.uint64(0xFFFFFFFF)


def _can_fold() -> bool:
    """Return True if the processor that the kernels are compiled for can multiply without carry."""
    if config.CPU_NAME or config.CPU_FEATURES:
        return "+pclmul" in str(config.CPU_FEATURES or "")
    return bool(get_host_cpu_features().get("pclmul"))


crc32_of: Any = _crc32_by_folding if _can_fold() else _crc32_by_tables
