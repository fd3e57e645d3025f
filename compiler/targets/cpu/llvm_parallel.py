"""Parallel loops on the threads of GCC's OpenMP library, which comes with every g++.

::

    parallel for i in N: body      ->      GOMP_parallel(share, &context, threads, 0)

    share(context): t, n = omp_get_thread_num(), omp_get_num_threads()
                    part(*context, N * t / n, N * (t + 1) / n, workspace + t * its size)

``part`` is the loop between two bounds, with a workspace of its own for each thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

LIBRARY = "libgomp.so.1"

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

_POINTER = ir.PointerType()
_I32, _I64 = ir.IntType(32), ir.IntType(64)


@cache
def has_threads() -> bool:
    """Load the library; False if it is missing."""
    try:
        llvm.load_library_permanently(LIBRARY)
    except RuntimeError:
        return False
    return True


def declare_part(module: ir.Module, name: str, buffers: int, counters: int) -> ir.Function:
    """``part(buffers, counters, first, end, workspace)``."""
    kinds = [*[_POINTER] * buffers, *[_I64] * (counters + 2), _POINTER]
    signature = ir.FunctionType(ir.VoidType(), kinds)
    part = ir.Function(module, signature, module.get_unique_name(name))
    part.linkage = "internal"
    for argument in part.args:
        if argument.type == _POINTER:
            argument.add_attribute("noalias")
    return part


def call_in_parallel(
    builder: Value,
    entry: Value,
    part: ir.Function,
    captured: Sequence[Value],
    workspace: tuple[Value, int],
    extent: int,
    threads: int,
) -> None:
    """Share ``extent`` iterations of ``part`` among threads; ``workspace`` is an address and the
    number of bytes that each thread gets."""
    base, size_bytes = workspace
    kind = ir.LiteralStructType([*(value.type for value in captured), _POINTER])
    context = entry.alloca(kind)
    context.type = _POINTER
    for index, value in enumerate((*captured, base)):
        field = builder.gep(context, [_I32(0), _I32(index)], source_etype=kind)
        builder.store(value, field)
    share = _share(builder.module, part, kind, size_bytes, extent)
    run = _function(
        builder.module, "GOMP_parallel", ir.VoidType(), [_POINTER, _POINTER, _I32, _I32]
    )
    builder.call(run, [share, context, _I32(threads), _I32(0)])


def _share(
    module: ir.Module, part: ir.Function, kind: Value, size_bytes: int, extent: int
) -> ir.Function:
    """The function that each thread runs: ``part`` for the thread's share of the iterations."""
    signature = ir.FunctionType(ir.VoidType(), [_POINTER])
    share = ir.Function(module, signature, module.get_unique_name(f"{part.name}.share"))
    share.linkage = "internal"
    builder = ir.IRBuilder(share.append_basic_block("entry"))
    thread, threads = (
        builder.sext(builder.call(_function(module, f"omp_get_{name}", _I32, []), []), _I64)
        for name in ("thread_num", "num_threads")
    )
    first, end = (
        builder.udiv(builder.mul(_I64(extent), index), threads)
        for index in (thread, builder.add(thread, _I64(1)))
    )
    values = []
    for index, element in enumerate(kind.elements):
        field = builder.gep(share.args[0], [_I32(0), _I32(index)], source_etype=kind)
        values.append(builder.load(field, typ=element))
    offset = builder.mul(thread, _I64(size_bytes))
    workspace = builder.gep(values[-1], [offset], source_etype=ir.IntType(8))
    with builder.if_then(builder.icmp_unsigned("<", first, end)):
        builder.call(part, [*values[:-1], first, end, workspace])
    builder.ret_void()
    return share


def _function(module: ir.Module, name: str, result: Value, kinds: Sequence[Value]) -> Value:
    known = module.globals.get(name)
    return known or ir.Function(module, ir.FunctionType(result, kinds), name)
