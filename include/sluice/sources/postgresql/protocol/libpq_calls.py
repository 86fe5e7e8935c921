"""Calls of libpq from kernels, by the addresses of its functions; importing them imports Numba."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def get(typing_context: Any, function: Any, connection: Any, pointer: Any) -> Any:
    """Call ``PQgetCopyData(connection, &pointer[0], async=1)``; return the size of the message, or its code."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(word, [byte, byte.as_pointer(), word])
        called = builder.inttoptr(args[0], kind.as_pointer())
        out = context.make_array(signature.args[2])(context, builder, args[2])
        place = builder.bitcast(out.data, byte.as_pointer())
        size = builder.call(called, [builder.inttoptr(args[1], byte), place, ir.Constant(word, 1)])
        return builder.sext(size, ir.IntType(64))

    return types.int64(types.int64, types.int64, pointer), codegen


@intrinsic  # type: ignore[untyped-decorator]
def free(typing_context: Any, function: Any, address: Any) -> Any:
    """Call ``PQfreemem(address)``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        called = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), [byte]).as_pointer())
        builder.call(called, [builder.inttoptr(args[1], byte)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def consume(typing_context: Any, function: Any, connection: Any) -> Any:
    """Call ``PQconsumeInput(connection)``, which takes what has arrived without waiting; 0: the connection failed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        called = builder.inttoptr(args[0], ir.FunctionType(word, [byte]).as_pointer())
        return builder.sext(builder.call(called, [builder.inttoptr(args[1], byte)]), ir.IntType(64))

    return types.int64(types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def copy(typing_context: Any, target: Any, target_at: Any, address: Any, count: Any) -> Any:
    """Copy ``count`` bytes from an address into a uint8 array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, args[0])
        at = context.cast(builder, args[1], signature.args[1], types.intp)
        size = context.cast(builder, args[3], signature.args[3], types.intp)
        source = builder.inttoptr(args[2], ir.IntType(8).as_pointer())
        cgutils.raw_memcpy(builder, builder.gep(into.data, [at]), source, size, 1)
        return context.get_dummy_value()

    return types.void(target, target_at, types.int64, count), codegen
